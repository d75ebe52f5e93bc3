"""Leases: which drivers live, what those do that have lost theirs, and what it costs to find out."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import asyncpg  # type: ignore[import-untyped]
import pytest
from tests.kit.engine import Perform, RecordingExecutor, make_engine, make_order
from tests.kit.waiting import PATIENCE, until

from mainspring.core.errors import DispatcherUnavailable, Interrupted, MainspringError, ResumeLimit, StoreError, Superseded
from mainspring.core.events import (
    Event,
    ItemStarted,
    ModelEvent,
    Reason,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    TextDelta,
    TurnStarted,
)
from mainspring.core.history import History
from mainspring.core.items import ToolDefinition, assistant, encode
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run
from mainspring.engine import presence
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.engine.journal import Journal
from mainspring.engine.presence import Presence
from mainspring.engine.resume_attempts import RESUMED, Attempts, ResumeAttempts
from mainspring.engine.segment_writer import SegmentWriter
from mainspring.ports import CallContext, DispatchedRuns, Document, Driver, Segment, Store, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, call, calls, say, turn
from mainspring.storage.choose_store import open_store
from mainspring.storage.lease_rows import SqliteLeases, list_claimable
from mainspring.storage.location import Location
from mainspring.storage.sqlite_runs import SqliteStore

DRIVER = """
import asyncio, sys
from mainspring.engine.presence import Presence
from mainspring.engine.segment_writer import SegmentWriter
from mainspring.storage.sqlite_runs import SqliteStore

