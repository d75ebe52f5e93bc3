"""The daily verification of the audit: by one process, and it sees what was changed or cut off."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.kit.waiting import until

from mainspring import Engine
from mainspring.app.server import server
from mainspring.core.items import decode, encode
from mainspring.features.audit import daily_check
from mainspring.features.audit.daily_check import KIND, AuditCheck, AuditWatch
from mainspring.features.traces.metrics import Metrics
from mainspring.ports import Note
from mainspring.providers.scripted import Scripted
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore


async def make_due(store: SqliteStore) -> None:
    found = await store.get(KIND, KIND)
    assert found is not None
    check = decode(found.body, AuditCheck)
    assert check.next_at > await store.read_clock()
    await store.put([replace(found, body=encode(replace(check, next_at=0.0)))])


@pytest.mark.parametrize("harm", ["UPDATE audit SET body = x'00' WHERE number = 1", "DELETE FROM audit WHERE number = 3"])
async def test_a_broken_audit_is_counted_once_a_day_by_one_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, harm: str
) -> None:
    path, metrics = tmp_path / "runs.db", Metrics()
    async with SqliteStore(path) as store, SqliteStore(path) as other:
        await store.note([Note(b"1"), Note(b"2"), Note(b"3")])
        watches = [AuditWatch(one, metrics.count_audit) for one in (store, other)]
        for each in watches:
            await each.look()
        assert 'mainspring_audit_checks_total{outcome="whole"} 1\n' in metrics.text(live=0, is_store_up=True)
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("DROP TRIGGER audit_stays")
            connection.execute("DROP TRIGGER audit_grows")
            connection.execute(harm)
        for day in (1, 2):
            await make_due(store)
            for each in watches:
                await each.look()
            assert f'mainspring_audit_checks_total{{outcome="broken"}} {day}\n' in metrics.text(live=0, is_store_up=True)
    assert "the audit is broken" in caplog.text


async def test_a_server_verifies_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daily_check, "LOOK_SECONDS", 0.0)
    engine = Engine(Scripted(), store=MemoryStore(), audit=True)
    app = server(engine)
    async with app.router.lifespan_context(app):
        await until(lambda: 'mainspring_audit_checks_total{outcome="whole"} 1\n' in engine.metrics.text(live=0, is_store_up=True))
