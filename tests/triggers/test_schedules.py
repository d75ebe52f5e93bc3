"""Schedules on an engine: what is started when, what is skipped, and what two processes make of one due time."""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec import Raw
from msgspec.structs import replace
from tests.agents.world import engine_of, look, write
from tests.agents.world import written as agent

from mainspring import Engine
from mainspring.core.errors import InvalidRequest, StoreError
from mainspring.core.items import encode
from mainspring.features.approvals.pending import Approvals
from mainspring.features.triggers import firing as firing_module
from mainspring.features.triggers import schedules as schedules_module
from mainspring.features.triggers.marks import MARK, Mark, Marks
from mainspring.features.triggers.schedule import Firing, Missed, Overlap, ScheduleDefinition, ScheduleFacts, ScheduleState
from mainspring.features.triggers.schedules import SCHEDULE, DocumentConflict, ScheduleClock, Schedules, find_wake, sync_files
from mainspring.features.triggers.targets import Targets
from mainspring.http.auth import Keys
from mainspring.ports import Document, Store
from mainspring.providers.scripted import call, say
from mainspring.tools.builtin.leased_documents import LeasedBody, LeasedDocuments

HOURLY = ScheduleDefinition(name="hourly", agent="noter", cron="0 * * * *")
HOUR = 3600.0
NEVER: Callable[..., None] = lambda *told: None  # noqa: E731


