"""A run as people watch it: `Screen` draws the events of a log, live or long after, in the same way.

Every line begins with a mark that says what it is, so the picture needs no colours: the prompt, a thought, a call, what it
returned, the engine's own words. What is drawn depends on the events and the width alone; only `tick` knows of time, and it
leaves no trace.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from mainspring.cli.console import Ink
from mainspring.cli.output import clean
from mainspring.cli.text import Flow, call_line, count, duration, on_one_line
from mainspring.core.drafts import item_id, words
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    CallJudged,
    Compacted,
    ErrorInfo,
    Event,
    ItemDone,
    ItemStarted,
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
    TurnEnded,
    TurnStarted,
)
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Part, Reasoning, Refusal, Unknown, text_of
from mainspring.core.run import Run

PROMPT_LINES = 12
OUTPUT_LINES = 4
ERROR_LINES = 12
RULE = 60
LABEL = 60

STATUSES = {"completed": "bold green", "failed": "bold red"}


class Voice(Struct, frozen=True):
    """How one kind of text looks."""

    gutter: str
    style: str


TEXT = Voice("  ", "")
THOUGHT = Voice("┊ ", "dim italic")
REFUSAL = Voice("! ", "yellow")


class Screen:
    """Draws on standard output. Raises `BrokenPipeError` when nobody reads it any more."""

    def __init__(self) -> None:
        self._ink = Ink()
        self._order = OneByOne()
        self._turns = 0
        self._calls: dict[str, FunctionCall] = {}
        self._running: dict[str, str] = {}
        self._doing: str | None = None
        self._calls_of_turn = 0
        self._flow: Flow | None = None
        self._speaker: tuple[str, Voice] = ("", TEXT)
        self._heard: set[str] = set()

    def draw(self, records: Sequence[Recorded]) -> None:
        """Draws events that happened together, in one write."""
        with self._ink:
            for record in records:
                for event in self._order.after(record.event):
                    self._draw(event)

    def tick(self) -> None:
        """Shows that something is under way while nothing is said; to be called a few times per second."""
        if self._doing is not None and self._flow is None:
            self._ink.status(self._doing)

    def end(self, run: Run) -> None:
        """The summary, on one line."""
        counts = [count(run.turns, "turn"), count(run.calls_allowed, "tool call"), count(run.usage.total_tokens, "token")]
        reason = f" ({run.reason})" if run.reason != run.status else ""
        rest = f"{reason} · {' · '.join(counts)} · {duration(run.elapsed)} · {run.spec.id}"
        flow = self._ink.flow("")
        with self._ink:
            self._ink.put("\n")
            self._ink.put(flow.add(run.status) + flow.rest(), STATUSES.get(run.status, "bold yellow"))
            self._ink.put(flow.add(rest) + flow.end(), "dim")

    def _draw(self, event: Event) -> None:
        match event:
            case TextDelta(item, delta):
                self._say(item, TEXT, delta)
            case ReasoningDelta(item, delta):
                self._say(item, THOUGHT, delta)
            case RefusalDelta(item, delta):
                self._say(item, REFUSAL, delta)
            case ItemDone(item):
                self._done(item)
            case ItemStarted(FunctionCall(name=name)):
                self._doing = f"calling {on_one_line(name, 64)}"
            case ItemStarted() | ArgumentsDelta() | Annotated():
                pass
            case CallJudged():
                self._judged(event)
            case ToolStarted() | ToolProgress() | ToolEnded():
                self._worked(event)
            case RunStarted() | RunResumed() | TurnStarted() | TurnEnded() | TurnAborted() | Nudged() | RunEnded():
                self._moved_on(event)
            case Compacted():
                self._end_line()
                self._ink.put("\n… the earlier conversation was summed up\n" if event.item else "\n✗ no summary\n", "magenta")
            case _:
                assert_never(event)

    def _say(self, item: str, voice: Voice, piece: str) -> None:
        if self._flow is None or self._speaker != (item, voice):
            self._end_line()
            self._speaker, self._flow = (item, voice), self._ink.flow(voice.gutter)
        self._heard.add(item)
        self._ink.put(self._flow.add(clean(piece)), voice.style)

    def _done(self, item: Item) -> None:
        if (said := item_id(item)) not in self._heard:
            for voice, text in _spoken(item):
                self._say(said, voice, text)
        self._end_line()
        match item:
            case FunctionCall():
                self._calls[item.call_id] = item
                self._calls_of_turn += 1
                self._ink.put("→ ", "bold cyan")
                self._ink.put(call_line(item.name, item.arguments, self._ink.width - 2) + "\n")
            case Unknown(data):
                self._ink.put(f"  ({on_one_line(str(data.get('type')), 60)})\n", "dim")
            case _:
                pass

    def _end_line(self) -> None:
        if self._flow is not None:
            self._ink.put(self._flow.end(), self._speaker[1].style)
            self._flow = None

    def _judged(self, event: CallJudged) -> None:
        name = self._name(event.call_id)
        match event.verdict:
            case "allow":
                return
            case "deny":
                self._ink.block("✗ ", f"{name}: {event.reason}", "red", ERROR_LINES)
            case "ask":
                self._ink.block("? ", f"{name} waits for a person to agree: {event.reason}", "yellow", ERROR_LINES)
            case "client":
                self._ink.put(f"… {name} is left to the caller\n", "yellow")
            case _:
                assert_never(event.verdict)

    def _worked(self, event: ToolStarted | ToolProgress | ToolEnded) -> None:
        name = self._name(event.call_id)
        match event:
            case ToolStarted(call_id):
                self._running[call_id] = name
            case ToolProgress(text=text):
                self._ink.put(f"  {name}: {on_one_line(text, self._ink.width)}\n", "dim")
            case ToolEnded(call_id):
                self._running.pop(call_id, None)
                self._returned(event)
        self._doing = f"running {', '.join(self._running.values())}" if self._running else None

    def _returned(self, event: ToolEnded) -> None:
        """What a call returned; where several were made at once, it says which."""
        call, took = self._calls.get(event.call_id), duration(event.seconds)
        mark, colour, style = ("✗ ", "red", "red") if event.is_error else ("✓ ", "green", "dim")
        self._ink.put(mark, f"bold {colour}")
        if call is not None and self._calls_of_turn > 1:
            self._ink.put(call_line(call.name, call.arguments, LABEL))
            self._ink.put(f"  {took}\n  ", "dim")
            took = ""
        self._ink.text(_shown(event.output), style, OUTPUT_LINES, took)

    def _moved_on(self, event: RunStarted | RunResumed | TurnStarted | TurnEnded | TurnAborted | Nudged | RunEnded) -> None:
        """The run itself goes a step further; nobody is speaking."""
        self._end_line()
        self._doing = None
        match event:
            case RunStarted(spec):
                for item in spec.input:
                    self._ink.block("» ", _given(item), "bold", PROMPT_LINES)
            case TurnStarted():
                self._turns += 1
                self._calls_of_turn = 0
                self._doing = "waiting for the model"
                self._ink.put(f"\n{f'── turn {self._turns} ':─<{min(RULE, self._ink.width)}}\n", "dim")
            case TurnEnded(error=ErrorInfo(message=message)):
                self._ink.block("✗ ", f"the model failed: {message}", "red", ERROR_LINES)
            case TurnAborted():
                self._turns -= 1
                self._ink.put("✗ the turn was cut off\n", "red")
            case Nudged(text=text):
                self._ink.put("\n")
                self._ink.block("? ", text, "magenta", ERROR_LINES)
            case RunResumed():
                self._ink.put("\n… taken up again\n", "magenta")
            case TurnEnded() | RunEnded():
                pass
            case _:
                assert_never(event)

    def _name(self, call_id: str) -> str:
        call = self._calls.get(call_id)
        return on_one_line(call.name if call is not None else call_id, 64)


class OneByOne:
    """Puts items that were said at the same time behind one another: while one speaks, what belongs to others waits."""

    def __init__(self) -> None:
        self._speaker: str | None = None
        self._waiting: list[Event] = []

    def after(self, event: Event) -> Iterator[Event]:
        """What may be shown now that this has happened."""
        match event:
            case TextDelta(item) | ReasoningDelta(item) | RefusalDelta(item):
                yield from self._of_item(event, item)
            case ItemDone(item):
                yield from self._of_item(event, item_id(item))
            case ItemStarted() | ArgumentsDelta() | Annotated():
                yield event
            case _:
                while self._waiting:
                    yield from self._released()
                self._speaker = None
                yield event

    def _of_item(self, event: Event, item: str) -> Iterator[Event]:
        if self._speaker not in (None, item):
            self._waiting.append(event)
            return
        self._speaker = item
        yield event
        if isinstance(event, ItemDone):
            yield from self._released()

    def _released(self) -> Iterator[Event]:
        self._speaker = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            yield from self.after(event)


def _spoken(item: Item) -> Iterator[tuple[Voice, str]]:
    """The words of an item that came without deltas."""
    match item:
        case Message():
            for part, text in zip(item.content, words(item), strict=True):
                yield (REFUSAL if isinstance(part, Refusal) else TEXT), text
        case Reasoning():
            yield THOUGHT, "\n".join(words(item))
        case _:
            pass


def _given(item: Item) -> str:
    """An item of the input, in words."""
    match item:
        case Message(text=text) if text:
            return text
        case FunctionCallOutput():
            return _shown(item.output)
        case Unknown(data):
            return f"({data.get('type')})"
        case _:
            return f"({type(item).__name__})"


def _shown(output: str | tuple[Part, ...]) -> str:
    return text_of(output) or ("(nothing)" if not output else "(no text)")
