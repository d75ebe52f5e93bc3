"""What happens in a run. Every event is recorded once; answers, streams, traces and audits are views of the log.

A provider emits only `ItemStarted`, the deltas, `Annotated`, `ItemDone` and, last, `TurnEnded`; the engine makes the rest.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from mainspring.core.compact_json import omit_usual
from mainspring.core.errors import MainspringError
from mainspring.core.items import Adaptation, Item, Json, Part, ToolDefinition, Usage, from_wire, to_wire
from mainspring.core.spec import Caller, Completion, Limits, RunSpec, Sampling, ToolChoice, Window

Status = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled", "requires_action"]
Finish = Literal["stop", "length", "content_filter", "error"]
Judgement = Literal["allow", "deny", "ask", "client"]
NudgeKind = Literal["confirm", "repeat", "close"]


class Reason(StrEnum):
    """Why a run ended, once and for all front doors; `core.reasons` maps it to each vocabulary."""

    FINAL_ANSWER = "final_answer"
    REFUSAL = "refusal"
    CLIENT_ACTION = "client_action"
    APPROVAL_NEEDED = "approval_needed"
    MAX_TURNS = "max_turns"
    MAX_TOOL_CALLS = "max_tool_calls"
    OUTPUT_TRUNCATED = "max_output_tokens"
    CONTENT_FILTER = "content_filter"
    PROVIDER_ERROR = "provider_error"
    RATE_LIMITED = "rate_limited"
    ERRORS_IN_ROW = "consecutive_errors"
    DEADLINE = "deadline"
    BUDGET = "budget"
    REPEATED_CALL = "loop_detected"
    CANCELLED = "cancelled"
    INTERNAL_ERROR = "internal_error"


class ErrorInfo(Struct, frozen=True):
    """An error as data: what went wrong, in a code and in words, whether trying again may help, and after how many seconds."""

    code: str
    message: str
    retryable: bool = False
    retry_after: float | None = None

    @classmethod
    def of(cls, error: MainspringError) -> "ErrorInfo":
        return cls(error.code, error.message, error.retryable, getattr(error, "retry_after", None))


class RunStarted(Struct, frozen=True, tag_field="type", tag="run_started"):
    """`driver` is the engine that drives the run, where others could find it."""

    spec: RunSpec
    driver: str = ""


class RunResumed(Struct, frozen=True, tag_field="type", tag="run_resumed"):
    """A new driver has taken the run over; the time since the last event does not count."""

    driver: str = ""


class TurnStarted(Struct, frozen=True, tag_field="type", tag="turn_started"):
    pass


class ItemStarted(Struct, frozen=True, tag_field="type", tag="item_started"):
    """A new item as far as it is known: ids, role or name; content follows in deltas."""

    item: Item


class TextDelta(Struct, frozen=True, gc=False, tag_field="type", tag="text_delta"):
    """`logprobs` are those of its tokens, if they were asked for."""

    item_id: str
    delta: str
    index: int = 0
    logprobs: tuple[Json, ...] | UnsetType = UNSET


class RefusalDelta(Struct, frozen=True, gc=False, tag_field="type", tag="refusal_delta"):
    item_id: str
    delta: str
    index: int = 0


class ReasoningDelta(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning_delta"):
    item_id: str
    delta: str
    index: int = 0
    summary: bool = False


class ArgumentsDelta(Struct, frozen=True, gc=False, tag_field="type", tag="arguments_delta"):
    item_id: str
    delta: str


class Annotated(Struct, frozen=True, tag_field="type", tag="annotated"):
    item_id: str
    annotation: Json
    index: int = 0


class ItemDone(Struct, frozen=True, tag_field="type", tag="item_done"):
    """The item, whole. Its text equals the deltas before it."""

    item: Item


class TurnEnded(Struct, frozen=True, tag_field="type", tag="turn_ended"):
    """The model is done with this turn. `error` is set only if it failed; its items then stay visible but are not used."""

    finish: Finish = "stop"
    usage: Usage | None = None
    error: ErrorInfo | None = None
    adaptations: tuple[Adaptation, ...] | UnsetType = UNSET


class TurnAborted(Struct, frozen=True, tag_field="type", tag="turn_aborted"):
    """The turn was cut off by a crash, a cancel or the deadline; the model is asked again if the run goes on."""


class CallJudged(Struct, frozen=True, tag_field="type", tag="call_judged"):
    """What the gate says about a call, by which policy and why. `stop` ends the run once the turn's calls are answered."""

    call_id: str
    verdict: Judgement
    policy: str
    reason: str = ""
    stop: Reason | None = None


class ToolStarted(Struct, frozen=True, tag_field="type", tag="tool_started"):
    call_id: str


class ToolProgress(Struct, frozen=True, tag_field="type", tag="tool_progress"):
    call_id: str
    text: str


