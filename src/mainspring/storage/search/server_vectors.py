"""Vectors in a table of a PostgreSQL server, beside the rows that they stand for.

They are arrays of numbers, and are compared one by one: by pgvector where the database has that extension, else in SQL.
"""

from collections.abc import Sequence
from math import sqrt

from msgspec import Struct

from mainspring.ports import Vector
from mainspring.storage.search.ranking import Hit
from mainspring.storage.search.vectors import PlacedVector, Renew
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sql import SqlConnection, SqlWorker

# The schema of the extension, in quotes. It often has one of its own, which is not in the search path.
_EXTENSION = """
    SELECT '"' || replace(nspname, '"', '""') || '"' FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace
    WHERE extname = 'vector' AND has_schema_privilege(extnamespace, 'USAGE')
"""


class VectorTables(Struct, frozen=True):
    """The table of rows, that of their vectors, which go with them, and the one that names their model."""

    rows: str
    vectors: str
    model: str


class ServerVectors:
    """The vectors of one embedding model, beside the rows. Those of another are dropped when a new one comes."""

    path = None

    def __init__(self, database: SqlWorker, tables: VectorTables) -> None:
        self._database, self._tables = database, tables

    async def open_for(self, model: str | None, renew: Renew | None = None) -> bool:
        if renew is not None and not await self._database.read(_is_of_model, self._tables, model):
            await renew()
        return await self._database.write(_settle_model, self._tables, model)

    async def add(self, placed: Sequence[PlacedVector]) -> None:
        await self._database.write(_add, self._tables, placed)

    async def find_nearest(self, vector: Vector, whose: Scope, limit: int) -> list[Hit]:
        return await self._database.read(_find_nearest, self._tables, vector, whose, limit)

    async def remove(self, ids: Sequence[str]) -> None:
        """Nothing is left to do: they have gone with their rows."""

    async def close(self) -> None:
        """The database is closed by whoever opened it."""


def _is_of_model(connection: SqlConnection, tables: VectorTables, model: str | None) -> bool:
    return model is None or connection.execute(f"SELECT name FROM {tables.model}").fetchall() == [(model,)]


def _settle_model(connection: SqlConnection, tables: VectorTables, model: str | None) -> bool:
    # Whoever comes second waits for the first.
    connection.execute(f"LOCK TABLE {tables.model} IN EXCLUSIVE MODE")
    if _is_of_model(connection, tables, model):
        return True
    connection.execute(f"DELETE FROM {tables.vectors}")
    connection.execute(f"DELETE FROM {tables.model}")
    connection.execute(f"INSERT INTO {tables.model} VALUES (?)", (model,))
    return False


def _add(connection: SqlConnection, tables: VectorTables, placed: Sequence[PlacedVector]) -> None:
    for each in placed:
        whose = each.whose
        # A row that was removed meanwhile needs no vector.
        connection.execute(
            f"INSERT INTO {tables.vectors} (id, tenant, agent, session, embedding) SELECT id, CAST(? AS TEXT), CAST(? AS TEXT), "
            f"CAST(? AS TEXT), CAST(? AS REAL[]) FROM {tables.rows} WHERE id = ? "
            "ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding",
            (whose.tenant, whose.group or "", whose.member or "", normalize(each.vector), each.id),
        )


def _find_nearest(connection: SqlConnection, tables: VectorTables, vector: Vector, whose: Scope, limit: int) -> list[Hit]:
    mine, values = "tenant = :tenant", {"vector": normalize(vector), "tenant": whose.tenant, "limit": limit}
    for column, name in (("agent", whose.group), ("session", whose.member)):
        if name is not None:
            values[column] = name
            mine += f" AND {column} = :{column}"
    closeness = "(SELECT sum(pair.a * pair.b) FROM unnest(embedding, CAST(:vector AS REAL[])) AS pair (a, b))"
    if (found := connection.execute(_EXTENSION).fetchone()) is not None:
        [schema] = found
        distance = f"CAST(embedding AS {schema}.vector) OPERATOR({schema}.<=>) CAST(CAST(:vector AS REAL[]) AS {schema}.vector)"
        # That of a vector of zeros is no number, which the server takes to be the largest.
        closeness = f"nullif(1 - ({distance}), 'NaN')"
    nearest = f"""
        SELECT id, CAST({closeness} AS DOUBLE PRECISION) AS closeness FROM {tables.vectors}
        WHERE {mine} AND cardinality(embedding) = cardinality(CAST(:vector AS REAL[]))
        ORDER BY closeness DESC NULLS LAST LIMIT :limit
    """
    return [Hit(id, closeness - 1) for id, closeness in connection.execute(nearest, values) if closeness is not None]


def normalize(vector: Vector) -> list[float]:
    length = sqrt(sum([number * number for number in vector])) or 1.0
    return [number / length for number in vector]
