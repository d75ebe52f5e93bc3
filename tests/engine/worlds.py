"""Random worlds for the engine's laws: a script for the model, tools of every temper, limits, and a policy with opinions."""

import asyncio
from collections.abc import Sequence

from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import ContextOverflow, DelegateToClient, RateLimited, Unavailable
from mainspring.core.events import Annotated, Event, ItemDone, ItemStarted, ReasoningDelta, RefusalDelta, TextDelta
from mainspring.core.ids import NewId, counting
from mainspring.core.items import Json, Message, Reasoning, ToolDefinition, ToolKind, user
from mainspring.core.run import Call, Run
from mainspring.core.spec import PresetName, RunSpec, ToolChoice, spec_for
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.tool_policies import fill_standard_slots
from mainspring.ports import Allow, Ask, CallContext, Deny, Store, ToolCall, ToolResult, Verdict
from mainspring.providers.scripted import Call as Made
from mainspring.providers.scripted import Scripted, Turn, cut, empty, fail, malformed, refuse, say, turn

SERVER_TOOLS = ("good", "again", "slow", "crash", "exit", "nonsense", "denied", "policy_bug", "approval", "defer")
ALL_TOOLS = (*SERVER_TOOLS, "client")


class World(Struct, frozen=True):
    """Everything a run depends on, so that the same world can be played twice."""

    turns: tuple[Turn, ...]
    options: Json
    preset: PresetName = "responses"

    def spec(self, new_id: NewId) -> RunSpec:
        tools = tuple([definition(name) for name in ALL_TOOLS])
        return spec_for(
            self.preset,
            id=new_id("resp"),
            model="scripted",
            input=(user("Begin.", id=new_id("msg")),),
            tools=tools,
            **self.options,
        )

    def model(self, new_id: NewId) -> Scripted:
        """The script, and after it one plain answer for as long as somebody asks."""
        turns = [_with_own_ids(turn, number) for number, turn in enumerate(self.turns)]
        return Scripted(*turns, *[say("That is all.")] * 40, new_id=new_id, chunk=3, pause=0)


def _with_own_ids(turn: Turn, number: int) -> Turn:
    """Ready-made events carry ready-made ids; a run never sees one twice."""

    def own(event: object) -> object:
        match event:
            case ItemStarted(Message() | Reasoning() as item) | ItemDone(Message() | Reasoning() as item):
                return type(event)(replace(item, id=f"{item.id}_{number}"))
            case TextDelta() | ReasoningDelta() | RefusalDelta() | Annotated():
                return replace(event, item_id=f"{event.item_id}_{number}")
            case _:
                return event

    return turn if turn.events is None else replace(turn, events=tuple([own(event) for event in turn.events]))


def definition(name: str) -> ToolDefinition:
    kind: ToolKind = "function" if name == "client" else "builtin"
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    return ToolDefinition(
        name, parameters=schema, kind=kind, repeatable=name == "again", timeout=0.02 if name == "slow" else None
    )


class Hands:
    """The executor: performs every server tool, and remembers what it has begun and what it has finished."""

    kind: ToolKind = "builtin"

    def __init__(self, store: Store | None = None) -> None:
        self.begun: list[str] = []
        self.finished: list[str] = []
        self.unwritten: list[str] = []
        self._store = store

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.name in SERVER_TOOLS

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        self.begun.append(call.id)
        if self._store is not None:
            await self._look_up(self._store, call, context)
        for _ in range(int(call.parsed.get("n", 0)) % 4):
            await asyncio.sleep(0)
        match call.name:
            case "slow":
                await asyncio.sleep(60)
            case "crash":
                raise RuntimeError("boom")
            case "exit":
                raise SystemExit(3)
            case "nonsense":
                return "not a result"  # type: ignore[return-value]
            case "defer":
                raise DelegateToClient("the client knows better")
        context.progress("nearly there")
        self.finished.append(call.id)
        return ToolResult(call.id, f"{call.name} {call.arguments}")

    async def _look_up(self, store: Store, call: ToolCall, context: CallContext) -> None:
        log = await store.events(context.run_id)
        if not any(
            getattr(record.event, "call_id", None) == call.id and "Started" in type(record.event).__name__ for record in log
        ):
            self.unwritten.append(call.id)


