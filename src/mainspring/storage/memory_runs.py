"""Runs kept for as long as the process lives. What the SQLite store promises holds here too, but for surviving."""

import time
from asyncio import Future, gather, get_running_loop
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from anyio import sleep
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.conversation_items import ITEM
from mainspring.core.errors import MainspringError, StoreError
from mainspring.core.events import Recorded, Status
from mainspring.core.history import Entry
from mainspring.core.items import Item
from mainspring.ports import (
    EVERY_RUN,
    RUN_METADATA,
    Document,
    Filter,
    Link,
    Note,
    Pruned,
    RunPage,
    RunSummary,
    Segment,
    Snapshot,
    StoredRun,
    SummaryPage,
    UsageGroup,
    UsageSum,
)
from mainspring.storage.audit_chain import chain_notes
from mainspring.storage.follow import follow_log
from mainspring.storage.memory_leases import MemoryLeases, OpenRun
from mainspring.storage.segment import (
    collect_item_ids,
    cut_documents,
    explain_mismatch,
    find_driver,
    find_ending,
    find_opening,
    not_ended,
    not_found,
    pick_items,
    read_conversation,
    summarize_ending,
)
from mainspring.storage.usage_sums import add_usage, summarize_run

SEEN_WITHIN = 0.05
"""How long it may take to see that a run has begun or ended, in seconds."""
N = TypeVar("N", Document, Link)


class _KeptRun(Struct):
    run: StoredRun
    log: list[Recorded]
    summary: RunSummary
    entries: tuple[Entry, ...] | None = None


class _Folder(NamedTuple):
    """Where documents are kept, by their ids, in the order of their numbers: that in which a dict has got its keys."""

    tenant: str
    parent: str
    kind: str


