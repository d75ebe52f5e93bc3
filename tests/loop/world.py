"""A driver for pure tests. A `Story` does what the loop asks for, from a script, and keeps the log.

Model turns, verdicts and tool results are data, so a test reads as script, run, expect. Ids are counted: the first call that
the model makes is `call_1` (item `fc_1`), its first message `msg_1`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core import actions
from mainspring.core.actions import Action
from mainspring.core.chain import Chain
from mainspring.core.decide import closing, next_action, recovery
from mainspring.core.events import (
    ArgumentsDelta,
    CallJudged,
    ErrorInfo,
    Event,
    Finish,
    ItemDone,
    ItemStarted,
    Judgement,
    Nudged,
    Reason,
    Recorded,
    RefusalDelta,
    RunStarted,
    Status,
    TextDelta,
    ToolEnded,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)
from mainspring.core.history import History
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    OutputText,
    Part,
    Reasoning,
    Refusal,
    ToolDefinition,
    Usage,
    text_of,
    user,
)
from mainspring.core.model_request import ModelRequest, request_for
from mainspring.core.rules import excess
from mainspring.core.run import Run, fold, history_after, open_run
from mainspring.core.spec import PresetName, RunSpec, spec_for

LOOK = ToolDefinition("look", kind="mcp")
SAVE = ToolDefinition("save", kind="sandbox")
PING = ToolDefinition("ping", kind="builtin", repeatable=True)
CHOOSE = ToolDefinition("choose", kind="function")
TOOLS = (LOOK, SAVE, PING, CHOOSE)


def order(preset: PresetName = "responses", **changes: Any) -> RunSpec:
    """A spec with three server tools (`look`, `save`, `ping`) and one of the client's (`choose`)."""
    changes = {"id": "run_1", "model": "m", "input": (user("go"),), "tools": TOOLS, **changes}
    return spec_for(preset, **changes)


class Made(Struct, frozen=True):
    """A call that the model makes. A half one never gets to its end."""

    name: str
    arguments: str = "{}"
    is_half: bool = False


class Said(Struct, frozen=True):
    """A message. A half one never gets to its end."""

    text: str
    is_half: bool = False
    is_refusal: bool = False


class Turn(Struct, frozen=True):
    """A turn of the model, as data; `seconds` pass before it ends. `is_cut` leaves it without an end of its own."""

    parts: tuple[Said | Made | Item, ...] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    error: ErrorInfo | None = None
    is_cut: bool = False
    seconds: float = 0.0


def says(text: str, **end: Any) -> Turn:
    return Turn((Said(text),), **end)


def refuses(text: str, **end: Any) -> Turn:
    return Turn((Said(text, is_refusal=True),), **end)


def calls(*made: str | Made, text: str = "", **end: Any) -> Turn:
    said = (Said(text),) if text else ()
    return Turn((*said, *[Made(call) if isinstance(call, str) else call for call in made]), **end)


def fails(*said: Said | Made, retryable: bool = False, code: str = "provider_unavailable", **end: Any) -> Turn:
    return Turn(said, finish="error", error=ErrorInfo(code, "it broke", retryable), **end)


def is_cut(*said: Said | Made) -> Turn:
    return Turn(said, is_cut=True)


def used(tokens_in: int, tokens_out: int) -> Usage:
    return Usage(tokens_in, tokens_out)


class Failed(Struct, frozen=True):
    text: str


Results = Mapping[str, str | Failed | tuple[Part, ...]]
End = tuple[Status, Reason | None]


