"""`/v1/traces`: runs as traces, read off their logs, also while they are under way."""

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.app.engine import Engine
from mainspring.core.errors import NotFound
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.http.auth import caller_of
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response
from mainspring.http.queries import CURSOR, Page, make_page, read_cursor
from mainspring.ports import Filter


class Traces:
    """Every endpoint under `/v1/traces`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/traces", self.list, "traces", Page, query=CURSOR),
            Endpoint("GET", "/v1/traces/{run_id}", self.retrieve, "traces", TraceRecord),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Traces by the time their runs began, newest first; `after` is the id of a run."""
        cursor = read_cursor(request)
        only = Filter(tenant=caller_of(request).tenant)
        page = await self._engine.store.list(limit=cursor.limit, after=cursor.after, newest_first=cursor.newest_first, only=only)
        ids = [run.id for run in page.runs]
        traces = []
        for id in ids:
            with suppress(NotFound):  # it was deleted in the meantime
                traces.append(await self._engine.trace(id))
        return json_response(make_page(traces, ids, has_more=page.has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """The trace of a run."""
        run_id = str(request.path_params["run_id"])
        missing = NotFound(f"there is no run `{run_id}`; list them with GET /v1/traces", param="run_id")
        try:
            trace = await self._engine.trace(run_id)
        except NotFound:
            raise missing from None
        if trace.tenant_id != caller_of(request).tenant:
            raise missing
        return json_response(trace)
