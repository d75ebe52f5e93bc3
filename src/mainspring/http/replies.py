"""`Idempotency-Key` where a request is no run of its own: the reply to the first is kept, and is the reply to every other.

Theory of operation. Before the work begins its key is reserved: one document, put only if absent, with a hash of the body. The
reply joins it when the work is done. A second request with the key waits for the first, if that is under way in this process. One
that finds a key without a reply, whose process ended or is another, is refused: what came of it can be looked up, not guessed.
Work that was refused as it stands gives its key back. Keys belong to a person and an address, and are good for a day.
"""

import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Final

from anyio import CancelScope, Event
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.core.items import decode, encode
from mainspring.engine.journal import Clock
from mainspring.http.faults import Fault
from mainspring.ports import Document, Store

KIND: Final = "idempotent_reply"
HEADER: Final = "Idempotency-Key"
LIFE: Final = 24 * 3600.0


class Kept(Struct, frozen=True):
    """The hash of a request's body, and the reply to it with its headers, once there is one."""

    body: str
    at: float
    reply: str | None = None
    headers: dict[str, str] = {}


class Replies:
    """The replies of a store, each worked for once."""

    def __init__(self, store: Store, clock: Clock = time.time) -> None:
        self._store, self._clock = store, clock
        self._under_way: dict[str, Event] = {}

    async def once(self, request: Request, person: str, raw: bytes, work: Callable[[], Awaitable[HttpResponse]]) -> HttpResponse:
        """The reply that the work comes to, or came to when the key was first sent.

        Raises `Fault` 409 for a key of another body, or whose work was not seen to its end, and what the work raises.
        """
        if (key := request.headers.get(HEADER)) is None:
            return await work()
        if not 0 < len(key) <= 255 or not key.isprintable():
            raise InvalidRequest(f"{HEADER} must be 1 to 255 printable characters", param=HEADER)
        id = sha256(f"{person}\0{request.url.path}\0{key}".encode()).hexdigest()
        wanted = Kept(sha256(raw).hexdigest(), self._clock())
        while True:
            if (first := self._under_way.get(id)) is not None:
                await first.wait()
            elif (kept := await self._kept(id)) is not None:
                return _again(kept, wanted, key)
            elif id not in self._under_way and (reply := await self._worked(id, wanted, work)) is not None:
                return reply

    async def _worked(self, id: str, wanted: Kept, work: Callable[[], Awaitable[HttpResponse]]) -> HttpResponse | None:
        """The reply, None if somebody else has reserved the key."""
        self._under_way[id] = done = Event()
        try:
            # Whoever leaves in between finds the reply when they ask again.
            with CancelScope(shield=True):
                if not await self._store.put([Document(KIND, id, encode(wanted))], if_absent=True):
                    return None
                return await self._replied(id, wanted, work)
            raise AssertionError("a shielded scope is not cancelled")
        finally:
            del self._under_way[id]
            done.set()

    async def _replied(self, id: str, wanted: Kept, work: Callable[[], Awaitable[HttpResponse]]) -> HttpResponse:
        try:
            reply = await work()
        except (CallerError, Fault):
            await self._store.remove(KIND, id)
            raise
        own = {name: value for name, value in reply.headers.items() if name.startswith("x-")}
        kept = replace(wanted, reply=bytes(reply.body).decode(), headers=own)
        await self._store.put([Document(KIND, id, encode(kept))])
        await self._forget_expired()
        return reply

    async def _kept(self, id: str) -> Kept | None:
        found = await self._store.get(KIND, id)
        if found is None:
            return None
        kept = decode(found.body, Kept)
        if self._clock() - kept.at <= LIFE:
            return kept
        await self._store.remove(KIND, id, number=found.number)
        return None

    async def _forget_expired(self) -> None:
        """Two for one: whoever adds a key looks at the two oldest."""
        for document in await self._store.documents(KIND, limit=2):
            if self._clock() - decode(document.body, Kept).at > LIFE:
                await self._store.remove(KIND, document.id, number=document.number)


def _again(kept: Kept, wanted: Kept, key: str) -> HttpResponse:
    if kept.body != wanted.body:
        message = f"{HEADER} `{key}` was used for another request body; send a new key with a new request"
        raise Fault(409, "idempotency_key_reused", message, param=HEADER)
    if kept.reply is None:
        message = f"what came of the request with the {HEADER} `{key}` is not known here; look at the list, then send a new key"
        raise Fault(409, "idempotency_reply_unknown", message, param=HEADER)
    return HttpResponse(kept.reply, media_type="application/json", headers=kept.headers)