async def main():
    async with SqliteStore(sys.argv[1]) as store:
        presence = Presence(store)
        await presence.show()
        print(presence.id, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_a_driver_that_was_killed_is_gone_though_nobody_has_reaped_it(tmp_path: Path) -> None:
    database = tmp_path / "runs.db"
    command = [sys.executable, "-c", DRIVER, str(database)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220
        assert process.stdout is not None
        driver = process.stdout.readline().strip()
        async with SqliteStore(database) as store:
            other = Presence(store)
            assert await other.is_driven(driver)
            process.send_signal(signal.SIGKILL)
            state = Path(f"/proc/{process.pid}/stat")
            await until(lambda: state.read_text().rpartition(")")[2].split()[0] == "Z")
            assert not await other.is_driven(driver)


def make_stalling(store: SqliteStore) -> Engine:
    return make_engine(Scripted(turn(say="one two three", stall=True), turn(say="one two three", stall=True)), store)


async def test_an_engine_that_stopped_at_once_heeds_cancels_of_others_when_it_is_opened_again(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store, SqliteStore(tmp_path / "runs.db") as beside:
        async with (engine := make_stalling(store)):
            await engine.start(make_order("resp_1"))
        async with engine, make_stalling(beside) as other:
            handle = await engine.start(make_order("resp_2", background=True))
            assert (await other.cancel("resp_2")).status == "cancelled"
            assert (await handle.wait()).status == "cancelled"


async def test_whoever_follows_a_run_is_told_of_an_engine_that_stops_at_once(tmp_path: Path) -> None:
    async with (
        SqliteStore(tmp_path / "runs.db") as store,
        SqliteStore(tmp_path / "runs.db") as beside,
        make_stalling(store) as engine,
        make_stalling(beside) as other,
    ):
        await engine.start(make_order("resp_1", background=True))
        followed = await other.follow("resp_1")
        other.interrupt()
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Interrupted, match="goes on elsewhere"):
                await followed.wait()
        assert (await other.follow("resp_1")).is_live


class AbsentLeases(SqliteLeases):
    """Leases that cannot be extended at first."""

    is_away = True

    async def beat(self, driver: Driver, seconds: float) -> bool:
        if self.is_away:
            raise StoreError("it cannot be reached")
        return await super().beat(driver, seconds)


class AbsentStore(SqliteStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.leases: AbsentLeases = AbsentLeases(self._database)


async def test_a_driver_that_could_not_show_itself_does_so_with_its_next_run(tmp_path: Path) -> None:
    async with (
        AbsentStore(tmp_path / "runs.db") as store,
        SqliteStore(tmp_path / "runs.db") as beside,
        make_stalling(store) as engine,
        make_stalling(beside) as other,
    ):
        with pytest.raises(StoreError):
            await engine.start(make_order("resp_1", background=True))
        store.leases.is_away = False
        await engine.start(make_order("resp_2", background=True))
        assert await other.resume_all() == []


TOOL = ToolDefinition("act", "Acts.", {"type": "object", "properties": {}}, kind="builtin")


def make_acting(store: Store, go: asyncio.Event, perform: Perform | None = None) -> tuple[Engine, RecordingExecutor]:
    """An engine whose model calls a tool once it may, and then ends; with what that tool has done."""

    class Patient(Scripted):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
            await go.wait()
            async for event in super().stream(request):
                yield event

    executor = RecordingExecutor(*[perform] if perform is not None else [])
    return make_engine(Patient(calls(call("act")), say("done")), store, executor), executor


async def test_a_driver_that_finds_its_lease_lost_stops_before_its_next_effect(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        engine, executor = make_acting(store, go)
        async with engine:
            handle = await engine.start(make_order(tools=(TOOL,), background=True))
            # As if the process had been stopped for a while: its lease is over, and another has the run, but has not written yet.
            read_clock = presence._read_clock
            monkeypatch.setattr(presence, "_read_clock", lambda: read_clock() + 2 * presence.LEASE_SECONDS)
            await beside.leases.release(engine.presence.id)
            await beside.leases.beat(Driver("other"), 60.0)
            assert await beside.leases.claim(handle.id, "other") is not None
            go.set()
            await until(lambda: not engine.live)
            assert executor.done == []
            assert await engine.resume_all() == []
            assert handle.is_live, "it goes on elsewhere"


async def test_a_tool_is_stopped_and_its_run_left_when_the_lease_cannot_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped, go = asyncio.Event(), asyncio.Event()
    go.set()

    async def act(tool_call: ToolCall, context: CallContext) -> ToolResult:
        monkeypatch.setattr(AbsentLeases, "is_away", True)
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    monkeypatch.setattr(presence, "LEASE_SECONDS", 0.4)
    monkeypatch.setattr(AbsentLeases, "is_away", False)
    async with AbsentStore(tmp_path / "runs.db") as store, asyncio.timeout(PATIENCE):
        engine, executor = make_acting(store, go, act)
        async with engine:
            handle = await engine.start(make_order(tools=(TOOL,), background=True))
            await stopped.wait()
            with pytest.raises(Interrupted):
                await handle.wait()
            monkeypatch.setattr(AbsentLeases, "is_away", False)
            [again] = await engine.resume_all()
            assert (await again.wait()).status == "completed"
        assert len(executor.done) == 1


async def test_a_run_that_was_cancelled_when_its_driver_died_has_no_more_effect(location: Location) -> None:
    go = asyncio.Event()
    go.set()
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        started = [Recorded(0, 1.0, RunStarted(make_order(tools=(TOOL,), background=True), "gone"))]
        await store.append("resp_1", started)
        await store.leases.request_cancel("resp_1")
        engine, executor = make_acting(store, go)
        async with engine:
            [handle] = await engine.resume_all()
            assert handle.run.status == "cancelled"
        assert executor.done == []


async def test_a_cancel_does_not_mind_what_a_driver_writes_that_has_just_lost_the_run(location: Location) -> None:
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order(background=True), "gone"))])
        read = store.events
        left: list[Event] = [TurnStarted(), ItemStarted(assistant("", id="msg_1")), TextDelta("msg_1", "a")]

        async def read_and_be_overtaken(run_id: str, after: int = -1) -> list[Recorded]:
            found = await read(run_id, after)
            if left:
                await beside.append(run_id, [Recorded(len(found), 1.0, left.pop(0))])
            return found

        store.events = read_and_be_overtaken  # type: ignore[method-assign]
        async with make_engine(Scripted(), store) as engine:
            assert (await engine.cancel("resp_1")).status == "cancelled"
        assert left == []


