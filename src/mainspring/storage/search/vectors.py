"""Rows by meaning: their embeddings, in a file of their own beside the database.

The file is worked on by the SQLite that comes with apsw, because it can load sqlite-vec where Python's own often cannot. Two
SQLite libraries in one process must never open the same file: closing it in one gives up the locks of the other. So nothing
else opens this one. It holds ids and numbers, no text, and can be made again from the rows.

To compare a question with every vector of a tenant takes long if there are many. So the signs of its numbers are compared first,
one bit each, and of the best the numbers themselves, rounded to bytes: these are in a table of their own, since a vector among
others is slow to reach. sqlite-vec finds the best of a chunk one after the other, each by looking at all of it. So it is told
how many signs may differ at most, which leaves it few to order: a sample of the vectors shows for how many this is so. Where
signs tell little, because the numbers are few or hardly any is below zero, every vector is compared.
"""

import struct
from array import array
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.ports import Vector
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sqlite import LOCK_SECONDS, Worker

if TYPE_CHECKING:
    import apsw

    from mainspring.storage.search.server_vectors import ServerVectors

# How many vectors are compared by their numbers, and how many sqlite-vec can give.
CANDIDATES: Final = 1_200
MOST_CANDIDATES: Final = 4_096
# Where only a part of the vectors counts, a sample of all shows nothing: how many candidates times how many vectors there may be.
WORK: Final = 4_000_000
LEAST_CANDIDATES: Final = 96
SAMPLE: Final = 1_024
SAMPLED_CHUNKS: Final = 64
# Vectors of a sample that are read together.
RUN: Final = 4
# Of those whose numbers are only among others, in files of earlier versions.
OLD_CANDIDATES: Final = 64
# A tenant with one row fills one of them.
CHUNK: Final = 128
FEW_NUMBERS: Final = 64
MAPPED_BYTES: Final = 1024**3


Renew: TypeAlias = Callable[[], Awaitable[object]]
VectorStore: TypeAlias = "Vectors | ServerVectors"
"""Where vectors are kept, and the nearest are found."""


class PlacedVector(Struct, frozen=True):
    """A vector, and whose row it stands for."""

    id: str
    whose: Scope
    vector: Vector


class Vectors(Worker["apsw.Connection"]):
    """The vectors of one embedding model. Those of another are dropped when it is opened for a new one."""

    def __init__(self, path: Path | None, chunk: int = CHUNK) -> None:
        """`chunk` is how many vectors are kept together: few where many own a few, many where few own many."""
        super().__init__("the file of vectors")
        self._path, self._chunk = path, chunk

    @property
    def path(self) -> Path | None:
        return self._path

    def connect(self) -> "AbstractContextManager[apsw.Connection]":
        return closing(connect_vectors(self.path))

    def begin(self, connection: "apsw.Connection") -> AbstractContextManager[object]:
        return connection

    def explain(self, error: Exception) -> StoreError:
        return StoreError(f"the vectors cannot be used ({error}); remove {self.path}, and they are made again")

    async def open_for(self, model: str | None, renew: Renew | None = None) -> bool:
        """Opens it for a model; with None, for whatever it holds. Returns whether its vectors are of that model. Those of another
        are dropped, but `renew` is awaited first: whoever asks for new ones must not be cut off behind that."""
        await self.open()
        if renew is not None and not await self.read(_is_of_model, model=model):
            await renew()
        return await self.write(settle_model, model=model)

    async def add(self, placed: Sequence[PlacedVector]) -> None:
        await self.write(add_vectors, placed=placed, chunk=self._chunk)

    async def find_nearest(self, vector: Vector, whose: Scope, limit: int) -> list[Hit]:
        return await self.read(_find_nearest, vector=vector, whose=whose, limit=limit)

    async def remove(self, ids: Sequence[str]) -> None:
        """Removes these where the file is open, which it is if there is one."""
        if ids and self.is_open:
            await self.write(remove_vectors, ids=ids)


def name_vectors(database: Path) -> Path:
    """The file of vectors that is beside a database."""
    return database.with_name(f"{database.name}-vectors")


