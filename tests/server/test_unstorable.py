"""A run that the store refuses, while it takes others, is not tried for ever: it ends, and its end says what was lost."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.kit.waiting import until
from tests.server.process import Script, serving
from tests.server.test_serve import get, post

from mainspring import Engine
from mainspring.providers.scripted import Scripted, say

SCRIPT: Script = [{"when": "long", "say": "words " * 2000}, {"when": "", "say": "Hello."}]
REFUSAL = "CREATE TRIGGER refusal BEFORE UPDATE ON runs WHEN {} BEGIN SELECT raise(ABORT, 'this is too much'); END"
TOO_LONG = "length(NEW.entries) > 5000"


def refuse(database: Path, when: str) -> None:
    with closing(sqlite3.connect(database)) as connection:
        connection.execute(REFUSAL.format(when))


def read_status(database: Path, run_id: str) -> str:
    with closing(sqlite3.connect(database)) as connection:
        return str(connection.execute("SELECT status FROM runs WHERE id = ?", (run_id,)).fetchone()[0])


@pytest.mark.slow
async def test_a_run_whose_output_cannot_be_stored_ends_without_it(tmp_path: Path) -> None:
    database = tmp_path / "served.db"
    with serving(tmp_path, SCRIPT) as served:
        await post(served, {"input": "hello"})
        refuse(database, TOO_LONG)
        _, told = await post(served, {"input": "long"})
        assert (told["status"], told["error"]["reason"]) == ("failed", "store_error")
        assert (await post(served, {"input": "hello"}))[0] == 200
        await until(lambda: read_status(database, told["id"]) == "failed")
        served.stop()
    with serving(tmp_path, SCRIPT) as served:
        _, kept = await get(served, f"/responses/{told['id']}")
    assert (kept["status"], kept["error"]["reason"]) == ("failed", "store_error")
    assert "could not be stored" in kept["error"]["message"]


async def test_a_run_that_cannot_be_stored_at_all_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = tmp_path / "runs.db"
    async with Engine(Scripted(say("Hello."), repeat=True), database=database) as engine:
        await engine.run("hello")
        refuse(database, "NEW.status = 'failed' OR NEW.model = 'cursed'")
        # One in the background is begun by a statement of its own.
        run = await engine.run("hello", model="cursed", background=True)
        assert run.status == "failed"
        for _ in range(10):
            await engine.core.resume_all()
        assert len([record for record in caplog.records if "cannot be stored" in record.message]) == 2
        refused = [record for record in caplog.records if "this is too much" in record.message]
        assert len(refused) < 10
        assert (await engine.core.find_run(run.spec.id)).status == "failed"
        assert (await engine.run("hello")).status == "completed"
