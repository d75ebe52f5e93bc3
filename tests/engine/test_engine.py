"""The engine's promises one by one: starting, reading, cancelling, resuming, waiting, and what it does when others fail."""

import asyncio
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tests.kit.engine import RecordingExecutor, make_engine, make_order
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import Interrupted, InvalidRequest, NotFound, PreviousNotFound, StoreError, Superseded, Unavailable
from mainspring.core.events import Event, Recorded, RunEnded, RunStarted, TextDelta, ToolEnded, ToolStarted, TurnAborted
from mainspring.core.history import Entry
from mainspring.core.ids import counting
from mainspring.core.items import (
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    ToolDefinition,
    user,
)  # fmt: skip
from mainspring.core.run import Call, Run
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.engine.journal import DELAY
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import Allow, Ask, CallContext, CallPolicy, Deny, Note, Snapshot, ToolCall, ToolResult, Verdict
from mainspring.providers.scripted import Scripted, call, calls, cut, fail, say, stall, turn
from mainspring.storage.memory_runs import MemoryStore

SEARCH = ToolDefinition("search", kind="builtin", parameters={"type": "object", "properties": {"q": {"type": "string"}}})
ASK_USER = ToolDefinition("ask_user")


async def search(call: ToolCall, context: CallContext) -> ToolResult:
    return ToolResult(call.id, f"found {call.parsed.get('q')}")


def searcher() -> RecordingExecutor:
    return RecordingExecutor(search)


def order(*, id: str = "resp_1", prompt: str | Sequence[Item] = "Go.", **options: Any) -> RunSpec:
    return make_order(id, prompt, **{"tools": (SEARCH, ASK_USER), **options})


def engine_of(
    script: Scripted,
    store: MemoryStore | None = None,
    hands: RecordingExecutor | None = None,
    policies: Sequence[CallPolicy] = (),
) -> Engine:
    return make_engine(script, store, searcher() if hands is None else hands, policies)


async def test_a_run_calls_tools_and_answers_and_is_stored() -> None:
    store = MemoryStore()
    with Scripted(call("search", q="hats"), say("Hats are on floor 2.", expect="found hats")) as script:
        async with engine_of(script, store) as engine:
            run = await (await engine.start(order())).wait()
    assert (run.status, run.reason, run.text) == ("completed", "final_answer", "Hats are on floor 2.")
    assert [type(item).__name__ for item in run.output] == ["FunctionCall", "FunctionCallOutput", "Message"]
    assert (await store.load("resp_1")).status == "completed"
    assert isinstance((await store.events("resp_1"))[-1].event, RunEnded)


async def test_live_late_and_reconnecting_readers_see_the_same_events() -> None:
    async with engine_of(Scripted(say("A rather long answer."))) as engine:
        handle = await engine.start(order())
        live = [record async for record in handle.events()]
        late = [record async for record in (await engine.attach("resp_1")).events()]
        again = [record async for record in (await engine.attach("resp_1")).events(after=4)]
    assert live == late
    assert again == live[5:]


async def test_a_reader_that_leaves_early_does_not_disturb_the_run() -> None:
    async with engine_of(Scripted(say("A rather long answer.", pause=0))) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if isinstance(record.event, TextDelta):
                break
        assert (await handle.wait()).text == "A rather long answer."


async def test_a_conversation_goes_on_where_it_was_left_even_in_another_engine() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(say("Hello, I am Tick.")), store) as engine:
        await (await engine.start(order(prompt="Hi."))).wait()
    script = Scripted(say("Tick.", expect="Hello, I am Tick."), say("Still Tick.", expect="Your name?"))
    async with engine_of(script, store) as engine:
        await (await engine.start(order(id="resp_2", prompt="Your name?", parent="resp_1"))).wait()
        run = await (await engine.start(order(id="resp_3", prompt="Really?", parent="resp_2"))).wait()
    assert [item.text for item in script.requests[-1].items if isinstance(item, Message)] == [
        "Hi.", "Hello, I am Tick.", "Your name?", "Tick.", "Really?",
    ]  # fmt: skip
    assert run.text == "Still Tick."
    assert len(await store.events("resp_3")) > 0
    assert run.own_entries[0].item == user("Really?")


