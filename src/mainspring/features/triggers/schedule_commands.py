"""`mainspring schedules`: the schedules of a database, as its servers fire them."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli import options
from mainspring.cli.console import truncate
from mainspring.cli.context import load_settings
from mainspring.cli.database import open_database
from mainspring.cli.output import report_problems, say, write_lines, write_table, write_text
from mainspring.cli.tenant_choice import choose_tenants, write_of_tenants
from mainspring.core.errors import InvalidRequest
from mainspring.features.triggers.schedule import ScheduleFolders
from mainspring.features.triggers.schedule_routes import ShownSchedule, format_time, show_schedule
from mainspring.features.triggers.schedules import Schedule, Schedules
from mainspring.storage.location import Location

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="Schedule, as `list` names it.")]


class ScheduleSettings(Struct, frozen=True):
    """The settings that these commands read."""

    schedules: tuple[str, ...]


@app.command("list")
async def list_schedules(
    database: options.Database,
    tenant: options.Tenant = "",
    all_tenants: options.AllTenants = False,
    json: options.AsJson = False,
) -> int:
    """Lists the schedules, with their last and next time in the zone of each; the exit code is 1 if a file is wrong."""
    async with open_database(database) as engine:
        schedules = Schedules(engine.store, engine.presence, engine.new_id)
        tenants = await choose_tenants(engine.store, tenant, all_tenants=all_tenants)
        found = {each: [show_schedule(schedule) for schedule in await schedules.list(each)] for each in tenants}
    titles = ("schedule", "state", "when", "last", "next")
    if any(found.values()):
        write_of_tenants(found, titles, _cells, as_json=json, named=all_tenants)
    elif not json:
        say("there are no schedules; write a file into a folder of `schedules`, or POST /v1/schedules")
    return report_problems(ScheduleFolders([Path(folder) for folder in load_settings(ScheduleSettings, None).schedules]).problems)


@app.command()
async def show(name: Name, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Shows a schedule, and what became of its last due times."""

    async def get(schedules: Schedules) -> Schedule:
        return await schedules.get(tenant, name)

    schedule = await _open(database, get)
    if json:
        write_lines([show_schedule(schedule)])
        return
    definition, shown = schedule.state.definition, show_schedule(schedule)
    write_table(
        [
            ("schedule", definition.name),
            ("starts", f"agent {definition.agent}" if definition.agent else f"workflow {definition.workflow}"),
            ("when", f"{_tell_timing(shown)} {definition.timezone}"),
            ("state", f"{shown.state}{': ' if shown.stopped else ''}{shown.stopped}"),
            ("missed", definition.missed),
            ("overlap", definition.overlap),
            ("next", shown.next or "-"),
        ]
    )
    for firing in schedule.state.recent:
        write_text(f"{format_time(firing.due, definition.timezone)}  {firing.outcome:8}  {firing.run_id or firing.reason}", 2)


@app.command()
async def run(name: Name, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Has a server on this database start a run of the schedule now."""
    await _change(database, lambda schedules: schedules.ask(tenant, name), "is started by the next server that looks", json)


@app.command()
async def pause(name: Name, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Has a schedule start nothing until it is resumed."""
    await _change(database, lambda schedules: schedules.pause(tenant, name), "is paused", json)


@app.command()
async def resume(name: Name, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Has a paused schedule go on with its next due time."""
    await _change(database, lambda schedules: schedules.resume(tenant, name), "goes on", json)


@app.command()
async def remove(name: Name, database: options.Database, tenant: options.Tenant = "", json: options.AsJson = False) -> None:
    """Removes a schedule that a request has made; one of a file goes with its file."""

    async def take(schedules: Schedules) -> Schedule:
        if (await schedules.get(tenant, name)).facts.of_file:
            raise InvalidRequest(f"schedule `{name}` is defined by a file; remove that file, or pause the schedule")
        return await schedules.remove(tenant, name)

    await _change(database, take, "is removed", json)


async def _open(database: Location, act: Callable[[Schedules], Awaitable[Schedule]]) -> Schedule:
    async with open_database(database) as engine:
        return await act(Schedules(engine.store, engine.presence, engine.new_id))


async def _change(database: Location, act: Callable[[Schedules], Awaitable[Schedule]], told: str, as_json: bool) -> None:
    schedule = await _open(database, act)
    if as_json:
        write_lines([show_schedule(schedule)])
    else:
        print(f"schedule {schedule.state.definition.name} {told}")


def _tell_timing(shown: ShownSchedule) -> str:
    return shown.definition.cron or f"every {shown.definition.every}"


def _cells(shown: ShownSchedule) -> tuple[str, ...]:
    last, next = _shorten(shown.last), _shorten(shown.next)
    # One offset a line is enough, and leaves room for what people write.
    return truncate(shown.name, 20), shown.state, truncate(_tell_timing(shown), 16), last if next == "-" else last[:11], next


def _shorten(moment: str | None) -> str:
    """A moment without its year and seconds: the offset tells the zone."""
    return "-" if moment is None else f"{moment[5:10]} {moment[11:16]}{moment[19:]}"
