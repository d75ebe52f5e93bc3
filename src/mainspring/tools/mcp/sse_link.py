"""Carries messages by the older HTTP+SSE transport: an event stream names the address that takes messages, and brings answers."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import anyio
from yarl import URL

from mainspring.net.connection import Answer, HttpError
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.guarded_http import make_guarded_http
from mainspring.tools.mcp.exchange import SessionLost, TooMuchSaid
from mainspring.tools.mcp.http_sender import SILENCE_SECONDS, HttpSender, read_content_type
from mainspring.tools.mcp.json_rpc import EventReader, Hear, RequestRefused, refuse
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.shared_link import SharedLink

if TYPE_CHECKING:
    from mainspring.tools.mcp.sign_in import Authorizer

MOST_BYTES = 1024 * 1024


@asynccontextmanager
async def open_sse_link(
    spec: ServerSpec, guard: AddressGuard, hear: Hear, authorizer: "Authorizer | None" = None
) -> AsyncGenerator[SharedLink, None]:
    """A link for as long as the event stream lasts. Raises `RequestRefused` if there is none, `SessionLost` when it ends."""
    async with make_guarded_http(guard, SILENCE_SECONDS) as client:
        sender = HttpSender(spec, client, authorizer=authorizer)
        answer = await sender.send("GET")
        if answer.status != 200 or read_content_type(answer) != "text/event-stream":
            answer.close()
            raise refuse(f"HTTP {answer.status}", answer.status)
        stream = _Stream(answer)
        endpoint = await stream.find_endpoint(sender)
        poster = HttpSender(spec, client, endpoint, authorizer)

        async def post(message: bytes) -> None:
            taken = await poster.send("POST", message)
            taken.close()
            if taken.status >= 400:
                raise refuse(f"HTTP {taken.status}", taken.status)

        async with anyio.create_task_group() as tasks:
            link = SharedLink(post, hear, tasks, stream.budget)
            try:
                tasks.start_soon(stream.read, link)
                yield link
                tasks.cancel_scope.cancel()
            finally:
                link.fail("the session was closed")


class _Stream:
    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._reader = EventReader(MOST_BYTES)
        self.budget = self._reader.budget
        self._events: list[tuple[str, bytes]] = []

    async def find_endpoint(self, sender: HttpSender) -> URL:
        """The address that the event `endpoint` names, which must be of the same server."""
        while True:
            while not self._events:
                await self._read_more()
            name, data = self._events.pop(0)
            if name == "endpoint":
                break
        try:
            found = sender.url.join(URL(data.decode()))
        except ValueError:
            raise refuse("The address for messages is none") from None
        if not sender.is_same_server(found):
            raise refuse("The address for messages is not on the same server")
        return found

    async def read(self, link: SharedLink) -> None:
        try:
            while True:
                for name, data in self._events:
                    with suppress(RequestRefused):  # it is no message
                        await link.receive(data if name in ("", "message") else b"")
                self._events.clear()
                await self._read_more()
        except SessionLost as lost:
            link.fail(str(lost))
            raise

    async def _read_more(self) -> None:
        try:
            data = await self._answer.read()
        except HttpError as error:
            raise SessionLost(f"the event stream broke off: {error}") from error
        if not data:
            raise SessionLost("the event stream ended")
        try:
            self._events += self._reader.feed(data)
        except RequestRefused as error:
            raise TooMuchSaid(str(error)) from error
