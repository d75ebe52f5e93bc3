"""`mainspring audit` and `mainspring explain`: what was decided and done, by whom, and why."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mainspring.app.engine import Engine
    from mainspring.engine.audit import Entry

app = typer.Typer(name="audit", help="Checks and lists the audit: every verdict, every call, every answer of a person.")

Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that holds the runs.", show_default=False)]

_VERDICTS = {
    "allow": "allowed",
    "deny": "denied",
    "ask": "a person is to be asked",
    "client": "handed to the client",
}


@app.command()
def verify(
    database: Database,
    head: Annotated[
        str | None, typer.Option(metavar="HASH", help="A head that was printed before, and kept elsewhere.", show_default=False)
    ] = None,
) -> int:
    """Walks the chain of records and reports the first break; 1 if there is one.

    Whoever can write to the file can cut off its end unseen. Keep the head that this prints somewhere else, and pass it the
    next time: it must still be there.
    """
    from mainspring.cli.follow import launch
    from mainspring.cli.open_database import reader
    from mainspring.cli.plain import say
    from mainspring.storage.audit_chain import verify

    wanted = _hash(head)

    async def verified() -> int:
        async with reader(database) as engine:
            seen = await verify(engine.store, wanted)
        if seen.flaw is not None:
            say(f"the audit in {database} is broken: {seen.flaw}; {seen.length} records before that are whole")
            return 1
        where = "" if seen.anchor is None else f"; the head that was given is record {seen.anchor}"
        print(f"{seen.length} records, all whole{where}\nhead {seen.head.hex()}")
        return 0

    return launch(verified())


@app.command("list")
def list_records(
    database: Database,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 50,
    json: Annotated[bool, typer.Option("--json", help="Print every record as a line of JSON.")] = False,
) -> int:
    """Lists the newest records, oldest first."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import reader
    from mainspring.engine.audit import entry_of

    async def listed() -> int:
        async with reader(database) as engine:
            links = (await engine.store.audit(limit=limit, newest_first=True))[::-1]
        entries = [entry_of(link.note) for link in links]
        if json:
            write_lines([{"number": link.number, "hash": link.hash.hex(), "entry": entry_of(link.note)} for link in links])
            return 0
        titles = ("record", "at", "tenant", "who", "run", "call", "what")
        numbers = [str(link.number) for link in links]
        write_table([titles, *[(number, *_cells(entry)) for number, entry in zip(numbers, entries, strict=True)]])
        return 0

    return launch(listed())


def explain(call_id: str, database: Path) -> int:
    """Says in words what was decided about a call, by which rule and why, and what came of it. Raises `NotFound`."""
    from mainspring.cli.follow import launch
    from mainspring.cli.open_database import reader
    from mainspring.cli.plain import clean
    from mainspring.core.errors import NotFound
    from mainspring.engine.audit import entry_of

    async def explained() -> int:
        async with reader(database) as engine:
            entries = [entry_of(link.note) for link in await engine.store.audit(call=call_id)]
            entries = entries or await _from_logs(engine, call_id)
        if not entries:
            raise NotFound(f"no run in {database} has a call `{call_id}`; `mainspring show RUN_ID` shows the calls of a run")
        print(clean(f"{call_id}: {_call(entries)}"))
        for entry in entries:
            print(clean(f"  {_moment(entry.at)}  {told(entry)}  [{entry.run}, event {entry.seq}]"))
        return 0

    return launch(explained())


def told(entry: "Entry") -> str:
    """What happened, in words."""
    who = f" by {entry.subject}" if entry.subject else ""
    why = f": {entry.reason}" if entry.reason else ""
    match entry.what:
        case "judged":
            rule = "no rule spoke against it" if entry.policy == "gate" else f"the rule `{entry.policy}` decided"
            return f"{_VERDICTS.get(entry.outcome, entry.outcome)}, {rule}{why}"
        case "approval":
            return f"{entry.outcome}{who}{why}"
        case "flagged":
            return f"the input reads like orders to the model{why}"
        case "started":
            return "started"
        case "ended":
            return f"ended, {'with an error' if entry.outcome == 'error' else 'without error'}, after {entry.seconds:.3f} s"
        case "run_ended":
            return f"the run ended {entry.outcome}{why}"


async def _from_logs(engine: "Engine", call_id: str) -> "list[Entry]":
    """The same from the logs themselves, for runs that were not audited, oldest first."""
    from mainspring.core.items import FunctionCall
    from mainspring.engine.audit import Auditor

    found: list[Entry] = []
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


def _call(entries: "Sequence[Entry]") -> str:
    from mainspring.cli.text import call_line

    arguments = next((entry.arguments for entry in entries if entry.arguments), "")
    return f"{call_line(entries[0].tool, arguments, 200)}, arguments sha256 {entries[0].digest}"


def _cells(entry: "Entry") -> tuple[str, ...]:
    tool = f"`{entry.tool}` " if entry.tool else ""
    return _moment(entry.at), entry.tenant or "-", entry.subject or "-", entry.run, entry.call or "-", f"{tool}{told(entry)}"


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M:%S")


def _hash(text: str | None) -> bytes | None:
    try:
        given = None if text is None else bytes.fromhex(text)
    except ValueError:
        given = b""
    if given is not None and len(given) != 32:
        raise typer.BadParameter(f"`{text}` is no head; pass the 64 digits that `audit verify` has printed", param_hint="--head")
    return given
