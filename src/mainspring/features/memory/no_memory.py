"""A memory that is switched off, and costs nothing: what a real one needs is not even imported."""

from collections.abc import Sequence

from mainspring.ports import DocumentStore, RecalledMemory, Sink


class NoMemory:
    """A memory that is switched off: it keeps nothing and finds nothing."""

    sinks: tuple[Sink, ...] = ()

    async def open(self, store: DocumentStore | None = None) -> None: ...

    async def close(self) -> None: ...

    async def recall(self, query: str, *, tenant: str, agent: str | None = None, top_k: int = 5) -> Sequence[RecalledMemory]:
        return ()
