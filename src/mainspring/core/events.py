"""What happens in a run. Every event is recorded once; answers, streams, traces and audits are views of the log.

A provider emits only `ItemStarted`, the deltas, `Annotated`, `ItemDone` and, last, `TurnEnded`; the engine makes the rest.
"""

from enum import StrEnum
from typing import Final, Literal, get_args

from msgspec import UNSET, Struct, UnsetType, field
from msgspec.structs import replace

from mainspring.core.errors import MainspringError
from mainspring.core.items import Adaptation, Item, Json, Part, Usage
from mainspring.core.spec import RunSpec

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
        return cls(error.code, error.message, error.retryable, error.retry_after)


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
    """The model is done with this turn. `error` is set only if it failed; its items then stay visible but are not used.
    `stop_sequence` is the text before which the answer was to end, and has."""

    finish: Finish = "stop"
    usage: Usage | None = None
    error: ErrorInfo | None = None
    adaptations: tuple[Adaptation, ...] | UnsetType = UNSET
    stop_sequence: str | UnsetType = UNSET


class TurnAborted(Struct, frozen=True, tag_field="type", tag="turn_aborted"):
    """The turn was cut off by a crash, a cancel or the deadline; the model is asked again if the run goes on."""


class CallJudged(Struct, frozen=True, tag_field="type", tag="call_judged"):
    """What the gate says about a call, by which policy and why. `stop` ends the run once the turn's calls are answered.

    A call that was started may ask a person something itself: `elicitation` is what, `kept` what it needs to go on from there.
    A denied one that `is_returned` is between us and the model.
    """

    call_id: str
    verdict: Judgement
    policy: str
    reason: str = ""
    stop: Reason | None = None
    elicitation: Json | UnsetType = UNSET
    kept: Json | UnsetType = UNSET
    is_returned: bool | UnsetType = UNSET


class ToolStarted(Struct, frozen=True, tag_field="type", tag="tool_started"):
    call_id: str


class ToolProgress(Struct, frozen=True, tag_field="type", tag="tool_progress"):
    """A line about a call under way. One with `kept` can be taken up after a crash: that is all it needs to go on."""

    call_id: str
    text: str
    kept: Json | UnsetType = UNSET


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


PARTS_OF_SECOND: Final = 1024
"""What the time between deltas is counted in."""

DELTAS: Final = frozenset(get_args(Delta))
OTHER_DELTAS: Final = frozenset({RefusalDelta, ReasoningDelta, ArgumentsDelta})


def continues(event: Event, delta: Event) -> bool:
    """Whether the second is a delta that goes on where the first, a delta too, has stopped."""
    kind = type(event)
    if kind is not type(delta):
        return False
    if kind is TextDelta:
        return event.item_id == delta.item_id and event.index == delta.index and delta.logprobs is UNSET  # type: ignore[union-attr]
    if kind is ArgumentsDelta:
        return event.item_id == delta.item_id  # type: ignore[union-attr]
    return kind in OTHER_DELTAS and replace(delta, delta="") == replace(event, delta="")
