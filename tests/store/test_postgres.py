"""What is particular to PostgreSQL: its traps, its refusals, and what happens when it goes away."""

import asyncio
import re
import ssl
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from pkgutil import resolve_name
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import asyncpg  # type: ignore[import-untyped]
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec.structs import replace
from tests.cli.deployment import fill, look
from tests.decisions.test_log import START, decision
from tests.kit.link import Link, linked, linked_port, tls_door
from tests.kit.pooler import pooled
from tests.kit.postgres import Postgres, replica_of, running
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE, until
from tests.memory.world import embeddings
from tests.store.groups import check_a_group
from tests.store.logs import answer, begin, end, say

from mainspring.app.product_parts import find_parts
from mainspring.core.errors import InvalidRequest, StoreError, Superseded
from mainspring.core.events import ItemDone, Recorded, RunEnded, TextDelta
from mainspring.ports import Document, Driver, Filter, Note, Segment, Snapshot, Store
from mainspring.storage import follow
from mainspring.storage.audit_chain import verify
from mainspring.storage.choose_store import choose_store, open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres import postgres_runs
from mainspring.storage.postgres import postgres_server as server_module
from mainspring.storage.postgres.listener import Listener
from mainspring.storage.postgres.run_tables import CHANNEL, RUNS, escape, make_key, unescape
from mainspring.storage.segment import RECORD_BYTES
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.storage.transfer.deployment import back_up, restore
from mainspring.storage.transfer.run_content import place_runs
from mainspring_tasks.decision_log import DecisionLogs

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as a socket needs it."""
    with TemporaryDirectory(prefix="ln") as name:
        yield Path(name)


@asynccontextmanager
async def behind_link(postgres: Postgres, emptied: Location, folder: Path) -> AsyncIterator[tuple[Store, Link]]:
    """A store that reaches its server by a link that can be cut."""
    name = urlsplit(emptied.given).path.strip("/")
    async with linked(postgres.socket, folder) as link:
        url = f"postgresql://postgres@/{name}?host={folder}"
        async with open_store(parse_location(url)) as store:
            yield store, link


def is_batch(data: bytes) -> bool:
    """Whether this is the statement that writes, or its values: it alone is a Bind of that size, and it alone has a fence."""
    return data[:1] in (b"B", b"P") and (b"fence AS" in data or data[:1] == b"B")


# Logs of runs that have ended.


def spoken(id: str, words: Sequence[str]) -> tuple[list[Recorded], Snapshot]:
    """The log of a run that says the words one by one, with its times, and how it ends."""
    told = answer(id, "".join(words))
    said = [Recorded(1 + place, 1.7e9 + place * 52 / 1024, TextDelta("msg_0", word)) for place, word in enumerate(words)]
    done = 1 + len(words)
    return [*begin(id), *said, Recorded(done, 1.8e9, ItemDone(told.entries[1].item)), *end(done + 1)], told


async def read_bodies(emptied: Location) -> list[bytes]:
    connection = await asyncpg.connect(emptied.given)
    rows = await connection.fetch("SELECT body FROM mainspring_segments ORDER BY run, first")
    told = await connection.fetch("SELECT response || entries FROM mainspring_runs")
    await connection.close()
    return [row[0] for row in [*rows, *told]]


@pytest.mark.parametrize("in_rows", [True, False], ids=["row by row", "at once"])
async def test_the_words_of_a_run_that_has_ended_are_kept_once(emptied: Location, tmp_path: Path, *, in_rows: bool) -> None:
    log, told = spoken("a", [f"word{place} " for place in range(60)])
    async with open_store(emptied) as store, open_store(emptied) as other:
        for record in log[:61] if in_rows else ():
            await store.append("a", [record])
        await store.append("a", log[61:] if in_rows else log, told)
        assert await store.events("a") == log
        await store.close()  # does what is left to do
        assert await other.events("a") == log
        assert await other.events("a", 30) == log[31:]
        assert (await other.load("a")).response == told.response
        assert [run.response for run in (await other.list()).runs] == [told.response]
        assert await other.measure_run("a") > 60 * RECORD_BYTES
    assert b"".join(await read_bodies(emptied)).count(b"word37 ") == 1
    copied = tmp_path / "copied.db"
    await back_up(place_runs(None, emptied), tmp_path / "all.backup", lambda *_: None)
    await restore(tmp_path / "all.backup", place_runs(None, parse_location(str(copied))), lambda *_: None)
    async with SqliteStore(copied) as file:
        assert await file.events("a") == log
        assert (await file.load("a")).response == told.response


async def test_a_run_that_cannot_be_read_keeps_no_other_log_in_many_rows(emptied: Location) -> None:
    async with open_store(emptied) as store:
        for id in ("a", "b"):
            log, told = spoken(id, [f"{id}{place} " for place in range(60)])
            for record in log[:61]:
                await store.append(id, [record])
            await store.append(id, log[61:], told)
            if id == "a":
                connection = await asyncpg.connect(emptied.given)
                await connection.execute("UPDATE mainspring_runs SET entries = '['")
                await connection.close()
        with pytest.raises(StoreError, match="what is stored there cannot be read"):
            await store.load("a")
    assert b"".join(await read_bodies(emptied)).count(b"b37 ") == 1


async def test_a_log_in_one_row_is_followed_from_where_its_reader_was(emptied: Location) -> None:
    log, told = spoken("a", [f"word{place} " for place in range(60)])
    async with open_store(emptied) as store, open_store(emptied) as other:
        for record in log[:40]:
            await store.append("a", [record])
        async with aclosing(other.follow("a")) as batches, asyncio.timeout(PATIENCE):
            seen = list(await anext(batches))
            while len(seen) < 40:
                seen += await anext(batches)
            for record in log[40:-1]:
                await store.append("a", [record])
            await store.append("a", log[-1:], told)
            await store.close()
            async for batch in batches:
                seen += batch
                if isinstance(seen[-1].event, RunEnded):
                    break
        assert seen == log


# Traps.


async def test_whoever_is_frozen_in_a_transaction_holds_nobody_up(emptied: Location, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "SILENT_IN_TRANSACTION", "300ms")
    async with open_store(emptied) as frozen, open_store(emptied) as store, asyncio.timeout(PATIENCE):
        await frozen.append("resp_1", begin("resp_1"))
        is_locked, is_awake = asyncio.Event(), asyncio.Event()

        async def lock(connection: Any) -> str:
            found = str(await connection.execute("UPDATE mainspring_runs SET driver = driver"))
            is_locked.set()
            await is_awake.wait()
            return found

        assert isinstance(frozen, postgres_runs.PostgresStore)
        writing = frozen._writer.transact(lock)
        await is_locked.wait()
        assert await store.leases.claim("resp_1", "another") is not None
        is_awake.set()
        assert await writing == "UPDATE 1"


async def test_numbers_of_documents_follow_the_commits_within_their_parent(emptied: Location) -> None:
    """Whoever has seen number 7 never finds a smaller one later that it has not seen."""
    async with open_store(emptied) as left, open_store(emptied) as right:
        await left.put([Document("top", "top", b"{}")])
        seen: list[int] = []
        is_over = asyncio.Event()

        async def watch() -> None:
            async with open_store(emptied) as reader:
                while not is_over.is_set():
                    numbers = [document.number for document in await reader.documents("item", parent="top")]
                    assert numbers[: len(seen)] == seen, "a number appeared before one that was seen already"
                    seen[:] = numbers

        async def write(store: Store, name: str) -> None:
            for place in range(40):
                await store.put([Document("item", f"{name}{place}", b"{}", parent="top")])

        watching = asyncio.create_task(watch())
        await asyncio.gather(write(left, "l"), write(right, "r"))
        is_over.set()
        await watching
        assert len(await left.documents("item", parent="top")) == 80


async def test_a_number_is_drawn_only_while_the_parent_is_locked(emptied: Location) -> None:
    async with open_store(emptied) as store:
        await store.put([Document("top", "top", b"{}")])
        other = await asyncpg.connect(emptied.given)
        async with other.transaction():
            await other.execute("SELECT 1 FROM mainspring_documents WHERE parent = '' FOR UPDATE")
            waiting = asyncio.ensure_future(store.put([Document("item", "late", b"{}", parent="top")]))
            while not await other.fetchval("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            drawn = "SELECT last_value FROM pg_sequences WHERE sequencename = 'mainspring_documents_number_seq'"
            before = await other.fetchval(drawn)
            assert before == 1, "the number of a document was drawn before its turn had come"
        await other.close()
        assert await waiting


@pytest.mark.parametrize("text", ["", "a", "\0", "\x1a", "\x1a0", "\x1a1", "\0\x1a\x000\x1a1", "\N{SNOWMAN}"])
def test_a_text_with_nul_is_kept(text: str) -> None:
    assert "\0" not in escape(text)
    assert unescape(escape(text)) == text


async def test_ids_of_any_length_and_content_are_told_apart(emptied: Location) -> None:
    odd = ["\0", "\0\0", "\x1a0", "a" * 100_000, "a" * 100_001, "' OR 1=1", "\N{SNOWMAN}" * 5000]
    async with open_store(emptied) as store:
        for id in odd:
            tenant = f"tenant {id}"
            await store.append(id, [replace(begin(id)[0], event=replace(begin(id)[0].event, spec=_spec(id, tenant)))])
            assert await store.put([Document(id, id, b"1", tenant), Document("inner", id, b"2", tenant, parent=id)])
        for id in odd:
            tenant = f"tenant {id}"
            for only in (Filter(tenant=tenant), Filter(model=f"model {id}"), Filter(parent=f"parent {id}")):
                page = await store.list(only=only)
                assert [run.id for run in page.runs] == [id]
                assert (page.runs[0].tenant, page.runs[0].model, page.runs[0].parent) == (tenant, f"model {id}", f"parent {id}")
            found = await store.get("inner", id, tenant=tenant, parent=id)
            assert found is not None
            assert (found.id, found.tenant, found.parent, found.body) == (id, tenant, id, b"2")
            await store.note([Note(b"{}", f"call {id}")])
            assert [link.note.call for link in await store.audit(call=f"call {id}")] == [f"call {id}"]
        assert (await verify(store)).flaw is None


def _spec(id: str, tenant: str):  # type: ignore[no-untyped-def]
    spec = begin(id, parent=f"parent {id}")[0].event.spec  # type: ignore[union-attr]
    return replace(spec, tenant=tenant, model=f"model {id}")


# Several writers.


async def test_two_drivers_of_a_run_never_both_write_a_number(emptied: Location) -> None:
    async with open_store(emptied) as left, open_store(emptied) as right:
        stores = {"left": left, "right": right}
        winners: list[str] = []
        for seq in range(40):
            offers = {name: begin("a", parent=name) if seq == 0 else say(seq, name) for name in stores}
            results = await asyncio.gather(*[stores[name].append("a", offers[name]) for name in offers], return_exceptions=True)
            outcome = dict(zip(offers, results, strict=True))
            won = [name for name, error in outcome.items() if error is None]
            assert len(won) == 1
            assert all(isinstance(error, Superseded) for name, error in outcome.items() if name not in won)
            winners += won
        expected = [begin("a", parent=winners[0])[0], *[say(seq, name)[0] for seq, name in enumerate(winners[1:], 1)]]
        assert await left.events("a") == await right.events("a") == expected


async def test_the_audit_of_several_writers_is_whole(emptied: Location) -> None:
    async with open_store(emptied) as left, open_store(emptied) as right:

        async def write(store: Store, name: str) -> None:
            for place in range(30):
                id = f"{name}{place}"
                notes = [Note(b'{"n":%d}' % number, f"call_{id}") for number in range(3)]
                await store.append(id, [*begin(id), *end(1)], answer(id, "hi"), notes)

        await asyncio.gather(*[write(store, f"{lane}{name}") for lane in range(3) for name, store in (("l", left), ("r", right))])
        assert (await verify(left)).flaw is None
        assert len(await left.audit()) == 540
        assert len(await left.list_chains()) == 2
        assert len(await right.audit(call="call_1l7")) == 3


async def test_the_notes_of_a_segment_that_is_refused_are_not_in_the_audit(emptied: Location) -> None:
    async with open_store(emptied) as store:
        await store.append("a", begin("a"), notes=[Note(b"1")])
        results = await store.append_all(
            [
                Segment("b", begin("b"), notes=[Note(b"2")]),
                Segment("a", say(7, "late"), notes=[Note(b"no")]),
                Segment("c", begin("c"), notes=[Note(b"3"), Note(b"4")]),
            ]
        )
        assert [type(result) for result in results] == [type(None), Superseded, type(None)]
        assert [link.note.body for link in await store.audit()] == [b"1", b"2", b"3", b"4"]
        assert (await verify(store)).flaw is None


async def test_nobody_can_change_the_audit_by_hand(emptied: Location) -> None:
    async with open_store(emptied) as store:
        await store.note([Note(b"1")])
        connection = await asyncpg.connect(emptied.given)
        for command in ("UPDATE mainspring_audit SET body = ''", "DELETE FROM mainspring_audit", "TRUNCATE mainspring_audit"):
            with pytest.raises(asyncpg.RaiseError, match="only added to"):
                await connection.execute(command)
        await connection.close()


async def test_many_may_open_a_new_database_at_once(postgres: Postgres) -> None:
    location = parse_location(postgres.database())
    stores = [choose_store(location) for _ in range(5)]
    await asyncio.gather(*[store.open() for store in stores])
    await asyncio.gather(*[store.append(f"r{number}", begin(f"r{number}")) for number, store in enumerate(stores)])
    assert len(await stores[0].list_unfinished()) == 5
    await asyncio.gather(*[store.close() for store in stores])


async def test_two_may_open_a_store_at_once(emptied: Location) -> None:
    store = choose_store(emptied)

    async def use(id: str) -> None:
        await store.open()
        await store.append(id, begin(id))

    try:
        await asyncio.gather(use("a"), use("b"))
        assert sorted(await store.list_unfinished()) == ["a", "b"]
    finally:
        await store.close()


async def test_in_a_group_only_those_fail_that_must(emptied: Location) -> None:
    async with open_store(emptied) as store:
        await check_a_group(store)


async def test_appends_that_wait_are_one_statement_and_one_commit(emptied: Location) -> None:
    async with open_store(emptied) as store:
        other = await asyncpg.connect(emptied.given)
        before = await other.fetchval("SELECT max(batch) FROM mainspring_writers")
        written = [store.append(f"r{place}", begin(f"r{place}")) for place in range(150)]
        written += [store.append(f"r{place}", say(1, "x")) for place in range(150)]
        await asyncio.gather(*written)
        assert await other.fetchval("SELECT max(batch) FROM mainspring_writers") - before <= 4
        assert await other.fetchval("SELECT count(DISTINCT xmin::text) FROM mainspring_segments") <= 4
        await other.close()


async def test_whoever_follows_a_run_of_another_process_is_told_when_there_is_more(
    emptied: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_runs, "SEEN_WITHIN", 10 * PATIENCE)  # so that nobody looks by itself
    monkeypatch.setattr(follow, "FIRST_PAUSE", 10 * PATIENCE)
    async with open_store(emptied) as driver, open_store(emptied) as reader:
        await driver.append("a", begin("a"))
        await driver.append("b", begin("b"))
        other = await asyncpg.connect(emptied.given)
        logs = {id: reader.follow(id) for id in ("a", "b")}
        for id, log in logs.items():
            assert await anext(log) == begin(id)
        for seq in range(1, 20):
            nexts = {id: asyncio.ensure_future(anext(log)) for id, log in logs.items()}
            while await other.fetchval("SELECT count(*) FROM mainspring_followed") < 2:  # noqa: ASYNC110  said in the first wait
                await asyncio.sleep(0.01)
            for id in logs:
                await driver.append(id, say(seq, id))
                async with asyncio.timeout(PATIENCE):
                    assert await nexts[id] == say(seq, id)
        for log in logs.values():
            await log.aclose()
        await other.close()


# When it goes away.


async def test_an_append_whose_answer_was_lost_is_not_written_again(postgres: Postgres, emptied: Location, folder: Path) -> None:
    async with behind_link(postgres, emptied, folder) as (store, link):
        await store.append("a", begin("a"), notes=[Note(b"1")])
        await store.put([Document("n", "0", b"")], if_absent=True)
        for place in range(1, 6):
            swallowed = link.swallow_answer_of(is_batch)
            results: list[asyncio.Future[Any]] = [
                store.append("a", say(place, f"word {place}"), notes=[Note(b"2")]),
                store.append("a", say(place + 3, "never"), notes=[Note(b"no")]),
                asyncio.ensure_future(store.put([Document("n", f"{place}", b"mine")], if_absent=True)),
                asyncio.ensure_future(store.put([Document("n", "0", b"late")], if_absent=True)),
            ]
            done = await asyncio.wait_for(asyncio.gather(*results, return_exceptions=True), PATIENCE)
            assert swallowed.is_set()
            assert (done[0], done[2], done[3]) == (None, True, False)
            assert isinstance(done[1], Superseded)
        assert len(await store.events("a")) == 6
        assert [link.note.body for link in await store.audit()] == [b"1", *[b"2"] * 5]
        assert (await verify(store)).flaw is None


async def test_a_removal_whose_answer_was_lost_is_known_to_be_done(postgres: Postgres, emptied: Location, folder: Path) -> None:
    async with behind_link(postgres, emptied, folder) as (store, link):
        await store.put([Document("n", "top", b""), Document("n", "in", b"", parent="top")])
        swallowed = link.swallow_answer_of(lambda data: b"COMMIT" in data)
        assert await asyncio.wait_for(store.remove("n", "top"), PATIENCE)
        assert swallowed.is_set()
        assert await store.documents("n", parent="top") == []
        swallowed = link.swallow_answer_of(lambda data: b"COMMIT" in data)
        assert await asyncio.wait_for(store.put([Document("n", "a", b"1"), Document("n", "b", b"2")], if_absent=True), PATIENCE)
        assert swallowed.is_set()
        assert not await store.put([Document("n", "a", b"3"), Document("n", "c", b"4")], if_absent=True)


async def test_what_is_asked_and_written_during_a_cut_waits_for_its_end(
    postgres: Postgres, emptied: Location, folder: Path
) -> None:
    async with behind_link(postgres, emptied, folder) as (store, link):
        await store.append("a", begin("a"))
        link.is_refusing = True
        link.cut()
        written = [store.append("a", say(place, "x")) for place in range(1, 20)]
        question = asyncio.ensure_future(store.load("a"))
        await asyncio.sleep(0.2)
        assert not question.done()
        assert not any(each.done() for each in written)
        link.is_refusing = False
        await asyncio.wait_for(asyncio.gather(*written, question), PATIENCE)
        assert len(await store.events("a")) == 20


async def test_a_server_that_says_that_it_stops_and_has_not_hung_up_is_connected_to_again(
    postgres: Postgres, emptied: Location, folder: Path
) -> None:
    async with behind_link(postgres, emptied, folder) as (store, link):
        await store.append("a", begin("a"))
        await store.load("a")
        told = b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0"
        link.say(b"E" + (len(told) + 4).to_bytes(4) + told)
        await asyncio.sleep(0.1)  # it has been read by then, or the test shows nothing
        await asyncio.wait_for(asyncio.gather(store.append("a", say(1, "x")), store.load("a")), PATIENCE)
        assert len(await store.events("a")) == 2


async def test_a_cut_that_lasts_too_long_fails_what_waits(
    postgres: Postgres, emptied: Location, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mainspring.storage.postgres import writer as writer_module

    monkeypatch.setattr(server_module, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(writer_module, "PATIENCE_SECONDS", 0.3)
    async with behind_link(postgres, emptied, folder) as (store, link):
        await store.append("a", begin("a"))
        link.is_refusing = True
        link.cut()
        for failing in (store.append("a", say(1, "x")), store.put([Document("n", "a", b"")]), store.load("a")):
            with pytest.raises(StoreError, match="cannot be reached"):
                await asyncio.wait_for(failing, PATIENCE)
        link.is_refusing = False
        await store.append("a", say(1, "y"))
        assert await store.events("a") == [*begin("a"), *say(1, "y")]


async def test_nothing_is_lost_when_the_server_is_restarted_under_load(postgres: Postgres, emptied: Location) -> None:
    async with open_store(emptied) as store:

        async def drive(id: str) -> None:
            await store.append(id, begin(id))
            for seq in range(1, 60):
                await store.append(id, say(seq, id))
                assert await store.put([Document("n", f"{id}{seq}", b"")], if_absent=True)
                await asyncio.sleep(0.01)

        driving = [asyncio.create_task(drive(f"r{place}")) for place in range(4)]
        for how in ("INT", "QUIT"):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(postgres.stop, how)
            await asyncio.to_thread(postgres.start)
        await asyncio.wait_for(asyncio.gather(*driving), 2 * PATIENCE)
        for place in range(4):
            assert len(await store.events(f"r{place}")) == 60


# What is refused.


@asynccontextmanager
async def refused(url: str) -> AsyncIterator[list[str]]:
    """What opening this says: one line, without the password, and quickly."""
    told: list[str] = []
    store = choose_store(parse_location(url))
    with pytest.raises(StoreError) as caught:
        await asyncio.wait_for(store.open(), PATIENCE)
    told.append(caught.value.message)
    assert "\n" not in told[0]
    assert "hunter2" not in told[0]
    yield told


async def test_a_server_that_cannot_be_used_is_told_in_one_line(postgres: Postgres, folder: Path) -> None:
    async with refused(f"postgresql://app:hunter2@/x?host={folder}") as [told]:
        assert "cannot be reached" in told
    async with refused("postgresql://app:hunter2@127.0.0.1:1/x") as [told]:
        assert "cannot be reached" in told
    async with refused(f"postgresql://postgres:hunter2@/nowhere?host={postgres.socket.parent}") as [told]:
        assert "createdb" in told
    async with refused(f"postgresql://nobody:hunter2@/postgres?host={postgres.socket.parent}") as [told]:
        assert "user" in told
    async with refused("postgresql://app:hunter2@h/x?sslmode=maybe") as [told]:
        assert "is not right" in told
    async with refused(f"postgresql://postgres:hunter2@/postgres?host={postgres.socket.parent}&channel_binding=require") as [
        told
    ]:
        assert "channel_binding" in told
        assert "leave that option out" in told
    with pytest.raises(InvalidRequest, match="connect_timeout must be a whole number"):
        choose_store(parse_location("postgresql://app:hunter2@h/x?connect_timeout=soon"))


async def test_of_several_hosts_with_ports_of_their_own_one_that_answers_is_used(
    postgres: Postgres, emptied: Location, folder: Path
) -> None:
    name = urlsplit(emptied.given).path
    async with linked_port(postgres.socket) as (link, port):
        async with open_store(parse_location(f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{port}{name}")) as store:
            await store.append("a", begin("a"))
            link.cut()
            await store.append("a", say(1, "x"))
            assert [record.seq for record in await store.events("a")] == [0, 1]
        hosts = f"host={folder},{postgres.socket.parent}&port=1,5432"
        async with open_store(parse_location(f"postgresql://postgres@{name}?{hosts}")) as store:
            assert [record.seq for record in await store.events("a")] == [0, 1]
    async with refused(f"postgresql://app:hunter2@127.0.0.1:1,127.0.0.1:1{name}") as [told]:
        assert "cannot be reached" in told


async def test_tables_of_a_newer_version_are_left_alone(postgres: Postgres) -> None:
    url = postgres.database()
    async with open_store(parse_location(url)):
        pass
    postgres.psql(url, "UPDATE mainspring_schemas SET version = version + 1;")
    async with refused(url) as [told]:
        assert "newer Mainspring" in told
        assert f"this one knows {len(RUNS.migrations)}" in told


async def test_a_user_without_rights_is_told_which(postgres: Postgres) -> None:
    url = postgres.database()
    name = urlsplit(url).path.strip("/")
    postgres.psql(url, f"DROP ROLE IF EXISTS plain_{name}; CREATE ROLE plain_{name} LOGIN;")
    plain = postgres.url(name, f"plain_{name}")
    async with refused(plain) as [told]:
        assert "permission denied" in told
    async with open_store(parse_location(url)):
        pass
    async with refused(plain) as [told]:
        assert "permission denied" in told or "lacks rights" in told
    postgres.psql(url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO plain_{name};")
    async with refused(plain) as [told]:
        assert "GRANT" in told
    postgres.psql(url, f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO plain_{name};")
    async with open_store(parse_location(plain)) as store:
        await store.append("a", begin("a"), notes=[Note(b"{}")])


async def test_a_server_that_takes_no_more_connections_is_told_so(postgres: Postgres) -> None:
    name = urlsplit(postgres.database()).path.strip("/")
    limited = f"DROP ROLE IF EXISTS few_{name}; CREATE ROLE few_{name} LOGIN CONNECTION LIMIT 0; "
    postgres.psql(postgres.url(name), f"{limited} GRANT ALL ON SCHEMA public TO few_{name};")
    async with refused(postgres.url(name, f"few_{name}")) as [told]:
        assert "takes no more connections" in told


async def test_tables_that_are_gone_are_told_with_what_to_do(postgres: Postgres) -> None:
    url = postgres.database()
    async with open_store(parse_location(url)) as store:
        postgres.psql(url, "DROP SCHEMA public CASCADE; CREATE SCHEMA public;")
        for work in (store.documents("x"), store.append("a", begin("a"))):
            with pytest.raises(StoreError, match="restore a backup"):
                await work


async def test_why_writing_is_tried_again_is_logged_once(
    postgres: Postgres, emptied: Location, caplog: pytest.LogCaptureFixture
) -> None:
    def find_told() -> list[str]:
        return [told for record in caplog.records if "read-only" in (told := record.getMessage())]

    name = urlsplit(emptied.given).path.strip("/")
    async with open_store(emptied) as store:
        postgres.psql(postgres.url("postgres"), f"ALTER DATABASE {name} SET default_transaction_read_only = on;")
        try:
            postgres.psql(
                postgres.url("postgres"), f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}';"
            )
            writing = asyncio.ensure_future(store.append("a", begin("a")))
            await until(lambda: bool(find_told()))
            await asyncio.sleep(0.5)  # in which it is tried again
        finally:
            postgres.psql(postgres.url("postgres"), f"ALTER DATABASE {name} RESET default_transaction_read_only;")
        await writing
    assert len(find_told()) == 1


async def test_what_is_read_only_is_refused(postgres: Postgres, emptied: Location) -> None:
    name = urlsplit(emptied.given).path.strip("/")
    async with refused(postgres.url(name, default_transaction_read_only="on")) as [told]:
        assert "read only" in told


async def test_a_replica_is_refused_and_when_it_is_promoted_nothing_was_lost_or_repeated() -> None:
    """A failover under load: what was said to be stored is stored once, and what waits goes on at the new primary."""
    with running() as primary, nullcontext(urlsplit(primary.database()).path.strip("/")) as name, replica_of(primary) as replica:
        hosts = f"host={primary.socket.parent},{replica.socket.parent}&target_session_attrs=read-write"
        async with open_store(parse_location(f"postgresql://postgres@/{name}?{hosts}")) as store:
            async with refused(replica.url(name)) as [told]:
                assert "is a replica" in told
            is_over = asyncio.Event()
            written: dict[str, int] = {}

            async def write(id: str) -> None:
                await store.append(id, begin(id))
                while not is_over.is_set():
                    seq = written.get(id, 0) + 1
                    await store.append(id, say(seq, "x"), notes=[Note(b"{}", id)])
                    written[id] = seq

            async def until(count: int) -> None:
                while len(written) < 4 or min(written.values()) < count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

            writing = asyncio.gather(*[write(f"r{number}") for number in range(4)])
            await asyncio.wait_for(until(10), PATIENCE)
            primary.stop("QUIT")
            before = dict(written)
            replica.psql(replica.url("postgres"), "SELECT pg_promote();")
            await asyncio.wait_for(until(max(before.values()) + 10), PATIENCE)
            is_over.set()
            await writing
            for id, last in written.items():
                assert [record.seq for record in await store.events(id)] == list(range(last + 1))
            assert (await verify(store)).flaw is None
            assert len(await store.audit()) == sum(written.values())


async def test_hosts_that_are_all_replicas_are_told_at_the_start_and_waited_for_later(
    postgres: Postgres, emptied: Location
) -> None:
    name = urlsplit(emptied.given).path.strip("/")
    async with refused(postgres.url(name, target_session_attrs="standby")) as [told]:
        assert "target_session_attrs" in told
    assert server_module.is_lost(asyncpg.TargetServerAttributeNotMatched("none"))


async def test_those_who_follow_are_told_side_by_side_and_when_they_come_back(postgres: Postgres, emptied: Location) -> None:
    server = server_module.Server(emptied)
    await server.open(RUNS)
    listener = Listener(server)
    try:
        async with open_store(emptied) as store:
            for run_id in ("a", "b"):
                await store.append(run_id, begin(run_id))
            for place in (1, 2, 3):
                async with listener.hear(make_key("a")) as a, listener.hear(make_key("b")) as b:
                    await asyncio.gather(a(0), b(0))
                    for run_id in ("a", "b"):
                        await store.append(run_id, say(place, "more"))
                    await asyncio.wait_for(asyncio.gather(a(600), b(600)), PATIENCE)
                if place == 2:
                    those = "datname = current_database() AND query LIKE '%LISTEN \"%' AND pid <> pg_backend_pid()"
                    postgres.psql(emptied.given, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {those}")
                    await until(lambda: not listener._is_connected())
            # It listens to what is followed now, and to nothing that was followed before; and nothing stays prepared for it.
            async with listener.hear(make_key("c")) as c:
                await c(0)
                assert listener._connection is not None
                asked = (
                    "SELECT (SELECT array_agg(c) FROM pg_listening_channels() c), (SELECT count(*) FROM pg_prepared_statements)"
                )
                assert tuple(await listener._connection.fetchrow(asked)) == ([CHANNEL + make_key("c").hex()], 1)
    finally:
        listener.close()
        server.close()


async def test_what_operators_are_told_to_set_and_to_ask_for_is_understood(postgres: Postgres, emptied: Location) -> None:
    async with open_store(emptied) as store:
        await store.append("r1", begin("r1"))
        page = (Path(server_module.__file__).parents[4] / "docs" / "storage.md").read_text()
        told = [block for block in re.findall("```text\n(.*?)```", page, re.DOTALL) if "mainspring_runs" in block]
        assert len(told) == 2
        for block in told:
            postgres.psql(emptied.given, block)


async def test_commits_wait_for_the_disk_unless_the_url_says_otherwise(emptied: Location) -> None:
    for option, told in (("", "on"), ("&synchronous_commit=off", "off")):
        server = server_module.Server(parse_location(emptied.given + option))
        connection = await server.connect()
        assert await connection.fetchval("SHOW synchronous_commit") == told
        await connection.close()


async def test_an_old_server_is_refused(postgres: Postgres, emptied: Location, folder: Path) -> None:
    def age(data: bytes) -> bytes:
        return re.sub(rb"(server_version\0)\d\d", rb"\g<1>12", data)

    name = urlsplit(emptied.given).path.strip("/")
    async with linked(postgres.socket, folder, age), refused(f"postgresql://postgres@/{name}?host={folder}") as [told]:
        assert "PostgreSQL 14 or newer" in told


async def test_without_asyncpg_one_is_told_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("mainspring.storage.postgres")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'mainspring\[postgres\]'"):
        choose_store(parse_location("postgresql://h/x"))


def test_the_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal\nfrom tests.kit.postgres import running\n"
        "with running() as server:\n    print(server.socket, flush=True)\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = run([sys.executable, "-c", code], cwd=Path(__file__).parents[2])
    path = Path(ended.stdout.strip())
    for _ in range(int(PATIENCE * 20)):
        # Its user may empty the folder, and not always remove it.
        if not path.parent.exists() or not any(path.parent.iterdir()):
            return
        asyncio.run(asyncio.sleep(0.05))
    raise AssertionError(f"{path.parent} holds something still")


# By TLS.


def make_certificate(folder: Path) -> ssl.SSLContext:
    """A certificate for localhost that vouches for itself, in `root.crt`, and what a server needs to use it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    today = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(today - timedelta(days=1))
        .not_valid_after(today + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    (folder / "root.crt").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "root.crt", folder / "key")
    return context


