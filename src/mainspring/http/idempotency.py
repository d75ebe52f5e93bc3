"""`Idempotency-Key`: a request that is sent again is the same request, and what it asks for is done once.

Theory of operation. Before the work begins its key is reserved: one document, put only if absent, that holds a hash of the body.
Whoever comes second finds the reservation and joins what it stands for; while the work is beginning in this process, they wait.
Work that was refused gives its key back. Keys belong to whoever sends them and are good for a day.

Where the work is a run (`IdempotentRuns`), the reservation names the id that the run will have, so a duplicate in this process or
another joins the run, live or ended. A reservation whose run never appeared belongs to a process that died in between; after
`GRACE` seconds the next request starts the run under the reserved id, and should the first one wake up after all, the store gives
the log to one of them. Whoever loses it, is stopped, or cannot tell whether the store has its run, leaves the key as it is: it
stands for that run. A run that failed before it said or did anything gives its key back once somebody asks for it again: it
would only be refused once more, whatever the backend says by then. A response that is not stored can be joined while this process
remembers it; after that the key is refused, for nobody can tell any more what came of it. Deleting a response frees its key.

Where it is not (`IdempotentReplies`), the reply joins the reservation when the work is done. Of a key without a reply, whose
process ended or is another, the work may know by the key what came of it, and the reply is that; work that never began is begun
after `GRACE` seconds. Where that is not known the key is refused.

A workflow run needs no reservation: its id follows from its key, so the store itself lets it begin once.
"""

import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final, TypeVar

from anyio import CancelScope, Event, move_on_after, sleep
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import CallerError, Interrupted, InvalidRequest, NotFound, PeerError
from mainspring.core.items import decode, encode
from mainspring.core.lru_cache import LRUCache
from mainspring.core.run import Run
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.engine.journal import Clock
from mainspring.http.endpoints import IDEMPOTENCY_KEY
from mainspring.http.faults import Fault
from mainspring.ports import Document, DocumentStore

RUN_KEY: Final = "idempotency_key"
REPLY_KEY: Final = "idempotent_reply"
LIFE: Final = 24 * 3600.0
GRACE: Final = 5.0
POLL: Final = 0.05
PATIENCE: Final = 600.0
REMEMBERED: Final = 256

T = TypeVar("T")


def read_key(request: Request) -> str | None:
    """The key of a request, None if it has none. Raises `InvalidRequest`."""
    if (key := request.headers.get(IDEMPOTENCY_KEY)) is not None and (not 0 < len(key) <= 255 or not key.isprintable()):
        raise InvalidRequest(f"{IDEMPOTENCY_KEY} must be 1 to 255 printable characters", param=IDEMPOTENCY_KEY)
    return key


class Reservation(Struct, frozen=True):
    """What a key stands for: the hash of the body, and the response or the reply to it, with the reply's own headers."""

    body: str
    at: float
    response: str = ""
    is_stored: bool = True
    reply: str | None = None
    headers: dict[str, str] = {}


class Beginning:
    """Work that may be about to begin here. `is_reserved` says that its key was had."""

    def __init__(self) -> None:
        self.is_over, self.is_reserved = Event(), False


