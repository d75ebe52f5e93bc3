"""An OpenTelemetry collector in the test's own process: takes OTLP over HTTP, and keeps what it was sent."""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from gzip import decompress

import anyio
from aiohttp import web
from msgspec import Struct
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from tests.kit.waiting import PATIENCE

Attributes = dict[str, object]

INTERNAL, CLIENT = 1, 3
ERROR = 2


class Span(Struct, frozen=True):
    """A span as it came in."""

    name: str
    kind: int
    trace_id: str
    id: str
    parent: str
    start: int
    end: int
    attributes: Attributes
    status: int
    message: str
    resource: Attributes
    scope: str


class Point(Struct, frozen=True):
    """What a histogram says for one set of attributes."""

    metric: str
    unit: str
    attributes: Attributes
    count: int
    sum: float
    bounds: tuple[float, ...]


class Collector:
    """What was received. A metric is cumulative, so the last that was said of it holds."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.points: dict[tuple[str, str], Point] = {}
        self.url = ""
        self._news = anyio.Event()

    async def wait_for(self, spans: int) -> list[Span]:
        """Until there are at least so many spans."""
        with anyio.fail_after(PATIENCE):
            while len(self.spans) < spans:
                await self._news.wait()
        return self.spans

    def points_of(self, metric: str) -> list[Point]:
        return [point for (name, _), point in self.points.items() if name == metric]

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/traces":
            self.spans += _spans(ExportTraceServiceRequest.FromString(body))
        else:
            assert path == "/v1/metrics", path
            for point in _points(ExportMetricsServiceRequest.FromString(body)):
                self.points[point.metric, repr(sorted(point.attributes.items()))] = point
        news, self._news = self._news, anyio.Event()
        news.set()


@asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    """A collector that listens on a free port of this machine."""
    collector = Collector()

    async def take(request: web.Request) -> web.Response:
        assert request.content_type == "application/x-protobuf"
        body = await request.read()
        collector.take(request.path, decompress(body) if request.headers.get("content-encoding") == "gzip" else body)
        return web.Response(content_type="application/x-protobuf")

    app = web.Application(client_max_size=64 * 2**20)
    app.router.add_post("/v1/{signal}", take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield collector
    finally:
        await runner.cleanup()


def _spans(request: ExportTraceServiceRequest) -> Iterator[Span]:
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Span(
                    span.name,
                    span.kind,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.start_time_unix_nano,
                    span.end_time_unix_nano,
                    _attributes(span.attributes),
                    span.status.code,
                    span.status.message,
                    _attributes(resource.resource.attributes),
                    scope.scope.name,
                )


def _points(request: ExportMetricsServiceRequest) -> Iterator[Point]:
    for resource in request.resource_metrics:
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.histogram.data_points:
                    bounds = tuple(point.explicit_bounds)
                    yield Point(metric.name, metric.unit, _attributes(point.attributes), point.count, point.sum, bounds)


def _attributes(given: Iterable[KeyValue]) -> Attributes:
    return {pair.key: _value(pair.value) for pair in given}


def _value(value: AnyValue) -> object:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(inner) for inner in value.array_value.values]
    return None if kind is None else getattr(value, kind)
