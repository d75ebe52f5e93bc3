"""The laws of docs/architecture.md, in random worlds, with a real engine on both stores."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.engine.worlds import Hands, Witness, World, engine_for, worlds
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE

from mainspring.core.drafts import words
from mainspring.core.events import (
    ArgumentsDelta,
    CallJudged,
    ItemDone,
    Nudged,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunResumed,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    TurnAborted,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import History
from mainspring.core.ids import NewId, counting
from mainspring.core.items import FunctionCall, FunctionCallOutput, decode, encode
from mainspring.core.model_request import ModelRequest
from mainspring.core.response import Response, response
from mainspring.core.run import Run, fold, open_run, replay
from mainspring.core.spec import RunSpec
from mainspring.core.stored_log import decode_log, encode_log
from mainspring.engine.handle import Handle
from mainspring.ports import Snapshot, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    """Random worlds fail on purpose, thousands of times; nobody wants to format all those tracebacks."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


class Played:
    """A world that has been played to its end."""

    def __init__(self, run: Run, log: list[Recorded], requests: list[ModelRequest], hands: Hands) -> None:
        self.run, self.log, self.requests, self.hands = run, log, requests, hands

    def events(self, kind: type) -> list[Recorded]:
        return [record for record in self.log if isinstance(record.event, kind)]


async def play(world: World, store: Store | None = None) -> Played:
    store = store if store is not None else MemoryStore()
    hands, new_id, witness = Hands(store), counting(), Witness()
    async with engine_for(world, store, new_id=new_id, hands=hands, sinks=[witness]) as engine:
        handle = await engine.start(world.spec(new_id))
        with anyio.fail_after(PATIENCE):
            seen = [record async for record in handle.events()]
            run = await handle.wait()
    assert seen == await store.events(handle.id), "a reader saw something else than the store has"
    assert witness.told == [(record.seq, record.event) for record in seen], "a sink was told something else"
    assert not hands.unwritten, "a tool ran before its start was durable"
    return Played(run, seen, engine.provider.requests, hands)  # type: ignore[attr-defined]


@given(worlds)
async def test_laws_of_a_whole_run(world: World) -> None:
    played = await play(world)
    begins_and_ends_once(played)
    is_the_fold_of_its_log(played)
    stays_within_its_limits(played)
    executes_only_what_was_allowed(played)
    shows_the_model_whole_pairs(played)
    waits_exactly_for_client_and_approval(played)
    runs_nothing_when_tools_are_off(played)
    says_what_its_deltas_said(played)
    reads_back_from_json(played)


def begins_and_ends_once(played: Played) -> None:
    """Law 1."""
    assert [type(record.event) for record in played.log].count(RunStarted) == 1
    assert [type(record.event) for record in played.log].count(RunEnded) == 1
    assert isinstance(played.log[0].event, RunStarted)
    assert isinstance(played.log[-1].event, RunEnded)
    assert [record.seq for record in played.log] == list(range(len(played.log)))


def is_the_fold_of_its_log(played: Played) -> None:
    """Law 2."""
    assert replay(played.log, History()) == played.run
    run = open_run(played.log[0], History())
    for number, record in enumerate(played.log[1:], start=2):
        run = fold(run, record)
        assert run == replay(played.log[:number], History())


def stays_within_its_limits(played: Played) -> None:
    """Law 3."""
    limits = played.run.spec.limits
    turns = len(played.events(TurnStarted)) - len(played.events(TurnAborted))
    closing = sum(isinstance(record.event, Nudged) and record.event.kind == "close" for record in played.log)
    assert closing <= 1
    assert limits.max_turns is None or turns <= limits.max_turns + closing
    started = played.events(ToolStarted)
    assert limits.max_tool_calls is None or len(started) <= limits.max_tool_calls
    if limits.max_tool_calls_per_turn is not None:
        assert all(count <= limits.max_tool_calls_per_turn for count in _started_by_turn(played.log).values())
    if limits.max_tokens is not None:
        before_last = [request.max_output_tokens for request in played.requests]
        assert all(left is not None and left > 0 for left in before_last)


