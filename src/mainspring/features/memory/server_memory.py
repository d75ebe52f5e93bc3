"""The memory on a PostgreSQL server: its tables, and the vectors in one of them.

Vectors are arrays of numbers. They are compared one by one: by pgvector where the database has that extension, else in SQL. What
is forgotten takes its vector along.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Final

from mainspring.features.memory.observation_rows import Hit
from mainspring.features.memory.vectors import PlacedVector
from mainspring.features.memory.word_index import ObservationScope
from mainspring.ports import Vector
from mainspring.storage.sql import ServerTables, SqlConnection, SqlWorker

_TABLES: Final = """
    CREATE TEXT SEARCH DICTIONARY mainspring_stem (TEMPLATE = snowball, LANGUAGE = english);
    CREATE TEXT SEARCH CONFIGURATION mainspring_words (COPY = simple);
    ALTER TEXT SEARCH CONFIGURATION mainspring_words
        ALTER MAPPING FOR asciiword, word, hword, hword_part, asciihword, hword_asciipart WITH mainspring_stem;
    CREATE TABLE mainspring_memory_writers (token TEXT PRIMARY KEY, since DOUBLE PRECISION NOT NULL);
    CREATE TABLE mainspring_observations (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        tenant TEXT NOT NULL,
        session TEXT NOT NULL,
        agent TEXT NOT NULL,
        kind TEXT NOT NULL,
        at DOUBLE PRECISION NOT NULL,
        content TEXT NOT NULL,
        about TEXT NOT NULL,
        tags TEXT NOT NULL,
        metadata TEXT NOT NULL,
        owner TEXT NOT NULL,
        words TSVECTOR NOT NULL,
        embedded INT NOT NULL DEFAULT 0
    );
    CREATE INDEX mainspring_observations_by_session ON mainspring_observations (tenant, session);
    CREATE INDEX mainspring_observations_by_time ON mainspring_observations (at);
    CREATE INDEX mainspring_observations_of_tenant ON mainspring_observations (tenant, number);
    CREATE INDEX mainspring_observations_to_embed ON mainspring_observations (number) WHERE embedded = 0;
    CREATE INDEX mainspring_observations_by_word ON mainspring_observations USING gin (words);
    CREATE TABLE mainspring_observations_forgotten (
        tenant TEXT NOT NULL, session TEXT NOT NULL, whole INT NOT NULL, upto DOUBLE PRECISION NOT NULL,
        PRIMARY KEY (tenant, session, whole)
    );
    CREATE TABLE mainspring_observation_counts (tenant TEXT PRIMARY KEY, count BIGINT NOT NULL);
    CREATE FUNCTION mainspring_count_observation() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        IF TG_OP = 'INSERT' THEN
            INSERT INTO mainspring_observation_counts AS known VALUES (NEW.tenant, 1)
                ON CONFLICT (tenant) DO UPDATE SET count = known.count + 1;
        ELSE
            UPDATE mainspring_observation_counts SET count = count - 1 WHERE tenant = OLD.tenant;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER mainspring_observation_counted AFTER INSERT OR DELETE ON mainspring_observations
        FOR EACH ROW EXECUTE FUNCTION mainspring_count_observation();
    CREATE TABLE mainspring_vector_model (name TEXT NOT NULL);
    CREATE TABLE mainspring_vectors (
        id TEXT PRIMARY KEY REFERENCES mainspring_observations (id) ON DELETE CASCADE,
        tenant TEXT NOT NULL,
        agent TEXT NOT NULL,
        session TEXT NOT NULL,
        embedding REAL[] NOT NULL
    );
    CREATE INDEX mainspring_vectors_of_tenant ON mainspring_vectors (tenant);
"""
SERVED_MEMORY: Final = ServerTables(
    name="memory",
    migrations=(_TABLES,),
    tables=(
        "mainspring_observations",
        "mainspring_observation_counts",
        "mainspring_observations_forgotten",
        "mainspring_memory_writers",
        "mainspring_vector_model",
        "mainspring_vectors",
    ),
)


class ServerVectors:
    """The vectors of one embedding model, beside the observations. Those of another are dropped when a new one comes."""

    path = None

    def __init__(self, database: SqlWorker) -> None:
        self._database = database

    async def open_for(self, model: str | None) -> bool:
        return await self._database.write(_settle_model, model=model)

    async def add(self, placed: Sequence[PlacedVector]) -> None:
        await self._database.write(_add, placed=placed)

    async def find_nearest(self, vector: Vector, whose: ObservationScope, limit: int) -> list[Hit]:
        return await self._database.read(_find_nearest, vector=vector, whose=whose, limit=limit)

    async def remove(self, ids: Sequence[str]) -> None:
        """Nothing is left to do: they have gone with their observations."""

    async def close(self) -> None:
        """The database is closed by whoever opened it."""


def _settle_model(connection: SqlConnection, model: str | None) -> bool:
    # Whoever comes second waits for the first.
    connection.execute("LOCK TABLE vector_model IN EXCLUSIVE MODE")
    if model is None or connection.execute("SELECT name FROM vector_model").fetchall() == [(model,)]:
        return True
    connection.execute("DELETE FROM vectors")
    connection.execute("DELETE FROM vector_model")
    connection.execute("INSERT INTO vector_model VALUES (?)", (model,))
    return False


def _add(connection: SqlConnection, placed: Sequence[PlacedVector]) -> None:
    for each in placed:
        whose = each.whose
        # An observation that was forgotten meanwhile needs no vector.
        connection.execute(
            "INSERT INTO vectors (id, tenant, agent, session, embedding) "
            "SELECT id, tenant, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS REAL[]) FROM observations WHERE id = ? "
            "ON CONFLICT (id) DO UPDATE SET embedding = excluded.embedding",
            (whose.agent or "", whose.session or "", normalize(each.vector), each.id),
        )


def _find_nearest(connection: SqlConnection, vector: Vector, whose: ObservationScope, limit: int) -> list[Hit]:
    mine, values = "tenant = :tenant", {"vector": normalize(vector), "tenant": whose.tenant, "limit": limit}
    for column, name in (("agent", whose.agent), ("session", whose.session)):
        if name is not None:
            values[column] = name
            mine += f" AND {column} = :{column}"
    closeness = "(SELECT sum(pair.a * pair.b) FROM unnest(embedding, CAST(:vector AS REAL[])) AS pair (a, b))"
    if connection.execute("SELECT 1 FROM pg_extension WHERE extname = 'vector'").fetchone() is not None:
        closeness = "1 - (CAST(embedding AS vector) <=> CAST(CAST(:vector AS REAL[]) AS vector))"
    nearest = f"""
        SELECT id, CAST({closeness} AS DOUBLE PRECISION) AS closeness FROM vectors
        WHERE {mine} AND cardinality(embedding) = cardinality(CAST(:vector AS REAL[])) ORDER BY closeness DESC LIMIT :limit
    """
    return [Hit(id, closeness - 1) for id, closeness in connection.execute(nearest, values) if closeness is not None]


def normalize(vector: Vector) -> list[float]:
    length = sqrt(sum([number * number for number in vector])) or 1.0
    return [number / length for number in vector]
