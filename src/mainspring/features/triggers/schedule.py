"""A schedule: what it starts, when, and what has become of it so far.

name: morning-digest
workflow: digest
inputs: {topic: tides}
cron: "0 7 * * MON-FRI"
timezone: Europe/Berlin
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from msgspec.structs import asdict

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.definitions.folder import Defined, DefinitionFolders
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parsed_file import ParsedFile
from mainspring.definitions.reader import parse_yaml, read_text
from mainspring.features.triggers.due_times import Cron, Every, Timing, ZoneName, check_timing
from mainspring.features.triggers.targets import Target, TargetName

# How many firings a schedule remembers.
MOST_RECENT: Final = 20

Name = Annotated[
    str,
    Meta(pattern=r"^[a-z][a-z0-9-]{0,63}$(?!\n)", description="up to 64 lower-case letters, digits and hyphens, a letter first"),
]
Missed = Literal["skip", "once", "all"]
Overlap = Literal["skip", "allow", "queue"]
Outcome = Literal["started", "skipped", "missed", "failed"]


class ScheduleDefinition(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a schedule is to do: start an agent or a workflow with these inputs, by `cron` or `every`.

    `missed` says what becomes of due times at which no server ran: `skip` none of them, `once` the last one, `all` the last
    hundred. `overlap` says what becomes of one at which the run before has not ended, or waits for a person: it is skipped,
    started all the same, or started when that run has ended."""

    name: Name
    agent: TargetName = ""
    workflow: TargetName = ""
    inputs: Json = {}
    cron: Cron = ""
    every: Every = ""
    timezone: ZoneName = "UTC"
    missed: Missed = "once"
    overlap: Overlap = "skip"
    description: Annotated[str, Meta(max_length=500)] = ""

    @property
    def target(self) -> Target:
        return Target(self.agent, self.workflow)

    def make_timing(self, anchor: float) -> Timing:
        return Timing(self.cron, self.every, self.timezone, anchor)


class Firing(Struct, frozen=True, omit_defaults=True):
    """What became of a due time: `run_id` was started, or why none was."""

    due: float
    at: float
    outcome: Outcome
    run_id: str = ""
    reason: str = ""
    by_hand: bool = False


class ScheduleFacts(Struct, frozen=True):
    """What stays as it was made. `by` is the key that made it, `of_file` says that a file defines it."""

    id: str
    created_at: float
    by: str = ""
    of_file: bool = False


class ScheduleState(Struct, frozen=True, omit_defaults=True):
    """Where a schedule stands. `next_due` is the first time that nothing was done about; `queued` wait for the run before,
    `asked` are the times at which somebody asked for a run. `active` is the run that was started last. `stopped` says why
    it starts nothing any more. `version` counts its changes."""

    definition: ScheduleDefinition
    anchor: float
    next_due: float | None = None
    version: int = 1
    is_paused: bool = False
    stopped: str = ""
    queued: tuple[float, ...] = ()
    asked: tuple[float, ...] = ()
    active: str = ""
    recent: tuple[Firing, ...] = ()

    @property
    def timing(self) -> Timing:
        return self.definition.make_timing(self.anchor)


class ScheduleFolders(DefinitionFolders[ScheduleDefinition]):
    """The schedules of the folders that the settings name, one in each file."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        super().__init__("schedule", folders, _read)


def parse_schedule(file: Path, text: str) -> ScheduleDefinition:
    """The schedule that a text defines. Raises `InvalidRequest` with every mistake, each by file and line."""
    return parse_yaml(file, text).finish(ScheduleDefinition, _check)


def file_schema() -> Json:
    """The JSON Schema of a schedule's file."""
    return build_schema(ScheduleDefinition, "A schedule of Mainspring")


def _read(file: Path) -> tuple[Defined[ScheduleDefinition]]:
    schedule = parse_schedule(file, read_text(file))
    return (Defined(schedule.name, schedule),)


def _check(schedule: ScheduleDefinition, parsed: ParsedFile) -> None:
    if bool(schedule.agent) == bool(schedule.workflow):
        parsed.add_problem(("name",), "a schedule starts either an `agent` or a `workflow`; give one of them")
    try:
        check_timing(schedule.make_timing(0.0))
    except InvalidRequest as error:
        param = error.param or "name"
        parsed.add_problem((param,) if asdict(schedule).get(param) else ("name",), error.message)