async def test_a_history_that_takes_long_to_read_holds_up_no_other_tenant() -> None:
    begun, go_on = anyio.Event(), anyio.Event()

    class Slow(MemoryStore):
        async def history(self, run_id: str, *, tenant: str | None = None) -> list[Entry]:
            if tenant == "busy":
                begun.set()
                await go_on.wait()
            return await super().history(run_id, tenant=tenant)

    store = Slow()
    async with engine_of(Scripted(say("Tick."), say("Tock.")), store) as engine:
        for tenant in ("busy", "other"):
            await (await engine.start(order(id=f"resp_{tenant}", tenant=tenant))).wait()
    # Another engine remembers nothing of them.
    async with engine_of(Scripted(say("Still."), say("Still.")), store) as engine, anyio.create_task_group() as group:
        group.start_soon(engine.start, order(id="resp_1", tenant="busy", parent="resp_busy"))
        with anyio.fail_after(PATIENCE):
            await begun.wait()
            run = await (await engine.start(order(id="resp_2", tenant="other", parent="resp_other"))).wait()
            go_on.set()
    assert run.text == "Still."


async def test_an_unknown_parent_is_the_callers_fault_and_nothing_is_recorded() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(), store) as engine:
        with pytest.raises(InvalidRequest, match="resp_0") as caught:
            await engine.start(order(parent="resp_0"))
        assert caught.value.param == "previous_response_id"
        with pytest.raises(NotFound):
            await store.load("resp_1")


@pytest.mark.requirement("A15", "A24", "A25", "A35")
async def test_a_client_tool_pauses_the_run_and_the_next_request_brings_its_output() -> None:
    with Scripted(call("ask_user", q="?"), say("Thanks, 42.", expect="42")) as script:
        async with engine_of(script) as engine:
            paused = await (await engine.start(order())).wait()
            assert (paused.status, paused.reason) == ("requires_action", "client_action")
            [made] = [item for item in paused.output if isinstance(item, FunctionCall)]
            with pytest.raises(InvalidRequest, match=f"No tool output found for function call {made.call_id}"):
                await engine.start(order(id="resp_2", prompt="Never mind.", parent="resp_1"))
            with pytest.raises(InvalidRequest, match="No tool call found for function call output with call_id other"):
                await engine.start(order(id="resp_2", prompt=[FunctionCallOutput("other", "x")], parent="resp_1"))
            answer = order(id="resp_2", prompt=[FunctionCallOutput(made.call_id, "42")], parent="resp_1")
            assert (await (await engine.start(answer)).wait()).text == "Thanks, 42."


class AsksFirst:
    name = "asks_first"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Ask("May I search?") if call.item.name == "search" else Allow()


@pytest.mark.parametrize("approve", [True, False])
async def test_a_call_that_needs_approval_runs_only_after_a_yes(approve: bool) -> None:
    hands = searcher()
    expected = "found hats" if approve else "A person refused this call: too dear"
    with Scripted(call("search", q="hats"), say("Done.", expect=expected)) as script:
        async with engine_of(script, hands=hands, policies=[AsksFirst()]) as engine:
            paused = await (await engine.start(order())).wait()
            assert (paused.status, paused.reason, hands.done) == ("requires_action", "approval_needed", [])
            [waits] = [item for item in paused.output if type(item).__name__ == "ApprovalRequest"]
            answer = ApprovalResponse(getattr(waits, "id", ""), approve, "too dear")
            run = await (await engine.start(order(id="resp_2", prompt=[answer], parent="resp_1"))).wait()
    assert run.text == "Done."
    assert len(hands.done) == approve


async def test_an_approval_counts_once() -> None:
    hands = searcher()
    script = Scripted(
        call("search", q="hats"), say("Done."), call("search", q="hats"), new_id=lambda prefix: f"{prefix}_same{len(hands.done)}"
    )
    async with engine_of(script, hands=hands, policies=[AsksFirst()]) as engine:
        paused = await (await engine.start(order())).wait()
        [waits] = [item for item in paused.output if type(item).__name__ == "ApprovalRequest"]
        answer = ApprovalResponse(getattr(waits, "id", ""), approve=True)
        run = await (await engine.start(order(id="resp_2", prompt=[answer], parent="resp_1"))).wait()
        assert (run.text, len(hands.done)) == ("Done.", 1)
        with pytest.raises(InvalidRequest, match="given already"):
            await engine.start(order(id="resp_3", prompt=[answer], parent="resp_1"))
        # A run that had begun would be on its way to the store by then, and would be resumed one day.
        await asyncio.sleep(4 * DELAY)
        with pytest.raises(NotFound):
            await engine.attach("resp_3")


