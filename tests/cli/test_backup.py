"""`mainspring backup`, `restore` and `migrate`: everything is there afterwards, whatever happened meanwhile."""

import asyncio
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime
from errno import EPERM
from hashlib import sha256
from pathlib import Path
from pkgutil import resolve_name
from uuid import UUID

import asyncpg  # type: ignore[import-untyped]
import msgspec
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.cli.command import Live, Shell
from tests.cli.deployment import ODD, fill, look
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE
from tests.memory.world import embeddings
from tests.server.process import serving
from tests.store.logs import answer, begin, end, say

from mainspring.app.product_parts import find_parts
from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.ports import Document, Note
from mainspring.storage.audit_chain import verify
from mainspring.storage.choose_store import choose_store, open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.postgres.sql_database import PREFIX
from mainspring.storage.sql import ServerTables
from mainspring.storage.transfer.content import ContentKind
from mainspring.storage.transfer.deployment import back_up, bring_up_to_date, move
from mainspring.storage.transfer.run_content import place_runs
from mainspring.storage.transfer.server_rows import open_server
from mainspring.tools.mcp.sign_in import ACCOUNT
from mainspring_tasks.server.task import make_task
from mainspring_tasks.server.task_store import choose_task_store

pytestmark = pytest.mark.slow

SERVER_ROWS = "mainspring.storage.transfer.server_rows"
MakePlace = Callable[[str], Location]


@pytest.fixture
def place(postgres: Postgres, shell: Shell) -> MakePlace:
    """A new database of a kind: `sqlite` or `postgres`."""

    def make(kind: str) -> Location:
        if kind == "postgres":
            return parse_location(postgres.database())
        folder = shell.folder / f"place{len(os.listdir(shell.folder))}"
        folder.mkdir()
        return parse_location(folder / "runs.db")

    return make


