"""Opening a file: whose it is, and whether its write-ahead log is whole, cut by a crash, or damaged by something else."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from mainspring.core.errors import StoreError
from mainspring.storage.run_rows import RUNS
from mainspring.storage.sqlite import connect
from mainspring.storage.wal import find_damage

FRAME = 24 + 4096
ADD = "INSERT INTO documents (kind, id, tenant, parent, body) VALUES ('x', ?, '', '', ?)"


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A database whose last ten transactions are in its log alone, as a killed process leaves it."""
    live = tmp_path / "live.db"
    with_log = connect(live, RUNS)
    with_log.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(10):
        with_log.execute(
            "INSERT INTO documents (kind, id, tenant, parent, body) VALUES ('x', ?, '', '', ?)", (str(number), b"z" * 5000)
        )
    for end in ("", "-wal"):
        shutil.copyfile(f"{live}{end}", tmp_path / f"m.db{end}")
    with_log.close()
    return tmp_path / "m.db"


def count(path: Path) -> int:
    connection = connect(path, RUNS)
    try:
        found: int = connection.execute("SELECT count(*) FROM documents").fetchone()[0]
        return found
    finally:
        connection.close()


def spoil(path: Path, place: int) -> None:
    with (path.parent / "m.db-wal").open("r+b") as log:
        log.seek(place)
        byte = log.read(1)
        log.seek(place)
        log.write(bytes([byte[0] ^ 0xFF]))


def test_only_a_file_is_taken_from_others_and_a_group_that_writes_keeps_it(tmp_path: Path) -> None:
    """A device that everybody may use stays theirs: to take `/dev/null` away would break the machine."""
    pipe = tmp_path / "pipe.db"
    os.mkfifo(pipe)
    pipe.chmod(0o666)
    with pytest.raises(StoreError):
        connect(pipe, RUNS)
    assert pipe.stat().st_mode & 0o777 == 0o666
    connect(tmp_path / "m.db", RUNS).close()
    for before, after in ((0o644, 0o600), (0o640, 0o600), (0o664, 0o660), (0o660, 0o660), (0o600, 0o600)):
        (tmp_path / "m.db").chmod(before)
        connect(tmp_path / "m.db", RUNS).close()
        assert (tmp_path / "m.db").stat().st_mode & 0o777 == after


def test_a_log_that_is_whole_is_read(crashed: Path) -> None:
    assert count(crashed) == 10


def test_a_log_that_a_crash_has_cut_off_loses_the_last_transaction_alone(crashed: Path) -> None:
    log = crashed.parent / "m.db-wal"
    with log.open("r+b") as file:
        file.truncate(log.stat().st_size - 100)
    assert count(crashed) == 9


@pytest.mark.parametrize("place", [0, 8, 20, 32 + 24 + 7, 32 + 2 * FRAME + 100, 32 + 3 * FRAME + 17])
def test_a_log_that_is_damaged_is_refused_and_left_as_it_is(crashed: Path, place: int) -> None:
    spoil(crashed, place)
    before = {file.name: file.read_bytes() for file in crashed.parent.glob("m.db*")}
    with pytest.raises(StoreError, match=r"m\.db-wal is damaged"):
        connect(crashed, RUNS)
    assert {file.name: file.read_bytes() for file in crashed.parent.glob("m.db*")} == before
    (crashed.parent / "m.db-wal").unlink()
    assert count(crashed) == 0


def test_frames_of_an_earlier_use_are_none_of_it(tmp_path: Path) -> None:
    path = tmp_path / "m.db"
    writer = connect(path, RUNS)
    for number in range(30):
        writer.execute(
            "INSERT INTO documents (kind, id, tenant, parent, body) VALUES ('x', ?, '', '', ?)", (str(number), b"z" * 5000)
        )
        assert find_damage(path) is None
    writer.execute("PRAGMA wal_checkpoint(RESTART)")
    writer.execute(ADD, ("last", b"z"))
    assert find_damage(path) is None
    other = connect(path, RUNS)  # while the first still writes
    assert other.execute("SELECT count(*) FROM documents").fetchone()[0] == 31
    other.close()
    writer.close()
    with closing(sqlite3.connect(path)) as found:
        assert found.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