class ReservedKeys:
    """The reservations of one kind in a store."""

    def __init__(self, store: DocumentStore, kind: str, clock: Clock) -> None:
        self._store, self._kind, self._clock = store, kind, clock
        self._beginnings: dict[str, Beginning] = {}

    async def perform_once(
        self,
        id: str,
        wanted: Reservation,
        begin: Callable[[], Awaitable[T]],
        join: Callable[[Reservation, bool], Awaitable[T | None]],
    ) -> T:
        """What `begin` returns if the key could be reserved, else what `join` makes of the reservation there is. `join` is told
        whether the work has just begun here, and returns None if the reservation must be looked at again.

        Raises `Fault` 409 if the key stands for another body, and what `begin` and `join` raise.
        """
        while True:
            if (beginning := self._beginnings.get(id)) is not None:
                await beginning.is_over.wait()
            else:
                with self.announce(id) as beginning:
                    if await self._store.put([Document(self._kind, id, encode(wanted))], if_absent=True):
                        beginning.is_reserved = True
                        await self._forget_expired()
                        return await begin()
            found = await self._find(id, wanted)
            if found is not None and (result := await join(found, beginning.is_reserved)) is not None:
                return result

    def is_beginning(self, id: str) -> bool:
        return id in self._beginnings

    @contextmanager
    def announce(self, id: str) -> Iterator[Beginning]:
        """Whoever finds that the work is about to begin can wait until it has, or has not."""
        self._beginnings[id] = beginning = Beginning()
        try:
            yield beginning
        finally:
            del self._beginnings[id]
            beginning.is_over.set()

    async def update(self, id: str, reservation: Reservation) -> None:
        await self._store.put([Document(self._kind, id, encode(reservation))])

    async def release(self, id: str, response: str = "") -> None:
        """Gives a key back, unless it stands for another response by now."""
        found = await self._store.get(self._kind, id)
        if found is not None and decode(found.body, Reservation).response == response:
            await self._store.remove(self._kind, id, number=found.number)

    async def _find(self, id: str, wanted: Reservation) -> Reservation | None:
        if (found := await self._store.get(self._kind, id)) is None:
            return None
        reservation = decode(found.body, Reservation)
        if self._clock() - reservation.at > LIFE:
            await self._store.remove(self._kind, id, number=found.number)
            return None
        if reservation.body != wanted.body:
            message = f"this {IDEMPOTENCY_KEY} was used for another request body; send a new key with a new request"
            raise Fault(409, "idempotency_key_reused", message, param=IDEMPOTENCY_KEY)
        return reservation

    async def _forget_expired(self) -> None:
        """Two for one: whoever adds a key looks at the two oldest."""
        for document in await self._store.documents(self._kind, limit=2):
            if self._clock() - decode(document.body, Reservation).at > LIFE:
                await self._store.remove(self._kind, document.id, number=document.number)


class IdempotentRuns:
    """Starts runs, each key once."""

    def __init__(self, engine: Engine, clock: Clock = time.time) -> None:
        self._engine, self._clock = engine, clock
        self._keys = ReservedKeys(engine.store, RUN_KEY, clock)
        self._unstored: LRUCache[str, Handle] = LRUCache(REMEMBERED)

    async def start(self, spec: RunSpec, key: str | None, body: bytes, *, is_followed: bool = True) -> Handle:
        """The run for this request: a new one, or the one that its key stands for. `is_followed` says that the caller reads it
        to its end, so a run in another process is followed.

        Raises `Fault` 409 if the key was used for another body, and what `Engine.start` raises.
        """
        if key is None:
            return await self._engine.start(spec)
        id = sha256(f"{spec.tenant}\0{key}".encode()).hexdigest()
        wanted = Reservation(sha256(body).hexdigest(), self._clock(), spec.id, spec.store)

        async def join(reservation: Reservation, has_just_begun: bool) -> Handle | None:
            if has_just_begun:
                return await self._find(reservation.response)
            return await self._join(spec, id, reservation, is_followed)

        return await self._keys.perform_once(id, wanted, lambda: self._begin(spec, id), join)

    async def _begin(self, spec: RunSpec, id: str) -> Handle:
        try:
            handle = await self._engine.start(spec)
        except BaseException as error:
            if not spec.store or isinstance(error, CallerError | PeerError | Fault):
                with CancelScope(shield=True):
                    await self._give_back(spec.id, id)
            raise
        if not spec.store:
            self._unstored[spec.id] = handle
        return handle

    async def _give_back(self, run_id: str, id: str) -> None:
        """Gives the key of a refused request back, unless another process has begun its run meanwhile."""
        if await self._find(run_id) is None:
            await self._keys.release(id, run_id)

    async def _join(self, spec: RunSpec, id: str, reservation: Reservation, is_followed: bool) -> Handle | None:
        """The run that the reservation is for; None if the reservation must be looked at again."""
        run_id = reservation.response
        if (handle := await self._find(run_id)) is not None:
            if _came_to_nothing(handle.run):
                await self._keys.release(id, run_id)
                return None
            return await self._follow(handle) if is_followed else handle
        if not reservation.is_stored:
            message = f"the response to this {IDEMPOTENCY_KEY} was not stored, and cannot be shown again; a new key runs it again"
            raise Fault(409, "idempotency_response_gone", message, param=IDEMPOTENCY_KEY)
        if self._clock() - reservation.at < GRACE:
            await sleep(POLL)
            return None
        if self._keys.is_beginning(id):
            return None
        with self._keys.announce(id) as beginning:
            beginning.is_reserved = True
            # Looked for once more: until just now, somebody else may have been the one to start it.
            return await self._find(run_id) or await self._begin(replace(spec, id=run_id), id)

    async def _find(self, run_id: str) -> Handle | None:
        if (handle := self._unstored.get(run_id)) is not None:
            return handle
        try:
            return await self._engine.attach(run_id)
        except NotFound:
            return None

    async def _follow(self, handle: Handle) -> Handle:
        """A handle that can be read to the end. A run that is about to be driven elsewhere cannot be, before it has ended."""
        if handle.is_live or handle.run.has_ended or (handle := await self._engine.follow(handle.id)).is_live:
            return handle
        with move_on_after(PATIENCE):
            while True:
                if (await self._engine.store.load(handle.id)).status != "in_progress":
                    return await self._engine.attach(handle.id)
                await sleep(POLL)
        raise Interrupted(f"response `{handle.id}` is still under way in another process; ask for it by its id later")


