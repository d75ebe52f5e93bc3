"""What the memory keeps, as it is copied: observations, and their vectors in a file of their own or beside them on a server."""

import struct
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from math import isclose
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from mainspring.core.errors import StoreError
from mainspring.features.memory.observation_rows import MEMORY, OBSERVATIONS
from mainspring.features.memory.server_memory import SERVED_MEMORY
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres.run_tables import escape
from mainspring.storage.search.server_vectors import normalize
from mainspring.storage.search.vectors import (
    PlacedVector,
    add_vectors,
    check_installed,
    connect_vectors,
    find_size,
    name_vectors,
    pack,
    remove_vectors,
    settle_model,
)
from mainspring.storage.search.word_index import Scope, ServerWords
from mainspring.storage.transfer.content import ContentKind, Counted, Derived, Placed, Row, TableForm, Value

if TYPE_CHECKING:
    import apsw

_WORDS = "to_tsvector('mainspring_words', ({}::text[])[1]) || to_tsvector('simple', ({}::text[])[2])"


def _list_words(row: Mapping[str, Value]) -> list[str]:
    tags: list[str] = msgspec.json.decode(str(row["tags"]))
    spoken = ServerWords(OBSERVATIONS).describe((str(row["content"]), str(row["about"]), " ".join(tags)))["spoken"]
    return [escape(str(spoken)), escape(str(row["owner"]))]


MEMORY_CONTENT: Final = ContentKind(
    name="memory",
    schema=MEMORY,
    served=SERVED_MEMORY,
    tables=(
        TableForm(name="observations", derived={"words": Derived(_list_words, _WORDS)}),
        TableForm(name="observations_forgotten"),
    ),
    left={
        "observation_counts": "triggers count",
        "memory_writers": "they are processes",
        "vector_model": "it is copied with the vectors",
        "vectors": "they have a file of their own",
    },
)


class VectorRows:
    """A `RowWriter` on the file of vectors. Vectors are copied at length 1, as a server keeps them."""

    def __init__(self, connection: "apsw.Connection") -> None:
        self._connection = connection

    async def count(self, table: TableForm) -> Counted:
        return Counted(sum([1 async for _ in self.read(table)]))

    async def read(self, table: TableForm) -> AsyncIterator[Row]:
        with _explained():
            if table is _MODEL:
                for row in self._connection.execute("SELECT name FROM model").fetchall():
                    yield row
            elif find_size(self._connection):
                rows = self._connection.execute("SELECT id, tenant, agent, session, embedding FROM vectors ORDER BY id")
                for *whose, embedding in rows:
                    yield (*whose, _normalize(embedding))

    async def change(self, table: TableForm, gone: Sequence[Row], new: Sequence[Row]) -> None:
        with _explained(), self._connection:
            if table is _MODEL:
                for (name,) in new:
                    settle_model(self._connection, str(name))
                return
            remove_vectors(self._connection, [str(row[0]) for row in gone])
            placed = [
                PlacedVector(str(id), Scope(str(tenant), str(agent), str(session)), _unpack(embedding))
                for id, tenant, agent, session, embedding in new
            ]
            if placed:
                add_vectors(self._connection, placed)

    async def raise_mark(self, table: TableForm, mark: int) -> None:
        """They have no numbers."""


@asynccontextmanager
async def open_vectors(path: Path) -> AsyncIterator[VectorRows]:
    check_installed()
    with closing(connect_vectors(path)) as connection:
        yield VectorRows(connection)


@contextmanager
def _explained() -> Iterator[None]:
    import apsw

    try:
        yield
    except apsw.Error as error:
        raise StoreError(f"the vectors cannot be copied ({error}); remove their file, and they are made again") from error


def _unpack(embedding: Value) -> tuple[float, ...]:
    assert isinstance(embedding, bytes)
    return struct.unpack(f"<{len(embedding) // 4}f", embedding)


def _normalize(embedding: bytes) -> bytes:
    numbers = _unpack(embedding)
    # One that has been normalised stays as it is, to the last bit.
    is_normal = isclose(sum([number * number for number in numbers]), 1.0, rel_tol=1e-5)
    return embedding if is_normal else pack(normalize(numbers))


_MODEL: Final = TableForm(name="vector_model", columns=("name",), types=("TEXT",), key=("name",))
VECTOR_CONTENT: Final = ContentKind(
    name="vectors",
    schema=MEMORY,
    served=SERVED_MEMORY,
    tables=(
        _MODEL,
        TableForm(
            name="vectors",
            columns=("id", "tenant", "agent", "session", "embedding"),
            types=("TEXT", "TEXT", "TEXT", "TEXT", "BLOB"),
            key=("id",),
            owner=("observations", "id"),
        ),
    ),
    open_file=open_vectors,
)


def place_memory(_: object, database: Location) -> tuple[Placed, ...]:
    file = database.file
    vectors = database if file is None else parse_location(name_vectors(file))
    return Placed(MEMORY_CONTENT, database), Placed(VECTOR_CONTENT, vectors)
