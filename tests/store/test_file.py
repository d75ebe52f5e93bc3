"""The file: created when missing, migrated when old, and left alone when it is not ours to use."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec.structs import replace
from tests.store.logs import answer, begin, end, say, spec

from mainspring.core.errors import StoreError
from mainspring.core.events import RunStarted
from mainspring.core.items import assistant
from mainspring.core.spec import Completion, Limits
from mainspring.ports import Document, Filter, StoredRun
from mainspring.storage.run_rows import RUNS
from mainspring.storage.sqlite import Migration, Schema, connect
from mainspring.storage.sqlite_runs import SqliteStore

NOBODY = 65534


async def make(path: Path, length: int = 1) -> None:
    """A file of ours with one run in it."""
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))
        for seq in range(1, length):
            await store.append("a", say(seq, "x" * 1000))


def alter(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(statement)


def damage_first_page(path: Path, table: str) -> None:
    """Overwrites what is first in a table that has more than one page. To open the file one need not read it."""
    with closing(sqlite3.connect(path)) as connection:
        [(root,)] = connection.execute("SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
        [(size,)] = connection.execute("PRAGMA page_size")
    content = bytearray(path.read_bytes())
    start = (root - 1) * size
    assert content[start] == 5, "an inner page: offsets of its cells begin at byte 12, a cell with the number of its page"
    cell = start + int.from_bytes(content[start + 12 : start + 14], "big")
    first = int.from_bytes(content[cell : cell + 4], "big")
    content[(first - 1) * size : first * size] = b"\xa5" * size
    path.write_bytes(content)


def with_migrations(*more: Migration) -> Schema:
    return replace(RUNS, migrations=(*RUNS.migrations, *more))


def contents(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir() if entry.is_file()}


async def refusal(path: Path) -> str:
    """What opening the file is refused with; the file and its folder must stay as they are."""
    before = contents(path.parent)
    with pytest.raises(StoreError) as caught:
        await SqliteStore(path).open()
    assert contents(path.parent) == before
    return caught.value.message


@contextmanager
def unprivileged() -> Iterator[None]:
    """Root may read and write everything, so it steps down."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user may enter."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


async def test_folders_are_created(tmp_path: Path) -> None:
    await make(tmp_path / "some" / "where" / "runs.db")
    assert (tmp_path / "some" / "where" / "runs.db").is_file()


