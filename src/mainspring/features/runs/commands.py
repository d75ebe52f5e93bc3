"""`mainspring runs` and `mainspring show`: what a database holds."""

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct

from mainspring.cli.console import ConsoleWriter, fit_line
from mainspring.cli.database import database_option, find_run, open_database
from mainspring.cli.end_reasons import explain_end
from mainspring.cli.follow import draw_run
from mainspring.cli.options import AsJson, Database, Limit, RunId
from mainspring.cli.output import say, say_more, write_lines
from mainspring.cli.screen import STATUSES, Screen
from mainspring.core.errors import Interrupted
from mainspring.core.events import RunStarted
from mainspring.core.items import Message
from mainspring.ports import Store, StoredRun

Cells = tuple[str, str, str, str, str]
TITLES: Cells = ("run", "status", "started", "model", "prompt")


class RunSummary(Struct, frozen=True):
    """A run as `runs` lists it."""

    id: str
    status: str
    created_at: float
    model: str
    prompt: str
    previous: str | None = None


async def show(run_id: RunId, database: Database, json: AsJson = False) -> None:
    """Shows a run of the database as it was shown live, or its Response object as JSON."""
    async with open_database(database) as engine:
        handle = await find_run(engine, run_id, database)
        if json:
            write_lines([handle.response])
            return
        try:
            await draw_run(handle, Screen())
        except Interrupted:
            say(f"run `{run_id}` has not ended; resume it with: mainspring resume {run_id} {database_option(database)}")
    if (why := explain_end(handle.run, database)) is not None:
        say(why)


async def runs(database: Database, limit: Limit = 20, json: AsJson = False) -> None:
    """Lists the runs of a database, newest first."""
    async with open_database(database) as engine:
        page = await engine.store.list(limit=limit)
        newest = [await _summarize(engine.store, run) for run in page.runs]
    if json:
        write_lines(newest)
        return
    _print_table(newest)
    if page.has_more:
        say_more(limit)


async def _summarize(store: Store, run: StoredRun) -> RunSummary:
    first = (await store.events(run.id))[0].event
    given = first.spec.input if isinstance(first, RunStarted) else ()
    prompt = next((item.text for item in given if isinstance(item, Message) and item.text), "")
    return RunSummary(run.id, run.status, run.created_at, run.model, fit_line(prompt, 80), run.parent)


def _print_table(runs: Sequence[RunSummary]) -> None:
    """A line per run, in columns; the prompt takes the room that is left."""
    writer = ConsoleWriter()
    rows = [TITLES, *[_cells(run) for run in runs]]
    widths = [max([len(row[column]) for row in rows]) for column in range(len(TITLES) - 1)]
    left = max(writer.width - sum(widths) - 2 * len(widths), 20)
    with writer:
        for row in rows:
            colour = "dim" if row is TITLES else STATUSES.get(row[1], "yellow")
            for text, width, style in zip(row, widths, ("", colour, "dim", "dim"), strict=False):
                writer.put(f"{text:{width}}  ", "dim" if row is TITLES else style)
            writer.put(f"{fit_line(row[-1], left)}\n", "dim" if row is TITLES else "")


def _cells(run: RunSummary) -> Cells:
    started = datetime.fromtimestamp(run.created_at).strftime("%b %d %H:%M")
    return run.id, run.status, started, fit_line(run.model, 24), run.prompt