class World:
    """Schedules of one process on a store, fired by hand at whatever time."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.keys = engine, Keys(engine.store)
        self.schedules = Schedules(engine.store, engine.core.presence, engine.core.new_id)
        self.targets = Targets(engine.agents, engine.workflows, self.keys)

    async def fire(self, now: float, tenant: str = "", name: str = "hourly") -> float | None:
        return await self.schedules.fire((tenant, name), self.targets, now, NEVER)

    async def state(self, tenant: str = "", name: str = "hourly") -> ScheduleState:
        return (await self.schedules.get(tenant, name)).state

    async def recent(self) -> list[Firing]:
        return list((await self.state()).recent)

    async def runs(self) -> int:
        return len((await self.engine.store.list(limit=100)).runs)


@pytest.fixture
async def world(tmp_path: Path, each_store: Store) -> AsyncIterator[World]:
    agent(tmp_path, "noter")
    engine, _ = engine_of(tmp_path, *[say("noted")] * 50, store=each_store)
    async with engine:
        yield World(engine)


async def first_due(world: World) -> float:
    due = (await world.state()).next_due
    assert due is not None
    return due


async def test_a_due_time_starts_one_run_and_the_next_is_an_hour_later(world: World) -> None:
    made = await world.schedules.create("", HOURLY)
    due = made.state.next_due
    assert due is not None
    assert await world.fire(due - 1) == due
    assert await world.runs() == 0
    assert await world.fire(due + 1) == due + HOUR
    assert await world.fire(due + 2) == due + HOUR
    fired = (await world.recent())[0]
    assert (fired.due, fired.outcome, await world.runs()) == (due, "started", 1)
    run = await (await world.engine.attach(fired.run_id)).wait()
    assert (run.status, run.spec.agent, run.spec.metadata) == ("completed", "noter", {"schedule": "hourly"})


async def test_what_was_started_before_a_crash_is_not_started_again(world: World) -> None:
    due = (await world.schedules.create("", HOURLY)).state.next_due or 0.0
    before = await world.engine.store.documents("schedule")
    await world.fire(due + 1)
    # As a process leaves it that dies after the start of the run: nothing of it is written, and it is found late.
    await world.engine.store.put(before)
    await world.fire(due + 600)
    assert [(each.due, each.outcome) for each in await world.recent()] == [(due, "started")]
    assert await world.runs() == 1


@pytest.mark.parametrize(
    ("missed", "outcomes"),
    [
        ("skip", ["missed", "missed", "missed"]),
        ("once", ["missed", "missed", "started"]),
        ("all", ["started", "started", "started"]),
    ],
)
async def test_missed_times_are_made_up_for_as_the_schedule_says(world: World, missed: Missed, outcomes: list[str]) -> None:
    await world.schedules.create("", replace(HOURLY, missed=missed, overlap="allow"))
    due = await first_due(world)
    assert await world.fire(due + 2 * HOUR + 600) == due + 3 * HOUR
    assert sorted([each.outcome for each in await world.recent()]) == sorted(outcomes)
    assert await world.runs() == outcomes.count("started")


async def test_all_missed_times_are_bounded_and_the_rest_is_said(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firing_module, "MOST_WAITING", 3)
    await world.schedules.create("", replace(HOURLY, missed="all", overlap="allow"))
    await world.fire(await first_due(world) + 10 * HOUR + 600)
    assert sorted([each.outcome for each in await world.recent()]) == ["missed", "started", "started", "started"]


@pytest.fixture
async def asking(tmp_path: Path, each_store: Store) -> AsyncIterator[World]:
    """An agent whose runs wait for a person."""
    agent(tmp_path, "noter", tools=["write"])
    turns = [turn for _ in range(9) for turn in (call("write", text="x"), say("done"), say("done"))]
    engine, _ = engine_of(tmp_path, *turns, store=each_store, tools=[look, write], policies={"custom": (_Asks(),)})
    async with engine:
        yield World(engine)


class _Asks:
    name = "asks"
    never_waits = True

    async def judge(self, call: Any, run: Any) -> Any:
        from mainspring.ports import Ask

        return Ask("may it?")


async def wait_for_question(world: World) -> str:
    with anyio.fail_after(60):
        while not (found := (await Approvals(world.engine.core).list(state="pending")).approvals):  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return found[0].id


@pytest.mark.parametrize(("overlap", "second"), [("skip", "skipped"), ("allow", "started"), ("queue", None)])
async def test_a_run_that_waits_for_a_person_is_running(asking: World, overlap: Overlap, second: str | None) -> None:
    await asking.schedules.create("", replace(HOURLY, overlap=overlap))
    due = await first_due(asking)
    await asking.fire(due)
    question = await wait_for_question(asking)
    # The person has a day from now on, and the schedule is due before that.
    await asking.fire(due + HOUR)
    state = await asking.state()
    assert [each.outcome for each in state.recent] == ["started", *([second] if second else [])]
    assert state.queued == (() if second else (due + HOUR,))
    if overlap == "queue":
        answered = await Approvals(asking.engine.core).answer(question, approve=True)
        assert answered.handle is not None
        await answered.handle.wait()
        await asking.fire(due + HOUR + 10)
        assert [each.due for each in await asking.recent()] == [due, due + HOUR]


async def test_a_schedule_is_paused_and_goes_on_without_what_was_due_meanwhile(world: World) -> None:
    await world.schedules.create("", HOURLY)
    due = await first_due(world)
    await world.schedules.pause("", "hourly")
    assert await world.fire(due + 5) is None
    with pytest.raises(DocumentConflict):
        await world.schedules.ask("", "hourly")
    resumed = await world.schedules.resume("", "hourly")
    assert (resumed.state.next_due, resumed.state.recent, await world.runs()) == (due, (), 0)


async def test_a_run_by_hand_comes_beside_those_that_are_due(world: World) -> None:
    await world.schedules.create("", HOURLY)
    due = await first_due(world)
    await world.schedules.ask("", "hourly")
    await world.fire(due - 10)
    fired = (await world.recent())[0]
    assert (fired.outcome, fired.by_hand, await first_due(world)) == ("started", True, due)


async def test_the_triggers_of_a_revoked_key_stop_and_say_so(world: World) -> None:
    key = await world.keys.create(name="ci", tenant="acme")
    id = key.split("_")[1]
    await world.schedules.create("acme", HOURLY, f"key:{id}")
    due = (await world.state("acme")).next_due or 0.0
    await world.fire(due, "acme")
    await world.keys.revoke(id)
    assert await world.fire(due + HOUR, "acme") is None
    state = await world.state("acme")
    assert [each.outcome for each in state.recent] == ["started", "failed"]
    assert id in state.stopped
    run = (await world.engine.attach(state.recent[0].run_id)).run
    assert (run.spec.tenant, run.spec.caller.subject) == ("acme", f"key:{id}")


async def test_an_agent_that_is_gone_is_a_failed_due_time_and_not_the_end(world: World) -> None:
    await world.schedules.create("", replace(HOURLY, agent="gone"))
    due = await first_due(world)
    assert await world.fire(due) == due + HOUR
    assert [each.outcome for each in await world.recent()] == ["failed"]


async def test_two_processes_that_wake_at_once_start_one_run(tmp_path: Path, location: Any) -> None:
    agent(tmp_path, "noter")
    async with AsyncExitStack() as stack:
        engines = [engine_of(tmp_path, *[say("noted")] * 9, database=location)[0] for _ in range(2)]
        worlds = [World(await stack.enter_async_context(engine)) for engine in engines]
        await worlds[0].schedules.create("", HOURLY)
        due = await first_due(worlds[1])
        for hour in range(4):
            now = due + hour * HOUR + 1
            async with anyio.create_task_group() as group:
                for world in worlds:
                    group.start_soon(world.fire, now)
            # Whoever found it in the hands of the other looks again.
            assert {await world.fire(now) for world in worlds} == {due + (hour + 1) * HOUR}
        assert await worlds[0].runs() == 4
        assert [each.outcome for each in await worlds[1].recent()] == ["started"] * 4


async def test_a_clock_fires_what_becomes_due_and_heeds_changes(world: World) -> None:
    told: list[Firing] = []
    came = anyio.Event()

    def tell(tenant: str, facts: object, definition: object, fired: Firing) -> None:
        told.append(fired)
        came.set()

    engine = world.engine
    schedules = Schedules(engine.store, engine.core.presence, engine.core.new_id, lambda key: clock.look_at(key))
    clock = ScheduleClock(schedules, world.targets, engine.store, tell)
    await clock.load([""])
    async with anyio.create_task_group() as group:
        group.start_soon(clock.run)
        await schedules.create("", replace(HOURLY, name="soon", cron="", every="1s", overlap="allow"))
        with anyio.fail_after(60):
            await came.wait()
        group.cancel_scope.cancel()
    assert told[0].outcome == "started"


async def test_a_tenant_with_very_many_schedules_that_are_due_holds_up_nobody_elses(world: World) -> None:
    many, told, is_over = 40, list[str](), anyio.Event()

    def tell(tenant: str, facts: object, definition: object, fired: Firing) -> None:
        told.append(tenant)
        if len(told) == many + 1:
            is_over.set()

    for tenant, count in (("attacker", many), ("neighbour", 1)):
        for number in range(count):
            await world.schedules.create(tenant, replace(HOURLY, name=f"hourly-{number}"))
            await world.schedules.ask(tenant, f"hourly-{number}")
    clock = ScheduleClock(world.schedules, world.targets, world.engine.store, tell)
    await clock.load(["attacker", "neighbour"])
    async with anyio.create_task_group() as group:
        group.start_soon(clock.run)
        with anyio.fail_after(60):
            await is_over.wait()
        group.cancel_scope.cancel()
    assert told.index("neighbour") < 2 * schedules_module.FIRED_AT_ONCE


async def test_schedules_of_files_are_made_changed_and_removed_with_them(world: World) -> None:
    await world.schedules.create("", replace(HOURLY, name="by-request"))
    await sync_files(world.schedules, [HOURLY])
    await world.schedules.pause("", "hourly")
    await sync_files(world.schedules, [replace(HOURLY, every="5m", cron="")])
    state = await world.state()
    assert (state.definition.every, state.is_paused, find_wake(state, 0.0)) == ("5m", True, None)
    await sync_files(world.schedules, [])
    assert [each.state.definition.name for each in await world.schedules.list("")] == ["by-request"]


async def test_a_file_that_is_changed_while_its_schedule_is_fired_is_taken_up_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules_module, "CHANGE_SECONDS", 0.01)
    await sync_files(world.schedules, [HOURLY])
    documents = LeasedDocuments(world.engine.store, world.engine.core.presence, SCHEDULE, SCHEDULE, ScheduleFacts, ScheduleState)
    held = await documents.claim(("", "hourly"), 1)
    # In the hands of another process that is alive.
    await world.engine.store.swap(
        Document(SCHEDULE, "hourly", encode(LeasedBody(9, "other", Raw(encode(held.facts)), Raw(encode(held.state))))),
        (await documents.read(("", "hourly"))).stored,
    )
    monkeypatch.setattr(world.engine.core.presence, "is_driven", _always)
    changed = replace(HOURLY, cron="5 * * * *")
    assert not await sync_files(world.schedules, [changed])
    monkeypatch.undo()
    assert await sync_files(world.schedules, [changed])
    assert (await world.state()).definition == changed


async def _always(driver: str) -> bool:
    return True


async def test_a_schedule_without_its_mark_is_found_by_the_next_start(world: World) -> None:
    class Dying(LeasedDocuments[ScheduleFacts, ScheduleState]):
        async def create(self, *made: Any) -> bool:
            await super().create(*made)
            raise StoreError("killed")

    store, presence = world.engine.store, world.engine.core.presence
    dying = Schedules(store, presence, world.engine.core.new_id)
    dying._documents = Dying(store, presence, SCHEDULE, SCHEDULE, ScheduleFacts, ScheduleState)
    with pytest.raises(StoreError):
        await dying.create("", HOURLY)
    found: list[Mark] = []

    async def heed(marks: Sequence[Mark]) -> None:
        found.extend(marks)

    await Marks(store).heed_new(heed)
    assert found == [Mark("schedule", "", "hourly")]
    await world.schedules.remove("", "hourly")
    assert await store.documents(MARK) == []


async def test_changes_that_could_not_be_heeded_are_heeded_the_next_time(world: World) -> None:
    await world.schedules.create("", HOURLY)
    marks = Marks(world.engine.store)
    heeded: list[Mark] = []

    async def fail(new: Sequence[Mark]) -> None:
        raise StoreError("not now")

    async def heed(new: Sequence[Mark]) -> None:
        heeded.extend(new)

    with pytest.raises(StoreError):
        await marks.heed_new(fail)
    for _ in range(2):
        await marks.heed_new(heed)
    assert heeded == [Mark("schedule", "", "hourly")]


async def test_schedules_of_a_tenant_are_bounded_and_not_measured_each_time(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schedules_module, "MOST_BYTES", 4_000)
    measure = world.engine.store.measure_documents
    measured: list[str] = []

    async def count(kind: str, *, tenant: str = "", parent: str = "") -> int:
        measured.append(kind)
        return await measure(kind, tenant=tenant, parent=parent)

    monkeypatch.setattr(world.engine.store, "measure_documents", count)
    names = [f"hourly-{number}" for number in range(100)]
    await create_all(world, names[:2])
    assert len(measured) == 1
    with pytest.raises(InvalidRequest):
        await create_all(world, names[2:])
    assert await measure(SCHEDULE) > 4_000
    assert await measure(SCHEDULE) < 5_000


async def create_all(world: World, names: Sequence[str]) -> None:
    for name in names:
        await world.schedules.create("", replace(HOURLY, name=name))


async def test_a_schedule_that_is_changed_often_takes_no_more_room_in_the_clock(world: World) -> None:
    clock = ScheduleClock(world.schedules, world.targets, world.engine.store, NEVER)
    for time in range(10_000):
        clock._plan(("", "hourly"), 1e10 + time)
    assert len(clock._heap) <= 2 + schedules_module.SPARE
    assert (1e10 + 9_999, ("", "hourly")) in clock._heap
