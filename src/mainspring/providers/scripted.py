"""A model that says what a script tells it: for tests, for demos, and for `--model scripted:FILE`.

    script = Scripted(
        turn(think="I need the weather.", calls=[call("weather", city="Paris")], expect="Paris"),
        say("Sunny, take a hat.", expect=re.compile(r"\\[output\\] sunny")),
    )

Theory of operation. A `Turn` is what is said, how it ends (well, by failing, by stalling), and what must hold before. Turns are
played in order by one cursor, whichever run asks. A fresh script that is first asked for turn n of a run begins with its n-th
turn, so a process that takes a run over plays on where the last one was. Turns with a `when` stand outside that order: they
answer whoever's last user text contains it, so that one script serves many runs at once.

A script complains by `ScriptError`, which is a failed assertion and no `ProviderError`. An engine may turn it into a failed run
like any defect of a provider, so the script remembers it: `assert_done`, or leaving `with script:`, raises it again.
"""

import re
from collections.abc import AsyncGenerator, Iterator, Sequence
from copy import copy
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from anyio import sleep, sleep_forever
from msgspec.structs import replace

from mainspring.core import events, items
from mainspring.core.drafts import words
from mainspring.core.errors import ProviderError, Unavailable
from mainspring.core.events import ModelEvent
from mainspring.core.ids import NewId, random_id
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.script import (
    Call,
    Expectation,
    Fault,
    Turn,
    as_turn,
    call,
    calls,
    cut,
    empty,
    fail,
    malformed,
    raw,
    refuse,
    say,
    stall,
    think,
    turn,
)
from mainspring.providers.script_file import read_script


class ScriptError(AssertionError):
    """The script and the run do not agree: an unexpected prompt, too many questions, or too few."""


