"""Uploaded files, and vector stores of their passages, as an engine has them.

Brings along a database, so `app.engine` imports it for the first engine that is made, not with itself.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from mainspring.core.ids import NewId
from mainspring.core.memory_quota import MemoryQuota
from mainspring.features.files.file_inputs import FileInputsProvider, FileInputsStep
from mainspring.features.files.files import Files, choose_file_storage
from mainspring.features.files.settings import UploadSettings
from mainspring.features.search_results import CitationProvider
from mainspring.features.vector_stores.file_search import NAME, FileSearch, FileSearchStep, read_outputs
from mainspring.features.vector_stores.indexing import Indexing
from mainspring.features.vector_stores.passage_database import PassageDatabase
from mainspring.features.vector_stores.vector_stores import VectorStores
from mainspring.ports import Drivers, Embedder, FileStorage, OrderStep, Provider, Store
from mainspring.storage.location import Location
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.documents.document_reader import DocumentReader


class FileServices:
    """`find_drivers` says who of the store's drivers this engine is, once it is made. What is in
    `background` goes on until it is cancelled."""

    def __init__(
        self,
        store: Store,
        location: Location | None,
        find_drivers: Callable[[], Drivers],
        builtins: BuiltinTools,
        *,
        storage: FileStorage | None,
        uploads: UploadSettings | None,
        embedder: Embedder | None,
        new_id: NewId,
    ) -> None:
        self._reader = DocumentReader(builtins.open_local)
        self.passages = PassageDatabase(store, location, embedder)
        self.files = Files(store, storage or choose_file_storage(None, location), uploads, new_id, self.passages.forget_file)
        self.indexing = Indexing(self.passages, self.files, self._reader, find_drivers)
        self.vector_stores = VectorStores(self.passages, self.files, self.indexing, new_id)
        self.search = FileSearch(self.vector_stores)
        self.background: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = (
            self.files.watch_over,
            self.indexing.run,
            self.vector_stores.watch_over,
        )

    def wrap(self, provider: Provider, quota: MemoryQuota) -> Provider:
        """The provider with files of inputs as models can read them, and with citations of what was found."""
        return CitationProvider(FileInputsProvider(provider, self.files, self._reader, quota), NAME, read_outputs)

    def check_inputs(self, provider: Provider) -> OrderStep:
        return FileInputsStep(self.files, provider)

    def declare_search(self, provider: Provider) -> OrderStep:
        return FileSearchStep(self.vector_stores, provider)

    async def close(self) -> None:
        await self.passages.close()
        self.files.close()
