"""`/metrics`: what all runs come to, for Prometheus."""

from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.app.engine import Engine
from mainspring.core.errors import StoreError
from mainspring.http.auth import caller_of
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import Fault

TEXT = "text/plain; version=0.0.4; charset=utf-8"


class MetricsRoute:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (Endpoint("GET", "/metrics", self.show, "metrics", in_schema=False),)

    async def show(self, request: Request) -> HttpResponse:
        """Counters and histograms of the runs that ended here, in the text format of Prometheus."""
        if caller_of(request).tenant:
            message = "metrics count the runs of all tenants together; a key of the default tenant is needed here"
            raise Fault(403, "insufficient_scope", message)
        engine = self._engine
        try:
            await engine.store.list(limit=1)
            is_store_up = True
        except StoreError:
            is_store_up = False
        text = engine.metrics.text(live=engine.core.live, is_store_up=is_store_up)
        return HttpResponse(text, headers={"content-type": TEXT})