def _started_by_turn(log: list[Recorded]) -> Counter[int]:
    turn, started = 0, Counter[int]()
    for record in log:
        turn += isinstance(record.event, TurnStarted)
        started[turn] += isinstance(record.event, ToolStarted)
    return started


def executes_only_what_was_allowed(played: Played) -> None:
    """Law 4."""
    allowed: set[str] = set()
    started: set[str] = set()
    for record in played.log:
        if isinstance(record.event, CallJudged) and record.event.verdict == "allow":
            allowed.add(record.event.call_id)
        if isinstance(record.event, ToolStarted):
            assert record.event.call_id in allowed
            assert record.event.call_id not in started
            started.add(record.event.call_id)
    assert set(played.hands.begun) <= started
    assert max(Counter(played.hands.begun).values(), default=0) <= 1


def shows_the_model_whole_pairs(played: Played) -> None:
    """Law 5, and the order of outputs."""
    for request in played.requests:
        calls = [item.call_id for item in request.items if isinstance(item, FunctionCall)]
        outputs = [item.call_id for item in request.items if isinstance(item, FunctionCallOutput)]
        assert outputs == calls, "every call has one output, in call order"


def waits_exactly_for_client_and_approval(played: Played) -> None:
    """Law 6."""
    run = played.run
    open_verdicts = {call.verdict for call in run.open_calls}
    assert (run.status == "requires_action") == bool(open_verdicts)
    assert open_verdicts <= {"client", "ask"}
    output = run.output
    answered = {item.call_id for item in output if isinstance(item, FunctionCallOutput)}
    waiting = {call.item.call_id for call in run.open_calls}
    made = {item.call_id for item in output if isinstance(item, FunctionCall) and item.status == "completed"}
    assert made - answered == waiting, "every call in the answer is answered or waited for"


def runs_nothing_when_tools_are_off(played: Played) -> None:
    """Law 7."""
    if played.run.spec.tool_choice.mode == "none":
        assert not played.hands.begun
        assert not played.events(ToolStarted)


def says_what_its_deltas_said(played: Played) -> None:
    """Law 12 of the wire, as far as it is decided here."""
    said: dict[str, str] = {}
    for record in played.log:
        match record.event:
            case (
                TextDelta(item_id, delta)
                | RefusalDelta(item_id, delta)
                | ReasoningDelta(item_id, delta)
                | ArgumentsDelta(item_id, delta)
            ):
                said[item_id] = said.get(item_id, "") + delta
            case ItemDone(item):
                assert "".join(words(item)) == said.pop(getattr(item, "id", ""), "")


def reads_back_from_json(played: Played) -> None:
    """Law 15."""
    assert decode_log(encode_log(played.log)) == played.log
    assert decode(encode(played.run.spec), RunSpec) == played.run.spec
    assert decode(encode(response(played.run)), Response) == response(played.run)


@given(worlds, st.data())
async def test_law_8_a_run_crashed_at_any_event_resumes_and_repeats_nothing_finished(world: World, data: st.DataObject) -> None:
    await _crash_and_resume(world, data, MemoryStore())


async def _crash_and_resume(world: World, data: st.DataObject, store: Store) -> None:
    first = await play(world)
    survived = data.draw(st.integers(1, len(first.log)), label="events that reached the store")
    prefix = first.log[:survived]
    hands = Hands()
    await store.append(
        first.run.spec.id, prefix, None if survived < len(first.log) else Snapshot(response(first.run), first.run.own_entries)
    )
    async with engine_for(world, store, new_id=_other_ids(), hands=hands) as engine:
        handle = await engine.resume(first.run.spec.id)
        with anyio.fail_after(PATIENCE):
            run = await handle.wait()
    log = await store.events(handle.id)
    assert run.has_ended
    assert log[:survived] == prefix
    assert replay(log, History()) == run
    begun_before = {record.event.call_id for record in prefix if isinstance(record.event, ToolStarted)}
    ended_before = {record.event.call_id for record in prefix if isinstance(record.event, ToolEnded)}
    repeatable = {item.call_id for item in first.run.output if isinstance(item, FunctionCall) and item.name == "again"}
    assert not set(hands.begun) & ended_before, "a finished tool ran again"
    assert not set(hands.begun) & (begun_before - repeatable), "an interrupted tool ran again"
    if survived < len(first.log):
        assert sum(isinstance(record.event, RunResumed) for record in log) == 1