class MemoryStore:
    """A `ports.Store` in memory. It is open from the start, and once closed stays so."""

    is_durable = False

    def __init__(self) -> None:
        self._runs: dict[str, _KeptRun] = {}
        self._holders: dict[tuple[str, str], list[str]] = {}  # which runs hold an item, by tenant and its id
        self._documents: dict[_Folder, dict[str, Document]] = {}
        self._kinds: set[str] = set()
        self._number = self._count = 0
        self._audit: list[Link] = []
        self._is_closed = False
        self.leases = MemoryLeases(self._find_kept)

    async def open(self) -> None:
        """Opens the store again if it was closed: what it holds lives as long as it does."""
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> Future[None]:
        written: Future[None] = get_running_loop().create_future()
        try:
            self._write(Segment(run_id, list(records), snapshot, tuple(notes)))
        except MainspringError as error:
            written.set_exception(error)
        else:
            written.set_result(None)
        return written

    def append_all(self, segments: Sequence[Segment]) -> Future[list[MainspringError | None]]:
        written = [self.append(each.run_id, each.records, each.snapshot, each.notes) for each in segments]
        if not all(each.done() for each in written):
            return gather(*written, return_exceptions=True)  # type: ignore[return-value]  # `append` fails with nothing else
        outcomes: Future[list[MainspringError | None]] = get_running_loop().create_future()
        outcomes.set_result([each.exception() for each in written])  # type: ignore[misc]
        return outcomes

    async def events(self, run_id: str, after: int = -1) -> list[Recorded]:
        return self._find_kept(run_id).log[max(after + 1, 0) :]

    def follow(self, run_id: str, after: int = -1) -> AsyncGenerator[list[Recorded], None]:
        return follow_log(self, run_id, after)

    async def load(self, run_id: str) -> StoredRun:
        return self._find_kept(run_id).run

    async def items(self, ids: Sequence[str], *, tenant: str = "") -> dict[str, Item]:
        self._open()
        holders = [self._runs[run_id] for id in ids for run_id in self._holders.get((tenant, id), [])[-1:]]
        return pick_items(ids, [kept.entries or () for kept in holders])

    async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
        if tenant not in (None, self._find_kept(run_id).run.tenant):
            raise not_found(run_id)
        links: dict[str, Sequence[Entry]] = {}
        wanted: str | None = run_id
        while wanted is not None:
            kept = self._find_kept(wanted)
            if wanted in links:
                raise not_found(wanted)
            if kept.entries is None:
                raise not_ended(wanted)
            links[wanted] = [*await self._read_conversation(kept.run), *kept.entries]
            wanted = kept.run.parent
        return [entry for entries in reversed(links.values()) for entry in entries]

    def _fits_line(self, run: StoredRun, only: Filter) -> bool:
        line, text = self._runs[run.id].summary, None if only.text is None else only.text.lower()
        if only.agent not in (None, line.agent):
            return False
        if text is not None and text not in line.prompt.lower() and text not in line.error.lower() and only.text != line.id:
            return False
        return only.waits_at is None or (self._tell(self._runs[run.id]).waits_until or 0.0) > only.waits_at

    async def _read_conversation(self, run: StoredRun) -> Sequence[Entry]:
        """What a run found in its conversation, if it has one."""
        if (conversation := run.conversation) is None:
            return ()
        items = await self.documents(ITEM, tenant=run.tenant, parent=conversation.id)
        return read_conversation([item for item in items if item.number <= conversation.upto], conversation)

    async def measure_history(self, run_id: str, *, tenant: str | None = None) -> int:
        return 0

    async def measure_run(self, run_id: str) -> int:
        return 0

    async def measure_documents(self, kind: str, *, tenant: str = "", parent: str = "") -> int:
        folder = self._documents.get(_Folder(tenant, parent, kind), {})
        return sum([len(document.body) for document in folder.values()])

    async def list(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> RunPage:
        # Sorting is stable and a dict keeps the order of creation: that order decides between runs of the same moment.
        own = [kept.run for kept in self._open().values() if only.tenant in (None, kept.run.tenant)]
        runs = sorted(own, key=lambda run: run.created_at)
        if newest_first:
            runs.reverse()
        if after is not None:
            seen = self._find_kept(after, "after").run
            if seen not in runs:
                raise not_found(after, "after")
            del runs[: runs.index(seen) + 1]
        found = [run for run in runs if _fits(run, only) and self._fits_line(run, only)]
        return RunPage(tuple(found[:limit]), has_more=len(found) > limit)

    async def summarize(
        self, *, limit: int = 20, after: str | None = None, newest_first: bool = True, only: Filter = EVERY_RUN
    ) -> SummaryPage:
        page = await self.list(limit=limit, after=after, newest_first=newest_first, only=only)
        return SummaryPage(tuple([self._tell(self._runs[run.id]) for run in page.runs]), page.has_more)

    async def find_summaries(self, numbers: Sequence[int]) -> Sequence[RunSummary]:
        return [self._tell(kept) for kept in self._open().values() if kept.summary.number in numbers]

    async def list_states(self, after: int) -> Mapping[int, Status]:
        kept = [each for each in self._open().values() if each.summary.number > after or each.entries is None]
        return {each.summary.number: each.run.status for each in kept}

    async def find_last_number(self) -> int:
        self._open()
        return self._count

    async def wait_for_change(self, seconds: float) -> None:
        await sleep(min(seconds, SEEN_WITHIN))

    async def sum_usage(self, by: UsageGroup, only: Filter = EVERY_RUN) -> Sequence[UsageSum]:
        page = await self.summarize(limit=len(self._runs) or 1, newest_first=False, only=only)
        return add_usage(by, page.runs)

    def _tell(self, kept: _KeptRun) -> RunSummary:
        """The line of a run; one that was gone on with waits no more."""
        if kept.summary.waits_until is None:
            return kept.summary
        later = [each.run for each in self._runs.values() if each.summary.number > kept.summary.number]
        shared = kept.run.conversation
        is_continued = any(
            run.tenant == kept.run.tenant
            and (run.parent == kept.run.id or (shared and run.conversation and run.conversation.id == shared.id))
            for run in later
        )
        return replace(kept.summary, waits_until=None) if is_continued else kept.summary

    async def list_unfinished(self) -> Sequence[str]:
        runs = [self._open()[run_id].run for run_id in self.leases.runs]
        return [run.id for run in sorted(runs, key=lambda run: run.created_at)]

    async def delete(self, run_id: str) -> None:
        kept = self._find_kept(run_id)
        del self._runs[run_id]
        self.leases.runs.pop(run_id, None)
        self._documents.get(_Folder(kept.run.tenant, "", RUN_METADATA), {}).pop(run_id, None)
        for id in collect_item_ids(kept.entries or ()):
            self._holders[kept.run.tenant, id].remove(run_id)

    async def prune(self, before: float, *, skip: Sequence[str] = ()) -> Pruned:
        runs = self._open()
        ended = {run_id: kept for run_id, kept in runs.items() if kept.entries is not None and run_id not in skip}
        old = {run_id: kept.run for run_id, kept in ended.items() if kept.log[-1].at < before}
        for run in [kept.run for run_id, kept in runs.items() if run_id not in old]:
            while run.parent in old and old[run.parent].tenant == run.tenant:  # what it continues is needed
                run = old.pop(run.parent)
        for run_id in old:
            await self.delete(run_id)
        return Pruned(len(old))

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        self._open()
        tops = {(document.tenant, document.id) for document in documents if not document.parent}
        for document in documents:
            if (document.tenant, document.parent) not in tops and not self._has_parent(document):
                return False
            if if_absent and document.id in self._folder(document):
                return False
        for document in documents:
            self._put(document)
        return True

    async def swap(self, document: Document, known: bytes) -> bool:
        found = await self.get(document.kind, document.id, tenant=document.tenant, parent=document.parent)
        if found is None or found.body != known:
            return False
        self._put(document)
        return True

    async def read_clock(self) -> float:
        return time.time()

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        self._open()
        return self._documents.get(_Folder(tenant, parent, kind), {}).get(id)

    async def remove(self, kind: str, id: str, *, tenant: str = "", parent: str = "", number: int | None = None) -> bool:
        self._open()
        folder = self._documents.get(_Folder(tenant, parent, kind), {})
        if id not in folder or number not in (None, folder[id].number):
            return False
        del folder[id]
        if not parent:
            for inner in self._kinds:
                self._documents.pop(_Folder(tenant, id, inner), None)
        return True

    async def documents(
        self,
        kind: str,
        *,
        tenant: str = "",
        parent: str = "",
        after: int | None = None,
        limit: int | None = None,
        newest_first: bool = False,
        most_bytes: int | None = None,
    ) -> Sequence[Document]:
        self._open()
        return cut_documents(
            _cut(self._documents.get(_Folder(tenant, parent, kind), {}).values(), after, limit, newest_first), most_bytes
        )

    async def note(self, notes: Sequence[Note]) -> None:
        self._open()
        self._audit.extend(chain_notes(self._audit[-1] if self._audit else None, notes))

    async def audit(
        self, *, after: int | None = None, limit: int | None = None, newest_first: bool = False, call: str | None = None
    ) -> Sequence[Link]:
        self._open()
        found = [link for link in self._audit if call is None or (call and link.note.call == call)]
        return _cut(found, after, limit, newest_first)

    async def read_chain(self, chain: str, *, after: int | None = None, limit: int) -> Sequence[Link]:
        self._open()
        return self._audit[after or 0 :][:limit] if not chain else []

    async def list_chains(self) -> Sequence[str]:
        self._open()
        return [""] if self._audit else []

    async def close(self) -> None:
        self._is_closed = True

    def _open(self) -> dict[str, _KeptRun]:
        if self._is_closed:
            raise StoreError("the store is not open")
        return self._runs

    def _find_kept(self, run_id: str, param: str | None = None) -> _KeptRun:
        if (kept := self._open().get(run_id)) is None:
            raise not_found(run_id, param)
        return kept

    def _folder(self, document: Document) -> dict[str, Document]:
        self._kinds.add(document.kind)
        return self._documents.setdefault(_Folder(document.tenant, document.parent, document.kind), {})

    def _has_parent(self, document: Document) -> bool:
        """Whether the document it belongs to is there, if it belongs to one."""
        tops = [self._documents.get(_Folder(document.tenant, "", kind), {}) for kind in self._kinds]
        return not document.parent or any(document.parent in folder for folder in tops)

    def _put(self, document: Document) -> None:
        folder = self._folder(document)
        if (found := folder.get(document.id)) is None:
            self._number += 1
        folder[document.id] = replace(document, number=self._number if found is None else found.number)

    def _write(self, segment: Segment) -> None:
        kept = self._open().get(segment.run_id)
        length = len(kept.log) if kept else 0
        if not segment.records:
            self._audit.extend(chain_notes(self._audit[-1] if self._audit else None, segment.notes))
            return
        if segment.records[0].seq != length or (kept and kept.entries is not None):
            raise explain_mismatch(segment, length=length, has_ended=kept is not None and kept.entries is not None)
        if kept is None:
            opening = find_opening(segment)
            assert opening is not None  # a segment that begins with event 0 has one
            self._count += 1
            kept = self._runs[segment.run_id] = _KeptRun(opening, [], summarize_run(self._count, opening, segment))
            self.leases.open(segment.run_id, OpenRun(opening.tenant, opening.created_at, find_driver(segment)))
        kept.log.extend(segment.records)
        self._audit.extend(chain_notes(self._audit[-1] if self._audit else None, segment.notes))
        if ending := find_ending(segment):
            kept.run = replace(kept.run, status=ending.status, response=ending.snapshot.response)
            kept.entries = ending.snapshot.entries
            told = summarize_ending(segment)._asdict()
            kept.summary = replace(kept.summary, status=ending.status, ended_at=ending.at, **told)
            del self.leases.runs[segment.run_id]
            for id in collect_item_ids(kept.entries):
                self._holders.setdefault((kept.run.tenant, id), []).append(segment.run_id)
            for document in ending.snapshot.documents:
                if self._has_parent(document):
                    self._put(document)


def _cut(found: Iterable[N], after: int | None, limit: int | None, newest_first: bool) -> list[N]:
    """The wanted part of what is numbered, and given in the order of its numbers."""
    if after is not None:
        found = [each for each in found if (each.number < after if newest_first else each.number > after)]
    return list(found)[:: -1 if newest_first else 1][:limit]


def _fits(run: StoredRun, only: Filter) -> bool:
    return (
        (not only.status or run.status in only.status)
        and only.model in (None, run.model)
        and only.background in (None, run.background)
        and only.parent in (None, run.parent)
        and (only.conversation is None or (run.conversation is not None and run.conversation.id == only.conversation))
        and (only.ids is None or run.id in only.ids)
        and (only.since is None or run.created_at >= only.since)
        and (only.before is None or run.created_at < only.before)
    )