async def test_the_url_says_whom_to_trust(
    postgres: Postgres, emptied: Location, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = urlsplit(emptied.given).path.strip("/")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.delenv("PGSSLROOTCERT", raising=False)
    async with tls_door(postgres.socket, make_certificate(folder)) as port:
        url = f"postgresql://postgres:hunter2@localhost:{port}/{name}?sslmode="
        for trust in (f"verify-full&sslrootcert={folder}/root.crt", "require", "prefer"):
            async with open_store(parse_location(url + trust)) as store:
                await store.append(trust, begin(trust))
        async with refused(f"{url}verify-full&sslrootcert={folder}/nothing.crt") as [told]:
            assert f"{folder}/nothing.crt, which sslrootcert names" in told
        async with refused(f"{url}verify-full") as [told]:
            assert "sslrootcert=system" in told
        async with refused(f"{url}verify-full&sslrootcert=system") as [told]:
            assert "TLS" in told
        monkeypatch.setenv("SSL_CERT_FILE", f"{folder}/root.crt")
        async with open_store(parse_location(f"{url}verify-full&sslrootcert=system")) as store:
            assert (await store.load("require")).id == "require"
        async with refused(f"{url.replace('localhost', '127.0.0.1')}verify-full&sslrootcert={folder}/root.crt") as [told]:
            assert "TLS" in told
    async with tls_door(postgres.socket, None) as port:
        async with refused(f"postgresql://postgres:hunter2@localhost:{port}/{name}?sslmode=require") as [told]:
            assert "has no TLS" in told
        async with open_store(parse_location(f"postgresql://postgres@localhost:{port}/{name}?sslmode=disable")) as store:
            await store.append("plain", begin("plain"))


# Behind a pooler.


async def test_it_works_behind_a_pooler_that_lends_a_connection_for_a_transaction(
    postgres: Postgres, emptied: Location, folder: Path
) -> None:
    name = urlsplit(emptied.given).path.strip("/")
    async with pooled(postgres.socket, folder, name) as pooler:
        url = f"postgresql://postgres@/{name}?host={folder}&pgbouncer=true"
        async with open_store(parse_location(url)) as store:

            async def drive(id: str) -> None:
                await store.append(id, begin(id))
                for seq in range(1, 8):
                    await store.append(id, say(seq, id), notes=[Note(b"{}")])
                    assert await store.put([Document("n", f"{id}{seq}", b""), Document("m", f"{id}{seq}", b"")], if_absent=True)
                    assert len(await store.events(id)) == seq + 1
                await store.append(id, end(8), answer(id, "hi"))
                assert (await store.load(id)).status == "completed"
                assert await store.remove("n", f"{id}1")

            await asyncio.gather(*[drive(f"r{place}") for place in range(4)])
            await store.delete("r0")
            assert (await verify(store)).length == 28
        assert pooler.lent > 50
        assert pooler.left == set()


async def test_a_database_that_isolates_more_by_default_is_used_as_any_other(postgres: Postgres, folder: Path) -> None:
    url = postgres.database()
    name = urlsplit(url).path.strip("/")
    postgres.psql(url, f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")
    async with open_store(parse_location(url)) as left, open_store(parse_location(url)) as right:
        for driver, store in (("left", left), ("right", right)):
            await store.leases.beat(Driver(driver), 60.0)
        for id in [f"r{number}" for number in range(20)]:
            await left.append(id, begin(id))
            claims = await asyncio.gather(left.leases.claim(id, "left"), right.leases.claim(id, "right"))
            assert len([claim for claim in claims if claim is not None]) == 1
    async with (
        pooled(postgres.socket, folder, name),
        refused(f"postgresql://postgres@/{name}?host={folder}&pgbouncer=true") as [told],
    ):
        assert "ALTER ROLE" in told


async def test_nothing_is_left_in_a_session_by_any_part_of_a_deployment(
    postgres: Postgres, emptied: Location, folder: Path, tmp_path: Path
) -> None:
    """So a pooler may lend it to another after each transaction: runs, memory, decisions, tasks and backups."""
    name = urlsplit(emptied.given).path.strip("/")
    async with pooled(postgres.socket, folder, name) as pooler, embeddings() as backend:
        place = parse_location(f"postgresql://postgres@/{name}?host={folder}&pgbouncer=true")
        await fill(place, backend)
        seen = await look(place, backend)
        placed = [each for part in find_parts() if part.contents for each in resolve_name(part.contents)(None, place)]
        await back_up(placed, tmp_path / "all.backup", lambda *_: None)
        postgres.empty(emptied.given)
        await restore(tmp_path / "all.backup", placed, lambda *_: None)
        assert await look(place, backend) == seen
        assert pooler.lent > 200
        assert pooler.left == set()


async def test_past_a_pooler_one_is_told_of_new_events(
    postgres: Postgres, emptied: Location, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_runs, "SEEN_WITHIN", 10 * PATIENCE)
    name = urlsplit(emptied.given).path.strip("/")
    async with pooled(postgres.socket, folder, name) as pooler:
        url = f"postgresql://postgres@/{name}?host={folder}&pgbouncer=true&listen={postgres.socket.parent}"
        async with open_store(parse_location(url)) as driving, open_store(parse_location(url)) as reading:
            await driving.append("a", begin("a"))
            told: asyncio.Queue[int] = asyncio.Queue()

            async def read() -> None:
                async for records in reading.follow("a"):
                    await told.put(records[-1].seq)

            following = asyncio.create_task(read())
            assert await asyncio.wait_for(told.get(), PATIENCE) == 0
            listening = "SELECT count(*) FROM mainspring_followed"
            while postgres.psql(emptied.given, listening).strip() == "0":  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            await driving.append("a", say(1, "more"))
            assert await asyncio.wait_for(told.get(), PATIENCE) == 1
            following.cancel()
        assert pooler.left == set()


async def test_whoever_does_not_say_that_there_is_a_pooler_is_told(postgres: Postgres, emptied: Location, folder: Path) -> None:
    name = urlsplit(emptied.given).path.strip("/")
    async with pooled(postgres.socket, folder, name), refused(f"postgresql://postgres@/{name}?host={folder}") as [told]:
        assert "pgbouncer=true" in told


async def test_servers_of_an_older_version_go_on_when_the_tables_are_brought_up_to_date(postgres: Postgres) -> None:
    """Also when they have to connect again, as after a restart of the database; only to start is not possible any more."""
    place = parse_location(postgres.database())
    logs = DecisionLogs(place, clock=START.timestamp)
    async with open_store(place) as store:
        await store.append("a", begin("a"))
        await logs.write_decision_log(decision(1, None))
        postgres.psql(place.given, "ALTER TABLE mainspring_runs ADD COLUMN of_the_future INT;")
        postgres.psql(place.given, "UPDATE mainspring_schemas SET version = version + 1;")
        others = "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"
        postgres.psql(place.given, f"SELECT pg_terminate_backend(pid) {others};")
        await store.append("a", say(1, "on"))
        assert len(await store.events("a")) == 2
        with suppress(StoreError):  # whoever was cut is told so
            await logs.write_decision_log(decision(2, None))
        await logs.write_decision_log(decision(3, None))
        assert len(await logs.open_decisions()) >= 2
    await logs.close()
    async with refused(place.given) as [told]:
        assert "newer Mainspring" in told
