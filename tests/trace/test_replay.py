"""Replays: the loop decides again what it decided then, in whatever way the run went, and a log that was changed is found out."""

import logging
from collections.abc import Callable, Iterator

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.test_compaction import managed_worlds
from tests.engine.worlds import World, engine_for, worlds
from tests.kit.waiting import PATIENCE

from mainspring.core.events import (
    CallJudged,
    Event,
    ItemDone,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import History, history_of
from mainspring.core.ids import counting
from mainspring.core.items import ApprovalRequest, ApprovalResponse, FunctionCall, FunctionCallOutput, Usage, user
from mainspring.core.response import response
from mainspring.core.run import Run
from mainspring.features.traces.replay import Difference, Replay, replay_log
from mainspring.ports import Store
from mainspring.providers.scripted import call, calls, say
from mainspring.storage.memory_runs import MemoryStore


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Random worlds fail on purpose."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


async def played(world: World, store: Store, moment: int | None = None) -> tuple[Run, list[Recorded]]:
    """A world played to its end, or until somebody cancels it at that event."""
    new_id = counting()
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        with anyio.fail_after(PATIENCE):
            async for record in handle.events():
                if moment is not None and record.seq >= moment:
                    await handle.cancel()
            run = await handle.wait()
    return run, await store.events(handle.id)


async def ends_the_same(run: Run, log: list[Recorded], store: Store) -> None:
    stored = (await store.load(run.spec.id)).response
    again = replay_log(log, History(), stored)
    assert again.difference is None, str(again.difference)
    assert again.run == run
    assert response(again.run) == stored


@given(worlds)
async def test_every_kind_of_run_ends_the_same_when_it_is_replayed(world: World) -> None:
    store = MemoryStore()
    await ends_the_same(*await played(world, store), store)


@given(managed_worlds)
@settings(max_examples=50)
async def test_runs_that_are_compacted_and_cut_end_the_same(world: World) -> None:
    store = MemoryStore()
    await ends_the_same(*await played(world, store), store)


@given(worlds, st.integers(0, 40))
@settings(max_examples=50)
async def test_a_run_that_was_cancelled_at_any_event_ends_the_same(world: World, moment: int) -> None:
    store = MemoryStore()
    await ends_the_same(*await played(world, store, moment), store)


@given(worlds, st.data())
@settings(max_examples=50)
async def test_a_run_that_was_killed_at_any_event_and_resumed_ends_the_same(world: World, data: st.DataObject) -> None:
    _, log = await played(world, MemoryStore())
    cut = data.draw(st.integers(1, len(log) - 1)) if len(log) > 1 else 1
    store = MemoryStore()
    await store.append("resp_1", log[:cut])
    again = replay_log(log[:cut], History())
    assert again.difference is None, "as far as it goes, a log without an end is right too"
    async with engine_for(world, store, new_id=counting_from(1000)) as engine:
        with anyio.fail_after(PATIENCE):
            run = await (await engine.resume("resp_1")).wait()
    resumed = await store.events("resp_1")
    assert any(isinstance(record.event, RunResumed) for record in resumed)
    await ends_the_same(run, resumed, store)


def counting_from(start: int) -> Callable[[str], str]:
    count = counting()
    return lambda prefix: f"{prefix}_{start + int(count(prefix).rpartition('_')[2])}"


STORY = World(
    (
        calls(call("good", n=1), call("denied")),
        say("First answer."),
        calls(call("good", n=2)),
        say("Second answer."),
        say("Last answer."),
    ),
    {"max_turns": 9, "confirm": "Really?", "confirm_once": False},
)


async def test_a_replay_makes_every_decision_again_and_asks_nobody() -> None:
    store = MemoryStore()
    run, log = await played(STORY, store)
    again = replay_log(log, History(), (await store.load(run.spec.id)).response)
    # Five turns, two judgements, two executions, two nudges, one end.
    assert (again.decisions, again.difference) == (12, None)
    assert again.run is not None
    assert (again.run.status, again.run.reason, again.run.text) == ("completed", "final_answer", "Last answer.")


async def test_runs_that_wait_and_the_runs_that_go_on_with_them_end_the_same() -> None:
    store, new_id = MemoryStore(), counting()
    world = World((calls(call("approval"), call("client")), say("Both are done.")), {})
    async with engine_for(world, store, new_id=new_id) as engine:
        paused = await (await engine.start(world.spec(new_id))).wait()
        (asked,) = [item for item in paused.output if isinstance(item, ApprovalRequest)]
        (theirs,) = [item for item in paused.output if isinstance(item, FunctionCall) and item.name == "client"]
        answers = (ApprovalResponse(asked.id, approve=True), FunctionCallOutput(theirs.call_id, "chosen"))
        spec = replace(world.spec(new_id), input=answers, parent=paused.spec.id)
        run = await (await engine.start(spec)).wait()
    assert (paused.status, run.status, run.text) == ("requires_action", "completed", "Both are done.")
    for ended, history in ((paused, History()), (run, history_of(await store.history(paused.spec.id)))):
        stored = (await store.load(ended.spec.id)).response
        again = replay_log(await store.events(ended.spec.id), history, stored)
        assert (again.difference, again.run) == (None, ended)
    lost = difference(replay_log(await store.events(run.spec.id), History()))
    assert lost.seq == 0, "without what came before, the answers answer nothing"


def changed(log: list[Recorded], kind: type, change: Callable[..., Event], place: int = 0) -> tuple[int, list[Recorded]]:
    """The log with one event of a kind changed, and that event's number."""
    seq = [record.seq for record in log if isinstance(record.event, kind)][place]
    return seq, [replace(record, event=change(record.event)) if record.seq == seq else record for record in log]


TAMPERINGS: dict[str, tuple[type, Callable[..., Event], int]] = {
    "another nudge": (Nudged, lambda event: replace(event, text="Never mind."), 0),
    "a verdict on another call": (CallJudged, lambda event: replace(event, call_id="call_9"), 0),
    "a denial that was none": (CallJudged, lambda event: replace(event, verdict="allow", reason=""), 1),
    "an allowed call that was not": (CallJudged, lambda event: replace(event, verdict="deny"), 0),
    "a tool that was not called": (ToolStarted, lambda event: ToolStarted("call_9"), 0),
    "words that were not said": (TextDelta, lambda event: replace(event, delta="X"), 0),
    "a turn that never was": (TurnStarted, lambda event: RunResumed(), 1),
    "another end": (RunEnded, lambda event: RunEnded("incomplete", Reason.MAX_TURNS), 0),
    "an end by failure": (RunEnded, lambda event: RunEnded("failed", Reason.PROVIDER_ERROR), 0),
    "a turn that failed": (TurnEnded, lambda event: replace(event, finish="length"), 0),
}


@pytest.mark.parametrize("tampering", TAMPERINGS, ids=lambda name: name.replace(" ", "-"))
async def test_a_changed_log_is_caught_where_the_loop_would_have_gone_another_way(tampering: str) -> None:
    store = MemoryStore()
    _, log = await played(STORY, store)
    kind, change, place = TAMPERINGS[tampering]
    seq, tampered = changed(log, kind, change, place)
    found = difference(replay_log(tampered, History()))
    assert seq <= found.seq <= next_turn(tampered, seq)


def next_turn(log: list[Recorded], seq: int) -> int:
    """Where the next turn begins, or the run ends: there at the latest it is seen that something is wrong."""
    return next((record.seq for record in log[seq + 1 :] if isinstance(record.event, TurnStarted | RunEnded)), len(log))


@pytest.mark.parametrize(
    ("kind", "change", "field"),
    [
        (ToolEnded, lambda event: replace(event, output="something else"), "output"),
        (TurnEnded, lambda event: replace(event, usage=Usage(1, 1)), "usage"),
        (RunEnded, lambda event: RunEnded("cancelled", Reason.CANCELLED), "status"),
        (RunStarted, lambda event: replace(event, spec=replace(event.spec, instructions="Be rude.")), "instructions"),
        (RunStarted, lambda event: replace(event, spec=replace(event.spec, metadata={"a": "b"})), "metadata"),
    ],
    ids=["output", "usage", "status", "instructions", "metadata"],
)
async def test_facts_that_no_decision_hangs_on_are_held_against_the_stored_response(
    kind: type, change: Callable[..., Event], field: str
) -> None:
    store = MemoryStore()
    run, log = await played(STORY, store)
    _, tampered = changed(log, kind, change)
    found = difference(replay_log(tampered, History(), (await store.load(run.spec.id)).response))
    assert (found.seq, f"the {field} of the stored response" in found.expected) == (len(log) - 1, True)


async def test_a_changed_prompt_is_held_against_the_stored_conversation() -> None:
    store = MemoryStore()
    run, log = await played(STORY, store)
    kept = await store.history(run.spec.id)
    stored = (await store.load(run.spec.id)).response
    assert replay_log(log, History(), stored, kept).difference is None
    _, tampered = changed(log, RunStarted, lambda event: replace(event, spec=replace(event.spec, input=(user("Other."),))))
    assert "the stored item" in difference(replay_log(tampered, History(), stored, kept)).expected


@pytest.mark.parametrize("missing", [CallJudged, ToolStarted, ToolEnded, Nudged, TurnEnded, ItemDone])
async def test_a_log_with_a_hole_is_caught_there(missing: type) -> None:
    _, log = await played(STORY, MemoryStore())
    seq = next(record.seq for record in log if isinstance(record.event, missing))
    renumbered = [replace(record, seq=place) for place, record in enumerate([*log[:seq], *log[seq + 1 :]])]
    assert difference(replay_log(renumbered, History())).seq >= seq


async def test_what_comes_behind_the_end_is_caught() -> None:
    _, log = await played(STORY, MemoryStore())
    longer = [*log, Recorded(len(log), log[-1].at, TurnStarted())]
    found = difference(replay_log(longer, History()))
    assert (found.seq, found.expected) == (len(log), "nothing, since the run has ended")


def difference(again: Replay) -> Difference:
    assert again.difference is not None, "it was not caught"
    return again.difference
