"""Spans and metrics for an OpenTelemetry collector, over OTLP/HTTP.

Theory of operation. A run is exported when it has ended, from its trace: until then tracing costs nothing. Spans go into a
bounded queue which a thread of the SDK empties; metrics are added up and sent every minute. If the collector is slow or gone,
what does not fit is dropped and runs notice nothing. `close` sends what is left, within `seconds`.

The standard variables hold: `OTEL_EXPORTER_OTLP_ENDPOINT` and its kin, `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`,
`OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_METRIC_EXPORT_INTERVAL`, `OTEL_SDK_DISABLED`.
"""

import os
from asyncio import get_running_loop
from collections.abc import Callable, Mapping
from contextlib import suppress
from logging import getLogger
from threading import Thread
from typing import TYPE_CHECKING, Final

from anyio import Event, move_on_after

from mainspring.core.errors import InvalidRequest
from mainspring.engine.traceparent import parse_traceparent
from mainspring.features.traces.metrics import LabelNames, choose_model_label
from mainspring.features.traces.spans import PROVIDERS, Span, build_spans, derive_trace_hex
from mainspring.features.traces.trace_record import TraceRecord

if TYPE_CHECKING:
    from opentelemetry.metrics import Histogram
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext

log = getLogger(__name__)

FLUSH_SECONDS: Final = 5.0
SCOPE: Final = "mainspring"
TOKENS: Final = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)
SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
RUN_SECONDS: Final = (0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")


def is_wanted(endpoint: str | None, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether spans are exported: an endpoint is configured, and the SDK is not disabled."""
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    return endpoint is not None or any(environment.get(name) for name in _ENDPOINTS)


def name_provider(model: str, provider: str) -> str:
    """The name of the model's backend in the conventions."""
    named, slash, _ = model.partition("/")
    return PROVIDERS.get(found := named if slash and provider == "router" else provider, found)


class Exporter:
    """Exports ended runs. `provider` returns the backend of a model; `content` exports prompts and answers as well; `version`
    is that of Mainspring.

    Raises `InvalidRequest` if OpenTelemetry is not installed, or configured for a protocol other than OTLP/HTTP.
    """

    def __init__(
        self, provider: Callable[[str], str], *, endpoint: str | None = None, content: bool = False, version: str = ""
    ) -> None:
        _check_protocol(os.environ)
        try:
            self._tracing = _Tracing(endpoint, version)
            self._metering = _Metering(endpoint, version)
        except ImportError as error:
            message = (
                f"spans cannot be exported, because OpenTelemetry is not installed ({error}); "
                "install it with: pip install 'mainspring[otel]', or set OTEL_SDK_DISABLED=true"
            )
            raise InvalidRequest(message, param="otel") from None
        self._provider = provider
        self._content = content

    def add(self, trace: TraceRecord) -> None:
        """Queues an ended run, and returns at once."""
        provider = self._provider(trace.context.model)
        spans = list(build_spans(trace, provider, content=self._content))
        self._tracing.add(trace, spans)
        self._metering.add(trace, spans, provider)

    async def close(self, seconds: float = FLUSH_SECONDS) -> None:
        """Sends the rest of the queue, and gives up after `seconds`."""
        loop, is_sent = get_running_loop(), Event()

        def send() -> None:
            self._tracing.close()
            self._metering.close()
            with suppress(RuntimeError):  # nobody waits any more, and the loop is gone
                loop.call_soon_threadsafe(is_sent.set)

        # A thread that the end of the process does not wait for.
        Thread(target=send, name="otel-close", daemon=True).start()
        with move_on_after(seconds) as scope:
            await is_sent.wait()
        if scope.cancelled_caught:
            log.warning("the OpenTelemetry collector did not take the last spans in %g s; they are lost", seconds)


class _Tracing:
    def __init__(self, endpoint: str | None, version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope

        self._provider: TracerProvider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
        self._queue: BatchSpanProcessor = BatchSpanProcessor(OTLPSpanExporter(_address(endpoint, "traces")))
        self._scope = InstrumentationScope(SCOPE, version)

    def add(self, trace: TraceRecord, spans: list[Span]) -> None:
        trace_id = derive_trace_hex(trace)
        if not self._is_sampled(trace, trace_id, spans[0]):
            return
        for span in spans:
            self._queue.on_end(self._make_span(span, trace_id, remote=span is spans[0]))

    def close(self) -> None:
        self._queue.shutdown()  # type: ignore[no-untyped-call]

    def _is_sampled(self, trace: TraceRecord, trace_id: str, root: Span) -> bool:
        """Asks the sampler once for the whole run; it sees the decision of the caller's span."""
        from opentelemetry.trace import NonRecordingSpan, set_span_in_context

        parent = parse_traceparent(trace.metadata.traceparent)
        context = None
        if parent is not None:
            remote = _context(parent.trace_id, parent.span_id, is_remote=True, is_sampled=parent.is_sampled)
            context = set_span_in_context(NonRecordingSpan(remote))
        sampled = self._provider.sampler.should_sample(context, int(trace_id, 16), root.name, attributes=root.attributes)
        return bool(sampled.decision.is_sampled())  # type: ignore[no-untyped-call]

    def _make_span(self, span: Span, trace_id: str, *, remote: bool) -> "ReadableSpan":
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.trace import SpanKind, Status, StatusCode

        parent = None if span.parent is None else _context(trace_id, span.parent, is_remote=remote)
        status = Status(StatusCode.ERROR, span.message or None) if span.error else Status()
        return ReadableSpan(
            span.name,
            context=_context(trace_id, span.id),
            parent=parent,
            resource=self._provider.resource,
            attributes=span.attributes,
            kind=SpanKind.CLIENT if span.kind == "client" else SpanKind.INTERNAL,
            instrumentation_scope=self._scope,
            status=status,
            start_time=_nanoseconds(span.start),
            end_time=_nanoseconds(span.end),
        )


class _Metering:
    def __init__(self, endpoint: str | None, version: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        reader = PeriodicExportingMetricReader(OTLPMetricExporter(_address(endpoint, "metrics")))
        self._provider: MeterProvider = MeterProvider([reader], resource=_resource(version), shutdown_on_exit=False)
        meter = self._provider.get_meter(SCOPE, version)

        def histogram(name: str, unit: str, help: str, bounds: tuple[float, ...]) -> "Histogram":
            return meter.create_histogram(name, unit, help, explicit_bucket_boundaries_advisory=bounds)

        self._tokens = histogram("gen_ai.client.token.usage", "{token}", "Tokens of a turn.", TOKENS)
        self._turns = histogram("gen_ai.client.operation.duration", "s", "Time of a turn.", SECONDS)
        first = "gen_ai.client.operation.time_to_first_chunk"
        self._first = histogram(first, "s", "Time to the first delta of a turn.", SECONDS)
        self._runs = histogram("gen_ai.invoke_agent.duration", "s", "Time of a run.", RUN_SECONDS)
        self._calls = histogram("gen_ai.execute_tool.duration", "s", "Time of a call.", SECONDS)
        self._names: dict[str, LabelNames] = {}

    def add(self, trace: TraceRecord, spans: list[Span], provider: str) -> None:
        agent = self._label("gen_ai.agent.name", trace.context.agent_id)
        model = {"gen_ai.request.model": choose_model_label(trace, self._names.setdefault("gen_ai.request.model", LabelNames()))}
        backend = {"gen_ai.operation.name": "chat", **model, **self._label("gen_ai.provider.name", provider)}
        for span in spans:
            error = self._label("error.type", span.error)
            match span.attributes["gen_ai.operation.name"]:
                case "invoke_agent":
                    self._runs.record(span.seconds, {**agent, **model, **error})
                case "execute_tool" if span.error != "denied":
                    self._calls.record(span.seconds, {**agent, **error, **self._tool(span)})
                case "chat":
                    self._add_turn(span, backend, error)

    def close(self) -> None:
        self._provider.shutdown()

    def _label(self, attribute: str, name: str) -> dict[str, str]:
        """The attribute with a bounded label; empty without a name."""
        return {attribute: self._names.setdefault(attribute, LabelNames()).register(name)} if name else {}

    def _tool(self, span: Span) -> dict[str, str]:
        name, kind = str(span.attributes["gen_ai.tool.name"]), str(span.attributes["gen_ai.tool.type"])
        return {**self._label("gen_ai.tool.name", name), "gen_ai.tool.type": kind}

    def _add_turn(self, span: Span, backend: dict[str, str], error: dict[str, str]) -> None:
        self._turns.record(span.seconds, {**backend, **error})
        if isinstance(first := span.attributes.get("gen_ai.response.time_to_first_chunk"), float):
            self._first.record(first, backend)
        for kind in ("input", "output"):
            if isinstance(count := span.attributes[f"gen_ai.usage.{kind}_tokens"], int):
                self._tokens.record(count, {**backend, "gen_ai.token.type": kind})


def _check_protocol(environment: Mapping[str, str]) -> None:
    for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL"):
        if (said := environment.get(name, "")) not in ("", "http/protobuf"):
            hint = "name an OTLP/HTTP endpoint (port 4318 as a rule) and set http/protobuf, or set OTEL_SDK_DISABLED=true"
            raise InvalidRequest(f"{name} is `{said}`, and only http/protobuf is supported; {hint}", param="otel")


def _address(endpoint: str | None, signal: str) -> str | None:
    """The URL of a signal; None leaves it to the environment."""
    return None if endpoint is None else f"{endpoint.rstrip('/')}/v1/{signal}"


def _resource(version: str) -> "Resource":
    """The resource attributes of this process; the environment may name the service."""
    from opentelemetry.sdk.resources import Resource

    found = Resource.create({"service.version": version})
    is_named = not str(found.attributes["service.name"]).startswith("unknown_service")
    return found if is_named else found.merge(Resource({"service.name": SCOPE}))


def _context(trace_id: str, span: str, *, is_remote: bool = False, is_sampled: bool = True) -> "SpanContext":
    from opentelemetry.trace import SpanContext, TraceFlags

    return SpanContext(int(trace_id, 16), int(span, 16), is_remote, TraceFlags(int(is_sampled)))


def _nanoseconds(moment: float) -> int:
    return round(moment * 1e9)
