"""`mainspring approvals`: calls that wait for a person, and the answer that lets their run go on."""

import shlex
from typing import Annotated, Any, Final, Literal

import msgspec
import typer
from msgspec import Struct, UnsetType

from mainspring.cli import options
from mainspring.cli.ask import follow_with_answers
from mainspring.cli.console import format_call
from mainspring.cli.context import Assembly, EngineOptions, build_engine
from mainspring.cli.database import choose_id, find_run, open_database
from mainspring.cli.operator import name_operator
from mainspring.cli.output import format_moment, say, say_more, write_lines, write_table
from mainspring.cli.tenant_choice import choose_tenants, write_of_tenants
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import to_json
from mainspring.engine.engine import Engine
from mainspring.features.approvals.pending import Approval, Approvals

# Policies that are only in force if the settings say so.
_OF_SETTINGS: Final = ("tool_rules", "autonomy_level", "commands", "paths", "domains")

# A person types the beginning of an id that they have just seen; what an approval shows is read from its run.
LOOKED_AT: Final = 100

app = typer.Typer()

ApprovalId = Annotated[str, typer.Argument(metavar="APPROVAL_ID", help="Approval: its id, the beginning of it, or `last`.")]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; a refusal tells it to the model.")]


@app.command("list")
async def list_approvals(
    database: options.Database,
    state: Annotated[
        Literal["pending", "approved", "refused", "expired", "all"], typer.Option(metavar="STATE", help="Only in this state.")
    ] = "pending",
    tenant: options.Tenant = "",
    all_tenants: options.AllTenants = False,
    limit: options.Limit = 20,
    json: options.AsJson = False,
) -> None:
    """Lists the calls that wait for a person, newest first."""
    wanted = None if state == "all" else state
    async with open_database(database) as engine:
        tenants = await choose_tenants(engine.store, tenant, all_tenants=all_tenants)
        pages = {each: await Approvals(engine).list(tenant=each, state=wanted, limit=limit) for each in tenants}
    found = {each: page.approvals for each, page in pages.items()}
    none = "no call waits for a person; `--state all` lists those that did" if state == "pending" else "there is no such call"
    write_of_tenants(found, ("approval", "state", "asked", "expires", "call"), _cells, as_json=json, named=all_tenants, none=none)
    if any(page.has_more for page in pages.values()) and not json:
        say_more(limit)


@app.command()
async def show(
    approval_id: ApprovalId, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False
) -> None:
    """Shows the call, its arguments, and which rule asks."""
    async with open_database(database) as engine:
        approval = await _find_approval(engine, approval_id, tenant)
    if json:
        write_lines([approval])
    else:
        write_table(_lines(approval))


@app.command()
@options.expand_groups
async def approve(
    approval_id: ApprovalId,
    tenant: options.Tenant = "",
    reason: Reason = None,
    digest: Annotated[
        str | None, typer.Option(metavar="HASH", help="Approve only the call whose arguments have this digest.")
    ] = None,
    content: Annotated[
        str | None, typer.Option(metavar="JSON", help="The fields of the form, if an MCP server has sent one: a JSON object.")
    ] = None,
    onward: options.Continuation = options.Continuation(),  # noqa: B008 (frozen)
    json: options.EventsAsJson = False,
) -> int:
    """Approves a call, and runs on from there under the settings of the server. Pass the same `--tool` as to `run`."""
    answer = GivenAnswer(approval_id, True, reason, digest, tenant, _parse_content(content))
    return await _answer(answer, onward, json)


@app.command()
@options.expand_groups
async def deny(
    approval_id: ApprovalId,
    tenant: options.Tenant = "",
    reason: Reason = None,
    onward: options.Continuation = options.Continuation(),  # noqa: B008 (frozen)
    json: options.EventsAsJson = False,
) -> int:
    """Denies a call, and runs on from there: the model is told."""
    answer = GivenAnswer(approval_id, False, reason, None, tenant)
    return await _answer(answer, onward, json)


