"""PostgreSQL: its schema, and what happens when it is away."""

import asyncio
import sys

import pytest
from tests.kit.postgres import Postgres
from tests.tasks.conftest import NOBODY

from mainspring.core.errors import InvalidRequest, StoreError
from mainspring_tasks.server.perform import perform
from mainspring_tasks.server.task_store import choose_task_store

pytestmark = pytest.mark.slow


async def test_a_database_that_goes_away_is_an_error_that_passes(postgres: Postgres) -> None:
    store = choose_task_store(postgres.database())
    await store.open()
    calls = {"add_task": {"description": "x"}, "list_tasks": {}, "delete_task": {"task_id": NOBODY}}
    await perform(store, "alice", "add_task", {"description": "before"})
    postgres.stop()
    try:
        for _ in range(2):
            for name, arguments in calls.items():
                answer = await perform(store, "alice", name, dict(arguments))
                assert answer.error_code == "DATABASE_ERROR"
                assert not any(word in str(answer.error).lower() for word in ("postgres", "socket", "connect", "/"))
    finally:
        postgres.start()
    # A connection that died is found out by its next use.
    found = await perform(store, "alice", "list_tasks", {})
    assert [kept.description for kept in found.data] == ["before"]  # type: ignore[union-attr]
    assert (await perform(store, "alice", "add_task", {"description": "after"})).success
    await store.close()


async def test_a_schema_is_made_once_and_a_newer_one_is_refused(postgres: Postgres) -> None:
    url = postgres.database()
    stores = [choose_task_store(url) for _ in range(4)]
    await asyncio.gather(*[store.open() for store in stores])
    for store in stores:
        await store.close()
    postgres.psql(url, "UPDATE mainspring_schemas SET version = version + 1;")
    with pytest.raises(StoreError, match="written by a newer Mainspring"):
        await stores[0].open()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("postgresql://alice:hunter2@127.0.0.1:1/none", "none cannot be reached"),
    ],
)
async def test_a_database_that_is_not_there_is_told_without_its_password(url: str, said: str) -> None:
    store = choose_task_store(url)
    with pytest.raises(StoreError, match=said) as caught:
        await store.open()
    assert "hunter2" not in str(caught.value)
    with pytest.raises(StoreError, match="not open"):
        await store.list("alice")


@pytest.mark.parametrize("url", ["postgresql://alice:a/hunter2@127.0.0.1/none", "postgresql://alice:hunter2@127.0.0.1:port/none"])
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        choose_task_store(url)
    assert caught.value.param == "database"
    assert "hunter2" not in str(caught.value)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    monkeypatch.delitem(sys.modules, "mainspring_tasks.server.postgres_tasks", raising=False)
    with pytest.raises(InvalidRequest, match=r"pip install 'mainspring\[postgres\]'"):
        choose_task_store("postgresql://localhost/tasks")


async def test_completions_at_once_agree_on_the_time(postgres: Postgres) -> None:
    store = choose_task_store(postgres.database())
    await store.open()
    added = await perform(store, "alice", "add_task", {"description": "x"})
    arguments = {"task_id": str(added.data.id)}  # type: ignore[union-attr]
    replies = await asyncio.gather(*[perform(store, "alice", "complete_task", arguments) for _ in range(20)])
    assert replies == [replies[0]] * 20
    assert replies[0].success
    await store.close()
