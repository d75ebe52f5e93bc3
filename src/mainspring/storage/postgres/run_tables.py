"""The tables of runs in PostgreSQL, and how names and texts are kept in them.

PostgreSQL indexes no long text and keeps no NUL in a text. So what is looked up by an id is looked up by a hash of it
(`make_key`), and a NUL is written as two characters (`escape`). What is only compared is indexed by its first hundred characters.
"""

from hashlib import sha256
from typing import Final

from mainspring.storage.sql import ServerTables

_MIGRATIONS: Final = (
    """
    CREATE TABLE mainspring_runs (
        number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        key BYTEA NOT NULL UNIQUE,
        id TEXT NOT NULL,
        parent TEXT,
        parent_key BYTEA,
        model TEXT NOT NULL,
        background BOOLEAN NOT NULL,
        tenant TEXT NOT NULL,
        conversation BYTEA,
        conversation_key BYTEA,
        created_at DOUBLE PRECISION NOT NULL,
        status TEXT NOT NULL,
        ended_at DOUBLE PRECISION,
        response BYTEA,
        entries BYTEA
    ) WITH (fillfactor = 80);
    CREATE INDEX mainspring_runs_by_time ON mainspring_runs (created_at, number);
    CREATE INDEX mainspring_runs_by_tenant ON mainspring_runs (left(tenant, 100), created_at, number);
    CREATE INDEX mainspring_runs_by_model ON mainspring_runs (left(tenant, 100), left(model, 100), created_at, number);
    CREATE INDEX mainspring_runs_by_status ON mainspring_runs (left(tenant, 100), status, created_at, number)
        WHERE status <> 'completed';
    CREATE INDEX mainspring_runs_unfinished ON mainspring_runs (created_at, number) WHERE status = 'in_progress';
    CREATE INDEX mainspring_runs_by_parent ON mainspring_runs (parent_key, created_at, number) WHERE parent_key IS NOT NULL;
    CREATE INDEX mainspring_runs_in_background ON mainspring_runs (left(tenant, 100), created_at, number) WHERE background;
    CREATE INDEX mainspring_runs_by_conversation ON mainspring_runs (conversation_key, created_at, number)
        WHERE conversation_key IS NOT NULL;

    -- No reference to the run: whoever writes here has locked its row, and whoever deletes it deletes here.
    CREATE TABLE mainspring_segments (
        run BIGINT NOT NULL,
        first INT NOT NULL,
        last INT NOT NULL,
        body BYTEA NOT NULL,
        PRIMARY KEY (run, first)
    );

    CREATE TABLE mainspring_items (key BYTEA NOT NULL, run BIGINT NOT NULL, PRIMARY KEY (key, run));

    -- A document that belongs to another has the family of that one.
    CREATE TABLE mainspring_documents (
        number BIGINT GENERATED ALWAYS AS IDENTITY,
        key BYTEA PRIMARY KEY,
        folder BYTEA NOT NULL,
        family BYTEA NOT NULL,
        tenant TEXT NOT NULL,
        parent TEXT NOT NULL,
        id TEXT NOT NULL,
        kind TEXT NOT NULL,
        body BYTEA NOT NULL
    );
    CREATE INDEX mainspring_documents_in_order ON mainspring_documents (folder, number);
    CREATE INDEX mainspring_documents_by_family ON mainspring_documents (family);

    CREATE TABLE mainspring_audit (
        number BIGINT PRIMARY KEY,
        call TEXT NOT NULL,
        call_key BYTEA,
        body BYTEA NOT NULL,
        hash BYTEA NOT NULL
    );
    CREATE INDEX mainspring_audit_by_call ON mainspring_audit (call_key, number) WHERE call_key IS NOT NULL;
    CREATE FUNCTION mainspring_keep_audit() RETURNS trigger LANGUAGE plpgsql
        AS $$ BEGIN RAISE EXCEPTION 'the audit is only added to'; END $$;
    CREATE TRIGGER mainspring_audit_stays BEFORE UPDATE OR DELETE OR TRUNCATE ON mainspring_audit
        FOR EACH STATEMENT EXECUTE FUNCTION mainspring_keep_audit();
    -- The end of the chain, locked by whoever adds to it.
    CREATE TABLE mainspring_audit_head (number BIGINT NOT NULL, hash BYTEA NOT NULL);
    INSERT INTO mainspring_audit_head VALUES (0, decode(repeat('00', 32), 'hex'));

    -- One row for each process that writes: the number of its last batch and which of its jobs were refused, so that one whose
    -- connection was cut finds out what became of the batch. The epoch ends what an earlier connection may still be doing.
    CREATE TABLE mainspring_writers (
        id BYTEA PRIMARY KEY,
        epoch BIGINT NOT NULL,
        batch BIGINT NOT NULL,
        refused INT[] NOT NULL,
        seen_at TIMESTAMPTZ NOT NULL
    ) WITH (fillfactor = 50);
    """,
    # Which runs somebody follows, and until when.
    "CREATE TABLE mainspring_followed (key BYTEA PRIMARY KEY, until TIMESTAMPTZ NOT NULL)",
    # Who drives a run that has not ended. Leases are in `leases`.
    """
    ALTER TABLE mainspring_runs ADD COLUMN driver TEXT, ADD COLUMN is_cancelled BOOLEAN NOT NULL DEFAULT FALSE;
    CREATE INDEX mainspring_runs_by_driver ON mainspring_runs (driver, created_at, number) WHERE status = 'in_progress';
    CREATE INDEX mainspring_runs_to_cancel ON mainspring_runs (driver) WHERE is_cancelled;
    CREATE TABLE mainspring_drivers (
        id TEXT PRIMARY KEY,
        place TEXT NOT NULL,
        pid BIGINT NOT NULL,
        born TEXT NOT NULL,
        expires TIMESTAMPTZ NOT NULL
    ) WITH (fillfactor = 50);
    """,
    # A chain of the audit for each writer. The oldest has no name, and its places are its numbers. Which chains are still written
    # to, or have an end that no anchor has, is in a table of its own.
    """
    ALTER TABLE mainspring_audit ADD COLUMN chain TEXT NOT NULL DEFAULT '', ADD COLUMN place BIGINT;
    ALTER TABLE mainspring_audit ALTER COLUMN number ADD GENERATED BY DEFAULT AS IDENTITY;
    SELECT setval(pg_get_serial_sequence('mainspring_audit', 'number'), greatest(number, 1), number > 0)
    FROM mainspring_audit_head;
    CREATE UNIQUE INDEX mainspring_audit_by_chain ON mainspring_audit (chain, (coalesce(place, number)));
    CREATE TABLE mainspring_audit_chains (chain TEXT PRIMARY KEY);
    INSERT INTO mainspring_audit_chains SELECT '' FROM mainspring_audit_head WHERE number > 0;
    DROP TABLE mainspring_audit_head;
    """,
    # A line for each run: what a list tells of it without its log and its answer.
    """
    CREATE TABLE mainspring_summaries (
        run BIGINT PRIMARY KEY,
        owner TEXT NOT NULL,
        begun_at DOUBLE PRECISION NOT NULL,
        agent TEXT NOT NULL,
        caller TEXT NOT NULL,
        prompt TEXT NOT NULL,
        reason TEXT NOT NULL,
        input_tokens BIGINT NOT NULL,
        output_tokens BIGINT NOT NULL,
        error TEXT NOT NULL,
        waits_until DOUBLE PRECISION
    ) WITH (fillfactor = 80);
    CREATE INDEX mainspring_summaries_by_agent ON mainspring_summaries (left(owner, 100), left(agent, 100), begun_at)
        WHERE agent <> '';
    CREATE INDEX mainspring_summaries_that_wait ON mainspring_summaries (begun_at) WHERE waits_until IS NOT NULL;
    """,
    # Nothing is changed, but older versions, which open no newer tables, could not read what is written from now on.
    "COMMENT ON COLUMN mainspring_segments.body IS 'items that the entries of the run have are left to them'",
)
RUNS: Final = ServerTables(
    name="runs",
    migrations=_MIGRATIONS,
    tables=(
        "mainspring_runs",
        "mainspring_summaries",
        "mainspring_segments",
        "mainspring_items",
        "mainspring_documents",
        "mainspring_audit",
        "mainspring_audit_chains",
        "mainspring_writers",
        "mainspring_followed",
        "mainspring_drivers",
    ),
)
CHANNEL: Final = "mainspring_"
CLAIMABLE: Final = f"{CHANNEL}claimable"
"""The channel on which it is told that there is a run to claim."""
CHANGED: Final = f"{CHANNEL}changed"
"""The channel on which it is told that a run has begun or ended, while somebody wants to know."""
_NUL, _MARK = "\0", "\x1a"


def make_key(*parts: str) -> bytes:
    """A key that no other parts have. Lengths go in, so that nothing can move from one part to the next."""
    encoded = [part.encode() for part in parts]
    return sha256(b"".join([len(part).to_bytes(4) + part for part in encoded])).digest()[:16]


def escape(text: str) -> str:
    """The text without NUL; `unescape` gives it back."""
    if _NUL in text or _MARK in text:
        return text.replace(_MARK, _MARK + "1").replace(_NUL, _MARK + "0")
    return text


def unescape(text: str) -> str:
    return text.replace(_MARK + "0", _NUL).replace(_MARK + "1", _MARK) if _MARK in text else text
