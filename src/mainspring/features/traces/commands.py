"""`mainspring traces`: where the time of a run went, drawn from its log."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(name="traces", help="Lists runs as traces, and draws where the time of one went.")

Database = Annotated[Path | None, typer.Option(metavar="FILE", help="Where runs are kept. Default: the settings' database.")]


@app.command("list")
def list_traces(
    database: Database = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every trace as a line of JSON.")] = False,
) -> int:
    """Lists the newest traces: how they ended, how long they took, what they used."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.open_database import kept_in, reader
    from mainspring.cli.plain import say
    from mainspring.features.traces.waterfall import TITLES, cells

    async def listed() -> int:
        async with reader(kept_in(database)) as engine:
            page = await engine.store.list(limit=limit)
            traces = [await engine.trace(run.id) for run in page.runs]
        if json:
            write_lines(traces)
            return 0
        write_table([TITLES, *[cells(trace) for trace in traces]])
        if page.has_more:
            say(f"there are more; see them with --limit {limit * 5}")
        return 0

    return launch(listed())


@app.command()
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run.")],
    database: Database = None,
    json: Annotated[bool, typer.Option("--json", help="Print the trace as JSON instead.")] = False,
) -> int:
    """Draws a run as a waterfall: turns and calls on one axis of time, tokens, verdicts, failures."""
    from mainspring.cli.follow import launch
    from mainspring.cli.json_lines import write_lines
    from mainspring.cli.open_database import found, kept_in, reader
    from mainspring.features.traces.waterfall import draw

    async def shown() -> int:
        kept = kept_in(database)
        async with reader(kept) as engine:
            await found(engine, run_id, kept)
            trace = await engine.trace(run_id)
        if json:
            write_lines([trace])
        else:
            draw(trace)
        return 0

    return launch(shown())
