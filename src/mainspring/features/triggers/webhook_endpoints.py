"""The endpoints that events are sent to: made, changed and removed."""

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from mainspring.core.errors import CallerError, InvalidRequest, NotFound
from mainspring.core.ids import NewId
from mainspring.core.items import decode, encode
from mainspring.features.triggers.marks import Mark, make_mark, put_mark, remove_mark
from mainspring.features.triggers.outbox import DEAD, DELIVERY, ENDPOINT, Delivery, EventType, Outbox, WebhookEndpoint
from mainspring.features.triggers.signatures import make_secret
from mainspring.ports import Document, DocumentStore

WORKER: Final = "webhook_worker"
MOST_ENDPOINTS: Final = 20
MOST_LISTED: Final = 1_000


class EndpointChanged(CallerError):
    """Somebody else has changed the endpoint in this moment."""

    code = "trigger_conflict"
    status = 409


class Endpoints:
    """The endpoints of a store. Other processes learn of changes by marks, this one at once."""

    def __init__(self, store: DocumentStore, outbox: Outbox, new_id: NewId) -> None:
        self._store, self._outbox, self._new_id = store, outbox, new_id

    async def create(
        self, tenant: str, url: str, events: tuple[EventType, ...], by: str = "", description: str = ""
    ) -> WebhookEndpoint:
        """Raises `InvalidRequest` if the tenant has as many as it may."""
        if len(await self.list(tenant)) >= MOST_ENDPOINTS:
            told = f"a tenant has at most {MOST_ENDPOINTS} endpoints; remove one, or send the events of several to one"
            raise InvalidRequest(told, param="url")
        now = await self._store.read_clock()
        made = WebhookEndpoint(self._new_id("we"), url, events, make_secret(), now, by, description)
        await self._store.put([Document(ENDPOINT, made.id, encode(made), tenant), make_mark(_mark(tenant, made), 1)])
        await self._outbox.learn((tenant, made.id))
        return made

    async def list(self, tenant: str) -> Sequence[WebhookEndpoint]:
        found = [decode(document.body, WebhookEndpoint) for document in await self._store.documents(ENDPOINT, tenant=tenant)]
        return [endpoint for endpoint in found if endpoint.secret]

    async def get(self, tenant: str, id: str) -> WebhookEndpoint:
        """Raises `NotFound`."""
        return decode((await self._find(tenant, id)).body, WebhookEndpoint)

    async def change(self, tenant: str, id: str, url: str, events: tuple[EventType, ...], description: str) -> WebhookEndpoint:
        """Raises `NotFound`, `EndpointChanged`."""
        return await self._swap(tenant, id, url=url, events=events, description=description)

    async def rotate(self, tenant: str, id: str, seconds: float) -> WebhookEndpoint:
        """Gives it a new secret; for so many seconds, events are signed with both. Raises as `change` does."""
        until = await self._store.read_clock() + seconds
        before = await self.get(tenant, id)
        previous = before.secret if seconds else ""
        return await self._swap(tenant, id, secret=make_secret(), previous=previous, previous_until=until)

    async def stop(self, tenant: str, id: str, why: str) -> None:
        """Has nothing more sent to it. Raises as `change` does."""
        await self._swap(tenant, id, stopped=why)

    async def remove(self, tenant: str, id: str) -> WebhookEndpoint:
        """Removes it, and what was to be delivered. Raises `NotFound`."""
        gone = await self.get(tenant, id)
        await self._store.remove(ENDPOINT, id, tenant=tenant)
        await remove_mark(self._store, _mark(tenant, gone), gone.version)
        await self._store.remove(WORKER, id, tenant=tenant)
        await self._store.remove(f"{WORKER}_index", f"{tenant}/{id}")
        self._outbox.forget((tenant, id))
        return gone

    async def list_deliveries(self, tenant: str, id: str, *, dead: bool) -> Sequence[Delivery]:
        """Those that are on their way, or were given up, oldest first. Raises `NotFound`."""
        await self._find(tenant, id)
        found = await self._store.documents(DEAD if dead else DELIVERY, tenant=tenant, parent=id, limit=MOST_LISTED)
        return [decode(document.body, Delivery) for document in found]

    async def redeliver(self, tenant: str, id: str, delivery_id: str) -> Delivery:
        """Tries a delivery that was given up again, as if it were new. Raises `NotFound`."""
        await self._find(tenant, id)
        found = await self._store.get(DEAD, delivery_id, tenant=tenant, parent=id)
        if found is None:
            raise NotFound(f"there is no delivery `{delivery_id[:80]}` that was given up", param="delivery_id")
        again = replace(decode(found.body, Delivery), attempts=0, at=0.0, error="", created_at=await self._store.read_clock())
        await self._store.put([Document(DELIVERY, again.id, encode(again), tenant, id)])
        await self._store.remove(DEAD, delivery_id, tenant=tenant, parent=id)
        self._outbox.wake((tenant, id))
        return again

    async def _find(self, tenant: str, id: str) -> Document:
        found = await self._store.get(ENDPOINT, id, tenant=tenant)
        if found is None or not decode(found.body, WebhookEndpoint).secret:
            raise NotFound(f"there is no webhook endpoint `{id[:80]}`", param="endpoint_id")
        return found

    async def _swap(self, tenant: str, id: str, **changes: object) -> WebhookEndpoint:
        found = await self._find(tenant, id)
        before = decode(found.body, WebhookEndpoint)
        changed = replace(before, version=before.version + 1, **changes)
        if not await self._store.swap(replace(found, body=encode(changed)), found.body):
            raise EndpointChanged(f"webhook endpoint `{id}` was changed by somebody else in this moment; try again")
        await put_mark(self._store, _mark(tenant, changed), changed.version)
        await self._outbox.learn((tenant, id))
        return changed


def _mark(tenant: str, endpoint: WebhookEndpoint) -> Mark:
    return Mark("endpoint", tenant, endpoint.id)
