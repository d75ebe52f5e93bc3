"""What the model is asked: `request_for(run)`."""

from collections.abc import Iterator, Sequence
from typing import Final, overload

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.allowance import room
from mainspring.core.chain import Chain
from mainspring.core.compaction import apply_compaction
from mainspring.core.history import Entry, pair_outputs
from mainspring.core.items import (
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Tool,
    ToolDefinition,
    Unknown,
)  # fmt: skip
from mainspring.core.prefix import Prefix, find_prefix, list_seen
from mainspring.core.rules import tools_off
from mainspring.core.run import Run
from mainspring.core.spec import TURN_BYTES, StepCall, ToolChoice, Window
from mainspring.core.tokens import estimate, tokens_of
from mainspring.core.truncation import drop_oldest

MOST_ITEMS: Final = 512
"""Calls, messages and thoughts that a model may have in one turn."""


class Items(Sequence[Item]):
    """The items of a transcript that the model may see, picked out when they are first read."""

    __slots__ = ("_entries", "_items")

    def __init__(self, entries: Chain[Entry]) -> None:
        self._entries = entries
        self._items: tuple[Item, ...] | None = None

    def _read(self) -> tuple[Item, ...]:
        if self._items is None:
            prefix = self.prefix
            shown = apply_compaction(pair_outputs(list_seen(self._entries)).items) if prefix is None else prefix.items
            self._items = tuple(shown)
        return self._items

    @property
    def prefix(self) -> Prefix | None:
        """All of them with what is kept beside them, None if nothing can be."""
        return find_prefix(self._entries)

    def __len__(self) -> int:
        return len(self._read())

    def __iter__(self) -> Iterator[Item]:
        return iter(self._read())

    @overload
    def __getitem__(self, index: int) -> Item: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Item]: ...
    def __getitem__(self, index: int | slice) -> Item | Sequence[Item]:
        return self._read()[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return f"Items({self._read()!r})"


class ModelRequest(Struct, frozen=True):
    """One turn, as every provider is asked for it. `turn` counts from 1; a turn that failed is asked again under its number.

    `tools` are those that the model may call, by names that every backend takes; `declared` are all of them, if that
    is more, for backends that know namespaces and deferred tools. `tenant` is whose run it is: no backend is told, but those who
    share one wait for it in a fair line. One that is not `is_patient` is not asked again after a rate limit. One with a
    `step_call` is for no model: that call is made. `max_bytes` is what a backend may send, whatever it means.
    """

    run_id: str
    model: str
    items: Sequence[Item]
    turn: int = 1
    instructions: str | None = None
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    max_output_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: Json | None = None
    reasoning: Json | None = None
    extra: Json | None = None
    tenant: str = ""
    is_patient: bool = True
    step_call: StepCall | None = None
    top_logprobs: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    cache_ttl: str | None = None
    declared: tuple[Tool, ...] = ()
    max_bytes: int | None = TURN_BYTES

    @property
    def all_tools(self) -> tuple[Tool, ...]:
        """The tools as their client has declared them."""
        return self.declared or self.tools


def request_for(run: Run) -> ModelRequest:
    """The request for the run's next turn. Every call in it is answered, every output in it has its call."""
    spec, window = run.spec, run.spec.window
    items, tools = _fitted(run) if window.truncation == "auto" else _shown(run), run.tools
    return ModelRequest(
        run_id=spec.id,
        model=spec.model,
        items=items,
        turn=run.answered + 1,
        instructions=spec.instructions,
        tools=tools,
        declared=() if tools is spec.tools else spec.tools,
        tool_choice=_choice(run),
        parallel_tool_calls=spec.parallel_tool_calls,
        max_output_tokens=_tokens_left(run, items),
        temperature=spec.sampling.temperature,
        top_p=spec.sampling.top_p,
        text=spec.sampling.text,
        reasoning=spec.sampling.reasoning,
        extra=spec.sampling.extra,
        step_call=spec.step_call,
        top_logprobs=spec.sampling.top_logprobs,
        max_bytes=spec.limits.turn_bytes,
        presence_penalty=spec.sampling.presence_penalty,
        frequency_penalty=spec.sampling.frequency_penalty,
        stop=spec.sampling.stop,
        seed=spec.sampling.seed,
        cache_ttl=spec.sampling.cache_ttl,
        tenant=spec.tenant,
    )


def _choice(run: Run) -> ToolChoice:
    """A forced or required choice holds until the model has answered once; then it would keep the run from ever ending. A call
    that was returned to it is no answer."""
    choice = run.spec.tool_choice
    if tools_off(run):
        return ToolChoice("none")
    if (choice.mode == "required" or choice.name) and run.answered > len(run.returned):
        choice = ToolChoice("auto", allowed=choice.allowed)
    return _without_withheld(choice, run) if run.withheld else choice


def _without_withheld(choice: ToolChoice, run: Run) -> ToolChoice:
    """The choice without the tools that are withheld. What is still allowed is named; the model goes on seeing all of them."""
    if choice.allowed is None and any(isinstance(tool, Unknown) for tool in run.spec.tools):
        return choice  # tools of the backend's own have no names here; calls of those that are withheld are denied
    names = [tool.name for tool in run.spec.tools if isinstance(tool, ToolDefinition)]
    left = [name for name in choice.allowed or names if name not in run.withheld]
    return replace(choice, allowed=tuple(left)) if left else ToolChoice("none")


def _tokens_left(run: Run, items: Sequence[Item]) -> int | None:
    limits, used = run.spec.limits, run.usage
    bounds = [
        bound
        for bound in (
            run.spec.sampling.max_turn_tokens,
            limits.max_output_tokens and limits.max_output_tokens - used.output_tokens,
            limits.max_tokens and limits.max_tokens - used.total_tokens,
            room(run, items),
        )
        if bound is not None
    ]
    return min(bounds) if bounds else None


def _fitted(run: Run) -> Sequence[Item]:
    """What the model sees, without the oldest items if it is known or was learned that not all of it fits."""
    items, room = _shown(run), run.spec.window.context_tokens
    bounds = [] if room is None else [room - estimate((), run.spec.instructions, run.tools)]
    if run.overflows:
        bounds.append(tokens_of(items) >> run.overflows)
    return drop_oldest(items, min(bounds)) if bounds else items


def _shown(run: Run) -> Sequence[Item]:
    window = run.spec.window
    if window.max_messages is None and window.max_chars is None:
        return Items(run.transcript)
    return _windowed(run, window)


def _windowed(run: Run, window: Window) -> tuple[Item, ...]:
    """The last items of the history, shortened, and everything since. A call and its output stay or go together, and a call
    that the history left open, with what follows it, always stays: this run is about it."""
    earlier, recent = list_seen(run.transcript[: run.inherited]), list_seen(run.transcript[run.inherited :])
    if window.max_messages is not None:
        waiting = pair_outputs(earlier).unanswered
        cut = max(0, len(earlier) - window.max_messages)
        opened = next((place for place, item in enumerate(earlier) if item in waiting), cut)
        earlier = earlier[min(cut, opened) :]
    return tuple([_shortened(item, window) for item in apply_compaction(pair_outputs([*earlier, *recent]).items)])


def _shortened(item: Item, window: Window) -> Item:
    if window.max_chars is None or not isinstance(item, Message):
        return item
    return replace(item, content=tuple([_cut(part, window.max_chars) for part in item.content]))


def _cut(part: Part, max_chars: int) -> Part:
    match part:
        case InputText(text) if len(text) > max_chars:
            return InputText(text[:max_chars])
        case OutputText(text) if len(text) > max_chars:
            return replace(part, text=text[:max_chars])
        case _:
            return part