async def run(shell: Shell, *arguments: str) -> tuple[int, str]:
    """Runs a command while this loop goes on. A busy machine is told how far it is, too, which is left out here."""
    result = await asyncio.to_thread(shell.run, *arguments)
    return result.code, re.sub(r"mainspring: (?:copying|checking) \w+: .* rows\n", "", result.err)


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
@pytest.mark.parametrize("target", ["sqlite", "postgres"])
async def test_a_backup_of_either_kind_restores_everything_into_either(
    shell: Shell, place: MakePlace, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    async with embeddings() as backend:
        await fill(old, backend)
        assert await run(shell, "backup", "all.backup", "--database", old.given) == (0, "mainspring: all.backup is complete\n")
        assert (shell.folder / "all.backup").stat().st_mode & 0o777 == 0o600
        assert await run(shell, "restore", "all.backup", "--database", new.given) == (0, f"mainspring: {new} is complete\n")
        assert await look(new, backend) == await look(old, backend)
    assert not list(shell.folder.rglob("*.partial"))
    async with open_store(old) as one, open_store(new) as other:
        numbers = []
        for store in (one, other):
            await store.put([Document("top", "next", b"")])
            [document] = await store.documents("top")
            numbers.append(document.number)
            await store.append(ODD, say(3, " yet"))
            assert len(await store.events(ODD)) == 4
            await store.append("new", [*begin("new"), *end(1)], answer("new"), [Note(b"{}")])
            assert (await verify(store)).flaw is None
    assert numbers[0] == numbers[1], "a number was given to a second document"


@pytest.mark.parametrize(("source", "target"), [("sqlite", "postgres"), ("postgres", "sqlite")])
async def test_a_move_that_was_killed_is_taken_up_and_brings_what_has_changed(
    shell: Shell, place: MakePlace, source: str, target: str
) -> None:
    old, new = place(source), place(target)
    async with embeddings() as backend:
        await fill(old, backend)
        served = old if source == "postgres" else new
        async with open_store(served):
            pass  # the tables are there
        async with held(served, "mainspring_documents", is_read=source == "postgres") as until_blocked:
            with shell.started("migrate", old.given, new.given) as live:
                await until_blocked(live)
                live.process.send_signal(signal.SIGKILL)
                await asyncio.to_thread(live.process.wait, PATIENCE)
        with pytest.raises(StoreError, match="is being filled"):
            await choose_store(new).open()
        assert new.file is None or not new.file.exists()
        async with open_store(old) as store:
            await store.append(ODD, [*say(3, " and ended"), *end(4)], answer(ODD, "ended"))
            await store.put([Document("top", "a", b"changed", ODD)])
            await store.remove("item", "z", tenant=ODD, parent="a")
        code, err = await run(shell, "migrate", old.given, new.given)
        assert (code, err) == (0, f"mainspring: {new} is complete; have the setting `database` name it\n")
        assert await look(new, backend) == await look(old, backend)
        again, err = await run(shell, "migrate", old.given, new.given)
        assert again == 2
        assert "not empty" in err or "is there already" in err


async def test_a_move_that_ends_before_all_tables_are_there_leaves_none_to_be_used(place: MakePlace) -> None:
    new = place("postgres")
    [runs] = [placed.content for placed in place_runs(None, new)]
    failing = replace(runs, served=ServerTables("more", ("SELECT 'killed here'::int;",), ()))
    with pytest.raises(StoreError, match="killed here"):
        async with open_server(new, [runs, failing], is_source=False):
            pass
    with pytest.raises(StoreError, match="is being filled"):
        await choose_store(new).open()


@asynccontextmanager
async def held(database: Location, table: str, *, is_read: bool) -> AsyncIterator[Callable[[Live], Awaitable[None]]]:
    """Has whoever writes to a table, or reads it, wait; what is yielded waits until a command does."""
    holding, watching = [await asyncpg.connect(database.given) for _ in range(2)]
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"

    async def until_blocked(live: Live) -> None:
        while not await watching.fetchval(waiting):
            assert live.process.poll() is None, live.err.read()
            await asyncio.sleep(0.02)

    async with holding.transaction():
        await holding.execute(f"LOCK TABLE {table} IN {'ACCESS EXCLUSIVE' if is_read else 'EXCLUSIVE'} MODE")
        yield until_blocked
    for connection in (holding, watching):
        await connection.close()


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
async def test_what_a_server_works_on_is_not_moved_but_can_be_backed_up(shell: Shell, place: MakePlace, source: str) -> None:
    old, new = place(source), place("sqlite")
    with serving(shell.folder, [{"say": "Hello."}], env={"MAINSPRING_DATABASE": old.given}, database=None) as served:
        async with AsyncOpenAI(base_url=served.url, api_key="none") as client:
            answered = await client.responses.create(model="any", input="Hi")
        code, err = await run(shell, "migrate", old.given, new.given)
        assert code == 2
        assert "is worked on by 1 process" in err
        assert (await run(shell, "backup", "all.backup", "--database", old.given))[0] == 0
        assert served.stop() == 0
    assert (await run(shell, "migrate", old.given, new.given))[0] == 0
    async with open_store(new) as store:
        assert (await store.load(answered.id)).status == "completed"


async def test_how_far_it_is_is_said_once_a_second_has_gone(shell: Shell, place: MakePlace) -> None:
    old, new = place("sqlite"), place("postgres")
    async with embeddings() as backend:
        await fill(old, backend)
    async with open_store(new):
        pass
    with shell.started("migrate", old.given, new.given) as live:
        async with held(new, "mainspring_runs", is_read=False) as until_blocked:
            await until_blocked(live)
            await asyncio.sleep(1.1)
        result = await asyncio.to_thread(live.ended)
    assert result.code == 0
    assert re.search(r"mainspring: checking runs: \d of 9 rows\n", result.err)


@pytest.mark.parametrize("source", ["sqlite", "postgres"])
async def test_a_backup_is_of_one_moment_while_others_write(shell: Shell, place: MakePlace, source: str) -> None:
    """Each run is there with its log, its document and its note in the audit, or not at all."""
    old, new = place(source), place("sqlite")
    is_over = asyncio.Event()
    written = asyncio.Event()

    async def write() -> int:
        count = 0
        async with open_store(old) as store:
            while not is_over.is_set():
                id = f"run{count}"
                snapshot = replace(answer(id, "said"), documents=(Document("of", id, b"{}"),))
                await store.append(id, [*begin(id), *say(1, "a"), *end(2)], snapshot, [Note(b"{}", id)])
                count += 1
                if count == 50:
                    written.set()
        return count

    writing = asyncio.create_task(write())
    await written.wait()
    assert await run(shell, "backup", "all.backup", "--database", old.given) == (0, "mainspring: all.backup is complete\n")
    is_over.set()
    assert await writing > 50
    assert (await run(shell, "restore", "all.backup", "--database", new.given))[0] == 0
    async with open_store(new) as store:
        assert (await verify(store)).flaw is None
        kept = [link.note.call for link in await store.audit()]
        assert len(kept) >= 50
        assert kept == [f"run{number}" for number in range(len(kept))]
        assert [document.id for document in await store.documents("of")] == kept
        assert [len(await store.events(id)) for id in kept] == [3] * len(kept)


async def test_a_backup_is_made_where_files_have_no_links(
    shell: Shell, place: MakePlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)  # as on FAT, and on some that are mounted over a network
    source, backup = place("sqlite"), shell.folder / "backup"
    async with open_store(source) as store:
        await store.append("r", [*begin("r"), *end(1)], answer("r", "hi"))
    await back_up(place_runs(None, source), backup, lambda *_: None)
    assert backup.stat().st_mode & 0o777 == 0o600
    with pytest.raises(InvalidRequest, match="is there already"):
        await back_up(place_runs(None, source), backup, lambda *_: None)
    assert not list(shell.folder.glob("*.partial"))


async def test_the_settings_that_are_named_say_what_is_backed_up(shell: Shell) -> None:
    """The database, and what is not beside it."""
    (shell.folder / "mine.toml").write_text('database = "mine.db"\n[decisions]\ntasks = "apart/tasks.db"\n')
    async with open_store(parse_location(shell.folder / "mine.db")) as store:
        await store.append("a", begin("a"))
    tasks = choose_task_store(str(shell.folder / "apart/tasks.db"))
    await tasks.open()
    await tasks.add("ada", make_task(UUID(int=1), "water the plants", datetime(2026, 1, 1, tzinfo=UTC)))
    await tasks.close()
    assert (await run(shell, "upgrade", "--config", "mine.toml")) == (0, "mainspring: mine.db is up to date\n")
    assert (await run(shell, "backup", "all.backup", "--config", "mine.toml"))[0] == 0
    for name in ("mine.db", "apart/tasks.db"):
        (shell.folder / name).rename(shell.folder / f"{name}.old")
    assert await run(shell, "restore", "all.backup", "--config", "mine.toml") == (0, "mainspring: mine.db is complete\n")
    assert (shell.folder / "mine.db").exists()
    tasks = choose_task_store(str(shell.folder / "apart/tasks.db"))
    await tasks.open()
    assert [task.description for task in await tasks.list("ada")] == ["water the plants"]
    await tasks.close()


async def test_without_the_driver_of_postgresql_one_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in [name for name in sys.modules if name.startswith(("asyncpg", "mainspring.storage.postgres.", SERVER_ROWS))]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    placed = place_runs(None, parse_location("postgresql://app@h/x"))
    for work in (back_up(placed, tmp_path / "b", print), bring_up_to_date(placed), move(placed, placed, print)):
        with pytest.raises(InvalidRequest, match=r"mainspring\[postgres\]"):
            await work


async def test_what_is_there_is_never_replaced(shell: Shell, place: MakePlace) -> None:
    old = place("sqlite")
    async with embeddings() as backend:
        await fill(old, backend)
    (shell.folder / "mine").write_text("precious")
    for arguments in (
        ("backup", "mine", "--database", old.given),
        ("restore", "all.backup", "--database", old.given),
        ("migrate", old.given, str(shell.folder / "mine")),
    ):
        if arguments[0] == "restore":
            assert (await run(shell, "backup", "all.backup", "--database", old.given))[0] == 0
        code, err = await run(shell, *arguments)
        assert code == 2
        assert "is there already" in err
    assert (shell.folder / "mine").read_text() == "precious"


async def test_a_backup_that_was_damaged_or_cut_off_is_refused(shell: Shell, place: MakePlace) -> None:
    old, new = place("sqlite"), place("sqlite")
    async with embeddings() as backend:
        await fill(old, backend)
    assert (await run(shell, "backup", "all.backup", "--database", old.given))[0] == 0
    assert (await run(shell, "restore", "all.backup", "--check")) == (0, "mainspring: all.backup is whole\n")
    whole = (shell.folder / "all.backup").read_bytes()
    with closing(sqlite3.connect(shell.folder / "all.backup")) as connection:
        connection.execute("UPDATE documents SET body = x'00' WHERE rowid = 1")
        connection.commit()
    (shell.folder / "short.backup").write_bytes(whole[: len(whole) // 2])
    (shell.folder / "other.backup").write_bytes(b"something else")
    for name, code in (("all", 1), ("short", None), ("other", 2), ("missing", 2)):
        for options in (("--check",), ("--database", new.given)):
            found, err = await run(shell, "restore", f"{name}.backup", *options)
            assert found == code or (code is None and found in (1, 2)), err
            assert "Traceback" not in err
    assert new.file is not None
    assert not new.file.exists()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE manifest SET body = '{{'",
        "UPDATE manifest SET body = 5",
        """UPDATE manifest SET body = '{"made_at": "x", "contents": 5, "tables": []}'""",
        """UPDATE manifest SET body = replace(body, '"contents":[', '"contents":["../../etc",')""",
        "DELETE FROM manifest",
        "CREATE VIEW runs AS WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS number FROM n",
        "CREATE VIRTUAL TABLE runs USING fts5 (id, body)",
        "CREATE TRIGGER t AFTER INSERT ON documents BEGIN SELECT 1; END",
    ],
)
async def test_a_backup_that_somebody_has_made_up_is_refused(shell: Shell, statement: str) -> None:
    assert (await run(shell, "keys", "create", "--database", "runs.db"))[0] == 0
    assert (await run(shell, "backup", "all.backup", "--database", "runs.db"))[0] == 0
    with closing(sqlite3.connect(shell.folder / "all.backup", isolation_level=None)) as connection:
        connection.execute(statement)
    for options in (("--check",), ("--database", "new.db")):
        code, err = await run(shell, "restore", "all.backup", *options)
        assert (code, "internal error" in err) == (2, False), err
    assert not (shell.folder / "new.db").exists()


async def test_a_backup_of_before_a_column_and_a_table_were_there_is_restored(shell: Shell, place: MakePlace) -> None:
    old, new = place("sqlite"), place("postgres")
    async with embeddings() as backend:
        await fill(old, backend)
        assert (await run(shell, "backup", "all.backup", "--database", old.given))[0] == 0
        with closing(sqlite3.connect(shell.folder / "all.backup")) as connection:
            [[body]] = connection.execute("SELECT body FROM manifest")
            manifest = msgspec.json.decode(body)
            for table, column in (("runs", "is_cancelled"), ("observations", "embedded")):
                connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
                rows = connection.execute(f"SELECT * FROM {table} ORDER BY number").fetchall()
                manifest["tables"][table]["digest"] = sha256(b"".join(map(msgspec.msgpack.encode, rows))).hexdigest()
            connection.execute("DROP TABLE IF EXISTS baselines")
            del manifest["tables"]["baselines"]
            connection.execute("UPDATE manifest SET body = ?", (msgspec.json.encode(manifest),))
            connection.commit()
        assert await run(shell, "restore", "all.backup", "--check") == (0, "mainspring: all.backup is whole\n")
        assert await run(shell, "restore", "all.backup", "--database", new.given) == (0, f"mainspring: {new} is complete\n")
        assert (await look(new, backend))["runs"] == (await look(old, backend))["runs"]
    with closing(sqlite3.connect(shell.folder / "all.backup")) as connection:
        connection.execute("ALTER TABLE runs ADD COLUMN of_the_future TEXT")
        connection.commit()
    code, err = await run(shell, "restore", "all.backup", "--check")
    assert code == 1
    assert "newer Mainspring" in err


async def test_a_backup_only_reads_so_that_a_replica_will_do(shell: Shell, postgres: Postgres) -> None:
    database = parse_location(postgres.database())
    async with open_store(database) as store:
        await store.append("r1", begin("r1"))
    read_only = f"{database.given}&default_transaction_read_only=on"
    assert await run(shell, "backup", "all.backup", "--database", read_only) == (0, "mainspring: all.backup is complete\n")
    assert (await run(shell, "restore", "all.backup", "--check"))[0] == 0
    for version, told in ((1, "`mainspring upgrade` brings those of its primary up to date"), (99, "upgrade Mainspring")):
        postgres.psql(database.given, f"UPDATE mainspring_schemas SET version = {version} WHERE name = 'runs'")
        code, err = await run(shell, "backup", "more.backup", "--database", read_only)
        assert (code, f"{told}\n" in err, (shell.folder / "more.backup").exists()) == (1, True, False)


async def test_a_folder_is_not_taken_for_a_damaged_database(shell: Shell) -> None:
    (shell.folder / "old").mkdir()
    code, err = await run(shell, "backup", "all.backup", "--database", "old")
    assert (code, err.count("\n")) == (1, 1)
    assert "old is a folder; name a database of Mainspring" in err


async def test_a_server_that_cannot_be_written_to_is_told_before_anything_is_copied(shell: Shell, postgres: Postgres) -> None:
    read_only = f"{postgres.database()}&default_transaction_read_only=on"
    async with open_store(parse_location(shell.folder / "old.db")):
        pass
    code, err = await run(shell, "migrate", "old.db", read_only)
    assert (code, err.count("\n")) == (1, 1)
    assert "is set to read only, and nothing can be written there; name the primary" in err


async def test_it_is_said_that_the_key_of_sign_ins_goes_along_with_nothing(shell: Shell, place: MakePlace) -> None:
    old, new = place("sqlite"), place("sqlite")
    async with open_store(old) as store:
        await store.put([Document(ACCOUNT, "alice", b"sealed")])
    code, err = await run(shell, "backup", "all.backup", "--database", old.given)
    assert (code, f"encrypted by {old.given}.key, which is not in the backup" in err) == (0, True)
    code, err = await run(shell, "restore", "all.backup", "--database", new.given)
    assert (code, f"bring its key file, as {new.given}.key" in err) == (0, True)


async def test_a_broken_audit_is_not_restored(shell: Shell, place: MakePlace) -> None:
    old, new = place("sqlite"), place("sqlite")
    async with embeddings() as backend:
        await fill(old, backend)
    assert old.file is not None
    with closing(sqlite3.connect(old.file)) as connection:
        connection.execute("DROP TRIGGER audit_stays")
        connection.execute("UPDATE audit SET body = x'7b7d20' WHERE number = 2")
        connection.commit()
    assert (await run(shell, "backup", "all.backup", "--database", old.given))[0] == 0
    code, err = await run(shell, "restore", "all.backup", "--database", new.given)
    assert code == 1
    assert "record 2 was changed" in err
    assert new.file is not None
    assert not new.file.exists()


async def test_upgrade_makes_the_tables_of_everything_and_leaves_them_alone_then(shell: Shell, postgres: Postgres) -> None:
    database = parse_location(postgres.database())
    some = "count(*) FILTER (WHERE tablename ~ 'runs|observations|decision_logs|tasks$')"
    listed = f"SELECT count(*), {some} FROM pg_tables WHERE tablename ~ '^mainspring_'"
    found = []
    for _ in range(2):
        assert await run(shell, "upgrade", "--database", database.given) == (0, f"mainspring: {database} is up to date\n")
        found.append(postgres.psql(database.given, listed))
    assert found[0] == found[1]
    assert found[0].strip().endswith("|5")
    postgres.psql(database.given, "UPDATE mainspring_schemas SET version = 99 WHERE name = 'runs'")
    code, err = await run(shell, "upgrade", "--database", database.given)
    assert code == 1
    assert "newer Mainspring" in err


def test_every_table_and_column_is_copied_or_left_for_a_reason(postgres: Postgres) -> None:
    """Whoever adds a table or a column says what becomes of it in a backup."""
    place = parse_location(postgres.database())
    placed = [each for part in find_parts() if part.contents for each in resolve_name(part.contents)(None, place)]
    contents = [each.content for each in placed]
    assert [content.name for content in contents] == ["runs", "memory", "vectors", "search", "decisions", "tasks"]
    asyncio.run(_make_tables(place, contents))
    for content in [content for content in contents if content.open_file is None]:
        beside = {table.name for other in contents if other.served is content.served for table in other.tables}
        known = beside | set(content.left)
        assert set(content.schema.tables) - known == set()
        assert {name.removeprefix(PREFIX) for name in content.served.tables} - known == set()
    for table in [table for content in contents for table in content.describe()]:
        query = f"SELECT column_name FROM information_schema.columns WHERE table_name = '{PREFIX}{table.name}'"
        served = set(postgres.psql(place.given, query).split())
        assert served == {*table.columns, *table.derived} - set(table.replaced), table.name


async def _make_tables(place: Location, contents: list[ContentKind]) -> None:
    async with open_server(place, contents, is_source=False):
        pass