def check_installed() -> None:
    """Raises `InvalidRequest` that says what to install."""
    try:
        import apsw  # noqa: F401
        import sqlite_vec  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as error:
        raise InvalidRequest(f"recall by meaning needs {error.name}; pip install 'mainspring[vectors]'") from None


def connect_vectors(path: Path | None) -> "apsw.Connection":
    import apsw
    import sqlite_vec

    connection = apsw.Connection(":memory:" if path is None else str(path))
    connection.set_busy_timeout(int(LOCK_SECONDS * 1000))
    connection.enable_load_extension(True)
    connection.load_extension(sqlite_vec.loadable_path())
    connection.enable_load_extension(False)
    # A vector within a chunk is reached through the pages before it, so there should be few.
    connection.execute("PRAGMA page_size = 32768")
    # Candidates are all over the file. What is mapped is the system's cache of it, and no memory of this process.
    connection.execute(f"PRAGMA mmap_size = {MAPPED_BYTES}")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE IF NOT EXISTS model (name TEXT NOT NULL, size INTEGER NOT NULL)")
    return connection


def _is_of_model(connection: "apsw.Connection", model: str | None) -> bool:
    return model is None or connection.execute("SELECT name FROM model").fetchall() == [(model,)]


def settle_model(connection: "apsw.Connection", model: str | None) -> bool:
    if _is_of_model(connection, model):
        return True
    connection.execute("DROP TABLE IF EXISTS vectors")
    connection.execute("DROP TABLE IF EXISTS rounded")
    connection.execute("DELETE FROM model")
    connection.execute("INSERT INTO model VALUES (?, 0)", (model,))
    return False


def find_size(connection: "apsw.Connection") -> int:
    """How many numbers a vector has, 0 if there is none yet."""
    size = connection.execute("SELECT coalesce(max(size), 0) FROM model").get
    assert isinstance(size, int)
    return size


def add_vectors(connection: "apsw.Connection", placed: Sequence[PlacedVector], chunk: int = CHUNK) -> None:
    size = len(placed[0].vector)
    coarse, signs = (f", signs BIT[{size}]", ", vec_quantize_binary(?5)") if _has_signs(size) else ("", "")
    if find_size(connection) == 0:
        connection.execute(
            "CREATE VIRTUAL TABLE vectors USING vec0("
            "id TEXT PRIMARY KEY, tenant TEXT PARTITION KEY, agent TEXT, session TEXT, "
            f"embedding FLOAT[{size}] distance_metric=cosine{coarse}, chunk_size={chunk})"
        )
        if signs:
            connection.execute("CREATE TABLE rounded (id TEXT PRIMARY KEY, numbers BLOB NOT NULL) WITHOUT ROWID")
        connection.execute("UPDATE model SET size = ?", (size,))
    is_rounded = _has_rounded(connection)
    for each in placed:
        whose = each.whose
        connection.execute("DELETE FROM vectors WHERE id = ?", (each.id,))
        connection.execute(
            f"INSERT INTO vectors (id, tenant, agent, session, embedding{', signs' if signs else ''}) "
            f"VALUES (?1, ?2, ?3, ?4, ?5{signs})",
            (each.id, whose.tenant, whose.group or "", whose.member or "", pack(each.vector)),
        )
        if is_rounded:
            connection.execute("INSERT OR REPLACE INTO rounded VALUES (?, ?)", (each.id, pack_rounded(each.vector)))


