"""Delivers events to the endpoints of webhooks: signed, one endpoint at a time by one process, again after a failure.

Theory of operation. Each endpoint that has something to deliver has a task, so that a slow receiver holds up nobody else, and a
leased document, so that one process at a time delivers to it. What is delivered is removed; what fails is tried again with
exponential backoff, and after `MOST_ATTEMPTS` it is a dead letter, which is kept for some time and can be delivered again. What a
process leaves behind that dies is found by the others, which look every `SWEEP_SECONDS`.
"""

from collections.abc import Awaitable, Callable
from logging import getLogger
from math import inf
from typing import TYPE_CHECKING, Final

import anyio
from anyio.abc import TaskGroup
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.backoff import backoff
from mainspring.core.errors import DocumentBusy, MainspringError, NotFound, StoreError
from mainspring.core.items import decode, encode
from mainspring.features.triggers.outbox import DEAD, DELIVERY, Delivery, Key, Outbox, WebhookEndpoint
from mainspring.features.triggers.signatures import sign_message
from mainspring.features.triggers.targets import KeyLost, Targets
from mainspring.features.triggers.webhook_endpoints import WORKER, Endpoints
from mainspring.late_module import LateModule
from mainspring.ports import Document, DocumentStore, Drivers
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.leased_documents import LeasedDocuments

# Brings along an HTTP client.
if TYPE_CHECKING:
    from mainspring.features.triggers import webhook_sender
else:
    webhook_sender = LateModule("mainspring.features.triggers.webhook_sender")

log = getLogger(__name__)

SECONDS: Final = 15.0
# The first pause after a failure, and the longest: fourteen attempts take half a day.
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 4 * 3_600.0
MOST_ATTEMPTS: Final = 14
# Where another process delivers, and after the store failed.
BUSY_SECONDS: Final = 5.0
BATCH: Final = 100
# How often all that waits is looked at, and not only what is new.
PASS_SECONDS: Final = 60.0
# What is kept of dead letters, for each endpoint.
MOST_DEAD: Final = 1_000
DEAD_SECONDS: Final = 30 * 86_400.0
ERROR_CHARS: Final = 300

FindFlaw = Callable[[str], Awaitable[str | None]]


class _Nothing(Struct, frozen=True):
    pass


class _Pass(Struct, frozen=True):
    """What is known of the deliveries up to a number: none of them is due before `soonest`."""

    number: int | None = None
    soonest: float = inf


