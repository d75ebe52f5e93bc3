"""The log of a workflow run: an event happens when it is written here.

A run is a document that holds the order, with one document for each event below it, named by its number and written only if
absent. So two processes can never both write the log of one run: the later one gets `Superseded`, and stops. A second document
marks the run as unfinished, says who drives it, and is removed when the run ends.
"""

import time
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final, NamedTuple, Self

import anyio
import msgspec
from anyio.lowlevel import checkpoint

from mainspring.core.errors import MainspringError, NotFound, StoreError, Superseded
from mainspring.core.items import decode, encode
from mainspring.features.workflows.workflow_run import (
    WorkflowCancelled,
    WorkflowCompleted,
    WorkflowFailed,
    WorkflowLogEvent,
    WorkflowOrder,
    WorkflowRecord,
    WorkflowRun,
    WorkflowStarted,
    fold_workflow,
)
from mainspring.ports import Document, DocumentStore

RUN: Final = "workflow_run"
EVENT: Final = "workflow_event"
OPEN: Final = "workflow_open"
_BEHIND_TENANT: Final = "\0"


class WorkflowObserver:
    """Is told of workflow runs when they end. This one does nothing about it."""

    def list_documents(self, run: WorkflowRun) -> tuple[Document, ...]:
        """What is to be stored with the end of the run."""
        return ()

    def run_ended(self, run: WorkflowRun) -> None:
        pass


IGNORE: Final = WorkflowObserver()


class WorkflowJournal:
    """The log of one run, its state, and the bytes that it has. `on_failure` is called once if the log cannot be written any
    more."""

    def __init__(self, store: DocumentStore, run: WorkflowRun, observer: WorkflowObserver = IGNORE) -> None:
        self.run = run
        self.log: list[WorkflowRecord] = []
        self.size = 0
        self.failure: MainspringError | None = None
        self.is_closed = False
        self.on_failure: Callable[[], None] = lambda: None
        self._store, self._observer = store, observer
        self._writing = anyio.Lock()
        self._grown = anyio.Event()

    @classmethod
    async def begin(
        cls, store: DocumentStore, order: WorkflowOrder, first: WorkflowStarted, observer: WorkflowObserver = IGNORE
    ) -> Self:
        """Starts a run, which is durable when this returns. Raises `StoreError`."""
        journal = cls(store, WorkflowRun(order), observer)
        record = WorkflowRecord(0, order.created_at, first)
        documents = (
            Document(RUN, order.id, encode(order), order.tenant),
            _mark(order.id, order.tenant, first.driver),
            _document(order, record),
        )
        if not await store.put(documents, if_absent=True):
            raise StoreError(f"there is a workflow run `{order.id}` already")
        journal._take((record,))
        return journal

    @classmethod
    async def read(cls, store: DocumentStore, id: str, tenant: str, observer: WorkflowObserver = IGNORE) -> Self:
        """Reads a run from the store. Raises `NotFound`, and `StoreError` for one that cannot be read."""
        found = await store.get(RUN, id, tenant=tenant)
        if found is None:
            raise NotFound(f"there is no workflow run `{id}`", param="run_id")
        try:
            journal = cls(store, WorkflowRun(decode(found.body, WorkflowOrder)), observer)
            await journal.refresh()
        except msgspec.ValidationError as error:
            raise StoreError(f"workflow run `{id}` was written by another version, and cannot be read: {error}") from error
        return journal

    async def refresh(self) -> None:
        """Reads what another process has written since."""
        order = self.run.order
        found = await self._store.documents(EVENT, tenant=order.tenant, parent=order.id)
        new = found[len(self.log) :]
        self.size += sum([len(document.body) for document in new])
        self._take([decode(document.body, WorkflowRecord) for document in new])

    async def record(self, *events: WorkflowLogEvent) -> None:
        """Writes the events in one transaction, also if the caller is cancelled meanwhile.

        If that fails, the driver is stopped: in its scope this does not return, outside it raises the failure.
        """
        with anyio.CancelScope(shield=True):
            async with self._writing:
                await self._record(events)
        if self.failure is not None:
            await checkpoint()
            raise self.failure

    async def catch_up(self) -> bool:
        """Whether another process has written to the log. If so, nothing more is written here, and its events are read."""
        async with self._writing:
            order, seq = self.run.order, self.run.seq
            if self.failure is None and await self._store.get(EVENT, str(seq), tenant=order.tenant, parent=order.id) is not None:
                self.failure = self._make_superseded()
                await self.refresh()
            return self.failure is not None

    async def _record(self, events: Sequence[WorkflowLogEvent]) -> None:
        if self.failure is not None:
            return
        now = time.time()
        records = [WorkflowRecord(self.run.seq + place, now, event) for place, event in enumerate(events)]
        documents = [_document(self.run.order, record) for record in records]
        self.size += sum([len(document.body) for document in documents])
        if isinstance(events[-1], WorkflowCompleted | WorkflowFailed | WorkflowCancelled):
            documents += self._observer.list_documents(reduce(fold_workflow, records, self.run))
        try:
            if not await self._store.put(documents, if_absent=True):
                self.failure = self._make_superseded()
        except MainspringError as error:
            self.failure = error
        if self.failure is not None:
            self.on_failure()
            return
        self._take(records)
        if self.run.has_ended:
            self._observer.run_ended(self.run)
            await self._store.remove(OPEN, name_open(self.run.id))

    def _make_superseded(self) -> Superseded:
        return Superseded(f"another process has taken over workflow run `{self.run.id}`, or it was deleted")

    def _take(self, records: Sequence[WorkflowRecord]) -> None:
        for record in records:
            self.run = fold_workflow(self.run, record)
            self.log.append(record)
        self._wake()

    def close(self) -> None:
        """Wakes readers: nothing more is written here."""
        self.is_closed = True
        self._wake()

    def _wake(self) -> None:
        grown, self._grown = self._grown, anyio.Event()
        grown.set()

    async def more(self, after: int) -> list[WorkflowRecord]:
        """The events after number `after`, once there are any; none if nothing more is written here."""
        while not (found := self.log[after + 1 :]) and not self.run.has_ended and not self.is_closed:
            await self._grown.wait()
        return found


class UnfinishedRun(NamedTuple):
    """A run that has not ended. `driver` is empty where an older version has written it."""

    id: str
    tenant: str
    driver: str


async def list_unfinished(store: DocumentStore) -> list[UnfinishedRun]:
    """The runs that have not ended, oldest first."""
    found: list[UnfinishedRun] = []
    for document in await store.documents(OPEN):
        tenant, _, driver = document.body.decode().partition(_BEHIND_TENANT)
        found.append(UnfinishedRun(document.id.removeprefix(name_open("")), tenant, driver))
    return found


async def mark_driver(store: DocumentStore, order: WorkflowOrder, driver: str) -> None:
    """Says who drives an unfinished run from now on."""
    await store.put([_mark(order.id, order.tenant, driver)])


def _mark(id: str, tenant: str, driver: str) -> Document:
    return Document(OPEN, name_open(id), f"{tenant}{_BEHIND_TENANT}{driver}".encode())


async def forget_open(store: DocumentStore, id: str) -> None:
    """Removes the mark of an unfinished run."""
    await store.remove(OPEN, name_open(id))


def name_open(id: str) -> str:
    # Not the run's own id: with a document goes all that belongs to its id.
    return f"open-{id}"


def _document(order: WorkflowOrder, record: WorkflowRecord) -> Document:
    return Document(EVENT, str(record.seq), encode(record), order.tenant, order.id)