@given(worlds, st.data())
async def test_law_9_a_cancel_at_any_event_ends_the_run_cancelled(world: World, data: st.DataObject) -> None:
    await _cancel(world, data, MemoryStore())


async def _cancel(world: World, data: st.DataObject, store: Store) -> None:
    length = len((await play(world)).log)
    moment = data.draw(st.integers(0, length - 1), label="event at which somebody cancels")
    new_id = counting()
    async with engine_for(world, store, new_id=new_id) as engine:
        handle = await engine.start(world.spec(new_id))
        with anyio.fail_after(PATIENCE):
            async for record in handle.events():
                if record.seq >= moment:
                    break
            had_ended = handle.run.has_ended
            run = await handle.cancel()
    assert run.has_ended
    if not had_ended:
        assert (run.status, run.reason) == ("cancelled", "cancelled")
    assert replay(await store.events(handle.id), History()) == run
    assert (await store.load(handle.id)).status == run.status
    assert not run.open_calls or run.status == "requires_action"


@pytest.mark.slow
@given(worlds, st.data())
@settings(max_examples=15)
async def test_laws_8_9_and_13_hold_on_a_server(
    postgres: Postgres, shared_database: str, world: World, data: st.DataObject
) -> None:
    for law in (_crash_and_resume, _cancel):
        postgres.empty(shared_database)
        async with open_store(parse_location(shared_database)) as store:
            await law(world, data, store)
    postgres.empty(shared_database)
    async with open_store(parse_location(shared_database)) as store:
        played = await play(world, store)
        assert _masked(played.log) == _masked((await play(world)).log)
        assert (await store.load(played.run.spec.id)).response == response(played.run)
        assert await store.history(played.run.spec.id) == list(played.run.all_entries)
        await _late_readers_see_the_same(world, store, played)


@given(worlds)
@settings(max_examples=25)
async def test_law_13_and_16_every_store_every_mode_and_every_reader_tells_the_same_story(world: World) -> None:
    stories = []
    with TemporaryDirectory() as folder:
        for background in (False, True):
            for store in (MemoryStore(), SqliteStore(Path(folder, f"{background}.db"))):
                async with store:
                    played = await play(replace(world, options={**world.options, "background": background}), store)
                    stories.append(_masked(played.log))
                    loaded = await store.load(played.run.spec.id)
                    assert loaded.response == response(played.run)
                    assert await store.history(played.run.spec.id) == list(played.run.all_entries)
                    await _late_readers_see_the_same(world, store, played)
    assert all(story == stories[0] for story in stories[1:])


async def _late_readers_see_the_same(world: World, store: Store, played: Played) -> None:
    async with engine_for(world, store) as engine:
        handle: Handle = await engine.attach(played.run.spec.id)
        half = len(played.log) // 2
        assert [record async for record in handle.events()] == played.log
        assert [record async for record in handle.events(after=half)] == played.log[half + 1 :]
        assert handle.run == played.run


def _masked(log: list[Recorded]) -> list[object]:
    """The story without times and mode. Parallel tools may end in any order, so their ends are sorted."""
    told: list[object] = []
    ends: list[ToolEnded] = []
    for record in log:
        match record.event:
            case ToolEnded() as ended:
                ends.append(replace(ended, seconds=0.0))
            case RunStarted(spec):
                told.append(replace(spec, background=False))
            case ToolProgress():
                pass
            case event:
                told.append(event)
    return [*told, *sorted(ends, key=lambda ended: ended.call_id)]


def _other_ids() -> NewId:
    count = counting()
    return lambda prefix: count(f"{prefix}_r")