class Scripted:
    """Plays its turns, and keeps all it was asked in `requests`, unless it is from a file: then a server may play it for long.

    `chunk` is the number of characters per delta, 0 for all at once; `pause` is for turns without their own. With `repeat` the
    turns start over at the end. Turns that share a `when` are a conversation of their own: each run plays them from the first,
    and once through, the last one again and again.
    """

    name = "scripted"
    runs_in_place = True

    def __init__(
        self,
        *turns: Turn | Call,
        repeat: bool = False,
        new_id: NewId = random_id,
        chunk: int = 1,
        pause: float | None = None,
        keeps_requests: bool = True,
    ) -> None:
        if chunk < 0:
            raise ValueError("`chunk` cannot be negative; 0 means all at once")
        self.turns = tuple([as_turn(given) for given in turns])
        self.requests: list[ModelRequest] = []
        self._asked, self._keeps_requests = 0, keeps_requests
        self._repeat, self._new_id, self._chunk, self._pause = repeat, new_id, chunk, pause
        self._plain: list[int] = []
        self._conversations: dict[str, list[int]] = {}
        for index, given in enumerate(self.turns):
            (self._plain if given.when is None else self._conversations.setdefault(given.when, [])).append(index)
        self._cursor: int | None = None
        self._steps: dict[tuple[str, str], int] = {}
        self._runs: set[str] = set()
        self._played: set[int] = set()
        self._complaint: ScriptError | None = None

    @classmethod
    def from_file(cls, path: str | Path, *, new_id: NewId = random_id) -> Self:
        """The script in a JSON file. Raises `InvalidRequest` that names the file and everything wrong in it.

        The file is an object with `turns` and, if wanted, `repeat`, `chunk` and `pause`. A turn is an object with any of:

        - `think`, `say`, `refuse`: text;
        - `calls`: a list of `{"name": ..., "arguments": ...}`, the arguments an object, or a string to be sent as it is;
        - `finish`: `stop`, `length`, `content_filter` or `error`; `usage`: token counts such as `{"input_tokens": 9}`;
        - `fail`: `{"code": ..., "message": ..., "retry_after": ...}`, only the code being needed; `stall`: true;
        - `cut`: the number of deltas after which the turn breaks off; `malformed`: a way to break the protocol;
        - `pause`: seconds before each delta;
        - `expect`: text that must be in the prompt, or `{"regex": ...}`; `when`: text that picks requests for this turn.
        """
        script = read_script(Path(path))
        turns = [turn.build() for turn in script.turns]
        return cls(*turns, repeat=script.repeat, new_id=new_id, chunk=script.chunk, pause=script.pause, keeps_requests=False)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """The next turn. Raises `ScriptError` if there is none, or if its `expect` does not hold."""
        turn = self._next(request)
        pause = self._pause if turn.pause is None else turn.pause
        deltas = 0
        for event in self._play(turn) if turn.events is None else turn.events:
            if deltas == turn.cut:
                break
            if isinstance(event, events.Delta):
                deltas += 1
                if pause is not None:
                    await sleep(pause)
            yield cast(ModelEvent, event)
        if turn.stall:
            await sleep_forever()
        if turn.fail is not None:
            # Raising a copy keeps one traceback per failure.
            raise copy(turn.fail)
        if turn.cut is not None:
            raise Unavailable(f"the script cuts this turn after {deltas} deltas")
        if turn.events is None:
            yield events.TurnEnded(turn.finish, turn.usage or _estimate(turn, request))

    async def models(self) -> Sequence[ModelInfo]:
        return (ModelInfo(self.name, owned_by="mainspring"),)

    async def close(self) -> None:
        """Nothing to free; whether the script is done is `assert_done`'s question."""

    def assert_done(self) -> None:
        """Raises the first complaint again, or a `ScriptError` naming the turns that nobody asked for."""
        if self._complaint is not None:
            raise self._complaint
        if left := [index for index in range(len(self.turns)) if index not in self._played]:
            names = ", ".join([self._title(index) for index in left])
            raise ScriptError(f"the script is not done after {self._asked} requests; never asked for: {names}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.assert_done()
        elif self._complaint is not None and error is not self._complaint:
            error.add_note(f"the script had complained: {self._complaint}")

    def _next(self, request: ModelRequest) -> Turn:
        self._asked += 1
        if self._keeps_requests:
            self.requests.append(request)
        index = self._place(request)
        self._runs.add(request.run_id)
        self._played.add(index)
        turn = self.turns[index]
        if turn.expect is not None and (problem := _mismatch(turn.expect, request)):
            raise self._complain(f"{self._title(index)} {problem}; the prompt was:\n{_tail(prompt(request))}")
        return turn

    def _place(self, request: ModelRequest) -> int:
        """The index of the turn that answers this request."""
        asked = (item for item in reversed(request.items) if isinstance(item, items.Message) and item.role == "user")
        last = next(asked, None)
        for when in self._conversations:
            if last is not None and when in last.text:
                return self._step(request, when)
        if self._cursor is None:
            self._cursor = request.turn - 1 if self._asked == 1 else 0
            self._played.update(self._plain[: self._cursor])
        if self._repeat and self._plain:
            self._cursor %= len(self._plain)
        if self._cursor >= len(self._plain):
            raise self._complain(self._beyond(request))
        self._cursor += 1
        return self._plain[self._cursor - 1]

    def _step(self, request: ModelRequest, when: str) -> int:
        """The turn of the conversation `when` that this run has come to."""
        group = self._conversations[when]
        start = 0 if request.run_id in self._runs else request.turn - 1
        step = self._steps.get((request.run_id, when), start)
        self._steps[request.run_id, when] = step + 1
        self._played.update(group[:step])
        return group[min(step, len(group) - 1)]

    def _beyond(self, request: ModelRequest) -> str:
        count = len(self._plain)
        who = f"turn {request.turn} of run {request.run_id}"
        others = "; no `when` fits either" if count < len(self.turns) else ""
        came = _tail(_line(request.items[-1])) if request.items else "none"
        return f"the script has {count} turns; turn {(self._cursor or 0) + 1} was asked for, as {who}{others}; last input: {came}"

    def _complain(self, message: str) -> ScriptError:
        error = ScriptError(message)
        self._complaint = self._complaint or error
        return error

    def _title(self, index: int) -> str:
        return f"turn {index + 1} ({_summary(self.turns[index])})"

    def _play(self, turn: Turn) -> Iterator[ModelEvent]:
        said: list[items.Message | items.Reasoning | items.FunctionCall] = []
        if turn.think is not None:
            said.append(items.Reasoning(id=self._new_id("rs"), content=(items.ReasoningText(turn.think),)))
        parts: list[items.Part] = []
        if turn.say is not None:
            parts.append(items.OutputText(turn.say))
        if turn.refuse is not None:
            parts.append(items.Refusal(turn.refuse))
        if parts:
            said.append(items.Message("assistant", tuple(parts), id=self._new_id("msg")))
        for made in turn.calls:
            said.append(items.FunctionCall(self._new_id("call"), made.name, _text(made.arguments), id=self._new_id("fc")))
        if said and turn.finish in ("length", "content_filter"):
            said[-1] = replace(said[-1], status="incomplete")
        for item in said:
            yield from _stream_item(item, self._chunk)


def prompt(request: ModelRequest) -> str:
    """The request as `expect` reads it: a line per item, such as `[user] ...`, `[call weather] {...}` and `[output] ...`.

    Before them comes `[instructions] ...`; a callable `expect` sees the rest of the request.
    """
    lines = [_line(item) for item in request.items]
    return "\n".join(lines if request.instructions is None else [f"[instructions] {request.instructions}", *lines])


def _stream_item(item: items.Message | items.Reasoning | items.FunctionCall, chunk: int) -> Iterator[ModelEvent]:
    """The item as a backend streams it: its beginning, deltas of `chunk` characters, and all of it."""
    match item:
        case items.Reasoning():
            yield events.ItemStarted(items.Reasoning(id=item.id, status="in_progress"))
            for text in words(item):
                yield from [events.ReasoningDelta(item.id, piece) for piece in _pieces(text, chunk)]
        case items.Message():
            yield events.ItemStarted(items.Message("assistant", id=item.id, status="in_progress"))
            for index, part in enumerate(item.content):
                kind = events.RefusalDelta if isinstance(part, items.Refusal) else events.TextDelta
                yield from [kind(item.id, piece, index) for piece in _pieces(words(item)[index], chunk)]
        case items.FunctionCall():
            yield events.ItemStarted(replace(item, arguments="", status="in_progress"))
            yield from [events.ArgumentsDelta(item.id, piece) for piece in _pieces(item.arguments, chunk)]
    yield events.ItemDone(item)


def _pieces(text: str, chunk: int) -> list[str]:
    size = chunk or len(text) or 1
    return [text[at : at + size] for at in range(0, len(text), size)]


def _text(arguments: Json | str) -> str:
    return arguments if isinstance(arguments, str) else items.encode(arguments).decode()


def _estimate(turn: Turn, request: ModelRequest) -> items.Usage:
    """A count of words, so that totals and budgets mean something without a tokenizer."""
    thought = len((turn.think or "").split())
    answer = [turn.say or "", turn.refuse or "", *[f"{made.name} {_text(made.arguments)}" for made in turn.calls]]
    spoken = sum([len(text.split()) for text in answer])
    return items.Usage(max(len(prompt(request).split()), 1), max(thought + spoken, 1), reasoning_tokens=thought)


def _mismatch(expected: Expectation, request: ModelRequest) -> str | None:
    match expected:
        case str():
            return None if expected in prompt(request) else f"expects {expected!r}"
        case re.Pattern():
            return None if expected.search(prompt(request)) else f"expects a match of {expected.pattern!r}"
        case _:
            name = getattr(expected, "__name__", repr(expected))
            try:
                holds = expected(request)
            # Whatever a check raises, a failed assertion or a slip of its own, is a complaint to remember.
            except Exception as error:
                return f"expects `{name}` to hold, but it raised {type(error).__name__}: {error}"
            return None if holds is None or holds else f"expects `{name}` to hold"


def _line(item: items.Item) -> str:
    match item:
        case items.Message():
            parts = [
                part.text if isinstance(part, items.InputText | items.OutputText) else items.encode(part).decode()
                for part in item.content
            ]
            return f"[{item.role}] {''.join(parts)}"
        case items.FunctionCall():
            return f"[call {item.name}] {item.arguments}"
        case items.FunctionCallOutput():
            return f"[output] {items.text_of(item.output)}"
        case items.Reasoning():
            return f"[reasoning] {''.join(words(item))}"
        case _:
            return f"[other] {items.encode(item).decode()}"


def _tail(text: str, most: int = 2000) -> str:
    return text if len(text) <= most else f"... {text[-most:]}"


def _summary(turn: Turn) -> str:
    match turn:
        case Turn(events=tuple()):
            return "raw events"
        case Turn(say=str(text)) | Turn(refuse=str(text)):
            return f"say {text[:40]!r}"
        case Turn(calls=(_, *_)):
            return "call " + ", ".join([made.name for made in turn.calls])
        case Turn(think=str(text)):
            return f"think {text[:40]!r}"
        case Turn(fail=ProviderError() as error):
            return f"fail {error.code}"
        case Turn(stall=True):
            return "stall"
        case _:
            return "empty"


__all__ = [
    "Call", "Fault", "ScriptError", "Scripted", "Turn", "call", "calls", "cut", "empty", "fail", "malformed", "prompt", "raw",
    "refuse", "say", "stall", "think", "turn",
]  # fmt: skip
