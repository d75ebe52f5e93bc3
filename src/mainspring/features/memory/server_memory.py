"""The tables of the memory on a PostgreSQL server. What is forgotten takes its vector along."""

from typing import Final

from mainspring.storage.search.server_vectors import VectorTables
from mainspring.storage.sql import ServerTables

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

MEMORY_VECTORS: Final = VectorTables("observations", "vectors", "vector_model")
