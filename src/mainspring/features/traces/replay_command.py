"""`mainspring replay`: a stored run once more, with no model and no tool."""

from pathlib import Path

from msgspec import Struct

from mainspring.cli.console import Ink
from mainspring.cli.follow import launch
from mainspring.cli.json_lines import write_lines
from mainspring.cli.open_database import how_to_list, in_database, reader
from mainspring.cli.plain import clean, say
from mainspring.cli.text import count
from mainspring.core.errors import CallerError, NotFound
from mainspring.core.events import RunStarted
from mainspring.core.history import History, history_of, lost_history
from mainspring.core.items import Item, Usage
from mainspring.core.spec import RunSpec
from mainspring.engine.conversation import reread
from mainspring.features.traces.replay import Replay, replayed
from mainspring.ports import Store


class Told(Struct, frozen=True):
    """A replay as `--json` tells it. `same` is whether it went as the log says."""

    run: str
    same: bool
    events: int
    decisions: int
    status: str = ""
    reason: str | None = None
    output: tuple[Item, ...] = ()
    usage: Usage = Usage()
    event: int | None = None
    expected: str | None = None
    found: str | None = None


def replay(run_id: str, database: Path, *, as_json: bool) -> int:
    """Replays a run and says whether it ends the same; 1 if it does not. Raises `NotFound`."""

    async def shown() -> int:
        async with reader(database) as engine:
            try:
                stored = await engine.store.load(run_id)
            except NotFound as error:
                raise NotFound(f"{error.message}; {how_to_list(database)}") from error
            records = await engine.store.events(run_id)
            first = records[0].event
            history = await _history(engine.store, first.spec) if isinstance(first, RunStarted) else History()
            kept = None if stored.response is None else await engine.store.history(run_id)
        again = replayed(records, history, stored.response, kept)
        told = _told(run_id, len(records), again)
        if as_json:
            write_lines([told])
        else:
            _write(told, database)
        return 0 if told.same else 1

    return launch(shown())


async def _history(store: Store, spec: RunSpec) -> History:
    """What was before the run. If that has been deleted, what the run itself says of it must do."""
    try:
        if spec.conversation is not None:
            return await reread(store, spec.tenant, spec.conversation)
        return History() if spec.parent is None else history_of(await store.history(spec.parent, tenant=spec.tenant))
    except CallerError:
        return lost_history(spec.input)


def _told(run_id: str, events: int, again: Replay) -> Told:
    if (where := again.difference) is not None:
        return Told(run_id, False, events, again.decisions, event=where.seq, expected=where.expected, found=where.found)
    run = again.run
    assert run is not None, "without a difference there is a run"
    reason = None if run.reason is None else run.reason.value
    return Told(run_id, True, events, again.decisions, run.status, reason, run.output, run.usage)


def _write(told: Told, database: Path) -> None:
    ink = Ink()
    with ink:
        decided = f"{count(told.decisions, 'decision')} made again"
        ink.put(f"{told.run}: {count(told.events, 'event')}, {decided}, no model and no tool asked\n")
        if not told.same:
            ink.put(f"✗ it differs from event {told.event} on\n", "red")
            ink.put(clean(f"  expected {told.expected}\n  found    {told.found}\n"))
            return
        ended = f"{told.status}, {told.reason}" if told.reason is not None else f"{told.status}; it has not ended"
        used = f"{told.usage.input_tokens:,}+{told.usage.output_tokens:,} tokens"
        ink.put("✓ it ends the same: ", "green")
        ink.put(f"{ended}, {count(len(told.output), 'item')}, {used}\n")
    if told.reason is None:
        say(f"run `{told.run}` has not ended; take it up with: mainspring resume {told.run} {in_database(database)}")