class GivenAnswer(Struct, frozen=True):
    id: str
    approve: bool
    reason: str | None
    digest: str | None
    tenant: str
    content: dict[str, Any] | None = None


async def _answer(said: GivenAnswer, onward: options.Continuation, as_json: bool) -> int:
    """Gives the answer, and shows the run that goes on; returns its exit code."""
    database = onward.choose_database()
    async with open_database(database) as reading:
        approval = await _find_approval(reading, said.id, said.tenant)
        run = (await find_run(reading, approval.response_id, database)).run
    settings = {
        "database": database.given,
        "model": onward.model or run.spec.model,
        "base_url": onward.base_url,
        "backend_key": onward.backend_key,
        "tools": options.as_texts(onward.tool),
    }
    # A step of a workflow goes on without a model.
    kind: Literal["steps", "server"] = "steps" if run.spec.step_call is not None else "server"
    assembly = build_engine(EngineOptions(kind=kind, settings=settings, config=onward.config))
    _check_rule(approval, assembly)
    assembly.check_run(run)
    async with assembly.lifespan:
        done = await Approvals(assembly.engine, assembly.mcp_labels).answer(
            approval.id,
            approve=said.approve,
            reason=said.reason,
            digest=said.digest,
            content=said.content,
            tenant=said.tenant,
            by=name_operator(),
            background=False,
        )
        if done.handle is None:
            more = f"mainspring approvals list{options.name_database(database)}"
            say(f"`{approval.id}` is {done.approval.state}; its run goes on when its other calls are answered: {more}")
            return 0
        return await follow_with_answers(assembly, done.handle, database, as_json=as_json)


async def _find_approval(engine: Engine, given: str, tenant: str) -> Approval:
    """The one that is meant by its id, by the beginning of it among the newest, or by `last`: the newest that waits, or else the
    newest. Raises `NotFound` that says how to list them."""
    approvals = Approvals(engine)
    try:
        return await approvals.get(given, tenant=tenant)
    except NotFound as error:
        for state in ("pending", None):
            page = await approvals.list(tenant=tenant, state=state, limit=LOOKED_AT)
            if (meant := choose_id(given, [each.id for each in page.approvals], "approvals")) != given:
                return await approvals.get(meant, tenant=tenant)
        whose = f" --tenant {shlex.quote(tenant)}" if tenant else ""
        how = f"list them with: mainspring approvals list --state all{whose}"
        raise NotFound(f"{error.message.rstrip('.')}; {how}") from error


def _parse_content(text: str | None) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"--content must be a JSON object: {error}") from None


def _check_rule(approval: Approval, assembly: Assembly) -> None:
    """Raises `InvalidRequest` if the rule that asks is not in force here: these are not the settings that the run is under."""
    if approval.policy in _OF_SETTINGS and approval.policy not in assembly.policies:
        told = f"the rule `{approval.policy}` asks about this call, and these settings do not have it"
        how = f"pass those of the server with --config FILE, or answer there: POST /v1/approvals/{approval.id}"
        raise InvalidRequest(f"{told}; {how}")


def _cells(approval: Approval) -> tuple[str, ...]:
    call = format_call(approval.tool, approval.arguments, 80)
    return approval.id, approval.state, format_moment(approval.asked_at), format_moment(approval.expires_at), call


def _lines(approval: Approval) -> list[tuple[str, ...]]:
    told = [
        ("approval", approval.id),
        ("state", approval.state),
        ("tool", f"{approval.server_label}/{approval.tool}" if approval.server_label else approval.tool),
        ("arguments", approval.arguments),
        ("digest", approval.digest),
        ("why", f"{approval.question} (policy `{approval.policy}`)"),
        ("asked", format_moment(approval.asked_at)),
        ("expires", format_moment(approval.expires_at)),
        ("run", approval.response_id),
    ]
    if not isinstance(approval.elicitation, UnsetType):
        told.append(("asked for", to_json(approval.elicitation.get("requested_schema") or approval.elicitation.get("url"))))
    return [*told, ("continued by", approval.continued_by)] if approval.continued_by is not None else [*told]