async def test_an_approval_of_one_call_is_none_for_a_later_one_with_the_same_id() -> None:
    hands = searcher()
    script = Scripted(call("search", q="hats"), call("search", q="EVIL"), new_id=lambda prefix: f"{prefix}_same")
    async with engine_of(script, hands=hands, policies=[AsksFirst()]) as engine:
        paused = await (await engine.start(order())).wait()
        [waits] = [item for item in paused.output if type(item).__name__ == "ApprovalRequest"]
        answer = ApprovalResponse(getattr(waits, "id", ""), approve=True)
        run = await (await engine.start(order(id="resp_2", prompt=[answer], parent="resp_1"))).wait()
    assert (run.status, run.reason) == ("requires_action", "approval_needed")
    assert hands.done == [("search", {"q": "hats"})]


async def test_one_id_starts_one_run_and_two_who_resume_get_the_same() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(say("One."), say("Two.")), store) as engine:
        await (await engine.start(order(id="resp_0"))).wait()
        twice = [engine.start(order(parent="resp_0")), engine.start(order(parent="resp_0"))]
        first, second = await asyncio.gather(*twice, return_exceptions=True)
        assert isinstance(second, InvalidRequest)
        assert not isinstance(first, BaseException)
        assert (await first.wait()).text == "Two."
    await store.append("resp_9", [Recorded(0, 1.0, RunStarted(order(id="resp_9")))])
    async with engine_of(Scripted(say("Three.")), store) as engine:
        one, other = await asyncio.gather(engine.resume("resp_9"), engine.resume("resp_9"))
        assert one is other
        assert (await one.wait()).text == "Three."


async def test_a_run_can_be_read_after_the_one_it_continues_was_deleted() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(call("ask_user"), say("Thanks."), say("Bye.")), store) as engine:
        paused = await (await engine.start(order())).wait()
        [made] = [item for item in paused.output if isinstance(item, FunctionCall)]
        given = [FunctionCallOutput(made.call_id, "42")]
        await (await engine.start(order(id="resp_2", prompt=given, parent="resp_1"))).wait()
        await engine.forget("resp_1")
    async with engine_of(Scripted(), store) as engine:
        assert (await engine.attach("resp_2")).run.text == "Thanks."


async def test_what_was_deleted_is_told_to_no_model_by_those_that_continue_it() -> None:
    provider = Scripted(say("One."), say("Two."), say("Else."), say("More."))
    async with engine_of(provider, MemoryStore()) as engine:
        for id, parent, tenant in (("resp_1", None, ""), ("resp_2", "resp_1", ""), ("resp_3", None, "acme")):
            await (await engine.start(order(id=id, parent=parent, tenant=tenant))).wait()
        await engine.forget("resp_1")
        with pytest.raises(PreviousNotFound):
            await engine.start(order(id="resp_4", parent="resp_2"))
        other = await (await engine.start(order(id="resp_5", parent="resp_3", tenant="acme"))).wait()
        assert other.text == "More."


async def test_a_sink_that_hangs_or_misbehaves_does_not_keep_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mainspring.engine.engine.SINK_SECONDS", 0.02)

    async def hangs(run: Run, event: Event) -> None:
        await anyio.sleep_forever()

    async def exits(run: Run, event: Event) -> None:
        raise SystemExit

    async def stray(run: Run, event: Event) -> None:
        raise asyncio.CancelledError

    with anyio.fail_after(PATIENCE):
        async with Engine(Scripted(say("abc")), MemoryStore(), sinks=[hangs, exits, stray]) as engine:
            assert (await (await engine.start(order())).wait()).text == "abc"


