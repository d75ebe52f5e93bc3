"""`mainspring audit` and `mainspring explain`: what was decided and done, by whom, and why."""

from collections.abc import Sequence
from typing import Annotated

import typer

from mainspring.cli.console import format_call
from mainspring.cli.database import NEWEST, choose_id, open_database
from mainspring.cli.exit import FAILURE
from mainspring.cli.options import AsJson, Database, EveryTenant, Limit, OneTenant
from mainspring.cli.output import format_moment, say, write_lines, write_table, write_text
from mainspring.cli.tenant_choice import choose_tenant
from mainspring.core.errors import NotFound
from mainspring.core.items import FunctionCall
from mainspring.engine.audit import AuditEntry, Auditor, entry_of
from mainspring.engine.engine import Engine
from mainspring.features.audit.description import describe
from mainspring.storage.audit_chain import verify

app = typer.Typer()
MOST_LOOKED_AT = 10_000

SECONDS = "%Y-%m-%d %H:%M:%S"


def parse_head(text: str) -> bytes:
    """The hash that `audit verify` has printed."""
    try:
        head = bytes.fromhex(text)
    except ValueError:
        head = b""
    if len(head) != 32:
        raise typer.BadParameter(f"`{text}` is not a head; pass the 64 digits that `audit verify` has printed")
    return head


@app.command("verify")
async def verify_audit(
    database: Database,
    head: Annotated[
        list[bytes] | None,
        typer.Option(
            parser=parse_head, metavar="HASH", help="Head that was printed before, and kept elsewhere.", show_default=False
        ),
    ] = None,
    json: AsJson = False,
) -> int:
    """Verifies the hash chains of the records, and reports the first break; then the exit code is 1.

    Whoever can write to the database can cut off an end unnoticed. Store the heads that this prints somewhere else, and pass them
    the next time, each with an option of its own: they must still be there.
    """
    async with open_database(database) as engine:
        seen = await verify(engine.store, *(head or ()))
    if json:
        write_lines([{"records": seen.length, "flaw": seen.flaw, "heads": [each.hex() for each in seen.heads]}])
        return FAILURE if seen.flaw is not None else 0
    if seen.flaw is not None:
        say(f"the audit in {database} is broken: {seen.flaw}; {seen.length} records before that are whole")
        return FAILURE
    where = "" if seen.anchor is None else f"; the head that was given is record {seen.anchor}"
    print("\n".join([f"{seen.length} records, all whole{where}", *[f"head {each.hex()}" for each in seen.heads]]))
    return 0


@app.command("list")
async def list_records(
    database: Database, tenant: OneTenant = None, all_tenants: EveryTenant = False, limit: Limit = 50, json: AsJson = False
) -> None:
    """Lists the newest records, oldest first. Of one tenant, those among the newest 10,000."""
    tenant = choose_tenant(tenant, all_tenants=all_tenants)
    async with open_database(database) as engine:
        newest = await engine.store.audit(limit=limit if tenant is None else MOST_LOOKED_AT, newest_first=True)
    links = [link for link in newest if tenant in (None, entry_of(link.note).tenant)][:limit][::-1]
    if json:
        write_lines([{"number": link.number, "hash": link.hash.hex(), "entry": entry_of(link.note)} for link in links])
        return
    titles = ("record", "at", "tenant", "who", "run", "call", "what")
    none = "there are no records; calls that are judged leave them"
    write_table([titles, *[(str(link.number), *_cells(entry_of(link.note))) for link in links]], none=none)


async def explain(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="Call: its id, the beginning of it, or `last`.")],
    database: Database,
    json: AsJson = False,
) -> None:
    """Says which rule decided about a call and why, who approved it, and what came of it."""
    async with open_database(database) as engine:
        call_id = await _find_call_id(engine, call_id)
        entries = [entry_of(link.note) for link in await engine.store.audit(call=call_id)]
        entries = entries or await _read_logs(engine, call_id)
    if not entries:
        raise NotFound(f"no run in {database} has a call `{call_id}`; `mainspring show last` shows the calls of the newest run")
    if json:
        write_lines(entries)
        return
    write_text(f"{call_id}: {_describe_call(entries)}")
    for entry in entries:
        write_text(f"  {format_moment(entry.at, SECONDS)}  {describe(entry)}  [{entry.run}, event {entry.seq}]")


async def _find_call_id(engine: Engine, given: str) -> str:
    """The id that is meant, if it is one of the newest that the audit has."""
    newest = await engine.store.audit(limit=NEWEST, newest_first=True)
    return choose_id(given, [*dict.fromkeys([call for link in newest if (call := entry_of(link.note).call)])], "calls")


async def _read_logs(engine: Engine, call_id: str) -> list[AuditEntry]:
    """The same from the logs themselves, for runs that were not audited, oldest first."""
    found: list[AuditEntry] = []
    after = None
    while (page := await engine.store.list(limit=100, after=after, newest_first=False)).runs:
        after = page.runs[-1].id
        for stored in page.runs:
            run = (await engine.attach(stored.id)).run
            calls = [entry.item for entry in run.transcript if isinstance(entry.item, FunctionCall)]
            if any(call.call_id == call_id for call in calls):
                entries = Auditor(run.spec, calls).entries(await engine.store.events(stored.id))
                found += [entry for entry in entries if entry.call == call_id]
    return found


def _describe_call(entries: Sequence[AuditEntry]) -> str:
    arguments = next((entry.arguments for entry in entries if entry.arguments), "")
    return f"{format_call(entries[0].tool, arguments, 200)}, arguments sha256 {entries[0].digest}"


def _cells(entry: AuditEntry) -> tuple[str, ...]:
    tool = f"`{entry.tool}` " if entry.tool else ""
    return (
        format_moment(entry.at, SECONDS),
        entry.tenant or "-",
        entry.subject or "-",
        entry.run,
        entry.call or "-",
        f"{tool}{describe(entry)}",
    )