def _find_nearest(connection: "apsw.Connection", vector: Vector, whose: Scope, limit: int) -> list[Hit]:
    if find_size(connection) != len(vector):
        return []
    if not (_has_signs(len(vector)) and 0.1 < sum([number > 0 for number in vector]) / len(vector) < 0.9):
        return _list_hits(connection, vector, whose, "embedding MATCH ?1", limit)[:limit]
    signs = "signs MATCH vec_quantize_binary(?1)"
    if not _has_rounded(connection):
        return _list_hits(connection, vector, whose, signs, max(OLD_CANDIDATES, limit))[:limit]
    if whose.group is None and whose.member is None:
        wanted = max(CANDIDATES, limit)
        bound = _choose_bound(connection, vector, whose.tenant, wanted)
        most = MOST_CANDIDATES if bound else wanted
        hits = _list_hits(connection, vector, whose, f"{signs}{bound}", most, is_rounded=True)
        if len(hits) >= limit or not bound:
            return hits[:limit]
    held = sum([size for _, size in _list_chunks(connection, whose.tenant)])
    most = max(LEAST_CANDIDATES, min(CANDIDATES, WORK // max(held, 1)), limit)
    return _list_hits(connection, vector, whose, signs, most, is_rounded=True)[:limit]


def _list_hits(
    connection: "apsw.Connection", vector: Vector, whose: Scope, nearest: str, most: int, *, is_rounded: bool = False
) -> list[Hit]:
    """So many vectors at most, nearest first; with `is_rounded` by their rounded numbers."""
    mine, values = "tenant = ?3", [pack(vector), most, whose.tenant]
    for column, name in (("agent", whose.group), ("session", whose.member)):
        if name is not None:
            values.append(name)
            mine += f" AND {column} = ?{len(values)}"
    found = f"SELECT id, vec_distance_cosine(embedding, ?1) FROM vectors WHERE {nearest} AND k = ?2 AND {mine}"
    if is_rounded:
        values.append(pack_rounded(vector))
        found = (
            f"SELECT rounded.id, vec_distance_cosine(vec_int8(numbers), vec_int8(?{len(values)})) FROM "
            f"(SELECT id FROM vectors WHERE {nearest} AND k = ?2 AND {mine}) AS near JOIN rounded ON rounded.id = near.id"
        )
    hits = [Hit(str(id), -distance) for id, distance in connection.execute(found, values) if isinstance(distance, float)]
    return sorted(hits, key=lambda hit: hit.score, reverse=True)


def _choose_bound(connection: "apsw.Connection", vector: Vector, tenant: str, wanted: int) -> str:
    """How many signs may differ, as a condition that about so many vectors meet; none where all can be ordered."""
    chunks = _list_chunks(connection, tenant)
    held = sum([size for _, size in chunks])
    if held <= 2 * wanted or len(chunks) < 2:
        return ""
    signs = connection.execute("SELECT vec_quantize_binary(?)", (pack(vector),)).get
    assert isinstance(signs, bytes)
    asked, length = int.from_bytes(signs, "little"), len(signs)
    # The last chunk may not be full.
    spread = chunks[: -1 : max(len(chunks) // SAMPLED_CHUNKS, 1)]
    differing: list[int] = []
    for id, size in spread:
        runs = min(max(SAMPLE // len(spread) // RUN, 1), size // RUN)
        with connection.blob_open("main", "vectors_vector_chunks01", "vectors", id, False) as blob:
            for run in range(runs):
                blob.seek(run * (size // runs) * length)
                seen = blob.read(RUN * length)
                differing += [
                    (int.from_bytes(seen[start : start + length], "little") ^ asked).bit_count()
                    for start in range(0, len(seen), length)
                ]
    return f" AND distance <= {sorted(differing)[len(differing) * wanted // held]}"


def _list_chunks(connection: "apsw.Connection", tenant: str) -> list[tuple[int, int]]:
    """The chunks that the vectors of a tenant are in, each with how many it has room for."""
    rows = connection.execute("SELECT chunk_id, size FROM vectors_chunks WHERE partition00 = ?", (tenant,))
    return [(id, size) for id, size in rows if isinstance(id, int) and isinstance(size, int)]


def _has_signs(size: int) -> bool:
    return size >= FEW_NUMBERS and size % 8 == 0


def remove_vectors(connection: "apsw.Connection", ids: Sequence[str]) -> None:
    if find_size(connection):
        connection.executemany("DELETE FROM vectors WHERE id = ?", [(id,) for id in ids])
        if _has_rounded(connection):
            connection.executemany("DELETE FROM rounded WHERE id = ?", [(id,) for id in ids])


def _has_rounded(connection: "apsw.Connection") -> bool:
    return bool(connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'rounded'").get)


def pack_rounded(vector: Vector) -> bytes:
    """The numbers as bytes. An angle is the same whatever the length of a vector, so all of their range is used."""
    scale = 127 / (max(map(abs, vector)) or 1.0)
    return array("b", [round(number * scale) for number in vector]).tobytes()


def pack(vector: Vector) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)
