"""What was learned of models, as documents of the store: the operator's, of no tenant."""

import asyncio
import time
from collections.abc import Sequence
from hashlib import blake2b
from logging import getLogger
from typing import Final

import msgspec
from msgspec.structs import replace

from mainspring.core.errors import StoreError
from mainspring.core.items import encode
from mainspring.ports import Document, DocumentStore, LearnedProfile
from mainspring.providers.profiles import drop_old

log = getLogger(__name__)

KIND: Final = "model_profile"


class StoredProfiles:
    """The `ProfileDocuments` of a store. `close` waits until all is written."""

    def __init__(self, store: DocumentStore) -> None:
        self._store = store
        self._pending: dict[str, LearnedProfile] = {}
        self._writer: asyncio.Task[None] | None = None

    @property
    def is_writing(self) -> bool:
        return self._writer is not None and not self._writer.done()

    async def load(self) -> Sequence[LearnedProfile] | None:
        try:
            documents = await self._store.documents(KIND)
        except StoreError as error:
            log.warning("what was learned of models cannot be read: %s", error.message)
            return None
        return [learned for document in documents if (learned := _decode(document)) is not None]

    def save(self, learned: LearnedProfile) -> None:
        self._pending[_make_id(learned)] = learned
        if not self.is_writing:
            self._writer = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        if self._writer is not None:
            await self._writer

    async def _write(self) -> None:
        while self._pending:
            pending, self._pending = self._pending, {}
            try:
                for id, each in pending.items():
                    if each.facts:
                        await self._store.put([Document(KIND, id, encode(await self._merge(id, each)))])
                    else:
                        await self._store.remove(KIND, id)
            except StoreError as error:
                log.warning("what was learned of models cannot be kept: %s", error.message)

    async def _merge(self, id: str, learned: LearnedProfile) -> LearnedProfile:
        """What was learned, with what another process on this store has learned of the same server meanwhile."""
        document = await self._store.get(KIND, id)
        known = None if document is None else _decode(document)
        if known is None or known.server not in ("", learned.server):
            return learned
        return replace(learned, facts=drop_old({**known.facts, **learned.facts}, time.time()))


def _make_id(learned: LearnedProfile) -> str:
    return blake2b(f"{learned.backend}\n{learned.model}".encode(), digest_size=16).hexdigest()


def _decode(document: Document) -> LearnedProfile | None:
    try:
        return _decoder.decode(document.body)
    except (ValueError, RecursionError) as error:
        log.warning("what was learned of a model cannot be read, and is learned again: %s", error)
        return None


_decoder: Final = msgspec.json.Decoder(LearnedProfile)