async def test_the_last_policy_in_a_row_of_yeses_is_still_asked() -> None:
    class Never:
        name = "never"

        async def judge(self, call: Call, run: Run) -> Verdict:
            return Deny("no searching")

    with Scripted(call("search", q="hats"), say("Pity.", expect="no searching")) as script:
        hands = searcher()
        async with engine_of(script, hands=hands, policies=[AsksNobody(), Never()]) as engine:
            run = await (await engine.start(order())).wait()
    assert run.text == "Pity."
    assert hands.done == []


class AsksNobody:
    name = "asks_nobody"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return Allow()


class Raises:
    name = "raises"

    async def judge(self, call: Call, run: Run) -> Verdict:
        raise KeyError("oops")


class Dawdles:
    name = "dawdles"

    async def judge(self, call: Call, run: Run) -> Verdict:
        await anyio.sleep_forever()
        return Allow()


class Babbles:
    name = "babbles"

    async def judge(self, call: Call, run: Run) -> Verdict:
        return "sure"  # type: ignore[return-value]


@pytest.mark.parametrize("policy", [Raises(), Dawdles(), Babbles()])
async def test_a_policy_that_raises_dawdles_or_babbles_denies(policy: CallPolicy) -> None:
    hands = searcher()
    with Scripted(call("search", q="hats"), say("Pity.", expect="The policy ")) as script:
        async with engine_of(script, hands=hands, policies=[policy]) as engine:
            engine._gate._seconds = 0.01
            await (await engine.start(order())).wait()
    assert hands.done == []


@pytest.mark.requirement("C-T8")
async def test_a_denied_call_is_answered_and_the_model_goes_on() -> None:
    with Scripted(call("rm"), call("search", q=3), call("search", "[1]"), say("I give up.")) as script:
        async with engine_of(script) as engine:
            run = await (await engine.start(order(max_errors_in_row=None))).wait()
    outputs = [item for item in run.output if isinstance(item, FunctionCallOutput)]
    assert [item.is_error for item in outputs] == [True, True, True]
    assert outputs[0].output == "There is no tool `rm`. Available: search, ask_user."
    assert "q: 3 is not of type" in str(outputs[1].output)
    assert "must be a JSON object" in str(outputs[2].output)


async def test_cancelling_stops_the_model_keeps_what_was_said_and_says_so() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(cut(turn(say="Half of", stall=True), after=4)), store) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if isinstance(record.event, TextDelta) and record.event.delta == "f":
                break
        run = await handle.cancel()
    assert (run.status, run.reason) == ("cancelled", "cancelled")
    [said] = run.output
    assert isinstance(said, Message)
    assert (said.text, said.status) == ("Half", "incomplete")
    assert (await store.load("resp_1")).status == "cancelled"
    assert await run_after(store, "resp_1") == run


async def run_after(store: MemoryStore, run_id: str) -> Run:
    async with engine_of(Scripted(), store) as engine:
        return (await engine.attach(run_id)).run


async def test_a_run_out_of_time_ends_incomplete_with_what_it_has() -> None:
    async with engine_of(Scripted(cut(turn(say="Slow", stall=True), after=2))) as engine:
        run = await (await engine.start(order(max_seconds=0.05))).wait()
    assert (run.status, run.reason) == ("incomplete", "deadline")
    assert [item.text for item in run.output if isinstance(item, Message)] == ["Sl"]


async def test_a_model_that_does_not_finish_its_turn_in_time_fails_it() -> None:
    async with engine_of(Scripted(stall(), say("Here I am."))) as engine:
        run = await (await engine.start(order(turn_seconds=0.02, retry_model_errors=True))).wait()
    assert run.text == "Here I am."
    async with engine_of(Scripted(stall())) as engine:
        run = await (await engine.start(order(turn_seconds=0.02))).wait()
    assert (run.status, run.reason) == ("failed", "provider_error")
    assert run.error is not None
    assert "0.02 s" in run.error.message


async def test_a_provider_failure_in_a_later_turn_keeps_the_items_so_far() -> None:
    async with engine_of(Scripted(call("search", q="hats"), fail(Unavailable("the backend is down")))) as engine:
        run = await (await engine.start(order())).wait()
    assert (run.status, run.reason) == ("failed", "provider_error")
    assert run.error is not None
    assert (run.error.code, run.error.message) == ("provider_unavailable", "the backend is down")
    assert [type(item).__name__ for item in run.output] == ["FunctionCall", "FunctionCallOutput"]