class Deliverer:
    """Delivers what the outbox has. `flaw` says why a URL is not allowed, None if it is; `count` is told each attempt."""

    def __init__(
        self,
        store: DocumentStore,
        drivers: Drivers,
        outbox: Outbox,
        endpoints: Endpoints,
        targets: Targets,
        guard: AddressGuard,
        *,
        flaw: FindFlaw | None = None,
        count: Callable[[str], None] = lambda outcome: None,
        first_pause: float = FIRST_PAUSE,
        most_attempts: int = MOST_ATTEMPTS,
    ) -> None:
        self._store, self._outbox, self._endpoints, self._targets, self._guard = store, outbox, endpoints, targets, guard
        self._flaw, self._count = flaw, count
        self._first_pause, self._most_attempts = first_pause, most_attempts
        self._leases = LeasedDocuments(store, drivers, WORKER, "endpoint", _Nothing, _Nothing)
        self._working: dict[Key, anyio.Event] = {}
        self._passes: dict[Key, _Pass] = {}

    async def run(self) -> None:
        """Delivers what there is, until it is cancelled."""
        async with anyio.create_task_group() as tasks:
            while True:
                for key in await self._outbox.take_woken():
                    self._wake(key, tasks)

    def _wake(self, key: Key, tasks: TaskGroup) -> None:
        if (working := self._working.get(key)) is not None:
            working.set()
        else:
            self._working[key] = anyio.Event()
            tasks.start_soon(self._work, key)

    async def _work(self, key: Key) -> None:
        """Delivers until there is nothing left."""
        try:
            while True:
                self._working[key] = woken = anyio.Event()
                try:
                    pause = await self._deliver_due(key)
                except (StoreError, MainspringError) as error:
                    log.warning("events for endpoint %s wait: %s", key[1], error)
                    pause = BUSY_SECONDS
                if pause is None and not woken.is_set():
                    return
                with anyio.move_on_after(pause):
                    await woken.wait()
        finally:
            self._working.pop(key, None)
            self._passes.pop(key, None)

    async def _deliver_due(self, key: Key) -> float | None:
        """Delivers what is due. Returns in how many seconds there is more, None if nothing is left."""
        tenant, id = key
        if not await self._store.documents(DELIVERY, tenant=tenant, parent=id, limit=1):
            return None
        await self._leases.create(key, _Nothing(), _Nothing())
        try:
            held = await self._leases.claim(key, 0)
        except DocumentBusy:
            return BUSY_SECONDS
        try:
            return await self._deliver_all(key)
        except NotFound:  # the endpoint was removed, and all that belongs to it
            await self._leases.remove(key)
            return None
        finally:
            with anyio.CancelScope(shield=True):
                try:
                    await held.end(_Nothing())
                except MainspringError as error:
                    log.info("endpoint %s: %s", id, error)

    async def _deliver_all(self, key: Key) -> float | None:
        """As `_deliver_due`. What is new is tried at once, however much waits before it."""
        tenant, id = key
        known = self._passes.pop(key, _Pass())
        if known.soonest <= await self._store.read_clock():
            known = _Pass()
        while True:
            endpoint, now = await self._endpoints.get(tenant, id), await self._store.read_clock()
            why = endpoint.stopped or await self._find_loss(key, endpoint)
            found = await self._store.documents(DELIVERY, tenant=tenant, parent=id, after=known.number, limit=BATCH)
            if not found:
                break
            soonest = known.soonest
            for document in found:
                delivery = decode(document.body, Delivery)
                if why:
                    await self._bury(document, replace(delivery, at=now, error=why))
                    continue
                at = delivery.at if delivery.at > now else await self._try(endpoint, document, delivery)
                soonest = min(soonest, now + PASS_SECONDS, at) if at is not None else soonest
            known = _Pass(found[-1].number, soonest)
        if known.soonest == inf:
            return None
        self._passes[key] = known
        return max(known.soonest - now, 0.0)

    async def _find_loss(self, key: Key, endpoint: WebhookEndpoint) -> str:
        """Why nothing may be sent any more, empty if it may."""
        try:
            await self._targets.find_caller(endpoint.by)
        except KeyLost as lost:
            await self._endpoints.stop(*key, str(lost))
            return str(lost)
        return ""

    async def _try(self, endpoint: WebhookEndpoint, document: Document, delivery: Delivery) -> float | None:
        """Tries once. Returns when it is to be tried again, None for never."""
        error = await self._send(endpoint, delivery, await self._store.read_clock())
        if not error:
            self._count("delivered")
            await self._store.remove(DELIVERY, document.id, tenant=document.tenant, parent=document.parent)
            return None
        now, attempts = await self._store.read_clock(), delivery.attempts + 1
        failed = replace(delivery, attempts=attempts, error=error, at=now)
        if attempts >= self._most_attempts:
            self._count("dead")
            await self._bury(document, failed)
            return None
        self._count("failed")
        later = replace(failed, at=now + backoff(attempts, base=self._first_pause, cap=LONGEST_PAUSE))
        await self._store.swap(replace(document, body=encode(later)), document.body)
        return later.at

    async def _send(self, endpoint: WebhookEndpoint, delivery: Delivery, now: float) -> str:
        """Sends an event once. Returns why it was not taken, empty if it was."""
        body = delivery.render()
        headers = sign_message(endpoint.secret, delivery.id, now, body)
        if endpoint.previous and now < endpoint.previous_until:
            also = sign_message(endpoint.previous, delivery.id, now, body)["webhook-signature"]
            headers["webhook-signature"] += f" {also}"
        headers |= {"content-type": "application/json", "user-agent": "Mainspring"}
        error = await webhook_sender.post_event(endpoint.url, headers, body, self._guard, self._flaw, SECONDS)
        return error[:ERROR_CHARS]

    async def _bury(self, document: Document, delivery: Delivery) -> None:
        """Makes a dead letter of a delivery, and removes those that are too old or too many."""
        tenant, endpoint = document.tenant, document.parent
        log.warning("event %s was not delivered to endpoint %s: %s", delivery.id, endpoint, delivery.error)
        await self._store.put([Document(DEAD, delivery.id, encode(delivery), tenant, endpoint)])
        await self._store.remove(DELIVERY, document.id, tenant=tenant, parent=endpoint)
        letters = await self._store.documents(DEAD, tenant=tenant, parent=endpoint)
        for place, letter in enumerate(letters):
            is_old = decode(letter.body, Delivery).at < delivery.at - DEAD_SECONDS
            if is_old or place < len(letters) - MOST_DEAD:
                await self._store.remove(DEAD, letter.id, tenant=tenant, parent=endpoint)
