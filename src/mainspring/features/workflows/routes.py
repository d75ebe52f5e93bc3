"""`/v1/workflows`: what workflows there are, and their runs."""

from collections.abc import AsyncIterator, Sequence
from typing import Final

from anyio import move_on_after
from anyio.to_thread import run_sync
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import NotFound
from mainspring.core.items import Json, encode
from mainspring.definitions.folder import DefinitionSource
from mainspring.engine.traceparent import clean_traceparent
from mainspring.features.workflows.view import ShownRun, ShownWorkflow, render_event, render_run, render_workflow
from mainspring.features.workflows.workflows import WorkflowHandle, Workflows
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.bodies import parse_body, read_json_body
from mainspring.http.endpoints import COUNT, Endpoint, KeyScope, Parameter
from mainspring.http.faults import json_response
from mainspring.http.idempotency import read_key
from mainspring.http.queries import CURSOR, Page, make_page, read_cursor, read_number
from mainspring.http.streams import EventStream, write_batches

_SCOPE: Final[KeyScope] = "workflows:run"
_PATH: Final = "/v1/workflows/{name}"
_AFTER: Final = (Parameter("starting_after", COUNT),)
_RUN: Final = f"{_PATH}/runs/{{run_id}}"

HEARTBEAT_SECONDS = 10.0


class StartWorkflow(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/workflows/{name}/runs`. With `background`, the answer comes as soon as the run is stored."""

    inputs: Json = {}
    dry_run: bool = False
    background: bool = False


class WorkflowList(Struct, frozen=True):
    """`problems` are the files that hold no workflow that could be used, and why."""

    data: Sequence[ShownWorkflow]
    problems: Sequence[str]
    object: str = "list"


class WorkflowEvent(Struct, frozen=True):
    """What every event of a stream has; what else it has depends on its type."""

    type: str
    sequence_number: int
    at: float


class WorkflowRoutes:
    """Every endpoint under `/v1/workflows`."""

    def __init__(self, workflows: Workflows) -> None:
        self._workflows = workflows

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/workflows", self.list, _SCOPE, WorkflowList),
            Endpoint("GET", _PATH, self.retrieve, _SCOPE, ShownWorkflow),
            Endpoint("GET", f"{_PATH}/source", self.source, _SCOPE, DefinitionSource),
            Endpoint(
                "POST", f"{_PATH}/runs", self.start, _SCOPE, ShownRun, StartWorkflow, takes_key=True, errors=(409, 422, 503)
            ),
            Endpoint("GET", f"{_PATH}/runs", self.runs, _SCOPE, Page, query=CURSOR),
            Endpoint("GET", _RUN, self.retrieve_run, _SCOPE, ShownRun),
            Endpoint("POST", f"{_RUN}/cancel", self.cancel, _SCOPE, ShownRun),
            Endpoint("POST", f"{_RUN}/resume", self.resume, _SCOPE, ShownRun),
            Endpoint("GET", f"{_RUN}/events", self.events, _SCOPE, WorkflowEvent, query=_AFTER, streams=True),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the workflows, by name."""
        folders = self._workflows.folders
        known = folders.definitions
        return json_response(WorkflowList([render_workflow(known[name]) for name in sorted(known)], folders.problems))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves the definition of a workflow."""
        return json_response(render_workflow(self._workflows.folders.get(_name(request))))

    async def source(self, request: Request) -> HttpResponse:
        """Retrieves the file of a workflow, as its author wrote it."""
        return json_response(await run_sync(self._workflows.folders.read_source, _name(request)))

    async def start(self, request: Request) -> HttpResponse:
        """Runs a workflow. A client that disconnects does not stop it; one that sends its `Idempotency-Key` again joins it."""
        body, caller = parse_body(await read_json_body(request), StartWorkflow), get_caller(request)
        handle = await self._workflows.start(
            _name(request),
            body.inputs,
            dry_run=body.dry_run,
            tenant=caller.tenant,
            caller=caller.as_run_caller(),
            key=read_key(request),
            traceparent=clean_traceparent(request.headers.get("traceparent", "")),
        )
        if not body.background:
            await self._workflows.wait(handle)
        return json_response(render_run(handle.run))

    async def runs(self, request: Request) -> HttpResponse:
        """Lists the runs of a workflow, newest first, also after its file was deleted."""
        cursor = read_cursor(request)
        found = await self._workflows.list(
            tenant=get_tenant(request),
            workflow=_name(request),
            limit=cursor.limit,
            after=cursor.after,
            newest_first=cursor.newest_first,
        )
        if not found.runs and cursor.after is None:
            self._workflows.folders.get(_name(request))
        return json_response(make_page(found.runs, [run.id for run in found.runs], has_more=found.has_more))

    async def retrieve_run(self, request: Request) -> HttpResponse:
        """Retrieves a run of a workflow, finished or not."""
        return json_response(render_run((await self._find(request)).run))

    async def cancel(self, request: Request) -> HttpResponse:
        """Cancels a run and the steps in progress. A run that has ended stays as it is."""
        handle = await self._find(request)
        return json_response(render_run(await self._workflows.cancel(handle.id, tenant=get_tenant(request))))

    async def resume(self, request: Request) -> HttpResponse:
        """Resumes a run that nobody drives. One that goes on, or has ended, stays as it is."""
        handle = await self._find(request)
        return json_response(render_run((await self._workflows.resume(handle.id, tenant=get_tenant(request))).run))

    async def events(self, request: Request) -> HttpResponse:
        """Streams the events of a run, from the first."""
        after = read_number(request, "starting_after")
        handle = await self._find(request)
        return EventStream(write_batches(_read_frames(handle, -1 if after is None else after)), {}, lambda: None)

    async def _find(self, request: Request) -> WorkflowHandle:
        run_id = str(request.path_params["run_id"])
        handle = await self._workflows.attach(run_id, tenant=get_tenant(request))
        if handle.run.order.workflow != _name(request):
            raise NotFound(f"there is no run `{run_id[:80]}` of workflow `{_name(request)[:80]}`", param="run_id")
        return handle


async def _read_frames(handle: WorkflowHandle, after: int) -> AsyncIterator[list[bytes]]:
    """The events behind number `after` as they come, with a sign of life where none comes for a while."""
    while True:
        batch = None
        with move_on_after(HEARTBEAT_SECONDS):
            batch = await handle.more(after)
        if batch is None:
            yield [_render_frame("heartbeat", {"type": "heartbeat", "run_id": handle.id, "last_event": handle.run.seq - 1})]
        elif batch:
            told = [render_event(record) for record in batch]
            yield [_render_frame(event["type"], event) for event in told]
            after = batch[-1].seq
        else:
            return


def _render_frame(kind: str, data: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode(data))


def _name(request: Request) -> str:
    return str(request.path_params["name"])
