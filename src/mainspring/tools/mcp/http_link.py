"""Carries messages to an MCP server by streamable HTTP: each is a POST, answered by one JSON object or a stream of events.

A request is never sent twice: one that breaks off loses the session, and whether it may be repeated is for the caller to say.
Under the protocols with sessions, a stream that breaks off is resumed where the server has numbered its events, and a second
stream, by GET, brings what the server says of its own accord. Under the stateless protocol closing the connection cancels the
request.
"""

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

from mainspring.core.backoff import backoff
from mainspring.core.errors import MainspringError
from mainspring.core.items import Json
from mainspring.net.client import HttpClient, encode_headers
from mainspring.net.connection import Answer, Disconnected, HttpError
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.guarded_http import make_guarded_http
from mainspring.tools.mcp.exchange import SessionLost
from mainspring.tools.mcp.http_sender import SILENCE_SECONDS, HttpSender, read_body, read_content_type
from mainspring.tools.mcp.json_rpc import (
    EventReader,
    Hear,
    Reply,
    RequestRefused,
    encode_cancel,
    encode_request,
    parse_message,
    read_reply,
    refuse,
)
from mainspring.tools.mcp.server_specs import ServerSpec

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import Authorizer

# How long a connection may take to end its answer once we know it.
LINGER_SECONDS = 1.0
RESUME_SECONDS = 1.0
SHORTEST_PAUSE = 0.05
LONGEST_PAUSE = 30.0
MOST_FAILURES = 3

_SESSION_ID = re.compile(r"[!-~]{1,4096}")


@asynccontextmanager
async def open_http_link(
    spec: ServerSpec, guard: AddressGuard, hear: Hear, authorizer: "Authorizer | None" = None
) -> "AsyncGenerator[HttpLink, None]":
    """A link that ends the server's session, if there is one, when it is left."""
    async with make_guarded_http(guard, SILENCE_SECONDS) as client:
        link = HttpLink(spec, client, hear, authorizer)
        yield link
        await link.end_session()


