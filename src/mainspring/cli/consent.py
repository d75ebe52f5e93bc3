"""`mainspring approvals approve` and `deny`: a person's answer, and the run that goes on with it."""

from getpass import getuser
from pathlib import Path

from msgspec import Struct

from mainspring.cli.follow import follow, launch
from mainspring.cli.plain import say
from mainspring.cli.reading import found, in_database, reader
from mainspring.cli.run import Setup, check_tools, view_for
from mainspring.engine.pending import Approvals
from mainspring.errors import InvalidRequest
from mainspring.items import ToolDefinition
from mainspring.loop.run import Run


class Answer(Struct, frozen=True):
    id: str
    approve: bool
    reason: str | None = None
    digest: str | None = None
    tenant: str = ""


def answer(said: Answer, setup: Setup, database: Path, *, as_json: bool) -> int:
    """Gives the answer, and shows the run that goes on; returns its exit code."""

    async def answered() -> int:
        async with reader(database) as reading:
            approval = await Approvals(reading).get(said.id, tenant=said.tenant)
            left = (await found(reading, approval.response_id, database)).run
        _check_servers(left, said.id)
        engine = setup.engine(database, model=left.spec.model)
        check_tools(engine, left)
        async with engine:
            done = await Approvals(engine).answer(
                said.id,
                approve=said.approve,
                reason=said.reason,
                digest=said.digest,
                tenant=said.tenant,
                by=f"user:{getuser()}",
                background=False,
            )
            if done.handle is None:
                more = f"mainspring approvals list {in_database(database)}"
                say(f"`{said.id}` is {done.approval.state}; its run goes on when its other calls are answered: {more}")
                return 0
            return await follow(done.handle, view_for(as_json), database)

    return launch(answered())


def _check_servers(run: Run, id: str) -> None:
    """Raises `InvalidRequest` if the run has tools of MCP servers, which only the server's own process has."""
    if any(isinstance(tool, ToolDefinition) and tool.kind == "mcp" for tool in run.spec.tools):
        raise InvalidRequest(f"run `{run.spec.id}` uses MCP servers; answer where they are: POST /v1/approvals/{id}")
