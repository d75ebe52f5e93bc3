"""`Idempotency-Key`: a request that is sent again is the same request, and there is one run for it.

Theory of operation. Before a run starts, its key is reserved: one document, put only if absent, that holds a hash of the body and
the id which the response will have. Whoever comes second, in this process or another, finds the reservation and joins that
response, live or ended. The id is what makes this safe. A reservation whose run never appeared belongs to a process that died in
between; after `GRACE` seconds the next request starts the run under the reserved id, and should the first one wake up after all,
the store gives the log to one of them. A request that is refused gives its key back, and so does a run that failed before it said
or did anything, once somebody asks for it again: it would only be refused once more, whatever the backend says by then.

Keys belong to a tenant and are good for a day. A response that is not stored can be joined while this process remembers it; after
that the key is refused, for nobody can tell any more what came of it. Deleting a response frees its key.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Final

import anyio
from anyio import CancelScope, move_on_after, sleep
from msgspec import Struct
from msgspec.structs import replace

from mainspring.app.engine import Engine
from mainspring.core.errors import Interrupted, InvalidRequest, NotFound
from mainspring.core.items import decode, encode
from mainspring.core.run import Run
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Handle
from mainspring.engine.journal import Clock
from mainspring.http.faults import Fault
from mainspring.ports import Document

KIND: Final = "idempotency_key"
LIFE: Final = 24 * 3600.0
GRACE: Final = 5.0
POLL: Final = 0.05
PATIENCE: Final = 600.0
REMEMBERED: Final = 256


class Reservation(Struct, frozen=True):
    """What a key stands for: the hash of the body, and the response to it."""

    body: str
    response: str
    at: float
    is_stored: bool = True


class Idempotency:
    """Starts runs, each key once."""

    def __init__(self, engine: Engine, clock: Clock = time.time) -> None:
        self._engine = engine
        self._clock = clock
        self._starting: dict[str, anyio.Event] = {}
        self._unstored: OrderedDict[str, Handle] = OrderedDict()

    async def start(self, spec: RunSpec, key: str | None, body: bytes, *, is_followed: bool = True) -> Handle:
        """The run for this request: a new one, or the one that its key stands for. `is_followed` says that the caller reads it
        to its end, so a run in another process is waited for.

        Raises `Fault` 409 if the key was used for another body, and what `Engine.start` raises.
        """
        if key is None:
            return await self._engine.start(spec)
        check_key(key)
        id = sha256(f"{spec.tenant}\0{key}".encode()).hexdigest()
        wanted = Reservation(sha256(body).hexdigest(), spec.id, self._clock(), spec.store)
        while True:
            if (handle := await self._reserved(spec, id, wanted)) is not None:
                return handle
            found = await self._engine.store.get(KIND, id)
            if found is None:
                continue
            reservation = decode(found.body, Reservation)
            if self._clock() - reservation.at > LIFE:
                await self._engine.store.remove(KIND, id, number=found.number)
            elif reservation.body != wanted.body:
                message = f"Idempotency-Key `{key}` was used for another request body; send a new key with a new request"
                raise Fault(409, "idempotency_key_reused", message, param="Idempotency-Key")
            elif (handle := await self._joined(spec, id, reservation, is_followed)) is not None:
                return handle

    async def _reserved(self, spec: RunSpec, id: str, wanted: Reservation) -> Handle | None:
        """Starts the run if the key could be reserved for it."""
        with self._announced(spec.id):
            if not await self._engine.store.put([Document(KIND, id, encode(wanted))], if_absent=True):
                return None
            await self._forget_expired()
            return await self._begin(spec, id)

    async def _begin(self, spec: RunSpec, id: str) -> Handle:
        try:
            handle = await self._engine.start(spec)
        except BaseException:
            with CancelScope(shield=True):
                await self._give_back(id, spec.id)
            raise
        if not spec.store:
            self._unstored[spec.id] = handle
            while len(self._unstored) > REMEMBERED:
                self._unstored.popitem(last=False)
        return handle

    async def _give_back(self, id: str, run_id: str) -> None:
        found = await self._engine.store.get(KIND, id)
        if found is not None and decode(found.body, Reservation).response == run_id:
            await self._engine.store.remove(KIND, id, number=found.number)

    async def _joined(self, spec: RunSpec, id: str, reservation: Reservation, is_followed: bool) -> Handle | None:
        """The run that the reservation is for; None if the reservation must be looked at again."""
        run_id = reservation.response
        if (starting := self._starting.get(run_id)) is not None:
            await starting.wait()
            return self._unstored.get(run_id) or await self._attached(run_id)
        if (handle := self._unstored.get(run_id) or await self._attached(run_id)) is not None:
            if _came_to_nothing(handle.run):
                await self._give_back(id, run_id)
                return None
            return await self._followed(handle) if is_followed else handle
        if not reservation.is_stored:
            message = "the response to this Idempotency-Key was not stored, and cannot be shown again; a new key runs it again"
            raise Fault(409, "idempotency_response_gone", message, param="Idempotency-Key")
        if self._clock() - reservation.at < GRACE:
            await sleep(POLL)
            return None
        if run_id in self._starting:
            return None
        with self._announced(run_id):
            # Looked for once more: until just now, somebody else may have been the one to start it.
            return await self._attached(run_id) or await self._begin(replace(spec, id=run_id), id)

    @contextmanager
    def _announced(self, run_id: str) -> Iterator[None]:
        """Whoever finds that this run is about to start can wait until it has, or has not."""
        self._starting[run_id] = started = anyio.Event()
        try:
            yield
        finally:
            del self._starting[run_id]
            started.set()

    async def _attached(self, run_id: str) -> Handle | None:
        try:
            return await self._engine.attach(run_id)
        except NotFound:
            return None

    async def _followed(self, handle: Handle) -> Handle:
        """A handle that can be read to the end. A run of another process cannot be, before it has ended."""
        if handle.is_live or handle.run.has_ended:
            return handle
        with move_on_after(PATIENCE):
            while True:
                if (await self._engine.store.load(handle.id)).status != "in_progress":
                    return await self._engine.attach(handle.id)
                await sleep(POLL)
        raise Interrupted(f"response `{handle.id}` is still under way in another process; ask for it by its id later")

    async def _forget_expired(self) -> None:
        """Two for one: whoever adds a key looks at the two oldest."""
        for document in await self._engine.store.documents(KIND, limit=2):
            if self._clock() - decode(document.body, Reservation).at > LIFE:
                await self._engine.store.remove(KIND, document.id, number=document.number)


def check_key(key: str) -> None:
    """Raises `InvalidRequest` for what cannot be a key."""
    if not 0 < len(key) <= 255 or not key.isprintable():
        raise InvalidRequest("Idempotency-Key must be 1 to 255 printable characters", param="Idempotency-Key")


def _came_to_nothing(run: Run) -> bool:
    return run.status == "failed" and not run.output and not run.tools_used
