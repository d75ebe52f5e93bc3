"""`mainspring traces` and `mainspring replay`: where the time of a run went, and whether its log still leads to the same end."""

import typer

from mainspring.cli.console import ConsoleWriter, format_count
from mainspring.cli.database import find_run, find_run_id, how_to_list, open_database
from mainspring.cli.exit import FAILURE
from mainspring.cli.options import AsJson, Database, EveryTenant, Limit, OneTenant, RunId, name_database
from mainspring.cli.output import clean, say, say_more, write_lines, write_list, write_table
from mainspring.cli.tenant_choice import choose_tenant
from mainspring.core.errors import NotFound
from mainspring.features.traces.replay_report import ReplayReport, replay_run
from mainspring.features.traces.trace_builder import read_trace
from mainspring.features.traces.waterfall import TITLES, draw_waterfall, make_cells
from mainspring.ports import Filter
from mainspring.storage.location import Location

app = typer.Typer()
NO_RUNS = "there are no runs here; `mainspring run` makes one"


@app.command("list")
async def list_traces(
    database: Database, tenant: OneTenant = None, all_tenants: EveryTenant = False, limit: Limit = 20, json: AsJson = False
) -> None:
    """Lists the newest traces: how they ended, how long they took, what they used."""
    tenant = choose_tenant(tenant, all_tenants=all_tenants)
    async with open_database(database) as engine:
        page = await engine.store.list(limit=limit, only=Filter(tenant=tenant))
        traces = [await read_trace(engine, run.id) for run in page.runs]
    if any(run.tenant for run in page.runs) and not json:
        write_table([("tenant", *TITLES), *[(trace.tenant_id or "-", *make_cells(trace)) for trace in traces]])
    else:
        write_list(traces, TITLES, make_cells, as_json=json, none=NO_RUNS)
    if page.has_more and not json:
        say_more(limit)


@app.command()
async def show(run_id: RunId, database: Database, json: AsJson = False) -> None:
    """Draws a run as a waterfall: turns and calls on one axis of time, tokens, verdicts, failures."""
    async with open_database(database) as engine:
        trace = await read_trace(engine, (await find_run(engine, run_id, database)).id)
    if json:
        write_lines([trace])
    else:
        draw_waterfall(trace)


async def replay(run_id: RunId, database: Database, json: AsJson = False) -> int:
    """
    Replays a run of the database without model and tools, and shows that it ends the same.

    The loop decides again at every step, and what it wants must be what happened; the answers of the model, the verdicts and the
    results of tools are those of the log. The exit code is 1 if the log and the loop do not agree; the first event where they
    differ is shown.
    """
    async with open_database(database) as engine:
        try:
            id = await find_run_id(engine.store, run_id)
            stored = await engine.store.load(id)
        except NotFound as error:
            raise NotFound(f"{error.message}; {how_to_list(database)}") from error
        report = await replay_run(engine.store, stored)
    if json:
        write_lines([report])
    else:
        _write_report(report, database)
    return 0 if report.same else FAILURE


def _write_report(report: ReplayReport, database: Location) -> None:
    writer = ConsoleWriter()
    with writer:
        decided = f"{format_count(report.decisions, 'decision')} made again"
        writer.line(f"{report.run}: {format_count(report.events, 'event')}, {decided}, no model and no tool asked")
        if not report.same:
            writer.put(f"✗ it differs from event {report.event} on\n", "red")
            writer.line(clean(f"  expected {report.expected}").replace("\n", " "), indent=11)
            writer.line(clean(f"  found    {report.found}").replace("\n", " "), indent=11)
            return
        ended = f"{report.status}, {report.reason}" if report.reason is not None else f"{report.status}; it has not ended"
        used = f"{report.usage.input_tokens:,}+{report.usage.output_tokens:,} tokens"
        writer.put("✓ it ends the same: ", "green")
        writer.put(f"{ended}, {format_count(len(report.output), 'item')}, {used}\n")
    if report.reason is None:
        say(f"run `{report.run}` has not ended; resume it with: mainspring resume {report.run}{name_database(database)}")
