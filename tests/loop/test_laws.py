"""The laws of the loop, over random stories: any turns, verdicts and results, crashes and cancels at any event."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace
from tests.loop.world import Failed, Made, Said, Story, Turn, order, says, used

from mainspring.core.actions import CallModel, Finish
from mainspring.core.decide import closing, next_action, recovery
from mainspring.core.errors import InvalidRequest
from mainspring.core.events import (
    CallJudged,
    ErrorInfo,
    Event,
    Judgement,
    Reason,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolEnded,
    ToolStarted,
    TurnStarted,
)  # fmt: skip
from mainspring.core.history import history_of
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Unknown,
    decode,
    encode,
    user,
)  # fmt: skip
from mainspring.core.model_request import request_for
from mainspring.core.reasons import decision, incomplete_reason, termination
from mainspring.core.response import response
from mainspring.core.run import Run, history_after, replay
from mainspring.core.spec import RunSpec, ToolChoice, Window
from mainspring.core.stored_log import decode_log, encode_log


def few(most: int) -> st.SearchStrategy[int | None]:
    return st.none() | st.integers(1, most)


ARGUMENTS = st.sampled_from(["{}", '{"a":1,"b":2}', '{"b":2,"a":1}', '{"a"', ""])
NAMES = st.sampled_from(["look", "save", "ping", "choose", "unheard_of"])
MADE = st.builds(Made, NAMES, ARGUMENTS, is_half=st.sampled_from([False, False, False, True]))
SOMETIMES = st.sampled_from([False, False, True])
SAID = st.builds(Said, st.sampled_from(["a", "hello there"]), is_half=st.booleans(), is_refusal=SOMETIMES)
GONE, BUSY = ErrorInfo("provider_unavailable", "gone", True), ErrorInfo("rate_limit_exceeded", "busy", True)
ERROR = st.sampled_from([None, None, None, None, None, GONE, BUSY, ErrorInfo("x", "no")])
TURN = st.builds(
    Turn,
    st.lists(MADE | MADE | SAID, max_size=4).map(tuple),
    finish=st.sampled_from(["stop", "stop", "stop", "stop", "length", "content_filter"]),
    usage=st.none() | st.builds(used, st.integers(0, 9), st.integers(0, 9)),
    error=ERROR,
    is_cut=st.sampled_from([False, False, False, False, True]),
    seconds=st.sampled_from([0.0, 0.0, 1.0]),
)
VERDICT: st.SearchStrategy[Judgement | CallJudged | None] = st.sampled_from(
    [None, None, None, "allow", "deny", "ask", "client", CallJudged("", "deny", "budget", "too dear", Reason.BUDGET)]
)
RESULT = st.sampled_from(["ok", "fine", Failed("broken"), Failed("bad luck")])
FORCED, NARROW = ToolChoice("required", name="look"), ToolChoice("auto", allowed=("look", "save"))
CHOICE = st.sampled_from([ToolChoice(), ToolChoice(), ToolChoice("required"), ToolChoice("none"), FORCED, NARROW])
SPEC: st.SearchStrategy[RunSpec] = st.builds(
    order,
    max_turns=few(6),
    max_tool_calls=few(5),
    max_tool_calls_per_turn=few(3),
    max_tokens=st.none() | st.integers(5, 60),
    max_output_tokens=st.none() | st.integers(5, 60),
    max_seconds=st.none() | st.floats(0.5, 6),
    max_errors_in_row=few(3),
    max_repeats=few(3),
    concurrency=few(2),
    confirm=st.none() | st.just("sure?"),
    close=st.none() | st.just("wrap up"),
    retry_model_errors=st.booleans(),
    parallel_tool_calls=st.booleans(),
    tool_choice=CHOICE,
    window=st.just(Window()) | st.builds(Window, st.none() | st.integers(0, 4), few(3)),
)


class Break(Struct, frozen=True):
    """Somebody cancels, or the driver dies, right after event number `at`."""

    at: int
    is_cancel: bool


class Plan(Struct, frozen=True):
    """Everything about a conversation that is not up to the loop."""

    spec: RunSpec
    turns: tuple[Turn, ...]
    verdicts: tuple[Judgement | CallJudged | None, ...]
    results: tuple[str | Failed, ...]
    breaks: tuple[Break, ...]
    is_backwards: bool
    is_approving: bool
    speaks_up: bool


PLAN = st.builds(
    Plan,
    SPEC,
    st.lists(TURN, max_size=8).map(tuple),
    st.lists(VERDICT, min_size=1, max_size=8).map(tuple),
    st.lists(RESULT, min_size=1, max_size=8).map(tuple),
    st.lists(st.builds(Break, st.integers(0, 30), is_cancel=SOMETIMES), max_size=3).map(tuple),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)


class Broken(Exception):
    def __init__(self, at: Break) -> None:
        self.at = at


class Watched(Story):
    """A story that lives through its plan's breaks and checks what must hold after every event."""

    plan: Plan
    breaks: list[Break]
    judged = 0
    ended_tools = 0
    is_replayed = True

    def apply(self, *events: Event) -> Run:
        for happened in events:
            super().apply(happened)
            self.check()
            for at in self.breaks:
                if len(self.log) > at.at and not self.run.has_ended:
                    self.breaks.remove(at)
                    raise Broken(at)
        return self.run

    def check(self) -> None:
        if self.is_replayed:
            assert self.run == replay(self.log, self.history)
        assert self.run.seq == len(self.log)
        next_action(self.run)
        response(self.run)

    def verdict(self, call_id: str) -> CallJudged:
        self.gate = {call_id: verdict} if (verdict := self.plan.verdicts[self.judged % len(self.plan.verdicts)]) else {}
        self.judged += 1
        return super().verdict(call_id)

    def result(self, call_id: str) -> ToolEnded:
        self.tools = {call_id: self.plan.results[self.ended_tools % len(self.plan.results)]}
        self.ended_tools += 1
        return super().result(call_id)

    def live(self, script: list[Turn]) -> None:
        """Plays to the end, whatever happens. When the script is used up, the model says it is done."""
        broken: Break | None = None
        for _ in range(200):
            if self.run.has_ended:
                return
            try:
                if broken:
                    at, broken = broken, None
                    self.mend(at)
                    continue
                action = next_action(self.run)
                if isinstance(action, CallModel):
                    check_request(self.run)
                    script = script or [says("done")]
                self.perform(action, script)
            except Broken as caught:
                broken = caught.at
        raise AssertionError(f"the run never ends: {self.actions[-5:]}")

    def mend(self, at: Break) -> None:
        if at.is_cancel:
            self.breaks.clear()
            self.apply(*closing(self.run, Finish("cancelled", Reason.CANCELLED)))
            assert self.end == ("cancelled", Reason.CANCELLED)
        else:
            self.now += 100.0
            self.apply(*recovery(self.run))


