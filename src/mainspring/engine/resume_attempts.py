"""How often a run was taken up by an engine that died with it, so that a run that ends its process does so only a few times.

The count is in the store before the run is read, since a process that dies counts nothing. It is dropped when the run ends,
cannot be read, or is left by an engine that stops in order: what remains are deaths.
"""

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import ResumeLimit, StoreError
from mainspring.core.items import decode, encode
from mainspring.engine.journal import Clock
from mainspring.ports import Document, DocumentStore

RESUMED: Final = "resumed"
# Deaths that are further apart than this are taken to have nothing to do with the run.
WINDOW_SECONDS = 3600.0
# How long one of the runs that engines have died with is tried alone, before the next one is taken up.
TRIAL_SECONDS = 30.0


class Attempts(Struct, frozen=True):
    count: int
    at: float


class ResumeAttempts:
    """The count of every run that is resumed here, or that an engine died with. A run may be resumed `most` times in a row."""

    def __init__(self, store: DocumentStore, most: int | None, clock: Clock) -> None:
        self._store, self._most, self._clock = store, most, clock
        self._is_kept = store.is_durable and most is not None
        # Runs that are resumed here, with the deaths that were found; those that were left, and the store could not be told of.
        self._own: dict[str, int] = {}
        self._deaths: dict[str, int] = {}
        self._tried, self._tried_at = "", 0.0

    async def begin(self, run_id: str) -> None:
        """Counts one more, and the same one however often the attempt is begun anew. Raises `ResumeLimit` if there have been
        enough."""
        if not self._is_kept:
            return
        if (count := self._own.get(run_id)) is None:
            found = await self._store.get(RESUMED, run_id)
            count = 0 if found is None else self._read(found)
        self._own[run_id] = count
        if self._most is not None and count >= self._most:
            told = f"run `{run_id}` was resumed {count} times, and each time its process died before it had ended"
            raise ResumeLimit(f"{told}; see what its tools do, and start it anew, or raise `max_resumes` in `[limits]`")
        await self._store.put([Document(RESUMED, run_id, encode(Attempts(count + 1, self._clock())))])

    async def end(self, run_id: str) -> None:
        """The run has ended, or is left in order. A store that cannot be told is told by `end_all`."""
        if run_id in self._own:
            self._own[run_id] = 0
            with suppress(StoreError):
                await self._store.remove(RESUMED, run_id)
                self._own.pop(run_id, None)

    async def forget(self, run_id: str) -> None:
        """The run has ended without a driver, or is gone, whoever has counted its attempts."""
        if self._is_kept:
            self._own[run_id] = 0
            await self.end(run_id)

    async def end_all(self) -> None:
        for run_id in list(self._own):
            await self.end(run_id)

    async def sort(self, run_ids: Sequence[str]) -> list[str]:
        """Runs in the order in which to take them up: those that no engine has died with come first."""
        found = await self._store.documents(RESUMED) if self._is_kept and run_ids else ()
        self._deaths = {document.id: self._read(document) for document in found if document.id not in self._own}
        return sorted(run_ids, key=lambda run_id: self._deaths.get(run_id, 0))

    def is_suspect(self, run_id: str) -> bool:
        """Whether an engine has died with it."""
        return bool(self._deaths.get(run_id))

    def may_try(self, run_id: str) -> bool:
        """Whether to take it up now. Runs that engines have died with are tried one by one, so that the one that ends the process
        is found, and the others are not counted with it."""
        if not self.is_suspect(run_id):
            return True
        if self._tried in self._own and self._clock() - self._tried_at < TRIAL_SECONDS:
            return False
        self._tried, self._tried_at = run_id, self._clock()
        return True

    def _read(self, document: Document) -> int:
        try:
            attempts = decode(document.body, Attempts)
        except msgspec.ValidationError:
            return 0
        return attempts.count if self._clock() - attempts.at < WINDOW_SECONDS else 0
