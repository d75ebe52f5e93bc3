"""Deletes what is older than the settings keep it.

A conversation does not say when something was last added to it. But a store numbers documents in the order in which they are
written, and once a day a mark is written among them: what has a smaller number than a mark is older than it.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from logging import getLogger
from typing import Final

from anyio import sleep

from mainspring.app.keep_days import KeepDays
from mainspring.core.conversation_items import CONVERSATION, ITEM
from mainspring.core.errors import MainspringError
from mainspring.core.items import decode, encode
from mainspring.features.files.files import FILE, Files
from mainspring.features.files.stored_file import StoredFile
from mainspring.features.workflows.workflow_log import EVENT, OPEN, RUN, name_open
from mainspring.features.workflows.workflow_run import WorkflowOrder, WorkflowRecord
from mainspring.http.auth import list_tenants
from mainspring.ports import Document, Pruned, Store
from mainspring.storage.segment import tell_damaged

log = getLogger(__name__)

DAY: Final = 86_400.0
LOOK_SECONDS: Final = 3600.0
# Some at a time: others write, too.
PAUSE: Final = 0.05
AT_ONCE: Final = 100
MARK: Final = "retention_mark"


class Retention:
    def __init__(self, store: Store, files: Files, keep: KeepDays) -> None:
        self._store, self._files, self._keep = store, files, keep

    async def run(self) -> None:
        """Deletes what is old, and looks again every hour, until it is cancelled."""
        while True:
            try:
                await self.look()
            except MainspringError as error:
                log.warning("what is old cannot be deleted: %s", error)
            await sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """Deletes what is old now. Raises `StoreError`, `FilesUnavailable`."""
        keep, now = self._keep, await self._store.read_clock()
        if keep.runs is not None:
            await self._delete_runs(now - keep.runs * DAY)
        if keep.workflows is not None:
            await self._delete(RUN, self._is_old_workflow, now - keep.workflows * DAY)
        if keep.conversations is not None and (number := await self._find_mark(now, now - keep.conversations * DAY)) is not None:
            await self._delete(CONVERSATION, self._is_old_conversation, number)
        if keep.files is not None:
            await self._delete_files(now - keep.files * DAY)

    async def _delete_runs(self, before: float) -> None:
        damaged: list[str] = []
        while (pruned := await self._store.prune(before, skip=damaged)) != Pruned():
            damaged += pruned.damaged
            await sleep(PAUSE)
        if damaged:
            log.warning("%s", tell_damaged(damaged))

    async def _delete(self, kind: str, is_old: Callable[[Document, float], Awaitable[bool]], before: float) -> None:
        async for document in self._list(kind):
            if await is_old(document, before):
                await self._store.remove(kind, document.id, tenant=document.tenant)
                await sleep(PAUSE)

    async def _delete_files(self, before: float) -> None:
        async for document in self._list(FILE):
            if (file := decode(document.body, StoredFile)).created_at < before:
                await self._files.delete(document.tenant, file)
                await sleep(PAUSE)

    async def _list(self, kind: str) -> AsyncIterator[Document]:
        """The documents of every tenant, oldest first."""
        for tenant in await list_tenants(self._store):
            after: int | None = None
            while page := await self._store.documents(kind, tenant=tenant, after=after, limit=AT_ONCE):
                for document in page:
                    yield document
                after = page[-1].number

    async def _is_old_workflow(self, document: Document, before: float) -> bool:
        if decode(document.body, WorkflowOrder).created_at >= before or await self._store.get(OPEN, name_open(document.id)):
            return False
        last = await self._store.documents(EVENT, tenant=document.tenant, parent=document.id, limit=1, newest_first=True)
        return not last or decode(last[0].body, WorkflowRecord).at < before

    async def _is_old_conversation(self, document: Document, number: float) -> bool:
        last = await self._store.documents(ITEM, tenant=document.tenant, parent=document.id, limit=1, newest_first=True)
        return max([document.number, *[item.number for item in last]]) < number

    async def _find_mark(self, now: float, before: float) -> int | None:
        """The number below which everything was written before that time, as far as marks tell. Makes the mark of this day."""
        await self._store.put([Document(MARK, str(int(now // DAY)), encode(now))], if_absent=True)
        marks = await self._store.documents(MARK)
        old = [mark for mark in marks if decode(mark.body, float) < before]
        for mark in old[:-1]:
            await self._store.remove(MARK, mark.id)
        return old[-1].number if old else None
