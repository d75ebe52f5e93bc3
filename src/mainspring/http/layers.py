"""What an operator can put around every request: a log of requests, and leave for web pages of other origins."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from io import TextIOWrapper
from logging import Formatter, Handler, Logger, StreamHandler
from logging.handlers import WatchedFileHandler
from typing import Final

import msgspec
from msgspec import Struct
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.errors import InvalidRequest
from mainspring.http.auth import get_caller
from mainspring.http.settings import HttpSettings

STANDARD_ERROR: Final = "-"
CLIENT_LEFT: Final = 499
# What a page may read of an answer, beside what it always may.
EXPOSED: Final = (
    "x-request-id", "request-id", "retry-after", "location",
    *[f"x-ratelimit-{name}-{what}" for what in ("requests", "tokens") for name in ("limit", "remaining", "reset")],
)  # fmt: skip

Write = Callable[[str], None]


class RequestLine(Struct, frozen=True, omit_defaults=True):
    """A request and what came of it, without any content. `key` is the id of the API key; `status` is 499 if the client left."""

    at: str
    request_id: str
    method: str
    path: str
    status: int
    ms: float
    key: str = ""
    tenant: str = ""


class RequestLog:
    """Writes a line of JSON for every request when it is over, for a stream when that has ended."""

    def __init__(self, app: ASGIApp, write: Write) -> None:
        self._app, self._write = app, write

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        started, status, request_id = time.monotonic(), CLIENT_LEFT, ""

        async def watch(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                status = message["status"]
                request_id = next((value.decode() for name, value in message["headers"] if name == b"x-request-id"), "")
            elif message["type"] == "websocket.accept":
                status = 101
            elif message["type"] == "websocket.close" and status == CLIENT_LEFT:
                status = 403
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            caller = get_caller(HTTPConnection(scope))
            line = RequestLine(
                datetime.now(UTC).isoformat(timespec="milliseconds"),
                request_id,
                scope.get("method", "WEBSOCKET"),
                scope["path"],
                status,
                round((time.monotonic() - started) * 1000, 1),
                caller.subject.removeprefix("key:"),
                caller.tenant,
            )
            self._write(msgspec.json.encode(line).decode())


class PrivateFile(WatchedFileHandler):
    """A file for its owner only. Once it has been moved away, a new one is opened."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", opener=partial(os.open, mode=0o600))


def make_layers(settings: HttpSettings) -> list[Middleware]:
    """The outermost first. Raises `InvalidRequest` if the log of requests cannot be written."""
    layers: list[Middleware] = []
    if settings.cors_origins:
        layers.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=("GET", "POST", "DELETE"),
                allow_headers=("*",),  # clients send many of their own, and none of them opens anything
                expose_headers=EXPOSED,
            )
        )
    if settings.request_log is not None:
        layers.append(Middleware(RequestLog, write=_open_log(settings.request_log)))
    return layers


def _open_log(target: str) -> Write:
    try:
        handler: Handler = StreamHandler() if target == STANDARD_ERROR else PrivateFile(target, encoding="utf-8")
    except OSError as error:
        message = f"the log of requests `{target}` cannot be written: {error.strerror}; name another file, or make room"
        raise InvalidRequest(message, param="request_log") from error
    handler.setFormatter(Formatter("%(message)s"))
    log = Logger("requests")
    log.addHandler(handler)
    return log.info