async def test_a_run_that_is_cancelled_while_it_is_taken_up_here_is_ended_before_that_is_said(location: Location) -> None:
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order(background=True), "gone"))])
        read, cancelling, has_read_too = store.events, list[asyncio.Task[Run]](), asyncio.Event()
        engine = make_engine(Scripted(turn(say="one two three", stall=True)), store)
        taken_up = list[Handle]()

        async def read_while_it_is_cancelled(run_id: str, after: int = -1) -> list[Recorded]:
            found = await read(run_id, after)
            if not cancelling:
                cancelling.append(asyncio.create_task(engine.cancel(run_id)))
                with suppress(TimeoutError):  # it should not read the run before that is taken up
                    await asyncio.wait_for(has_read_too.wait(), 0.5)
            elif not has_read_too.is_set():
                has_read_too.set()
                await until(lambda: bool(taken_up))
            return found

        store.events = read_while_it_is_cancelled  # type: ignore[method-assign]
        async with engine:
            taken_up.append(await engine.resume("resp_1"))
            assert (await cancelling[0]).status == "cancelled"
            assert (await engine.attach("resp_1")).run.status == "cancelled"


@pytest.mark.parametrize("drives", [True, False])
async def test_a_cancel_that_the_store_did_not_take_is_done_later(location: Location, drives: bool) -> None:
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order(background=True), "gone"))])
        append_all = store.append_all

        def refuse(segments: Sequence[Segment]) -> "asyncio.Future[list[MainspringError | None]]":
            store.append_all = append_all  # type: ignore[method-assign]
            refused: asyncio.Future[list[MainspringError | None]] = asyncio.get_running_loop().create_future()
            refused.set_result([StoreError("the disk is full")] * len(segments))
            return refused

        store.append_all = refuse  # type: ignore[method-assign]
        async with Engine(Scripted(), store, drives=drives) as engine:
            with pytest.raises(StoreError):
                await engine.cancel("resp_1")
            watching = asyncio.create_task(engine.watch_over())
            assert [records[-1].event async for records in store.follow("resp_1")][-1] == RunEnded("cancelled", Reason.CANCELLED)
            watching.cancel()


async def test_a_run_whose_log_cannot_be_read_keeps_no_other_from_being_taken_up(location: Location) -> None:
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order("resp_1", background=True), "gone"))])
        if location.file is not None:
            with closing(sqlite3.connect(location.file)) as file:
                file.execute("UPDATE segments SET body = x'7b'")
                file.commit()
        else:
            connection = await asyncpg.connect(location.given)
            await connection.execute("UPDATE mainspring_segments SET body = '\\x7b'")
            await connection.close()
        await store.append("resp_2", [Recorded(0, 1.0, RunStarted(make_order("resp_2", background=True), "gone"))])
        async with make_engine(Scripted(turn(say="Hello")), store) as engine:
            [handle] = await engine.resume_all()
            assert (await handle.wait()).spec.id == "resp_2"


async def test_a_run_that_another_engine_has_claimed_first_is_not_read(location: Location) -> None:
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        read = list[str]()

        async def note_and_read(run_id: str, after: int = -1) -> list[Recorded]:
            read.append(run_id)
            return await type(beside).events(beside, run_id, after)

        beside.events = note_and_read  # type: ignore[method-assign]
        stalling = Scripted(turn(say="one two three", stall=True))
        async with make_engine(stalling, store) as engine, make_engine(Scripted(), beside) as other:
            handle = await engine.start(make_order(background=True))
            watching = asyncio.create_task(other.watch_over())
            await asyncio.sleep(0)
            await other.drive(handle.id)
            assert read == []
            assert (await other.resume(handle.id)).is_elsewhere, "whoever asks for it follows it"
            watching.cancel()


