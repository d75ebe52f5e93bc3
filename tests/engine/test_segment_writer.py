"""One clock for all journals: one batch at a time, for all runs, and nobody is shown what is not durable."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import anyio
import pytest
from tests.kit.engine import make_engine, make_order
from tests.kit.waiting import PATIENCE

from mainspring.app.engine import Engine
from mainspring.core.errors import MainspringError, StoreError
from mainspring.core.events import RunEnded, ToolEnded, ToolStarted
from mainspring.engine.handle import Handle
from mainspring.ports import Segment
from mainspring.providers.scripted import Scripted, call, say, turn
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.functions import tool


class Gated(MemoryStore):
    """A store that survives, and writes a batch only when it is let through."""

    is_durable = True

    def __init__(self) -> None:
        super().__init__()
        self.batches: list[Sequence[Segment]] = []
        self.under_way = self.most_under_way = 0
        self.gate = asyncio.Event()

    def append_all(self, segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
        self.batches.append(segments)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        return asyncio.ensure_future(self._write_later(segments))

    async def _write_later(self, segments: Sequence[Segment]) -> list[MainspringError | None]:
        await self.gate.wait()
        self.under_way -= 1
        return await MemoryStore.append_all(self, segments)


async def test_runs_that_come_while_the_store_writes_share_the_next_batch() -> None:
    store = Gated()
    async with Engine(Scripted(say("Yes."), repeat=True), store=store) as engine:
        with anyio.fail_after(PATIENCE):
            handles = [await engine.ask("Go.") for _ in range(30)]
            while not all(handle.run.has_ended for handle in handles):  # noqa: ASYNC110  nothing is shown yet
                await asyncio.sleep(0.001)
            assert all(handle.journal.shown == 0 for handle in handles), "shown before it was durable"
            store.gate.set()
            for handle in handles:
                assert isinstance([record async for record in handle.events()][-1].event, RunEnded)
    assert store.most_under_way == 1
    assert len(store.batches) <= 3
    assert sum(len(batch) for batch in store.batches) <= 60


async def test_a_short_run_is_one_transaction(tmp_path: Path) -> None:
    batches: list[int] = []

    class Counting(SqliteStore):
        def append_all(self, segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
            batches.append(len(segments))
            return super().append_all(segments)

    async with Counting(tmp_path / "runs.db") as store, Engine(Scripted(say("Yes.")), store=store, audit=True) as engine:
        await engine.run("Go.")
    assert batches == [1]


def has(handle: Handle, kind: type) -> bool:
    return any(isinstance(record.event, kind) for record in handle.log)


@tool
async def ring() -> str:
    """Rings."""
    return "rung"


async def test_a_run_that_is_not_stored_waits_for_no_transaction_unless_it_makes_a_call() -> None:
    store = Gated()
    async with Engine(Scripted(say("Yes."), call("ring"), say("Done.")), tools=[ring], store=store, audit=True) as engine:
        with anyio.fail_after(PATIENCE):
            assert (await engine.run("Go.", store=False)).text == "Yes."
            handle = await engine.ask("Go.", store=False)
            while not has(handle, ToolStarted):  # noqa: ASYNC110  as above
                await asyncio.sleep(0.001)
            for _ in range(100):
                await asyncio.sleep(0)
            assert not has(handle, ToolEnded), "a call ran whose start is not in the audit"
            store.gate.set()
            assert (await handle.wait()).text == "Done."
    assert len(await store.audit()) == 5


async def test_the_audit_of_a_run_that_is_not_stored_is_written_when_the_engine_closes(caplog: pytest.LogCaptureFixture) -> None:
    class Refusing(MemoryStore):
        def append_all(self, segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
            refused: asyncio.Future[list[MainspringError | None]] = asyncio.get_running_loop().create_future()
            refused.set_result([StoreError("the disk is full")] * len(segments))
            return refused

    store = MemoryStore()
    async with Engine(Scripted(say("Yes.")), store=store, audit=True) as engine:
        await engine.run("Go.", store=False)
    assert len(await store.audit()) == 1
    async with Engine(Scripted(say("Yes.")), store=Refusing(), audit=True) as engine:
        await engine.run("Go.", store=False)
    assert "the disk is full" in caplog.text


class Doubtful(SqliteStore):
    """A store that fails when it is told to: before it writes, or, as a server may that is cut off, after."""

    fails: Literal["", "before", "after"] = ""

    def append_all(self, segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
        fails = self.fails
        return asyncio.ensure_future(self._fail(segments)) if fails else super().append_all(segments)

    async def _fail(self, segments: Sequence[Segment]) -> list[MainspringError | None]:
        if self.fails == "after":
            self.fails = "before"
            await super().append_all(segments)
        return [StoreError("it cannot be reached") for _ in segments]


@pytest.mark.parametrize("fails", ["before", "after"])
def test_a_run_that_was_told_to_have_failed_is_stored_so_also_in_another_event_loop(
    tmp_path: Path, fails: Literal["before", "after"]
) -> None:
    store = Doubtful(tmp_path / "runs.db")
    engine = make_engine(Scripted(turn(say="one two", stall=True), say("three")), store)

    async def fail() -> None:
        async with store, engine:
            handle = await engine.start(make_order("resp_1", background=True))
            store.fails = fails
            assert (await handle.wait()).status == "failed"

    async def open_again() -> None:
        store.fails = ""
        async with store, engine:
            assert await engine.resume_all() == []
            assert (await store.load("resp_1")).status == "failed"
            assert not await store.list_unfinished()

    asyncio.run(fail())
    asyncio.run(open_again())