class Used(Struct, frozen=True):
    """What runs have used of the limits that they share."""

    turns: int = 0
    calls: int = 0
    usage: Usage = Usage()

    def __add__(self, other: "Used") -> "Used":
        return Used(self.turns + other.turns, self.calls + other.calls, self.usage + other.usage)


CallOutcome = Literal["ok", "error", "timeout", "interrupted", "not_run", "reused"]
"""How a call ended. An `interrupted` one was started and may have had its effect, one that was `not_run` never started. One that
was `reused` was not started either: the result of the same call before it was given back."""

INTERRUPTED: Final = "Interrupted: the call was started but its outcome is unknown. Check what it did before trying again."


class ToolEnded(Struct, frozen=True, tag_field="type", tag="tool_ended"):
    """`used` is what other runs have used on behalf of the call, if it began any. `data` is the result beside the text, such as
    the exit code of a command. `recorded` is the outcome; logs of older versions have none: read `outcome`."""

    call_id: str
    output: str | tuple[Part, ...]
    is_error: bool = False
    seconds: float = 0.0
    used: Used | None = None
    recorded: CallOutcome | None = field(default=None, name="outcome")
    data: Json | None = None

    @property
    def outcome(self) -> CallOutcome:
        if self.recorded is not None:
            return self.recorded
        return "ok" if not self.is_error else "interrupted" if self.output == INTERRUPTED else "error"


class Nudged(Struct, frozen=True, tag_field="type", tag="nudged"):
    """The engine says something to the model. `reason` is the limit that a closing turn follows."""

    kind: NudgeKind
    text: str
    reason: Reason | None = None


class ToolWithheld(Struct, frozen=True, tag_field="type", tag="tool_withheld"):
    """Calls of this tool are denied for the rest of the run, because the model repeats itself."""

    name: str
    reason: str = ""


class Compacted(Struct, frozen=True, tag_field="type", tag="compacted"):
    """The model has summed up what came before: `item` stands for that from now on. Without one, `error` says what went wrong."""

    item: Item | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None


class RunEnded(Struct, frozen=True, tag_field="type", tag="run_ended"):
    status: Status
    reason: Reason
    error: ErrorInfo | None = None


Delta = TextDelta | RefusalDelta | ReasoningDelta | ArgumentsDelta
ModelEvent = ItemStarted | Delta | Annotated | ItemDone | TurnEnded
Event = (
    RunStarted | RunResumed | TurnStarted | ModelEvent | TurnAborted
    | CallJudged | ToolStarted | ToolProgress | ToolEnded | Nudged | ToolWithheld | Compacted | RunEnded
)  # fmt: skip


class Recorded(Struct, frozen=True, array_like=True):
    """An event with its place in the log, counted from 0, and the moment it was recorded (seconds since 1970)."""

    seq: int
    at: float
    event: Event


# A log is kept as lines of JSON, so that one can be continued in place. A line is a list of records. Deltas that go on with the
# one before them stand beside it: their texts, each with the time since the one before if there was any. A line that begins with
# a text goes on with the last delta of the line above. Logs of older versions are one line with every delta by itself.
# An item that is among the entries of the run is kept there, and the log has its place. The time of a record that follows another
# in its line is the time since that one, if it is a whole number.

PARTS_OF_SECOND: Final = 1024
"""What the time between deltas is counted in."""

Texts = Sequence[str | int | float]


class _EnteredItem(Struct, frozen=True, tag_field="type", tag="entered_item"):
    """`ItemDone`, of an item that is kept elsewhere."""

    place: int


ENTERED_ITEM: Final = b'{"type":"entered_item","place":'
"""How an item that is kept elsewhere looks in a log."""


class _Stored(Struct, frozen=True, array_like=True):
    seq: int
    at: int | float
    event: Event | _EnteredItem
    texts: Texts = ()


def encode_log(records: Sequence[Recorded], after: Recorded | None = None, entered: Sequence[Item] = ()) -> bytes:
    """Records as they are kept. With `after`, they are to be added to what was kept so far, which ends with that one.

    `entered` are items that are kept elsewhere, and are to be given to `decode_log`.
    """
    start, lines = 0, list[bytes]()
    if after is not None:
        start = _find_texts(after, records, 0)
        lines = [b"", _encoder.encode(_list_texts(after.at, records[:start]))[1:-1]] if start else [b""]
    stored: list[object] = []
    places = {id(item): place for place, item in enumerate(entered)}
    last: float | None = None
    while start < len(records):
        first = records[start]
        event: object = first.event
        kind, at = type(event), float(first.at) if last is None else _tell_time(last, first.at)
        start += 1
        last = first.at
        if kind is TextDelta or kind in _OTHER_DELTAS:
            stop = _find_texts(first, records, start)
            if stop > start:
                stored.append((first.seq, at, event, _list_texts(first.at, records[start:stop])))
                start, last = stop, records[stop - 1].at
                continue
        elif isinstance(event, ItemDone):
            place = places.get(id(event.item))
            event = event if place is None else _EnteredItem(place)
        elif kind in _COMPACT:
            event = _make_compact(first.event)
        stored.append((first.seq, at, event))
    if stored:
        lines.append(_encoder.encode(stored))
    return b"\n".join(lines)


