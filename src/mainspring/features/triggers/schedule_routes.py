"""`/v1/schedules`: what is started at its time."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.features.triggers.due_times import find_zone
from mainspring.features.triggers.schedule import Firing, ScheduleDefinition
from mainspring.features.triggers.schedules import DocumentConflict, Schedule, check_definition
from mainspring.features.triggers.triggers import Triggers
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.bodies import parse_body, read_json_body
from mainspring.http.endpoints import Endpoint, KeyScope
from mainspring.http.faults import json_response
from mainspring.http.queries import CURSOR, Deleted, Page, make_page, read_cursor

SCOPE: Final[KeyScope] = "triggers"
_PATH: Final = "/v1/schedules"
_ONE: Final = f"{_PATH}/{{name}}"


class ShownSchedule(Struct, frozen=True):
    """A schedule. `state` is `active`, `paused` or `stopped`; then `stopped` says why. Times are seconds since 1970, `next` and
    `last` the same in the zone of the schedule. `recent` are its last due times, oldest first, and what became of them; `queued`
    wait for the run before."""

    id: str
    name: str
    state: str
    stopped: str
    definition: ScheduleDefinition
    created_at: float
    next_at: float | None
    next: str | None
    last_at: float | None
    last: str | None
    queued: Sequence[float]
    recent: Sequence[Firing]
    of_file: bool
    key: str
    object: str = "schedule"


class ScheduleRoutes:
    """Every endpoint under `/v1/schedules`."""

    def __init__(self, triggers: Triggers) -> None:
        self._triggers, self._schedules = triggers, triggers.schedules

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", _PATH, self.list, SCOPE, Page, query=CURSOR, schemas=(ShownSchedule,)),
            Endpoint("POST", _PATH, self.create, SCOPE, ShownSchedule, ScheduleDefinition, errors=(409, 422)),
            Endpoint("GET", _ONE, self.retrieve, SCOPE, ShownSchedule),
            Endpoint("POST", _ONE, self.replace, SCOPE, ShownSchedule, ScheduleDefinition, errors=(409, 422)),
            Endpoint("DELETE", _ONE, self.remove, SCOPE, Deleted, errors=(409,)),
            Endpoint("POST", f"{_ONE}/pause", self.pause, SCOPE, ShownSchedule, errors=(409,)),
            Endpoint("POST", f"{_ONE}/resume", self.resume, SCOPE, ShownSchedule, errors=(409,)),
            Endpoint("POST", f"{_ONE}/run", self.run, SCOPE, ShownSchedule, errors=(409,)),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the schedules, newest first."""
        found, has_more = await self._schedules.list_page(get_tenant(request), read_cursor(request))
        shown = [show_schedule(schedule) for schedule in found]
        return json_response(make_page(shown, [each.name for each in shown], has_more=has_more))

    async def create(self, request: Request) -> HttpResponse:
        """Creates a schedule. What it starts is bound by the limits and scopes of the API key that creates it."""
        definition, caller = parse_body(await read_json_body(request), ScheduleDefinition), get_caller(request)
        await check_definition(self._triggers.targets, definition, caller)
        return json_response(show_schedule(await self._schedules.create(caller.tenant, definition, caller.subject)))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a schedule, with what became of its last due times."""
        return json_response(show_schedule(await self._schedules.get(get_tenant(request), _name(request))))

    async def replace(self, request: Request) -> HttpResponse:
        """Changes a schedule. It goes on with the key that created it, so only that key may do so, or one that may do more."""
        definition, caller = parse_body(await read_json_body(request), ScheduleDefinition), get_caller(request)
        if definition.name != _name(request):
            told = f"the schedule is called `{_name(request)[:80]}`; a name cannot be changed, so send the same, or make another"
            raise InvalidRequest(told, param="name")
        found = await self._find_own(request)
        await self._triggers.targets.check_use(definition.target, found.facts.by, caller)
        await check_definition(self._triggers.targets, definition, caller)
        await check_definition(self._triggers.targets, definition, await self._triggers.targets.find_maker(found.facts.by))
        return json_response(show_schedule(await self._schedules.replace(caller.tenant, definition)))

    async def remove(self, request: Request) -> HttpResponse:
        """Deletes a schedule. What it has started goes on."""
        await self._find_own(request)
        gone = await self._schedules.remove(get_tenant(request), _name(request))
        return json_response(Deleted(gone.facts.id, "schedule"))

    async def pause(self, request: Request) -> HttpResponse:
        """Has a schedule start nothing until it is resumed."""
        return json_response(show_schedule(await self._schedules.pause(get_tenant(request), _name(request))))

    async def resume(self, request: Request) -> HttpResponse:
        """Has a paused schedule go on with its next due time."""
        await self._check_use(request)
        return json_response(show_schedule(await self._schedules.resume(get_tenant(request), _name(request))))

    async def run(self, request: Request) -> HttpResponse:
        """Has a schedule start a run now."""
        await self._check_use(request)
        return json_response(show_schedule(await self._schedules.ask(get_tenant(request), _name(request))))

    async def _check_use(self, request: Request) -> None:
        """Raises `NotFound`, and `Fault` 403 for a key that may do less than the one that made the schedule."""
        found = await self._schedules.get(get_tenant(request), _name(request))
        await self._triggers.targets.check_use(found.state.definition.target, found.facts.by, get_caller(request))

    async def _find_own(self, request: Request) -> Schedule:
        """The schedule, if a request has made it. Raises `NotFound`, `DocumentConflict`."""
        found = await self._schedules.get(get_tenant(request), _name(request))
        if found.facts.of_file:
            raise DocumentConflict(f"schedule `{_name(request)}` is defined by a file; change that", param="name")
        return found


def show_schedule(schedule: Schedule) -> ShownSchedule:
    facts, state = schedule.facts, schedule.state
    last = state.recent[-1].at if state.recent else None
    next_at = None if state.is_paused else state.next_due
    zone = state.definition.timezone
    return ShownSchedule(
        facts.id,
        state.definition.name,
        "stopped" if state.stopped else "paused" if state.is_paused else "active",
        state.stopped,
        state.definition,
        facts.created_at,
        next_at,
        format_time(next_at, zone),
        last,
        format_time(last, zone),
        state.queued,
        state.recent,
        facts.of_file,
        facts.by,
    )


def format_time(at: float | None, zone: str) -> str | None:
    """A moment in a time zone, with its offset."""
    return None if at is None else datetime.fromtimestamp(at, find_zone(zone)).isoformat(timespec="seconds")


def _name(request: Request) -> str:
    return str(request.path_params["name"])
