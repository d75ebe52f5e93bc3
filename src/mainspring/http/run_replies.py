"""Runs as answers to requests: waited for, told in the client's dialect, and their failures as HTTP errors."""

from typing import Final

from msgspec.structs import replace
from starlette.requests import HTTPConnection, Request

from mainspring.core.run import Run
from mainspring.engine.handle import Handle
from mainspring.http.client_connection import watch_client
from mainspring.http.endpoints import IDEMPOTENCY_KEY
from mainspring.http.faults import Fault
from mainspring.http.frame_log import DONE
from mainspring.http.streams import PING, EventStream, RenderBreak, WriteEvents
from mainspring.http.wire import Dialect, hide_addresses

_STATUSES: Final = {
    "rate_limit_exceeded": 429, "invalid_prompt": 400, "context_length_exceeded": 400, "budget_exceeded": 400,
    "model_not_found": 404, "no_worker": 503,
}  # fmt: skip


def choose_dialect(client: HTTPConnection, dialect: Dialect) -> Dialect:
    """The server's dialect, as this client's headers change it."""
    headers = client.headers
    if "openresponses-version" in headers:
        dialect = replace(dialect, reasoning="reasoning", server_calls="function_call")
    if (status := headers.get("mainspring-status")) is not None:
        dialect = replace(dialect, requires_action=status == "requires_action")
    if (extensions := headers.get("mainspring-extensions")) is not None:
        dialect = replace(dialect, extensions=extensions == "on")
    if (announced := headers.get("mainspring-error-event")) is not None:
        dialect = replace(dialect, error_event=announced != "off")
    return dialect


async def wait_for_end(handle: Handle, request: Request) -> None:
    """Waits for the end of a run. A client that disconnects first cancels it, unless the run `outlives` its client."""
    if outlives(request):
        await handle.wait()
        return
    stop_watching = watch_client(request.scope, request.receive, handle.request_cancel)
    try:
        await handle.wait()
    finally:
        stop_watching()


def outlives(request: Request) -> bool:
    """Whether the run goes on after its client disconnects. One that sent an idempotency key may be back for it."""
    return request.headers.get("mainspring-on-disconnect") == "continue" or IDEMPOTENCY_KEY in request.headers


def make_stream(
    handle: Handle,
    request: Request,
    write: WriteEvents,
    headers: dict[str, str] | None = None,
    *,
    is_owner: bool = True,
    end: bytes = DONE,
    ping: bytes = PING,
    render_break: RenderBreak = lambda error: b"",
) -> EventStream:
    """The stream of a run's events. If its owner disconnects, the run is cancelled, unless it `outlives` its client."""
    on_disconnect = handle.request_cancel if is_owner and not outlives(request) else _go_on
    return EventStream(write, headers or {}, on_disconnect, end, ping, render_break)


def _go_on() -> None:
    """The client has left, and its run goes on."""


def raise_failure(run: Run) -> None:
    """Raises `Fault` for a run that failed before it said anything, as SDKs expect it. The run can be read all the same."""
    if run.status == "failed" and not run.output and (failure := find_failure(run)) is not None:
        raise failure


def find_failure(run: Run) -> Fault | None:
    """Why a run did not come to an answer, None if it did."""
    if run.status == "cancelled":
        return Fault(409, "run_cancelled", "the run was cancelled before it had an answer; send the request again")
    if run.status != "failed" or run.error is None:
        return None
    code = run.error.code
    status = _STATUSES.get(code, 502 if code.startswith("provider_") else 500)
    param = None if status == 500 else "input" if status == 400 else "model"
    return Fault(status, code, hide_addresses(run.error.message), param=param, retry_after=run.error.retry_after)