async def test_a_look_for_runs_to_take_up_reads_no_log(tmp_path: Path) -> None:
    """And costs the same, however many runs others drive."""
    steps: list[int] = []
    for count in (5, 500):
        path = tmp_path / f"{count}.db"
        async with SqliteStore(path) as store:
            await store.leases.beat(Driver("other"), 600.0)
            begun = [Recorded(0, 1.0, RunStarted(make_order(background=True), "other")), Recorded(1, 1.0, TurnStarted())]
            for number in range(count):
                await store.append(f"r{number}", begun)

            async def refuse(run_id: str, after: int = -1) -> list[Recorded]:
                raise AssertionError(f"the log of {run_id} is read")

            store.events = refuse  # type: ignore[method-assign]
            async with make_engine(Scripted(), store) as engine:
                assert await engine.resume_all() == []
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            taken = 0

            def count_step() -> int:
                nonlocal taken
                taken += 1
                return 0

            connection.set_progress_handler(count_step, 1)
            assert list_claimable(connection, owned=False, limit=1000) == []
            steps.append(taken)
    assert steps[1] <= steps[0] + 10


async def test_an_engine_that_does_not_drive_offers_its_runs_to_others_and_follows_them(location: Location) -> None:
    go = asyncio.Event()
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        worker, executor = make_acting(beside, go)
        async with Engine(Scripted(), store, drives=False) as gateway, worker:
            handle = await gateway.start(make_order(tools=(TOOL,)))
            assert await gateway.resume_all() == []
            assert await beside.leases.list_claimable() == [handle.id]
            watching = asyncio.create_task(worker.watch_over())
            go.set()
            assert (await handle.wait()).status == "completed"
            go.clear()
            other = await gateway.start(make_order("resp_2", tools=(TOOL,)))
            assert (await gateway.cancel(other.id)).status == "cancelled"
            watching.cancel()
        assert executor.done == [("act", {})]


