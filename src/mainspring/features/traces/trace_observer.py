"""Traces of runs as they end: counted in the metrics and exported, if somebody listens. And the trace of any one run."""

from msgspec.structs import replace

from mainspring.core.delegation import child_id, is_delegation
from mainspring.engine.engine import Engine
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.otel import Exporter
from mainspring.features.traces.trace_builder import build_trace
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.ports import EndedRun, RunObserver


class TraceObserver(RunObserver):
    """Counts and exports every run that ends here."""

    name = "traces"

    def __init__(self, metrics: Metrics, exporter: Exporter | None = None) -> None:
        self._metrics, self._exporter = metrics, exporter

    def run_ended(self, ended: EndedRun) -> None:
        trace = build_trace(ended.log, ended.waiting)
        self._metrics.add(trace)
        if self._exporter is not None:
            self._exporter.add(trace)


async def read_trace(engine: Engine, run_id: str) -> TraceRecord:
    """The trace of a run, as far as it has come. Raises `NotFound`."""
    handle = await engine.attach(run_id)
    trace = build_trace(handle.log, handle.waiting)
    delegated = [action for action in trace.actions if action.started_at is not None and is_delegation(action.tool)]
    children = tuple([child_id(run_id, action.action_id) for action in delegated])
    return replace(trace, metadata=replace(trace.metadata, children=children)) if children else trace
