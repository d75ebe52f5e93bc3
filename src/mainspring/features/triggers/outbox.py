"""What endpoints of webhooks are told of runs: written together with the end of the run, and delivered later.

An event is a document below its endpoint, in the transaction that stores the end of the run: neither is there without the other.
Which endpoints there are is known in memory, so a run of a tenant without any costs nothing.
"""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, Literal

from anyio import Event
from msgspec import Struct

from mainspring.core.events import Reason
from mainspring.core.history import approval_id
from mainspring.core.items import Json, decode, encode
from mainspring.core.run import Run
from mainspring.features.triggers.marks import Mark, Marks
from mainspring.features.workflows.workflow_log import WorkflowObserver
from mainspring.features.workflows.workflow_run import WorkflowRun
from mainspring.ports import Document, DocumentStore, EndedRun, RunObserver

ENDPOINT: Final = "webhook_endpoint"
DELIVERY: Final = "webhook_delivery"
DEAD: Final = "webhook_dead"

EventType = Literal[
    "response.completed", "response.failed", "response.incomplete", "response.cancelled", "approval.requested",
    "workflow.completed", "workflow.failed", "workflow.cancelled",
]  # fmt: skip

Key = tuple[str, str]
"""The tenant and the id of an endpoint."""


class WebhookEndpoint(Struct, frozen=True, omit_defaults=True):
    """Where events are sent. `by` is the key that made it. For some time after a change of its secret, events are signed with the
    one before as well. `stopped` says why nothing is sent any more. `version` counts its changes."""

    id: str
    url: str
    events: tuple[EventType, ...]
    secret: str
    created_at: float
    by: str = ""
    description: str = ""
    previous: str = ""
    previous_until: float = 0.0
    stopped: str = ""
    version: int = 1


class Delivery(Struct, frozen=True, omit_defaults=True):
    """An event on its way to an endpoint. `at` is when it is tried next, or when it was given up."""

    id: str
    type: EventType
    created_at: float
    data: Json
    attempts: int = 0
    at: float = 0.0
    error: str = ""

    def render(self) -> bytes:
        """The event as OpenAI's API has it."""
        return encode(
            {"id": self.id, "object": "event", "created_at": int(self.created_at), "type": self.type, "data": self.data}
        )


class Outbox(RunObserver):
    """The endpoints of all tenants, and what they are told."""

    name = "webhooks"

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._endpoints: dict[str, dict[str, tuple[EventType, ...]]] = {}
        self._woken: set[Key] = set()
        self._came = Event()

    @property
    def keys(self) -> list[Key]:
        """The endpoints that are known here."""
        return [(tenant, id) for tenant, known in self._endpoints.items() for id in known]

    async def learn(self, key: Key) -> None:
        """The endpoint is new, was changed, or is gone. Raises `StoreError`."""
        tenant, id = key
        found = await self._store.get(ENDPOINT, id, tenant=tenant)
        endpoint = None if found is None else decode(found.body, WebhookEndpoint)
        if endpoint is None or endpoint.stopped:
            self.forget(key)
        else:
            self._endpoints.setdefault(tenant, {})[id] = endpoint.events

    def forget(self, key: Key) -> None:
        known = self._endpoints.get(key[0], {})
        known.pop(key[1], None)
        if not known:
            self._endpoints.pop(key[0], None)

    def list_documents(self, run: Run) -> tuple[Document, ...]:
        """What is to be stored with the end of a run."""
        if not self._endpoints.get(run.spec.tenant) or not _is_told(run):
            return ()
        return self.make_documents(run.spec.tenant, run.clock, _list_events(run))

    def make_documents(self, tenant: str, at: float, events: Sequence[tuple[EventType, Json]]) -> tuple[Document, ...]:
        """A delivery of each event to each endpoint of the tenant that wants it."""
        return tuple(
            [
                Document(DELIVERY, event.id, encode(event), tenant, id)
                for id, wanted in self._endpoints.get(tenant, {}).items()
                for event in [_make_delivery(id, kind, at, data) for kind, data in events if kind in wanted]
            ]
        )

    def run_ended(self, ended: EndedRun) -> None:
        if _is_told(ended.run):
            self.wake_all(ended.run.spec.tenant)

    def wake_all(self, tenant: str) -> None:
        for id in self._endpoints.get(tenant, ()):
            self.wake((tenant, id))

    def wake(self, key: Key) -> None:
        """There may be something to deliver to this endpoint."""
        self._woken.add(key)
        self._came.set()

    async def take_woken(self) -> set[Key]:
        """The endpoints to which there may be something to deliver, once there are any."""
        await self._came.wait()
        self._came, woken, self._woken = Event(), self._woken, set()
        return woken


class WorkflowOutbox(WorkflowObserver):
    """Has endpoints told of the ends of workflow runs, by the outbox."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox

    def list_documents(self, run: WorkflowRun) -> tuple[Document, ...]:
        ends: dict[str, EventType] = {"failed": "workflow.failed", "cancelled": "workflow.cancelled"}
        kind, data = ends.get(run.status, "workflow.completed"), {"id": run.id, "workflow": run.order.workflow}
        if run.order.dry_run:
            return ()
        return self._outbox.make_documents(run.order.tenant, run.clock, [(kind, {**data, "status": run.status})])

    def run_ended(self, run: WorkflowRun) -> None:
        self._outbox.wake_all(run.order.tenant)


async def load_outbox(store: DocumentStore, outbox: Outbox) -> None:
    """Learns of all endpoints. Raises `StoreError`."""

    async def learn(marks: Sequence[Mark]) -> None:
        for mark in marks:
            if mark.kind == "endpoint":
                await outbox.learn((mark.tenant, mark.id))

    await Marks(store).heed_new(learn)


def _is_told(run: Run) -> bool:
    """Whether it is a run that a client can ask for: no part of another one, and stored."""
    spec = run.spec
    return spec.store and not spec.within and spec.step_call is None and spec.goal == "answer"


def _list_events(run: Run) -> list[tuple[EventType, Json]]:
    ends: dict[str, EventType] = {
        "failed": "response.failed",
        "incomplete": "response.incomplete",
        "cancelled": "response.cancelled",
    }
    events: list[tuple[EventType, Json]] = [(ends.get(run.status, "response.completed"), {"id": run.spec.id})]
    if run.reason is Reason.APPROVAL_NEEDED:
        asked = [call.item for call in run.calls if call.verdict == "ask"]
        events += [
            ("approval.requested", {"id": approval_id(item), "response_id": run.spec.id, "tool": item.name}) for item in asked
        ]
    return events


def _make_delivery(endpoint: str, kind: EventType, at: float, data: Json) -> Delivery:
    meant = f"{endpoint} {kind} {data['id']}"
    return Delivery(f"evt_{sha256(meant.encode()).hexdigest()[:24]}", kind, at, data)