class IdempotentReplies:
    """Replies to requests, each worked for once."""

    def __init__(self, store: DocumentStore, clock: Clock = time.time) -> None:
        self._keys, self._clock = ReservedKeys(store, REPLY_KEY, clock), clock

    async def reply(
        self,
        request: Request,
        sender: str,
        raw: bytes,
        work: Callable[[str], Awaitable[HttpResponse]],
        recover: Callable[[str], Awaitable[HttpResponse | None]],
    ) -> HttpResponse:
        """The reply that the work comes to, or came to when the sender first sent the key to this path.

        `work` is told a name for what it makes, nothing without a key. `recover` is told the same and makes the reply of work
        that was not seen to its end; it returns None if that cannot be told, and raises `NotFound` if it never began. Raises
        `Fault` 409 for a key of another body, or whose work cannot be told, and what the work raises.
        """
        if (key := read_key(request)) is None:
            return await work("")
        id = sha256(f"{sender}\0{request.url.path}\0{key}".encode()).hexdigest()
        wanted = Reservation(sha256(raw).hexdigest(), self._clock())

        async def begin() -> HttpResponse:
            try:
                reply = await work(_name_work(id, wanted))
            except (CallerError, Fault):
                await self._keys.release(id)
                raise
            await self._keep(id, wanted, reply)
            return reply

        async def join(reservation: Reservation, has_just_begun: bool) -> HttpResponse | None:
            if reservation.reply is not None:
                return HttpResponse(reservation.reply, media_type="application/json", headers=reservation.headers)
            try:
                reply = await recover(_name_work(id, reservation))
            except NotFound:
                if self._clock() - reservation.at > GRACE:
                    await self._keys.release(id)
                    return None
                reply = None
            if reply is None:
                message = (
                    f"the request with this {IDEMPOTENCY_KEY} may still be under way: send it again with the same key in a few "
                    "seconds; if this stays so, look at what it was to do, then send a new key"
                )
                raise Fault(409, "idempotency_reply_unknown", message, param=IDEMPOTENCY_KEY, retry_after=GRACE)
            await self._keep(id, reservation, reply)
            return reply

        # Whoever leaves in between finds the reply when they ask again.
        with CancelScope(shield=True):
            return await self._keys.perform_once(id, wanted, begin, join)
        raise AssertionError("a shielded scope is not cancelled")

    async def _keep(self, id: str, reservation: Reservation, reply: HttpResponse) -> None:
        own = {name: value for name, value in reply.headers.items() if name.startswith("x-")}
        await self._keys.update(id, replace(reservation, reply=bytes(reply.body).decode(), headers=own))


def _name_work(id: str, reservation: Reservation) -> str:
    """Another name each time that the key is reserved: an expired one may be used again."""
    return sha256(f"{id}\0{reservation.at}".encode()).hexdigest()[:24]


def _came_to_nothing(run: Run) -> bool:
    return run.status == "failed" and not run.output and not run.tools_used
