"""`mainspring approvals approve` and `deny`: a person's answer, and the run that goes on with it, under the server's settings."""

from getpass import getuser
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from mainspring.app.build import composed
from mainspring.app.engine import Engine
from mainspring.app.serve import chosen
from mainspring.app.settings import Settings, load
from mainspring.cli.follow import follow, launch
from mainspring.cli.open_database import found, in_database, reader
from mainspring.cli.plain import say
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ServerTool, ToolDefinition
from mainspring.core.run import Run
from mainspring.core.spec import STEP_MODEL
from mainspring.engine.policy_order import order_policies
from mainspring.features.approvals.pending import Approval, Approvals
from mainspring.features.governance.governance_settings import build_policies
from mainspring.features.runs.run_command import check_governed, check_tools, view_for
from mainspring.providers.scripted import Scripted
from mainspring.tools.addresses import AddressGuard

# Those that only the settings put in force.
_OF_SETTINGS: Final = ("tool_rules", "autonomy_level", "commands", "paths", "domains")


class Answer(Struct, frozen=True):
    id: str
    approve: bool
    reason: str | None = None
    digest: str | None = None
    tenant: str = ""


class Place(Struct, frozen=True):
    """Where the run is, and what it is to go on with."""

    database: Path
    config: Path | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    tools: tuple[str, ...] = ()

    def settings(self, model: str) -> Settings:
        given = {"database": str(self.database), "model": self.model or model, "base_url": self.base_url}
        return load({**given, "backend_key": self.api_key, "tools": self.tools or None}, file=self.config)


def answer(said: Answer, place: Place, *, as_json: bool) -> int:
    """Gives the answer, and shows the run that goes on; returns its exit code."""

    async def left() -> tuple[Approval, Run]:
        async with reader(place.database) as reading:
            approval = await Approvals(reading.core).get(said.id, tenant=said.tenant)
            return approval, (await found(reading, approval.response_id, place.database)).run

    async def answered(engine: Engine, labels: set[str]) -> int:
        async with engine:
            done = await Approvals(engine.core, labels).answer(
                said.id,
                approve=said.approve,
                reason=said.reason,
                digest=said.digest,
                tenant=said.tenant,
                by=f"user:{getuser()}",
                background=False,
            )
            if done.handle is None:
                more = f"mainspring approvals list {in_database(place.database)}"
                say(f"`{said.id}` is {done.approval.state}; its run goes on when its other calls are answered: {more}")
                return 0
            return await follow(done.handle, view_for(as_json), place.database)

    async def continued() -> int:
        approval, run = await left()
        settings = place.settings(run.spec.model)
        _check_rule(approval, settings)
        engine = _engine(settings, run)
        labels = {server.label for server in engine.mcp.servers}
        _check_servers(run, labels, said.id)
        check_tools(engine, _without_servers(run))
        check_governed(engine, run)
        return await answered(engine, labels)

    return launch(continued())


def _engine(settings: Settings, run: Run) -> Engine:
    if run.spec.step_call is None:
        return chosen(settings).engine
    # A step of a workflow goes on without a model.
    return composed(settings, Scripted(), STEP_MODEL, database=Path(settings.database))


def _check_rule(approval: Approval, settings: Settings) -> None:
    """Raises `InvalidRequest` if the rule that asks is not in force here: these are not the settings that the run is under."""
    slots = build_policies(settings.governance, AddressGuard(settings.allow_hosts))
    here = [policy.name for policy in order_policies(slots)]
    if approval.policy in _OF_SETTINGS and approval.policy not in here:
        told = f"the rule `{approval.policy}` asks about this call, and these settings do not have it"
        how = f"pass those of the server with --config FILE, or answer there: POST /v1/approvals/{approval.id}"
        raise InvalidRequest(f"{told}; {how}")


def _without_servers(run: Run) -> Run:
    tools = [tool for tool in run.spec.tools if not (isinstance(tool, ToolDefinition) and tool.kind == "mcp")]
    return replace(run, spec=replace(run.spec, tools=tuple(tools)))


def _check_servers(run: Run, labels: set[str], id: str) -> None:
    """Raises `InvalidRequest` if the run has tools of MCP servers that are not in the settings."""
    tools = [tool for tool in run.spec.tools if isinstance(tool, ToolDefinition) and tool.kind == "mcp"]
    if any(not isinstance(tool.server, ServerTool) or tool.server.label not in labels for tool in tools):
        raise InvalidRequest(f"run `{run.spec.id}` uses MCP servers; answer where they are: POST /v1/approvals/{id}")