class Opinions:
    """A policy that denies, asks, or breaks, by the name of the tool."""

    name = "opinions"

    async def judge(self, call: Call, run: Run) -> Verdict:
        match call.item.name:
            case "denied":
                return Deny("not on a Sunday")
            case "approval":
                return Ask("may I?")
            case "policy_bug":
                raise ZeroDivisionError
            case _:
                return Allow()


class Witness:
    """A sink that remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[int, Event]] = []

    async def __call__(self, run: Run, event: Event) -> None:
        self.told.append((run.seq - 1, event))


def engine_for(
    world: World, store: Store, *, new_id: NewId | None = None, hands: Hands | None = None, sinks: Sequence[Witness] = ()
) -> Engine:
    executors = [hands or Hands()]
    policies = order_policies(fill_standard_slots(executors), {"custom": [Opinions()]})
    return Engine(world.model(new_id or counting()), store, executors=executors, policies=policies, sinks=sinks)


_calls = st.builds(
    Made,
    st.sampled_from([*ALL_TOOLS, "good", "good", "again", "unheard_of"]),
    st.sampled_from(["", "{}", '{"n": 1}', '{"n": 2}', '{"n": 3}', '{"n": "x"}', '{"n": ', "[1]"]),
)
_turns = st.one_of(
    st.builds(say, st.text(max_size=12)),
    st.builds(
        lambda text, made: turn(say=text, calls=made), st.text(max_size=6) | st.none(), st.lists(_calls, min_size=1, max_size=4)
    ),
    st.builds(lambda text, made: turn(think=text, calls=made), st.text(max_size=6), st.lists(_calls, min_size=1, max_size=3)),
    st.builds(lambda made: turn(calls=[made]), _calls),
    st.builds(lambda made: turn(calls=[made], finish="length"), _calls),
    st.builds(lambda text: say(text, finish="length"), st.text(max_size=6)),
    st.just(say("hm", finish="content_filter")),
    st.just(refuse("I would rather not.")),
    st.just(empty()),
    st.sampled_from([fail(Unavailable("down")), fail(RateLimited("slow down")), fail(ContextOverflow("too long"))]),
    st.builds(lambda made, after: cut(turn(say="well,", calls=[made]), after=after), _calls, st.integers(0, 4)),
    st.sampled_from([malformed("unknown_item"), malformed("changed_text"), malformed("no_end"), malformed("not_an_event")]),
)
_small = st.none() | st.integers(1, 4)
_choices = st.one_of(
    st.just(ToolChoice()),
    st.just(ToolChoice("none")),
    st.just(ToolChoice("required")),
    st.just(ToolChoice("required", name="good")),
    st.builds(lambda mode: ToolChoice(mode, allowed=("good", "client")), st.sampled_from(["auto", "required", "none"])),
)
_options = st.fixed_dictionaries(
    {"max_turns": st.integers(1, 6)},
    optional={
        "max_tool_calls": _small,
        "max_tool_calls_per_turn": _small,
        "max_errors_in_row": _small,
        "max_repeats": _small,
        "max_tokens": st.none() | st.integers(1, 200),
        "concurrency": _small,
        "tool_choice": _choices,
        "parallel_tool_calls": st.booleans(),
        "background": st.booleans(),
        "confirm": st.sampled_from([None, "Really?"]),
        "confirm_once": st.booleans(),
        "close": st.sampled_from([None, "Last words, please."]),
        "retry_model_errors": st.booleans(),
    },
)
worlds = st.builds(
    World, st.lists(_turns, max_size=6).map(tuple), _options, st.sampled_from(["responses", "responses", "iterative", "decision"])
)
