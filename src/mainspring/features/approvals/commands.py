"""`mainspring approvals`: calls that wait for a person."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from mainspring.features.approvals.pending import Approval

app = typer.Typer(name="approvals", help="Lists, shows, approves and denies the calls that wait for a person.")

Id = Annotated[str, typer.Argument(metavar="APPROVAL_ID", help="The request, as `list` names it.")]
Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that holds the runs.", show_default=False)]
Tenant = Annotated[str, typer.Option(metavar="NAME", help="Whose they are. Default: the default tenant's.", show_default=False)]
Reason = Annotated[str | None, typer.Option(metavar="TEXT", help="Why; a refusal tells it to the model.")]
Digest = Annotated[str | None, typer.Option(metavar="HASH", help="Answer only the call whose arguments have this digest.")]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="As for `run`. Default: the run's own.")]
BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="As for `run`.")]
ApiKey = Annotated[str | None, typer.Option(metavar="KEY", help="As for `run`.")]
Tools = Annotated[list[str] | None, typer.Option("--tool", metavar="MODULE:FUNCTION", help="As for `run`. Repeatable.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="The server's settings. Default: mainspring.toml.")]
Events = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON, as it is recorded.")]


@app.command("list")
def list_approvals(
    database: Database,
    state: Annotated[
        Literal["pending", "approved", "refused", "expired", "all"], typer.Option(metavar="STATE", help="Which, or `all`.")
    ] = "pending",
    tenant: Tenant = "",
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every approval as a line of JSON.")] = False,
) -> int:
    """Lists what waits for a person, newest first."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import reader
    from mainspring.cli.plain import say
    from mainspring.features.approvals.pending import Approvals

    async def listed() -> int:
        async with reader(database) as engine:
            found = await Approvals(engine.core).list(tenant=tenant, state=None if state == "all" else state, limit=limit)
        if json:
            write_lines(found.approvals)
            return 0
        write_table([("approval", "state", "asked", "expires", "call"), *[_cells(approval) for approval in found.approvals]])
        if found.has_more:
            say(f"there are more; see them with --limit {limit * 5}")
        return 0

    return launch(listed())


@app.command()
def show(
    approval_id: Id,
    database: Database,
    tenant: Tenant = "",
    json: Annotated[bool, typer.Option("--json", help="Print it as a line of JSON.")] = False,
) -> int:
    """Shows what is to be done, with what arguments, and which rule asks."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import reader
    from mainspring.features.approvals.pending import Approvals

    async def shown() -> int:
        async with reader(database) as engine:
            approval = await Approvals(engine.core).get(approval_id, tenant=tenant)
        if json:
            write_lines([approval])
        else:
            write_table(_lines(approval))
        return 0

    return launch(shown())


@app.command()
def approve(
    approval_id: Id,
    database: Database,
    tenant: Tenant = "",
    reason: Reason = None,
    digest: Digest = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tool: Tools = None,
    config: Config = None,
    json: Events = False,
) -> int:
    """Approves a call, and runs on from there under the settings of the server. Pass the same `--tool` as to `run`."""
    from mainspring.features.approvals.answer import Answer, Place, answer

    place = Place(database, config, model, base_url, api_key, tuple(tool or ()))
    return answer(Answer(approval_id, True, reason, digest, tenant), place, as_json=json)


@app.command()
def deny(
    approval_id: Id,
    database: Database,
    tenant: Tenant = "",
    reason: Reason = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tool: Tools = None,
    config: Config = None,
    json: Events = False,
) -> int:
    """Refuses a call, and runs on from there: the model is told."""
    from mainspring.features.approvals.answer import Answer, Place, answer

    place = Place(database, config, model, base_url, api_key, tuple(tool or ()))
    return answer(Answer(approval_id, False, reason, None, tenant), place, as_json=json)


def _cells(approval: "Approval") -> tuple[str, ...]:
    from mainspring.cli.text import call_line

    call = call_line(approval.tool, approval.arguments, 80)
    return approval.id, approval.state, _moment(approval.asked_at), _moment(approval.expires_at), call


def _lines(approval: "Approval") -> list[tuple[str, ...]]:
    told = [
        ("approval", approval.id),
        ("state", approval.state),
        ("tool", f"{approval.server_label}/{approval.tool}" if approval.server_label else approval.tool),
        ("arguments", approval.arguments),
        ("digest", approval.digest),
        ("why", f"{approval.question} (policy `{approval.policy}`)"),
        ("asked", _moment(approval.asked_at)),
        ("expires", _moment(approval.expires_at)),
        ("run", approval.response_id),
    ]
    return [*told, ("continued by", approval.continued_by)] if approval.continued_by is not None else [*told]


def _moment(at: float | None) -> str:
    return "never" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