async def test_leaving_the_engine_leaves_the_run_for_the_next_one() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(cut(turn(say="Half of it", stall=True), after=4)), store) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if isinstance(record.event, TextDelta) and record.event.delta == "f":
                break
    with pytest.raises(Interrupted, match="can be resumed"):
        await handle.wait()
    assert list(await store.list_unfinished()) == ["resp_1"]
    async with engine_of(Scripted(say("All of it.")), store) as engine:
        with pytest.raises(Interrupted, match="resume it"):
            async for _ in (await engine.attach("resp_1")).events():
                pass
        [again] = await engine.resume_all()
        run = await again.wait()
    assert (run.status, run.text, run.turns) == ("completed", "All of it.", 1)
    assert any(isinstance(record.event, TurnAborted) for record in await store.events("resp_1"))


async def test_an_unfinished_run_that_nobody_drives_can_be_cancelled() -> None:
    store = MemoryStore()
    await store.append("resp_1", [Recorded(0, 1.0, RunStarted(order()))])
    async with engine_of(Scripted(), store) as engine:
        run = await engine.cancel("resp_1")
    assert run.status == "cancelled"
    assert list(await store.list_unfinished()) == []


async def test_the_second_of_two_drivers_stops_without_writing() -> None:
    store = MemoryStore()
    script = Scripted(cut(turn(say="one two three", stall=True), after=3))
    async with engine_of(script, store) as first, engine_of(Scripted(say("Mine now.")), store) as second:
        old = await first.start(order())
        async for record in old.events():
            if isinstance(record.event, TextDelta):
                break
        await old.journal.flush()
        new = await second.resume("resp_1")
        assert (await new.wait()).text == "Mine now."
        with pytest.raises(Superseded):
            await old.cancel()
    log = await store.events("resp_1")
    assert [record.seq for record in log] == list(range(len(log)))
    assert sum(isinstance(record.event, RunEnded) for record in log) == 1


class Full(MemoryStore):
    """A store whose disk is full from some event on, until there is room again."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> "asyncio.Future[None]":
        if records[-1].seq < self.after:
            return super().append(run_id, records, snapshot, notes)
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(StoreError("the disk is full; free space and resume the run"))
        return refused


@pytest.mark.parametrize("background", [False, True])
async def test_a_store_that_fails_fails_the_run_and_no_tool_runs_unrecorded(background: bool) -> None:
    store, hands = Full(after=4), searcher()
    await store.append("resp_0", [Recorded(0, 1.0, RunStarted(order(id="resp_0")))])
    async with engine_of(Scripted(call("search", q="hats"), say("Hm.")), store, hands) as engine:
        handle = await engine.start(order(background=background))
        seen = [record async for record in handle.events()]
        run = await handle.wait()
        assert (run.status, run.reason) == ("failed", "internal_error")
        assert run.error is not None
        assert "disk is full" in run.error.message
        assert isinstance(seen[-1].event, RunEnded)
        assert hands.done == []
        stored = await store.events("resp_1") if "resp_1" in await store.list_unfinished() or background else []
        assert stored == seen[: len(stored)]
        assert len(await store.events("resp_0")) == 1, "the store can be read all the same"
    store.after = 10_000
    if not stored:
        return
    async with engine_of(Scripted(call("search", q="hats"), say("Hm.")), store, hands) as engine:
        later = await (await engine.resume("resp_1")).wait()
    if stored == seen:
        assert later.status == "failed", "the store had room for the failed end, so that is what happened"
    else:
        assert (later.status, later.text) == ("completed", "Hm."), "the store never heard of the end, so the run goes on"


async def test_a_run_that_is_not_to_be_stored_leaves_no_trace() -> None:
    store = MemoryStore()
    async with engine_of(Scripted(say("Psst.")), store) as engine:
        assert (await (await engine.start(order(store=False))).wait()).text == "Psst."
        with pytest.raises(NotFound):
            await store.load("resp_1")
        with pytest.raises(InvalidRequest):
            await engine.start(order(id="resp_2", parent="resp_1"))


class Slow(MemoryStore):
    """A store that becomes durable only when a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    def append(
        self, run_id: str, records: Sequence[Recorded], snapshot: Snapshot | None = None, notes: Sequence[Note] = ()
    ) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        written = super().append(run_id, records, snapshot, notes)

        async def later() -> None:
            await self.gate.wait()
            done.set_exception(error) if (error := written.exception()) else done.set_result(None)

        self.task = loop.create_task(later())
        return done