class HttpLink:
    """Asks and tells; `hear` is given all that is no answer to a request. Raises `SessionLost` and `RequestRefused`."""

    # Each request has a connection of its own, which closing cancels, and headers.
    is_http = True

    def __init__(self, spec: ServerSpec, client: HttpClient, hear: Hear, authorizer: "Authorizer | None" = None) -> None:
        self._sender, self._hear = HttpSender(spec, client, authorizer=authorizer), hear
        self._session = self._version = b""
        self._is_resumable = True

    def adopt(self, version: str | None, *, is_stateless: bool) -> None:
        """Speaks this version of the protocol from now on."""
        self._version = b"" if version is None else encode_headers([("MCP-Protocol-Version", version)])
        self._is_resumable = not is_stateless

    async def ask(self, number: int, method: str, params: Json, headers: bytes = b"") -> Reply:
        """The answer to a request. If that is cancelled, its connection is closed."""
        answer = await self._send("POST", encode_request(number, method, params), headers)
        try:
            kind = await self._check(answer)
            if method == "initialize":
                self._begin_session(answer)
            if kind == "application/json":
                body = await read_body(answer)
                return read_reply(await parse_message(body), number, len(body))
            if kind == "text/event-stream":
                return await self._read_stream(answer, number)
            raise refuse(f"Unexpected content type: {kind}")
        except HttpError as error:
            answer.close()
            raise SessionLost(f"the answer broke off: {error}") from error
        except BaseException:
            answer.close()
            raise

    async def tell(self, message: bytes) -> None:
        """Sends what has no answer. That it was refused is nobody's concern."""
        (await self._send("POST", message)).close()

    async def cancel(self, number: int) -> None:
        await self.tell(encode_cancel(number))

    async def listen(self) -> None:
        """Hears what the server says of its own accord, for as long as it offers a stream for that."""
        reader, failures = EventReader(), 0
        while self._session and failures < MOST_FAILURES:
            before = reader.count
            try:
                with suppress(SessionLost, HttpError):
                    answer = await self._resume(reader)
                    if answer is None:
                        return
                    await self._hear_events(answer, reader)
            except (RequestRefused, MainspringError):
                return  # what it says is no message, or too much
            failures = 0 if reader.count > before else failures + 1
            await asyncio.sleep(_get_pause(reader, failures))

    async def end_session(self) -> None:
        if self._session:
            with suppress(SessionLost, RequestRefused, MainspringError):
                (await self._send("DELETE")).close()

    async def _send(self, method: str, body: bytes | None = None, headers: bytes = b"") -> Answer:
        return await self._sender.send(method, body, b"".join((self._session, self._version, headers)))

    async def _check(self, answer: Answer) -> str:
        """The content type of an answer to a request."""
        kind = read_content_type(answer)
        if answer.status < 300:
            if answer.status == 202:
                raise refuse("A request was answered with 202 Accepted")
            return kind
        if answer.status == 404 and self._session:
            raise SessionLost("its session has ended (HTTP 404)")
        refusal = refuse(f"HTTP {answer.status}", answer.status)
        if kind == "application/json":
            with suppress(RequestRefused):
                found = (await parse_message(await read_body(answer))).error
                refusal = refusal if found is None else RequestRefused(found, answer.status)
        raise refusal

    def _begin_session(self, answer: Answer) -> None:
        found = answer.headers.get("Mcp-Session-Id")
        if found is None:
            return
        if not _SESSION_ID.fullmatch(found):
            raise refuse("The id of its session cannot be sent back")
        self._session = encode_headers([("Mcp-Session-Id", found)])

    async def _read_stream(self, answer: Answer, number: int) -> Reply:
        """The answer in a stream of events, which is resumed if it ends before."""
        reader, failures = EventReader(), 0
        while True:
            before = reader.last_id
            with suppress(Disconnected):
                if (found := await self._hear_events(answer, reader, number)) is not None:
                    return found
            failures = 0 if reader.last_id != before else failures + 1
            if not reader.last_id or not self._is_resumable or failures >= MOST_FAILURES:
                raise SessionLost("the stream of events ended without an answer")
            await asyncio.sleep(_get_pause(reader, failures))
            resumed = await self._resume(reader)
            if resumed is None:
                raise SessionLost("the stream of events ended without an answer, and cannot be resumed")
            answer = resumed

    async def _resume(self, reader: EventReader) -> Answer | None:
        """The stream behind the last event, or from its beginning; None if the server offers none."""
        last = encode_headers([("Last-Event-ID", reader.last_id)]) if reader.last_id else b""
        reader.forget_rest()
        answer = await self._send("GET", headers=last)
        if answer.status == 200 and read_content_type(answer) == "text/event-stream":
            return answer
        answer.close()
        if answer.status == 404 and self._session:
            raise SessionLost("its session has ended (HTTP 404)")
        return None

    async def _hear_events(self, answer: Answer, reader: EventReader, number: int | None = None) -> Reply | None:
        """Reads a stream until it holds the answer to this request, None if it ends before."""
        loop = asyncio.get_running_loop()
        try:
            while data := await answer.read():
                for name, event in reader.feed(data):
                    message = await parse_message(event) if name in ("", "message") else None
                    if message is None:
                        continue
                    if message.is_answer and number is not None:
                        # The connection can serve the next request if the stream ends with its answer, as it should.
                        loop.call_later(LINGER_SECONDS, answer.close)
                        return read_reply(message, number, len(event))
                    await self._hear(message, number)
        except BaseException:
            answer.close()
            raise
        return None


def _get_pause(reader: EventReader, failures: int) -> float:
    asked = RESUME_SECONDS if reader.retry_seconds is None else reader.retry_seconds
    return max(asked, SHORTEST_PAUSE if not failures else backoff(failures, base=RESUME_SECONDS, cap=LONGEST_PAUSE))
