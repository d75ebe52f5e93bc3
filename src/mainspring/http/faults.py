"""Errors as clients know them: a status, and an object with message, type, param and code, as the OpenAI API has it or, for
clients of the Messages API, as that has it."""

import math
from collections.abc import Callable, Mapping
from typing import Final

from starlette.responses import Response as HttpResponse

from mainspring.core.errors import MainspringError, MemoryLimit, PreviousNotFound, ProviderError
from mainspring.core.items import Json, encode

MOST_MESSAGE_CHARS = 2000
MESSAGES_HEADER: Final = "anthropic-version"
"""What every client of the Messages API sends, whatever it asks for."""


class Fault(Exception):
    """An HTTP error that is none of the engine's: a wrong method, too large a body, a missing key."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.param = status, code, message, param
        self.retry_after, self.headers = retry_after, headers or {}


def json_response(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> HttpResponse:
    return HttpResponse(encode(body), status, headers, media_type="application/json")


RenderFault = Callable[[Fault | MainspringError], Json]


def wrap_error(error: Fault | MainspringError) -> Json:
    return {"error": render_error(error)}


def wrap_for_messages(error: Fault | MainspringError) -> Json:
    """An error as the Messages API has it; `param` and `code` are ours."""
    told = render_error(error)
    kind = _OF_MESSAGES.get(error.status, "invalid_request_error" if error.status < 500 else "api_error")
    # Clients begin the thread anew by this.
    details = {"details": {"error_code": "thread_not_found"}} if isinstance(error, PreviousNotFound) else {}
    return {"type": "error", "error": {**told, "type": kind, **details}}


_OF_MESSAGES: Final = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 408: "timeout_error", 413: "request_too_large",
    429: "rate_limit_error", 503: "overloaded_error",
}  # fmt: skip


def fault_response(error: Fault | MainspringError, render: RenderFault = wrap_error) -> HttpResponse:
    headers = {**error.headers} if isinstance(error, Fault) else {}
    if error.status >= 500 or error.status == 409:
        # A run that was begun may have had effects; SDKs repeat such requests unless they are told not to.
        headers["x-should-retry"] = "false"
    if isinstance(error, Fault | ProviderError | MemoryLimit) and error.retry_after is not None:
        headers["retry-after"] = str(math.ceil(error.retry_after))
    return json_response(render(error), error.status, headers)


def render_error(error: Fault | MainspringError) -> Json:
    """The error object. `code` is never null, and a message that quotes what was sent does not grow with it."""
    message = error.message if len(error.message) <= MOST_MESSAGE_CHARS else f"{error.message[:MOST_MESSAGE_CHARS]}..."
    return {"message": message, "type": classify_status(error.status), "param": error.param, "code": error.code}


def classify_status(status: int) -> str:
    if status == 429:
        return "too_many_requests"
    return "invalid_request_error" if status < 500 else "server_error"