def check_request(run: Run) -> None:
    """Law 5, and no turn is asked for beyond a limit (law 3)."""
    request, limits = request_for(run), run.spec.limits
    check_pairs(request.items)
    assert request.max_output_tokens is None or request.max_output_tokens > 0
    assert limits.max_turns is None or run.turns < limits.max_turns + (run.closing is not None)
    assert not any(isinstance(item, ApprovalRequest | ApprovalResponse) for item in request.items)


def check_pairs(items: Sequence[Item]) -> None:
    """Every call has its one output, outputs are in call order, and nothing but the model's words stands between."""
    waiting: list[str] = []
    for item in items:
        match item:
            case FunctionCall():
                assert item.status == "completed"
                waiting.append(item.call_id)
            case FunctionCallOutput():
                assert waiting.pop(0) == item.call_id
            case Message(role="assistant"):
                pass
            case _:
                assert waiting == []
    assert waiting == []


def check_log(story: Watched, answered_before: set[str]) -> None:
    events = [record.event for record in story.log]
    kinds = [type(happened) for happened in events]
    assert kinds.count(RunStarted) == kinds.count(RunEnded) == 1
    assert (kinds[0], kinds[-1]) == (RunStarted, RunEnded)
    allowed: set[str] = set()
    started: set[str] = set()
    ended: set[str] = set(answered_before)
    for happened in events:
        match happened:
            case CallJudged(call_id, "allow"):
                allowed.add(call_id)
            case ToolStarted(call_id):
                assert call_id in allowed
                assert call_id not in started
                assert call_id not in ended
                started.add(call_id)
            case ToolEnded(call_id):
                assert call_id not in ended
                ended.add(call_id)
            case RunResumed():
                started.clear()
            case _:
                pass
    check_limits(story)
    if story.run.spec.tool_choice.mode == "none":
        assert story.executed == []
    assert decode_log(encode_log(story.log)) == story.log


def check_limits(story: Watched) -> None:
    run, limits = story.run, story.run.spec.limits
    assert limits.max_tool_calls is None or run.calls_allowed <= limits.max_tool_calls
    assert limits.max_turns is None or run.turns <= limits.max_turns + (run.closing is not None)
    turn = 0
    for record in story.log:
        if isinstance(record.event, TurnStarted):
            turn = 0
        elif isinstance(record.event, CallJudged) and record.event.verdict == "allow":
            turn += 1
            assert limits.max_tool_calls_per_turn is None or turn <= limits.max_tool_calls_per_turn


def check_end(run: Run) -> None:
    """Law 6, and every call has exactly one answer, in the output too."""
    assert (run.status == "requires_action") == bool(run.calls)
    assert all(call.verdict in ("ask", "client") and call.output is None for call in run.calls)
    asked = any(call.verdict == "ask" for call in run.calls)
    assert (run.reason is Reason.APPROVAL_NEEDED) == asked
    assert (run.reason is Reason.CLIENT_ACTION) == (bool(run.calls) and not asked)
    made = [item.call_id for item in run.output if isinstance(item, FunctionCall) and item.status == "completed"]
    answered = [item.call_id for item in run.output if isinstance(item, FunctionCallOutput)]
    assert len(set(answered)) == len(answered)
    assert set(made) - set(answered) <= {call.item.call_id for call in run.calls}
    assert termination(run)
    assert decision(run)
    assert (incomplete_reason(run) is not None) == (run.status == "incomplete")