async def test_a_lease_holds_while_its_engine_is_open_and_is_short_while_that_drives(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(presence, "LINGER_SECONDS", 0.2)
    asked: list[float] = []
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        beat = store.leases.beat

        async def note(driver: Driver, seconds: float) -> bool:
            asked.append(seconds)
            return await beat(driver, seconds)

        store.leases.beat = note  # type: ignore[method-assign]
        async with make_engine(Scripted(turn(say="one two three", stall=True)), store) as engine:
            handle = await engine.start(make_order(background=True))
            await until(lambda: len(asked) > 8)
            assert set(asked) == {presence.LEASE_SECONDS}
            await handle.cancel()
            await until(lambda: asked[-1] == presence.IDLE_SECONDS)
            assert await beside.leases.is_alive(engine.presence.id)
            await engine.start(make_order("resp_2", background=True))
            await until(lambda: asked[-1] == presence.LEASE_SECONDS)
        assert not await beside.leases.is_alive(engine.presence.id)


async def see_lease(location: Location, driver: str, *, is_alive: bool) -> None:
    """Waits until others see the lease of a driver so."""
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        while await store.leases.is_alive(driver) != is_alive:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_tool_goes_on_in_a_process_that_was_stopped_while_nobody_claimed_its_run(
    location: Location, monkeypatch: pytest.MonkeyPatch
) -> None:
    go = asyncio.Event()
    go.set()

    async def act(tool_call: ToolCall, context: CallContext) -> ToolResult:
        # As if the process had been stopped until its lease was over: nothing else runs in it meanwhile.
        with ThreadPoolExecutor(1) as beside:
            beside.submit(asyncio.run, see_lease(location, engine.presence.id, is_alive=False)).result(PATIENCE)
        await see_lease(location, engine.presence.id, is_alive=True)
        return ToolResult(tool_call.id, "done")

    monkeypatch.setattr(presence, "LEASE_SECONDS", 0.5)
    async with open_store(location) as store, asyncio.timeout(PATIENCE):
        engine, executor = make_acting(store, go, act)
        async with engine:
            handle = await engine.start(make_order(tools=(TOOL,), background=True))
            assert (await handle.wait()).status == "completed"
        assert len(executor.done) == 1
        assert not any(isinstance(record.event, RunResumed) for record in handle.log)


async def test_a_run_goes_on_though_a_driver_that_had_lost_it_has_written_once_more(location: Location) -> None:
    go = asyncio.Event()
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        engine, _ = make_acting(store, go)
        async with engine:
            handle = await engine.start(make_order(tools=(TOOL,), background=True))
            while not isinstance((log := await beside.events(handle.id))[-1].event, TurnStarted):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await beside.append(handle.id, [Recorded(len(log), log[-1].at, ItemStarted(assistant("", id="msg_1")))])
            go.set()
            await until(lambda: not engine.live)
            [again] = await engine.resume_all()
            assert (await again.wait()).status == "completed"
            assert (await handle.wait()).status == "completed"
            assert list(handle.log) == await beside.events(handle.id)
            await engine.forget(handle.id)
            assert await engine.resume_all() == []


async def test_a_run_in_the_foreground_is_cancelled_by_another_process_before_its_tool_has_had_its_effect(
    location: Location,
) -> None:
    begun, go, effects = asyncio.Event(), asyncio.Event(), list[str]()
    go.set()

    async def act(tool_call: ToolCall, context: CallContext) -> ToolResult:
        begun.set()
        await asyncio.sleep(PATIENCE)
        effects.append("done")
        return ToolResult(tool_call.id, "done")

    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE / 2):
        engine, _ = make_acting(store, go, act)
        async with engine, make_engine(Scripted(), beside) as other:
            handle = await engine.start(make_order(tools=(TOOL,)))
            await begun.wait()
            assert (await other.cancel(handle.id)).status == "cancelled"
            assert (await handle.wait()).status == "cancelled"
    assert effects == []


def test_a_process_that_is_there_but_hidden_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "_find_born", lambda pid: None)
    assert presence.is_running(Driver("drv_1", presence.find_place(), os.getpid(), "1"))
    monkeypatch.undo()
    assert not presence.is_running(Driver("drv_1", presence.find_place(), os.getpid(), "1")), "it is another one"


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["ended", "cancelled"])
async def test_readers_of_a_run_that_was_taken_over_see_it_go_on_elsewhere(location: Location, is_cancelled: bool) -> None:
    go, late = asyncio.Event(), asyncio.Event()
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        (engine, _), (other, executor) = make_acting(store, go), make_acting(beside, late)
        async with engine, other:
            handle = await engine.start(make_order(tools=(TOOL,), background=True))
            reading = asyncio.create_task(_read(handle))
            await beside.leases.release(engine.presence.id)
            taken = await other.resume(handle.id)
            go.set()
            await until(lambda: not engine.live)
            if is_cancelled:
                handle.request_cancel()
            else:
                late.set()
            status = "cancelled" if is_cancelled else "completed"
            assert (await taken.wait()).status == (await handle.wait()).status == status
            assert await reading == await beside.events(handle.id)
            assert executor.done == ([] if is_cancelled else [("act", {})])


async def _read(handle: Handle) -> list[Recorded]:
    return [record async for record in handle.events()]


async def test_whoever_waits_for_the_store_is_told_that_the_run_is_another_s(location: Location) -> None:
    async with open_store(location) as store, make_engine(Scripted(), store) as engine:
        writer = SegmentWriter(store)
        journal = Journal.begin(RunStarted(make_order()), History(), writer, time.time, engine.quota.hold("", 0))
        waiting = asyncio.create_task(journal.flush())
        await asyncio.sleep(0)
        journal.fail(Superseded("it is another's"))  # before the store is asked
        async with asyncio.timeout(PATIENCE):
            with pytest.raises(Superseded):
                await waiting
            await writer.drain()


