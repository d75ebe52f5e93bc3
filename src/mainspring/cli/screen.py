"""A run as people watch it: `Screen` draws the events of a log, live or long after, in the same way.

Every line begins with a mark that says what it is, so the picture needs no colours: the prompt, a thought, a call, what it
returned, the engine's own words. What is drawn depends on the events and the width alone; only `tick` knows of time, and it
leaves no trace.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from msgspec import Struct

from mainspring.cli.console import ConsoleWriter, TextFlow, fit_line, format_call, format_count, format_duration
from mainspring.cli.output import LEAST_ROOM, clean, spell_out
from mainspring.core import events
from mainspring.core.drafts import item_id, words
from mainspring.core.items import (
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    Item,
    Message,
    Part,
    Reasoning,
    Refusal,
    Unknown,
    text_of,
)
from mainspring.core.run import Run

PROMPT_LINES = 12
OUTPUT_LINES = 4
ERROR_LINES = 12
RULE = 60
LABEL = 60

STATUSES = {"completed": "bold green", "failed": "bold red"}


class TextStyle(Struct, frozen=True):
    """How one kind of text looks."""

    gutter: str
    style: str


TEXT = TextStyle("  ", "")
THOUGHT = TextStyle("┊ ", "dim italic")
REFUSAL = TextStyle("! ", "yellow")


class Screen:
    """Draws on standard output, with ids of calls if it `shows_ids`. Raises `BrokenPipeError` when nobody reads it any more."""

    def __init__(self, *, shows_ids: bool = False) -> None:
        self._writer = ConsoleWriter()
        self._shows_ids = shows_ids
        self._order = ItemSequencer()
        self._turns = 0
        self._calls: dict[str, FunctionCall] = {}
        self._running: dict[str, str] = {}
        self._doing: str | None = None
        self._calls_of_turn = 0
        self._flow: TextFlow | None = None
        self._speaker: tuple[str, TextStyle] = ("", TEXT)
        self._heard: set[str] = set()

    def begin(self, waiting: Sequence[FunctionCall]) -> None:
        """To be called first, with the calls of earlier runs that the run answers: they have names, too."""
        self._calls |= {call.call_id: call for call in waiting}
        self._calls_of_turn = len(waiting)

    def draw(self, records: Sequence[events.Recorded]) -> None:
        """Draws events that happened together, in one write."""
        with self._writer:
            for record in records:
                for event in self._order.after(record.event):
                    self._draw(event)

    def tick(self) -> None:
        """Shows that something is under way while nothing is said; to be called a few times per second."""
        if self._doing is not None and self._flow is None:
            self._writer.status(self._doing)

    def end(self, run: Run) -> None:
        """The summary, on one line."""
        numbers = {"turn": run.turns, "tool call": run.calls_allowed, "token": run.usage.total_tokens}
        counts = [format_count(number, noun) for noun, number in numbers.items()]
        reason = f" ({run.reason})" if run.reason != run.status else ""
        rest = f"{reason} · {' · '.join(counts)} · {format_duration(run.elapsed)} · {run.spec.id}"
        flow = self._writer.flow("")
        with self._writer:
            self._writer.put("\n")
            self._writer.put(flow.add(run.status) + flow.rest(), STATUSES.get(run.status, "bold yellow"))
            self._writer.put(flow.add(rest) + flow.end(), "dim")

    def _draw(self, event: events.Event) -> None:
        match event:
            case events.TextDelta(item, delta):
                self._say(item, TEXT, delta)
            case events.ReasoningDelta(item, delta):
                self._say(item, THOUGHT, delta)
            case events.RefusalDelta(item, delta):
                self._say(item, REFUSAL, delta)
            case events.ItemDone(item):
                self._draw_done(item)
            case events.ItemStarted(FunctionCall(name=name)):
                self._doing = f"calling {fit_line(name, 64)}"
            case events.ItemStarted() | events.ArgumentsDelta() | events.Annotated():
                pass
            case events.CallJudged():
                self._draw_verdict(event)
            case events.ToolStarted() | events.ToolProgress() | events.ToolEnded():
                self._draw_tool(event)
            case (
                events.RunStarted()
                | events.RunResumed()
                | events.TurnStarted()
                | events.TurnEnded()
                | events.TurnAborted()
                | events.Nudged()
                | events.ToolWithheld()
                | events.RunEnded()
            ):
                self._draw_progress(event)
            case events.Compacted():
                self._end_line()
                self._writer.put("\n… the earlier conversation was summed up\n" if event.item else "\n✗ no summary\n", "magenta")
            case _:
                assert_never(event)

    def _say(self, item: str, voice: TextStyle, piece: str) -> None:
        if self._flow is None or self._speaker != (item, voice):
            self._end_line()
            self._speaker, self._flow = (item, voice), self._writer.flow(voice.gutter)
        self._heard.add(item)
        self._writer.put(self._flow.add(clean(piece)), voice.style)

    def _draw_done(self, item: Item) -> None:
        if (said := item_id(item)) not in self._heard:
            for voice, text in _read_spoken(item):
                self._say(said, voice, text)
        self._end_line()
        match item:
            case FunctionCall():
                self._calls[item.call_id] = item
                self._calls_of_turn += 1
                self._writer.put("→ ", "bold cyan")
                self._writer.put(format_call(item.name, item.arguments, self._writer.width - 2) + "\n")
                if self._shows_ids:
                    self._writer.put(f"  {fit_line(item.call_id, self._writer.width - 2)}\n", "dim")
            case Unknown(data):
                self._writer.put(f"  ({fit_line(str(data.get('type')), 60)})\n", "dim")
            case _:
                pass

    def _end_line(self) -> None:
        if self._flow is not None:
            self._writer.put(self._flow.end(), self._speaker[1].style)
            self._flow = None

    def _draw_verdict(self, event: events.CallJudged) -> None:
        name = self._name_call(event.call_id)
        match event.verdict:
            case "allow":
                return
            case "deny":
                self._writer.block("✗ ", f"{name}: {event.reason}", "red", ERROR_LINES)
            case "ask":
                self._writer.block("? ", f"{name} waits for a person to agree: {spell_out(event.reason)}", "yellow", ERROR_LINES)
            case "client":
                self._writer.put(f"… {name} is left to the caller\n", "yellow")
            case _:
                assert_never(event.verdict)

    def _draw_tool(self, event: events.ToolStarted | events.ToolProgress | events.ToolEnded) -> None:
        name = self._name_call(event.call_id)
        match event:
            case events.ToolStarted(call_id):
                self._running[call_id] = name
            case events.ToolProgress(text=text):
                self._writer.put(f"  {name}: {fit_line(text, max(self._writer.width - len(name) - 4, LEAST_ROOM))}\n", "dim")
            case events.ToolEnded(call_id):
                self._running.pop(call_id, None)
                self._draw_result(event)
        self._doing = f"running {', '.join(self._running.values())}" if self._running else None

    def _draw_result(self, event: events.ToolEnded) -> None:
        """What a call returned; where several were made at once, it says which."""
        is_reused = event.outcome == "reused"
        call, took = self._calls.get(event.call_id), "not run again" if is_reused else format_duration(event.seconds)
        has_failed = not event.is_error and (event.data or {}).get("exit_code") not in (None, 0)
        mark, colour, style = ("✗ ", "red", "red") if event.is_error or has_failed else ("✓ ", "green", "dim")
        self._writer.put(mark, f"bold {colour}")
        if call is not None and self._calls_of_turn > 1:
            self._writer.put(format_call(call.name, call.arguments, min(LABEL, self._writer.width - len(took) - 4)))
            self._writer.put(f"  {took}\n  ", "dim")
            took = ""
        told = _describe_output(event.output)
        # What a program that failed said last is why; of a traceback it is the error.
        self._writer.text(last_line(told) if has_failed else told, style, OUTPUT_LINES, took)

    def _draw_progress(
        self,
        event: events.RunStarted
        | events.RunResumed
        | events.TurnStarted
        | events.TurnEnded
        | events.TurnAborted
        | events.Nudged
        | events.ToolWithheld
        | events.RunEnded,
    ) -> None:
        """The run itself goes a step further; nobody is speaking."""
        self._end_line()
        self._doing = None
        if isinstance(event, events.TurnEnded):
            for adaptation in event.adaptations or ():
                self._writer.block("~ ", str(adaptation), "dim", ERROR_LINES)
        match event:
            case events.RunStarted(spec):
                for item in spec.input:
                    self._writer.block("» ", _describe_input(item), "bold", PROMPT_LINES)
            case events.TurnStarted():
                self._turns += 1
                self._calls_of_turn = 0
                self._doing = "waiting for the model"
                self._writer.put(f"\n{f'── turn {self._turns} ':─<{min(RULE, self._writer.width)}}\n", "dim")
            case events.TurnEnded(error=events.ErrorInfo(message=message)):
                self._writer.block("✗ ", f"the model failed: {message}", "red", ERROR_LINES)
            case events.TurnAborted():
                self._turns -= 1
                self._writer.put("✗ the turn was cut off\n", "red")
            case events.Nudged(text=text):
                self._writer.put("\n")
                self._writer.block("? ", text, "magenta", ERROR_LINES)
            case events.ToolWithheld(name, reason):
                self._writer.block("✗ ", f"{name} is withheld for the rest of this run. {reason}", "red", ERROR_LINES)
            case events.RunResumed():
                self._writer.put("\n… taken up again\n", "magenta")
            case events.TurnEnded() | events.RunEnded():
                pass
            case _:
                assert_never(event)

    def _name_call(self, call_id: str) -> str:
        call = self._calls.get(call_id)
        return fit_line(call.name if call is not None else call_id, 64)


class ItemSequencer:
    """Puts items that were said at the same time behind one another: while one speaks, what belongs to others waits."""

    def __init__(self) -> None:
        self._speaker: str | None = None
        self._waiting: list[events.Event] = []

    def after(self, event: events.Event) -> Iterator[events.Event]:
        """What may be shown now that this has happened."""
        match event:
            case events.TextDelta(item) | events.ReasoningDelta(item) | events.RefusalDelta(item):
                yield from self._sequence(event, item)
            case events.ItemDone(item):
                yield from self._sequence(event, item_id(item))
            case events.ItemStarted() | events.ArgumentsDelta() | events.Annotated():
                yield event
            case _:
                while self._waiting:
                    yield from self._release()
                self._speaker = None
                yield event

    def _sequence(self, event: events.Event, item: str) -> Iterator[events.Event]:
        if self._speaker not in (None, item):
            self._waiting.append(event)
            return
        self._speaker = item
        yield event
        if isinstance(event, events.ItemDone):
            yield from self._release()

    def _release(self) -> Iterator[events.Event]:
        self._speaker = None
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            yield from self.after(event)


def _read_spoken(item: Item) -> Iterator[tuple[TextStyle, str]]:
    """The words of an item that came without deltas."""
    match item:
        case Message():
            for part, text in zip(item.content, words(item), strict=True):
                yield (REFUSAL if isinstance(part, Refusal) else TEXT), text
        case Reasoning():
            yield THOUGHT, "\n".join(words(item))
        case _:
            pass


def _describe_input(item: Item) -> str:
    match item:
        case Message(text=text) if text:
            return text
        case FunctionCallOutput():
            return _describe_output(item.output)
        case ApprovalResponse():
            return f"{'yes' if item.approve else 'no'}{f': {item.reason}' if item.reason else ''}"
        case Unknown(data):
            return f"({data.get('type')})"
        case _:
            return f"({type(item).__name__})"


def _describe_output(output: str | tuple[Part, ...]) -> str:
    images = 0 if isinstance(output, str) else len([part for part in output if isinstance(part, InputImage)])
    text = text_of(output) or ("" if images else "(nothing)" if not output else "(no text)")
    return "\n".join([*([f"[{format_count(images, 'image')}]"] if images else []), *([text] if text else [])])


def last_line(text: str) -> str:
    """The last line that says something, but for what we add to it in brackets."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("[")]
    return lines[-1] if lines else text