async def test_a_new_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "runs.db"
    async with SqliteStore(path) as store:
        await store.append("a", begin("a"))
        modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    assert modes == {"runs.db": 0o600, "runs.db-wal": 0o600, "runs.db-shm": 0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


async def test_an_empty_file_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    path.touch()
    await make(path)


async def test_a_name_that_sqlite_would_read_otherwise_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:runs.db?mode=memory", "100% ünïcode?#.db"):
        await make(Path(name))
        assert (tmp_path / name).is_file()


async def test_opening_changes_nothing(tmp_path: Path) -> None:
    await make(tmp_path / "runs.db")
    before = contents(tmp_path)
    async with SqliteStore(tmp_path / "runs.db"):
        pass
    assert contents(tmp_path) == before


async def test_opening_twice_is_opening_once(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        await store.open()
        await store.append("a", begin("a"))


async def test_a_store_is_not_used_before_it_is_open(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    with pytest.raises(StoreError, match="the database is not open"):
        await store.append("a", begin("a"))
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("content", [b"\n", b"hello", b"\0" * 5000, b"# Notes\n" * 1000, b"SQLite format 3\0" + b"\xff" * 5000])
async def test_what_is_no_database_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    assert await refusal(path) == f"{path} is not a database; choose another file with --database"


@pytest.mark.parametrize("journal", ["delete", "wal"])
@pytest.mark.parametrize("statement", ["CREATE TABLE runs (id)", "PRAGMA application_id = 7", "PRAGMA user_version = 1"])
async def test_a_database_of_another_program_is_refused(tmp_path: Path, journal: str, statement: str) -> None:
    path = tmp_path / "theirs.db"
    alter(path, f"PRAGMA journal_mode = {journal}")
    alter(path, statement)
    assert await refusal(path) == f"{path} is a database of another program; choose another file with --database"


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    known = len(RUNS.migrations)
    alter(path, f"PRAGMA user_version = {known + 1}")
    assert await refusal(path) == (
        f"{path} was written by a newer Mainspring (schema {known + 1}, this one knows {known}); "
        "upgrade Mainspring or choose another file with --database"
    )


async def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert await refusal(tmp_path) == f"{tmp_path} is a folder; choose another file with --database"


async def test_a_file_is_no_folder_to_create_the_database_in(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"kept")
    with pytest.raises(StoreError, match="cannot be opened"):
        await SqliteStore(tmp_path / "file" / "runs.db").open()
    assert (tmp_path / "file").read_bytes() == b"kept"


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
@pytest.mark.parametrize("mode", [0o000, 0o200, 0o444])
async def test_a_file_that_may_not_be_read_and_written_is_refused(open_folder: Path, mode: int, folder_mode: int) -> None:
    path = open_folder / "runs.db"
    await make(path)
    os.chmod(open_folder, folder_mode)
    before = path.read_bytes()
    path.chmod(mode)
    with unprivileged(), pytest.raises(StoreError, match=r"runs\.db cannot be opened .*; let this user read and write"):
        await SqliteStore(path).open()
    os.chmod(open_folder, 0o755)
    path.chmod(0o600)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["runs.db", "deeper/runs.db"])
async def test_a_folder_that_may_not_be_written_is_named(open_folder: Path, name: str) -> None:
    os.chmod(open_folder, 0o555)
    with unprivileged(), pytest.raises(StoreError, match=rf"{open_folder / name} cannot be opened"):
        await SqliteStore(open_folder / name).open()
    os.chmod(open_folder, 0o755)
    assert contents(open_folder) == {}


@pytest.mark.parametrize("size", [100, 1000, 4096])
async def test_a_truncated_file_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    os.truncate(path, size)
    assert "restore it from a backup, or choose another file" in await refusal(path)


async def test_damage_in_the_middle_is_reported_when_it_is_met_and_only_the_log_names_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "runs.db"
    await make(path, length=500)
    damage_first_page(path, "segments")
    async with SqliteStore(path) as store:
        with pytest.raises(StoreError, match=r"(this cannot be written or read|the database is damaged) \(") as caught:
            await store.events("a")
    assert "runs.db" not in caught.value.message
    assert str(path) in caplog.text


async def test_a_file_that_lacks_its_tables_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    alter(path, "DROP TABLE segments")
    assert "no such table: segments" in await refusal(path)


def test_a_new_file_is_marked_and_at_the_newest_version(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "runs.db", RUNS)) as connection:
        pragmas = ("application_id", "user_version", "journal_mode", "synchronous", "foreign_keys")
        values = [connection.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas]
    assert values == [RUNS.application_id, len(RUNS.migrations), "wal", 1, 1]


async def test_an_old_file_is_migrated_once_and_keeps_its_runs(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    newer = with_migrations(("ALTER TABLE runs ADD COLUMN note TEXT", "UPDATE runs SET note = 'was ' || id"))
    for _ in range(2):
        with closing(connect(path, newer)) as connection:
            assert connection.execute("SELECT id, note FROM runs").fetchall() == [("a", "was a")]
            assert connection.execute("PRAGMA user_version").fetchone() == (len(newer.migrations),)


async def test_a_file_of_the_first_schema_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(Path(__file__).with_name("version_1.sql").read_text())
    async with SqliteStore(path) as store:
        (started, *rest) = await store.events("a")
        assert isinstance(started.event, RunStarted)
        # Runs of that time said nothing about cycles, and had no limit on the time of a turn.
        assert started.event.spec == replace(spec("a"), limits=Limits(turn_seconds=None), completion=Completion())
        assert rest == [*say(1, "hi"), *end(2)]
        assert await store.load("a") == StoredRun("a", "completed", 1.0, model="m", response=answer("a", "hi").response)
        assert await store.items(["msg_0", ""], tenant="") == {"msg_0": assistant("hi", id="msg_0")}
        assert await store.list_unfinished() == ["b"]
        await store.append("b", end(1), answer("b", "bye"))
        assert await store.items(["msg_0"], tenant="") == {"msg_0": assistant("bye", id="msg_0")}
        assert await store.history("b", tenant="") == [*answer("a", "hi").entries, *answer("b", "bye").entries]
        assert [run.id for run in (await store.list(only=Filter(""))).runs] == ["b", "a"]
        assert await store.put([Document("note", "n", b"{}")])
    with closing(connect(path, RUNS)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(RUNS.migrations),)


async def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    before = path.read_bytes()
    broken = with_migrations(("CREATE TABLE more (id)", "DELETE FROM runs", "INSERT INTO nowhere VALUES (1)"))
    newest = len(RUNS.migrations)
    with pytest.raises(
        StoreError, match=rf"stays at schema {newest}: the step to {newest + 1} failed \(no such table: nowhere\)"
    ):
        connect(path, broken)
    assert path.read_bytes() == before
    async with SqliteStore(path) as store:
        assert await store.events("a") == begin("a")


async def test_the_steps_before_a_failing_migration_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    await make(path)
    works = ("CREATE TABLE more (id)",)
    with pytest.raises(StoreError, match=f"stays at schema {len(RUNS.migrations) + 1}"):
        connect(path, with_migrations(works, ("not SQL",)))
    with closing(connect(path, with_migrations(works))) as connection:
        assert connection.execute("SELECT count(*) FROM more").fetchone() == (0,)