class Late:
    """A dispatcher that has a run driven, and then fails to say so in time."""

    def __init__(self, worker: Engine) -> None:
        self._worker = worker

    async def submit(self, run_id: str) -> None:
        await self._worker.resume(run_id)
        raise DispatcherUnavailable("it has not answered in time")

    async def cancel(self, run_id: str) -> None:
        raise AssertionError

    async def work(self, runs: DispatchedRuns) -> None:
        raise AssertionError


async def test_a_run_that_was_dispatched_though_nobody_said_so_goes_on(location: Location) -> None:
    go = asyncio.Event()
    async with open_store(location) as store, open_store(location) as beside, asyncio.timeout(PATIENCE):
        worker, executor = make_acting(beside, go)
        async with worker, Engine(Scripted(), store, drives=False, dispatcher=Late(worker)) as gateway:
            handle = await gateway.start(make_order(tools=(TOOL,)))
            assert await store.leases.find_driver(handle.id) == worker.presence.id
            go.set()
            assert (await handle.wait()).status == "completed"
        assert len(executor.done) == 1


@pytest.mark.requirement("M6")
@pytest.mark.parametrize("how", ["cancelled", "deleted"])
async def test_nothing_is_left_of_the_attempts_of_a_run_that_another_engine_ends(location: Location, how: str) -> None:
    async with open_store(location) as store, make_engine(Scripted(), store) as engine:
        # An engine has taken it up, and was killed.
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order("resp_1"), "gone"))])
        await store.put([Document(RESUMED, "resp_1", encode(Attempts(1, 1.0)))])
        if how == "cancelled":
            assert (await engine.cancel("resp_1")).status == "cancelled"
        else:
            await engine.forget("resp_1")
        assert not await store.documents(RESUMED)


class SlowLeases(SqliteLeases):
    """Leases where a cancel takes its time to be asked for."""

    asked, go = asyncio.Event(), asyncio.Event()

    async def request_cancel(self, run_id: str) -> None:
        self.asked.set()
        await self.go.wait()
        await super().request_cancel(run_id)


class SlowStore(SqliteStore):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.leases: SlowLeases = SlowLeases(self._database)


@pytest.mark.requirement("M3")
async def test_a_run_that_is_taken_up_here_while_it_is_cancelled_has_stopped_when_that_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, stopped, go = asyncio.Event(), asyncio.Event(), asyncio.Event()
    monkeypatch.setattr(SlowLeases, "asked", asyncio.Event())
    monkeypatch.setattr(SlowLeases, "go", asyncio.Event())
    go.set()

    async def act(tool_call: ToolCall, context: CallContext) -> ToolResult:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    async with SlowStore(tmp_path / "runs.db") as store, asyncio.timeout(PATIENCE):
        await store.append("resp_1", [Recorded(0, 1.0, RunStarted(make_order("resp_1", tools=(TOOL,)), "gone"))])
        engine, _ = make_acting(store, go, act)
        async with engine:
            cancel = asyncio.create_task(engine.cancel("resp_1"))
            await store.leases.asked.wait()
            await engine.resume("resp_1")
            await begun.wait()
            store.leases.go.set()
            assert (await cancel).status == "cancelled"
            assert stopped.is_set()
            assert (await engine.attach("resp_1")).run.status == "cancelled"


@pytest.mark.requirement("M6")
async def test_an_attempt_that_is_begun_anew_because_another_was_quicker_is_one(location: Location) -> None:
    """What a process that is gone had sent to a server may still arrive there, and its log is read again then."""
    async with open_store(location) as store:
        for deaths in range(3):
            attempts = ResumeAttempts(store, 2, time.time)  # of another process each time
            for _ in range(2):
                if deaths < 2:
                    await attempts.begin("resp_1")
                else:
                    with pytest.raises(ResumeLimit):
                        await attempts.begin("resp_1")