async def test_a_background_run_shows_nothing_before_it_is_durable() -> None:
    store = Slow()
    store.gate.set()
    async with engine_of(Scripted(say("abc", pause=0)), store) as engine:
        handle = await engine.start(order(background=True))
        store.gate.clear()
        reader = handle.batches()
        shown = await anext(reader)
        assert [type(record.event) for record in shown] == [RunStarted]
        while "abc" not in handle.run.text:  # noqa: ASYNC110  nothing is shown yet that one could wait for
            await asyncio.sleep(0)
        assert handle.journal.shown == 1, "all was said, and none of it shown"
        store.gate.set()
        assert (await handle.wait()).text == "abc"


async def test_the_end_of_any_run_is_durable_before_it_is_shown() -> None:
    store = Slow()
    async with engine_of(Scripted(say("abc")), store) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if isinstance(record.event, RunEnded):
                assert store.gate.is_set(), "the end was shown before it was durable"
            if type(record.event).__name__ == "TurnEnded":
                asyncio.get_running_loop().call_later(0.01, store.gate.set)


async def test_stopping_the_engine_while_a_start_is_being_written_neither_runs_the_tool_nor_loses_it() -> None:
    store, hands = Slow(), searcher()
    script = Scripted(call("search", q="hats"), say("Ok."))
    async with engine_of(script, store, hands) as engine:
        handle = await engine.start(order())
        async for record in handle.events():
            if isinstance(record.event, ToolStarted):
                break
        asyncio.get_running_loop().call_later(0.01, store.gate.set)
    with pytest.raises(Interrupted):
        await handle.wait()
    assert hands.done == []
    assert isinstance((await store.events("resp_1"))[-1].event, ToolStarted)


async def test_a_sink_that_fails_or_lags_never_holds_a_run_up(caplog: pytest.LogCaptureFixture) -> None:
    told: list[Event] = []

    async def lags(run: Run, event: Event) -> None:
        await anyio.sleep(0.001)
        told.append(event)

    async def fails(run: Run, event: Event) -> None:
        raise ConnectionError("nobody listens")

    executors = [searcher()]
    engine = Engine(
        Scripted(say("abc")), MemoryStore(), policies=order_policies(fill_standard_slots(executors)), sinks=[lags, fails]
    )
    async with engine:
        run = await (await engine.start(order())).wait()
        assert len(told) < run.seq
    assert run.status == "completed"
    assert len(told) == run.seq
    assert len([line for line in caplog.records if line.levelname == "ERROR"]) == 1


async def test_an_engine_that_is_not_entered_says_so() -> None:
    with pytest.raises(Interrupted, match="async with"):
        await engine_of(Scripted()).start(order())


async def test_many_runs_at_once_keep_apart() -> None:
    script = Scripted(*[say(f"You are number {n}.", when=f"number {n}!") for n in range(30)], new_id=counting())
    async with engine_of(script) as engine:
        handles = [await engine.start(order(id=f"resp_{n}", prompt=f"I am number {n}!")) for n in range(30)]
        assert [(await handle.wait()).text for handle in handles] == [f"You are number {n}." for n in range(30)]


async def test_tool_events_carry_the_call_they_belong_to() -> None:
    async with engine_of(Scripted(calls(call("search", q="a"), call("search", q="b")), say("Ok."))) as engine:
        handle = await engine.start(order())
        log = [record.event async for record in handle.events()]
    started = [event.call_id for event in log if isinstance(event, ToolStarted)]
    ended = [event.call_id for event in log if isinstance(event, ToolEnded)]
    assert sorted(started) == sorted(ended)
    assert len(set(started)) == 2
