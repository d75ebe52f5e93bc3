"""Chains of the audit: one for each writer of a server, each vouching for the others, and all of them verified."""

import sqlite3
from contextlib import closing
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from tests.kit.postgres import Postgres

from mainspring.ports import Link, Note, Store
from mainspring.storage.audit_chain import GENESIS, begin_chain, chain_notes, read_anchors, verify
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres.run_tables import RUNS
from mainspring.storage.sqlite_runs import SqliteStore


async def tamper(location: Location, statement: str) -> None:
    connection = await asyncpg.connect(location.given)
    await connection.execute(f"SET session_replication_role = replica; {statement}")
    await connection.close()


async def write(location: Location, *texts: str) -> str:
    """A process that adds these to the audit, and ends. Returns its chain."""
    async with open_store(location) as store:
        before = set(await store.list_chains())
        for text in texts:
            await store.note([Note(text.encode(), f"call_{text}")])
        [chain] = set(await store.list_chains()) - before
    return chain


async def list_places(store: Store, chain: str) -> list[int]:
    return [link.place for link in await store.read_chain(chain, limit=100)]


@pytest.mark.slow
async def test_each_writer_has_a_chain_that_vouches_for_those_before(emptied: Location) -> None:
    first = await write(emptied, "1", "2", "3")
    second = await write(emptied, "4", "5")
    async with open_store(emptied) as store:
        assert [link.note.body for link in await store.audit()] == [b"1", b"2", b"3", b"4", b"5"]
        assert [link.note.body for link in await store.audit(newest_first=True, limit=2)] == [b"5", b"4"]
        assert await list_places(store, first) == [1, 2, 3]
        anchor, *_ = await store.read_chain(second, limit=1)
        [named] = read_anchors(anchor.note)
        [end] = await store.read_chain(first, after=2, limit=10)
        assert (named.chain, named.place, named.hash) == (first, 3, end.hash.hex())
        seen = await verify(store)
        assert (seen.flaw, seen.length) == (None, 6)
        assert seen.heads == (seen.head,), "one hash vouches for both"


@pytest.mark.slow
async def test_writers_at_once_have_heads_of_their_own(emptied: Location) -> None:
    async with open_store(emptied) as left, open_store(emptied) as right:
        await left.note([Note(b"1")])
        await right.note([Note(b"2")])
        await left.note([Note(b"3")])
        seen = await verify(left)
        assert (seen.flaw, len(seen.heads)) == (None, 2)
        assert (await verify(right, *seen.heads)).flaw is None
        assert (await verify(right, *seen.heads, bytes(31) + b"1")).flaw is not None


CUTS = {
    "the end of an older chain": "DELETE FROM mainspring_audit WHERE chain = '{}' AND place = 3",
    "an older chain altogether": "DELETE FROM mainspring_audit WHERE chain = '{}'",
    "one in the midst": "DELETE FROM mainspring_audit WHERE chain = '{}' AND place = 2",
    "a record that was changed": "UPDATE mainspring_audit SET body = '{{}}' WHERE chain = '{}' AND place = 2",
    "a record of another chain": "UPDATE mainspring_audit SET chain = 'ab', place = 1 WHERE chain = '{}' AND place = 3",
}


@pytest.mark.slow
@pytest.mark.parametrize("how", CUTS)
async def test_what_was_taken_from_a_chain_is_missed(emptied: Location, how: str) -> None:
    first = await write(emptied, "1", "2", "3")
    await write(emptied, "4")
    await tamper(emptied, CUTS[how].format(first))
    async with open_store(emptied) as store:
        assert (await verify(store)).flaw is not None


@pytest.mark.slow
async def test_an_end_that_was_written_anew_is_found_by_the_anchor(emptied: Location) -> None:
    first = await write(emptied, "1", "2")
    await write(emptied, "3")
    head = Link(0, Note(b""), begin_chain(first), first)
    one, two = chain_notes(head, [Note(b"1", "call_1"), Note(b"other", "call_2")])
    await tamper(
        emptied,
        f"UPDATE mainspring_audit SET body = 'other', hash = '\\x{two.hash.hex()}' WHERE chain = '{first}' AND place = 2",
    )
    async with open_store(emptied) as store:
        [found, changed] = await store.read_chain(first, limit=2)
        assert (found.hash, changed.hash) == (one.hash, two.hash), "the chain itself is whole"
        assert "others vouch for" in ((await verify(store)).flaw or "")


@pytest.mark.slow
async def test_the_one_chain_of_an_older_version_is_verified_and_vouched_for(postgres: Postgres) -> None:
    url = postgres.database()
    connection = await asyncpg.connect(url)
    before = next(place for place, script in enumerate(RUNS.migrations) if "mainspring_audit_chains" in script)
    for script in RUNS.migrations[:before]:
        await connection.execute(script)
    await connection.execute("CREATE TABLE mainspring_schemas (name TEXT PRIMARY KEY, version INT NOT NULL)")
    await connection.execute("INSERT INTO mainspring_schemas VALUES ('runs', $1)", before)
    links = list(chain_notes(None, [Note(b"1", "call_1"), Note(b"2"), Note(b"3")]))
    for link in links:
        insert = "INSERT INTO mainspring_audit (number, call, body, hash) VALUES ($1, $2, $3, $4)"
        await connection.execute(insert, link.number, link.note.call, link.note.body, link.hash)
    await connection.execute("UPDATE mainspring_audit_head SET number = 3, hash = $1", links[-1].hash)
    await connection.close()
    location = parse_location(url)
    async with open_store(location) as store:
        assert await store.audit() == links
        assert (await verify(store, links[-1].hash)).anchor == 3
        await store.note([Note(b"4")])
        seen = await verify(store, links[-1].hash)
        assert (seen.flaw, seen.length, len(seen.heads)) == (None, 5, 1)
    await tamper(location, "DELETE FROM mainspring_audit WHERE number = 3")
    async with open_store(location) as store:
        assert (await verify(store)).flaw is not None


async def test_a_file_goes_on_with_the_last_chain_that_was_copied_into_it(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await store.note([Note(b"1"), Note(b"2")])
        assert await store.list_chains() == [""]
    links = chain_notes(Link(0, Note(b""), begin_chain("ab"), "ab"), [Note(b"3"), Note(b"4")])
    with closing(sqlite3.connect(path)) as connection, connection:
        for link in links:
            row = (link.number + 2, link.note.call, link.note.body, link.hash, link.chain, link.place)
            connection.execute("INSERT INTO audit (number, call, body, hash, chain, place) VALUES (?, ?, ?, ?, ?, ?)", row)
    async with SqliteStore(path) as store:
        await store.note([Note(b"5")])
        assert [link.note.body for link in await store.audit()] == [b"1", b"2", b"3", b"4", b"5"]
        assert await list_places(store, "ab") == [1, 2, 3]
        assert await list_places(store, "") == [1, 2]
        seen = await verify(store)
        assert (seen.flaw, seen.length, len(seen.heads)) == (None, 5, 2)
        assert (await verify(store, GENESIS)).flaw is None