def encode_texts(records: Sequence[Recorded], after: Recorded) -> bytes:
    """What `encode_log` makes of deltas that all go on with `after`; nothing if one does not."""
    if _find_texts(after, records, 0) < len(records):
        return b""
    return b"\n" + _encoder.encode(_list_texts(after.at, records))[1:-1]


def _make_compact(event: Event) -> Struct:
    if isinstance(event, RunStarted) and event.spec.tools:
        tools = tuple([omit_usual(tool) if isinstance(tool, ToolDefinition) else tool for tool in event.spec.tools])
        event = replace(event, spec=replace(event.spec, tools=tools))
    return omit_usual(event, _COMPACT)


def _tell_time(before: float, now: float) -> int | float:
    """The time between, in parts of which every moment that a clock tells from 2004 to 2038 is a whole number; or the moment."""
    time = int((now - before) * _FINE)
    return time if before + time / _FINE == now else float(now)


def continues(event: Event, delta: Event) -> bool:
    """Whether the second is a delta that goes on where the first, a delta too, has stopped."""
    kind = type(event)
    if kind is not type(delta):
        return False
    if kind is TextDelta:
        return event.item_id == delta.item_id and event.index == delta.index and delta.logprobs is UNSET  # type: ignore[union-attr]
    if kind is ArgumentsDelta:
        return event.item_id == delta.item_id  # type: ignore[union-attr]
    return kind in _OTHER_DELTAS and replace(delta, delta="") == replace(event, delta="")


def _find_texts(first: Recorded, records: Sequence[Recorded], start: int) -> int:
    """Where the deltas end that go on with the first one."""
    event, stop, length = first.event, start, len(records)
    kind = type(event)
    if kind is TextDelta:
        item_id, index = event.item_id, event.index  # type: ignore[union-attr]
        while stop < length:
            delta = records[stop].event
            if type(delta) is not kind or delta.item_id != item_id or delta.index != index or delta.logprobs is not UNSET:
                break
            stop += 1
    elif kind in _OTHER_DELTAS:
        while stop < length and continues(event, records[stop].event):
            stop += 1
    return stop


def _list_texts(at: float, deltas: Sequence[Recorded]) -> Texts:
    texts: list[str | int | float] = []
    for delta in deltas:
        texts.append(delta.event.delta)  # type: ignore[union-attr]
        if delta.at != at:
            texts.append(_measure(at, delta.at))
            at = delta.at
    return texts


def _measure(before: float, now: float) -> int | float:
    """The time between, or if that is not exact the moment itself."""
    time = int((now - before // _PART * _PART) * PARTS_OF_SECOND)
    return time if _add_time(before, time) == now else float(now)


def _add_time(before: float, time: int | float) -> float:
    return before // _PART * _PART + time * _PART if isinstance(time, int) else time


def decode_log(data: bytes, entered: Sequence[Item] = ()) -> list[Recorded]:
    records: list[Recorded] = []
    for line in data.split(b"\n"):
        if line.startswith(b'"'):
            _add_texts(records, _texts_decoder.decode(b"[%b]" % line))
            continue
        for stored in _decoder.decode(line):
            event = ItemDone(entered[stored.event.place]) if isinstance(stored.event, _EnteredItem) else stored.event
            at = records[-1].at + stored.at / _FINE if isinstance(stored.at, int) else stored.at
            records.append(Recorded(stored.seq, at, event))
            if stored.texts:
                _add_texts(records, stored.texts)
    return records


def _add_texts(records: list[Recorded], texts: Texts) -> None:
    seq, at, event = records[-1].seq, records[-1].at, records[-1].event
    if isinstance(event, TextDelta):
        event = replace(event, logprobs=UNSET)
    for text in texts:
        if isinstance(text, str):
            seq += 1
            records.append(Recorded(seq, at, replace(event, delta=text)))
        else:
            at = _add_time(at, text)
            records[-1] = Recorded(seq, at, records[-1].event)


_COMPACT: Final = frozenset(
    {RunStarted, TurnEnded, RunEnded, RunSpec, Limits, Completion, Sampling, Window, ToolChoice, Caller, Usage}
)
_FINE: Final = 4_194_304
_PART: Final = 1 / PARTS_OF_SECOND
_OTHER_DELTAS: Final = frozenset({RefusalDelta, ReasoningDelta, ArgumentsDelta})
_encoder = msgspec.json.Encoder(enc_hook=to_wire)
_decoder = msgspec.json.Decoder(list[_Stored], dec_hook=from_wire)
_texts_decoder = msgspec.json.Decoder(list[str | int | float])
