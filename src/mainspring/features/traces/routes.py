"""`/v1/traces`: runs as traces, read off their logs, also while they are under way. `/metrics`: their sums, for Prometheus."""

from contextlib import suppress

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import NotFound, StoreError
from mainspring.core.redact import redact_arguments
from mainspring.engine.engine import Engine
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.replay_report import ReplayReport, replay_run
from mainspring.features.traces.shared_metrics import SharedMetrics
from mainspring.features.traces.trace_builder import read_trace
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.http.auth import get_caller, get_tenant
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import CURSOR, Page, PageBuilder, read_cursor
from mainspring.http.tenants import find_run
from mainspring.ports import Filter

PROMETHEUS_TEXT = "text/plain; version=0.0.4; charset=utf-8"


class TraceRoutes:
    """Every endpoint of traces and metrics."""

    def __init__(self, engine: Engine, metrics: Metrics | SharedMetrics) -> None:
        self._engine, self._metrics = engine, metrics

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/traces", self.list, "traces", Page, query=CURSOR),
            Endpoint("GET", "/v1/traces/{run_id}", self.retrieve, "traces", TraceRecord),
            Endpoint("GET", "/v1/runs/{run_id}/replay", self.replay, "responses", ReplayReport, also=("traces",)),
            Endpoint("GET", "/metrics", self.show_metrics, "metrics", in_schema=False),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists traces by the start of their runs, newest first; `after` is the id of a run."""
        cursor = read_cursor(request)
        only = Filter(tenant=get_tenant(request))
        page = await self._engine.store.list(limit=cursor.limit, after=cursor.after, newest_first=cursor.newest_first, only=only)
        traces = PageBuilder()
        for run in page.runs:
            if traces.is_full:
                return json_response(traces.build(has_more=True))
            with suppress(NotFound):  # it was deleted in the meantime
                traces.add(run.id, _show(request, await read_trace(self._engine, run.id)))
        return json_response(traces.build(has_more=page.has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves the trace of a run."""
        run_id = str(request.path_params["run_id"])
        missing = NotFound(f"there is no run `{run_id}`; list them with GET /v1/traces", param="run_id")
        try:
            trace = await read_trace(self._engine, run_id)
        except NotFound:
            raise missing from None
        if trace.tenant_id != get_tenant(request):
            raise missing
        return json_response(_show(request, trace))

    async def replay(self, request: Request) -> HttpResponse:
        """Replays a run from its log, without model and tools, and reports whether it ends the same."""
        handle = await find_run(request, self._engine)
        report = await replay_run(self._engine.store, await self._engine.store.load(handle.id))
        if not get_caller(request).may("responses"):
            report = replace(report, output=(), expected=None, found=None)
        return json_response(report)

    async def show_metrics(self, request: Request) -> HttpResponse:
        """Shows counters and histograms of the runs that ended here, in the text format of Prometheus."""
        if get_tenant(request):
            message = "metrics count the runs of all tenants together; a key of the default tenant is needed here"
            raise Fault(403, "insufficient_scope", message)
        try:
            await self._engine.store.list(limit=1)
            is_store_up = True
        except StoreError:
            is_store_up = False
        text = self._metrics.text(live=self._engine.live, is_store_up=is_store_up)
        return HttpResponse(text, headers={"content-type": PROMETHEUS_TEXT})


def _show(request: Request, trace: TraceRecord) -> TraceRecord:
    """The trace as this key may see it: the secrets in arguments are for those who may read the response itself."""
    if get_caller(request).may("responses"):
        return trace
    steps = [
        replace(step, actions=tuple([replace(action, input=redact_arguments(action.input)) for action in step.actions]))
        for step in trace.execution
    ]
    return replace(trace, execution=tuple(steps))