class Story:
    """One run and everything that happened in it.

    `gate` and `tools` are keyed by call id or tool name. Without an entry, a tool of kind `function` goes to the client, a
    call that a person approved is allowed, one that was refused is denied, an unknown tool is denied, and a tool answers `ok`.
    """

    def __init__(
        self,
        spec: RunSpec,
        history: History | None = None,
        *,
        gate: Mapping[str, Judgement | CallJudged] | None = None,
        tools: Results | None = None,
        completion: Callable[[Sequence[str]], Iterable[str]] = tuple,
        number: Callable[[str], int] | None = None,
    ) -> None:
        self.history = history or History()
        self.gate = gate or {}
        self.tools = tools or {}
        self.completion = completion
        self.number = number or _counter()
        self.now = 1000.0
        self.actions: list[Action] = []
        self.requests: list[ModelRequest] = []
        self.log = [Recorded(0, self.now, RunStarted(spec))]
        self.run = open_run(self.log[0], self.history)

    def apply(self, *events: Event) -> Run:
        for event in events:
            record = Recorded(len(self.log), self.now, event)
            self.run = fold(self.run, record)
            self.log.append(record)
        return self.run

    def play(self, *turns: Turn) -> Run:
        """Goes on until the run ends, or asks for a turn that the script does not have. The whole script must be used."""
        script = list(turns)
        while not self.run.has_ended:
            assert len(self.actions) < 500, f"the run never ends: {self.actions[-5:]}"
            action = next_action(self.run)
            if isinstance(action, actions.CallModel) and not script:
                break
            self.actions.append(action)
            self.perform(action, script)
        assert not script, f"the run ended {self.end} before its script"
        return self.run

    def perform(self, action: Action, script: list[Turn]) -> None:
        match action:
            case actions.CallModel():
                self.requests.append(request_for(self.run))
                anew = request_for(replace(self.run, transcript=Chain(self.run.transcript)))
                assert self.requests[-1] == anew, "what is kept of the transcript is not what it says"
                self.apply(TurnStarted())
                self.speak(script.pop(0))
            case actions.Judge(call_ids):
                for call_id in call_ids:
                    self.apply(self.verdict(call_id))
            case actions.Execute(call_ids):
                self.apply(*[ToolStarted(call_id) for call_id in call_ids])
                self.apply(*[self.result(call_id) for call_id in self.completion(call_ids)])
            case actions.Nudge(kind, text, reason):
                self.apply(Nudged(kind, text, reason))
            case actions.Reuse(call_id, output, is_error):
                self.apply(ToolEnded(call_id, output, is_error, recorded="reused"))
            case actions.Withhold(name, reason):
                self.apply(ToolWithheld(name, reason))
            case actions.Finish():
                self.apply(*closing(self.run, action))

    def speak(self, turn: Turn) -> None:
        """What the model says in a turn that has begun."""
        for part in turn.parts:
            self.apply(*self.spoken(part))
        self.now += turn.seconds
        self.apply(TurnAborted() if turn.is_cut else TurnEnded(turn.finish, turn.usage, turn.error))

    def spoken(self, part: Said | Made | Item) -> list[Event]:
        match part:
            case Said(text, is_half, is_refusal):
                item_id = f"msg_{self.number('msg')}"
                delta = RefusalDelta if is_refusal else TextDelta
                whole = Message("assistant", (Refusal(text) if is_refusal else OutputText(text),), id=item_id)
                pieces: list[Event] = [delta(item_id, text[:2]), delta(item_id, text[2:])]
                return _item(replace(whole, content=(), status="in_progress"), pieces, None if is_half else whole)
            case Made(name, arguments, is_half):
                number = self.number("call")
                call = FunctionCall(f"call_{number}", name, arguments, id=f"fc_{number}")
                pieces = [ArgumentsDelta(call.id, arguments)]
                return _item(replace(call, arguments="", status="in_progress"), pieces, None if is_half else call)
            case _:
                return _item(part, [], part)

    def verdict(self, call_id: str) -> CallJudged:
        call = self.run.call(call_id)
        name = call.item.name
        if too_much := excess(self.run, call):
            return CallJudged(call_id, "deny", too_much.limit, too_much.message, too_much.stop)
        if said := self.run.approval(call.item):
            return CallJudged(call_id, "allow" if said.approve else "deny", "approval", said.reason or "")
        ruled = self.gate.get(call_id) or self.gate.get(name)
        if isinstance(ruled, CallJudged):
            return replace(ruled, call_id=call_id)
        if ruled is not None:
            return CallJudged(call_id, ruled, "gate", f"no {name}" if ruled == "deny" else "")
        tool = self.run.spec.tool(name)
        if tool is None:
            return CallJudged(call_id, "deny", "known", f"there is no tool {name}")
        return CallJudged(call_id, "client" if tool.kind == "function" else "allow", "kind")

    def result(self, call_id: str) -> ToolEnded:
        given = self.tools.get(call_id) or self.tools.get(self.run.call(call_id).item.name) or "ok"
        return ToolEnded(call_id, given.text, is_error=True) if isinstance(given, Failed) else ToolEnded(call_id, given)

    def crash(self, seconds: float = 0.0) -> Run:
        """The driver is gone; a new one takes over after `seconds`."""
        self.now += seconds
        return self.apply(*recovery(self.run))

    def cancel(self) -> Run:
        return self.apply(*closing(self.run, actions.Finish("cancelled", Reason.CANCELLED)))

    def then(self, *given: Item, **changes: Any) -> "Story":
        """A story that continues this one."""
        spec = replace(self.run.spec, id="run_2", input=given, parent=self.run.spec.id, **changes)
        return Story(spec, history_after(self.run), gate=self.gate, tools=self.tools, number=self.number)

    @property
    def end(self) -> End:
        return self.run.status, self.run.reason

    @property
    def executed(self) -> list[str]:
        """The calls that were run, in the order they were started."""
        return [record.event.call_id for record in self.log if isinstance(record.event, ToolStarted)]

    @property
    def verdicts(self) -> list[tuple[str, str, str]]:
        """Who was judged how, by which policy."""
        judged = [record.event for record in self.log if isinstance(record.event, CallJudged)]
        return [(event.call_id, event.verdict, event.policy) for event in judged]

    @property
    def nudges(self) -> list[str]:
        return [record.event.kind for record in self.log if isinstance(record.event, Nudged)]


def _counter() -> Callable[[str], int]:
    counts: dict[str, int] = {}

    def number(kind: str) -> int:
        counts[kind] = counts.get(kind, 0) + 1
        return counts[kind]

    return number


def _item(start: Item, pieces: list[Event], whole: Item | None) -> list[Event]:
    return [ItemStarted(start), *pieces, *([ItemDone(whole)] if whole else [])]


def told(items: Iterable[Item]) -> list[str]:
    """Items as one line each: `user: go`, `call_1: look {}`, `call_1 -> ok`, `call_1 !> it broke`."""
    return [_line(item) for item in items]


def _line(item: Item) -> str:
    match item:
        case Message():
            refused = "".join(part.refusal for part in item.content if isinstance(part, Refusal))
            mark = "" if item.status == "completed" else f" ({item.status})"
            return f"{item.role}{mark}: {item.text or refused}"
        case FunctionCall():
            mark = "" if item.status == "completed" else f" ({item.status})"
            return f"{item.call_id}{mark}: {item.name} {item.arguments}"
        case FunctionCallOutput():
            return f"{item.call_id} {'!>' if item.is_error is True else '->'} {text_of(item.output)}"
        case Reasoning():
            return f"reasoning: {item.id}"
        case ApprovalRequest():
            return f"{item.id}: may {item.name} {item.arguments}?"
        case ApprovalResponse():
            return f"{item.approval_request_id}: {'yes' if item.approve else 'no'}"
        case _:
            return repr(item)