def continued(story: Watched, plan: Plan) -> tuple[Item, ...]:
    """What a client sends to continue a run that waits for it."""
    given: list[Item] = [user("by the way")] if plan.speaks_up else []
    for call in story.run.calls:
        if call.verdict == "ask":
            given.append(ApprovalResponse(f"mcpr_{call.item.id.removeprefix('fc_')}", plan.is_approving))
        else:
            given.append(FunctionCallOutput(call.item.call_id, "mine"))
    return tuple(given[::-1] if plan.is_backwards else given) or (user("go on"),)


def _backwards(call_ids: Sequence[str]) -> Sequence[str]:
    return call_ids[::-1]


def begin(plan: Plan, spec: RunSpec, earlier: Story | None = None) -> Watched:
    history, number = (history_after(earlier.run), earlier.number) if earlier else (None, None)
    story = Watched(spec, history, completion=_backwards if plan.is_backwards else tuple, number=number)
    story.plan = plan
    story.breaks = list(plan.breaks) if earlier is None else []
    return story


@pytest.mark.requirement("A19", "A30", "C59")
@given(PLAN)
def test_every_story_keeps_the_laws(plan: Plan) -> None:
    story, script, answered = begin(plan, plan.spec), list(plan.turns), set[str]()
    for number in range(4):
        story.live(script)
        check_log(story, answered)
        check_end(story.run)
        event(story.end[0])
        stored = list(story.history.entries) + list(story.run.own_entries)
        given = continued(story, plan)
        spec = order(id=f"run_{number + 2}", input=given, parent=story.run.spec.id)
        assert same_request(spec, stored, story)
        answered |= {item.call_id for item in given if isinstance(item, FunctionCallOutput)}
        story = begin(plan, spec, story)


def same_request(spec: RunSpec, stored: list[Any], story: Story) -> bool:
    """What the model sees of a conversation does not depend on whether it was kept in memory or stored."""
    live, loaded = Story(spec, history_after(story.run)), Story(spec, history_of(stored))
    return [call.item for call in live.run.calls] == [call.item for call in loaded.run.calls] and list(
        request_for(live.run).items
    ) == list(request_for(loaded.run).items)


@given(PLAN)
def test_client_that_keeps_the_history_itself_may_send_any_output_back(plan: Plan) -> None:
    story = begin(plan, plan.spec)
    story.live(list(plan.turns))
    given = continued(story, plan)
    if any(call.verdict == "ask" for call in story.run.open_calls):
        # A call that only the client vouches for cannot be freed by the client's own approval.
        with pytest.raises(InvalidRequest, match="No tool output found"):
            Story(order(input=(*plan.spec.input, *story.run.output, *given)))
        return
    again = Story(order(input=(*plan.spec.input, *story.run.output, *given)))
    again.play(*([says("done")] if not again.run.calls else []))
    if again.requests:
        check_pairs(again.requests[0].items)


RICH = Plan(
    spec=order(confirm="sure?", retry_model_errors=True, concurrency=2),
    turns=(
        Turn((Said("let me see"), Made("look"), Made("ping"), Made("save"), Made("unheard_of"))),
        Turn((Said("hm", is_half=True),), error=GONE),
        Turn((Made("look", '{"a":1}'),)),
        says("done"),
        says("yes"),
    ),
    verdicts=(None,),
    results=("ok",),
    breaks=(),
    is_backwards=True,
    is_approving=True,
    speaks_up=False,
)


def rich_story(*breaks: Break) -> Watched:
    story = begin(replace(RICH, breaks=breaks), RICH.spec)
    story.is_replayed = False
    story.live(list(RICH.turns))
    assert story.run == replay(story.log, story.history)
    check_log(story, set())
    check_end(story.run)
    return story


def test_cancel_at_any_event_ends_cancelled_and_keeps_what_was_said() -> None:
    whole = rich_story()
    for at in range(len(whole.log) - 1):
        story = rich_story(Break(at, is_cancel=True))
        assert story.end == ("cancelled", Reason.CANCELLED)
        assert [type(item) for item in made(story)] == [type(item) for item in made(whole)[: len(made(story))]]


def test_crash_at_any_event_is_survived_and_no_finished_tool_runs_again() -> None:
    for at in range(len(rich_story().log) - 1):
        story = rich_story(Break(at, is_cancel=False))
        assert story.end == ("completed", Reason.FINAL_ANSWER)
        assert story.run.text in ("done", "yes")
        assert story.run.idle == 100.0


def made(story: Story) -> list[Item]:
    return [item for item in story.run.output if not isinstance(item, FunctionCallOutput)]


WIRE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)


@given(st.dictionaries(st.text(max_size=5), WIRE, max_size=4))
def test_item_of_an_unknown_kind_leaves_exactly_as_it_came(data: dict[str, Any]) -> None:
    data["type"] = "from_the_future"
    assert decode(encode(Unknown(data)), Item) == Unknown(data)


@given(SPEC)
def test_spec_survives_storage(spec: RunSpec) -> None:
    assert decode(encode(spec), RunSpec) == spec
