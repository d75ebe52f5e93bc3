"""`mainspring runs` and `mainspring show`: what a database holds."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from mainspring.cli.console import Ink
from mainspring.cli.end_reasons import explanation
from mainspring.cli.follow import draw, launch
from mainspring.cli.json_lines import write_lines
from mainspring.cli.open_database import found, in_database, reader
from mainspring.cli.plain import say
from mainspring.cli.screen import STATUSES, Screen
from mainspring.cli.text import on_one_line
from mainspring.core.errors import Interrupted
from mainspring.core.events import RunStarted
from mainspring.core.items import Message
from mainspring.ports import Store, StoredRun

Cells = tuple[str, str, str, str, str]
TITLES: Cells = ("run", "status", "started", "model", "prompt")


class Listed(Struct, frozen=True):
    """A run as `runs` lists it."""

    id: str
    status: str
    created_at: float
    model: str
    prompt: str
    previous: str | None = None


def show(run_id: str, database: Path, *, as_json: bool) -> int:
    """Shows a run as it was shown live, or its Response; 0 however the run ended."""

    async def shown() -> int:
        async with reader(database) as engine:
            handle = await found(engine, run_id, database)
            if as_json:
                write_lines([handle.response])
                return 0
            try:
                await draw(handle, Screen())
            except Interrupted:
                say(f"run `{run_id}` has not ended; take it up with: mainspring resume {run_id} {in_database(database)}")
        if (why := explanation(handle.run, database)) is not None:
            say(why)
        return 0

    return launch(shown())


def runs(database: Path, limit: int, *, as_json: bool) -> int:
    """Lists the newest runs of a database."""

    async def listed() -> int:
        async with reader(database) as engine:
            page = await engine.store.list(limit=limit)
            newest = [await _listed(engine.store, run) for run in page.runs]
        if as_json:
            write_lines(newest)
        else:
            _print_table(newest)
            if page.has_more:
                say(f"there are more; see them with --limit {limit * 5}")
        return 0

    return launch(listed())


async def _listed(store: Store, run: StoredRun) -> Listed:
    first = (await store.events(run.id))[0].event
    given = first.spec.input if isinstance(first, RunStarted) else ()
    prompt = next((item.text for item in given if isinstance(item, Message) and item.text), "")
    return Listed(run.id, run.status, run.created_at, run.model, on_one_line(prompt, 80), run.parent)


def _print_table(runs: Sequence[Listed]) -> None:
    """A line per run, in columns; the prompt takes the room that is left."""
    ink = Ink()
    rows = [TITLES, *[_cells(run) for run in runs]]
    widths = [max([len(row[column]) for row in rows]) for column in range(len(TITLES) - 1)]
    left = max(ink.width - sum(widths) - 2 * len(widths), 20)
    with ink:
        for row in rows:
            colour = "dim" if row is TITLES else STATUSES.get(row[1], "yellow")
            for text, width, style in zip(row, widths, ("", colour, "dim", "dim"), strict=False):
                ink.put(f"{text:{width}}  ", "dim" if row is TITLES else style)
            ink.put(f"{on_one_line(row[-1], left)}\n", "dim" if row is TITLES else "")


def _cells(run: Listed) -> Cells:
    started = datetime.fromtimestamp(run.created_at).strftime("%b %d %H:%M")
    return run.id, run.status, started, on_one_line(run.model, 24), run.prompt
