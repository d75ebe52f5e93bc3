"""What a run did with tools, read off its log: every call that the model made, what came of it and how long that took."""

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mainspring.core.events import CallJudged, CallOutcome, ItemDone, Recorded, ToolEnded, ToolStarted
from mainspring.core.items import FunctionCall, Json, parse_arguments, text_of
from mainspring.core.run import Run
from mainspring_tasks.answer_format import clean, clean_value
from mainspring_tasks.decision_types import ToolResult

ErrorCode = Literal[
    "VALIDATION_ERROR", "INTENT_ERROR", "TOOL_NOT_FOUND", "TOOL_EXECUTION_ERROR", "DATABASE_ERROR", "TIMEOUT_ERROR",
    "UNKNOWN_ERROR",
]  # fmt: skip

_BY_POLICY: Final[dict[str, ErrorCode]] = {
    "known_tool": "TOOL_NOT_FOUND",
    "allowed_tools": "TOOL_NOT_FOUND",
    "hand_off": "TOOL_NOT_FOUND",
    "valid_arguments": "VALIDATION_ERROR",
    "named_task": "INTENT_ERROR",
    "one_task": "INTENT_ERROR",
    "one_deletion": "INTENT_ERROR",
    "nothing_more": "INTENT_ERROR",
    "small_talk": "INTENT_ERROR",
    "own_words": "INTENT_ERROR",
}
_BY_OUTCOME: Final[dict[CallOutcome, ErrorCode]] = {"timeout": "TIMEOUT_ERROR", "interrupted": "UNKNOWN_ERROR"}
_BY_CODE: Final[dict[str, ErrorCode]] = {
    "VALIDATION_ERROR": "VALIDATION_ERROR",
    "NOT_FOUND": "TOOL_EXECUTION_ERROR",
    "ACCESS_DENIED": "TOOL_EXECUTION_ERROR",
    "DATABASE_ERROR": "DATABASE_ERROR",
}


class TracedCall(Struct, frozen=True):
    """A call and its result. `was_performed` is false for one that was refused before any tool ran.

    `code` classifies a failure; `result.error_code` is the tool's own code, if it gave one. A call that `was_interrupted` may
    have taken effect.
    """

    name: str
    arguments: Json
    result: ToolResult
    was_performed: bool
    at: float
    code: ErrorCode | None = None
    policy: str = ""
    was_interrupted: bool = False


def trace_calls(run: Run, log: Sequence[Recorded]) -> tuple[TracedCall, ...]:
    """Every answered call of the run, in the order of the answers."""
    made = [record.event.item for record in log if isinstance(record.event, ItemDone)]
    inherited = [entry.item for entry in run.transcript[: run.inherited]]
    calls = {item.call_id: item for item in (*inherited, *made) if isinstance(item, FunctionCall)}
    started: dict[str, float] = {}
    traced: list[TracedCall] = []
    for record in log:
        match record.event:
            case CallJudged(call_id, "deny") as verdict:
                traced.append(_read_refusal(calls[call_id], verdict, record.at))
            case ToolStarted(call_id):
                started[call_id] = record.at
            case ToolEnded(call_id) as end if call_id in started:
                traced.append(_read_result(calls[call_id], end, started[call_id]))
            case _:
                pass
    return tuple(traced)


def _read_refusal(call: FunctionCall, verdict: CallJudged, at: float) -> TracedCall:
    code = _BY_POLICY.get(verdict.policy, "UNKNOWN_ERROR")
    result = ToolResult(False, None, clean(verdict.reason), code)
    return TracedCall(clean(call.name), _arguments(call), result, was_performed=False, at=at, code=code, policy=verdict.policy)


def _read_result(call: FunctionCall, end: ToolEnded, at: float) -> TracedCall:
    text, milliseconds = clean(text_of(end.output)), end.seconds * 1000
    try:
        reply = msgspec.json.decode(text, type=_Reply)
        result = ToolResult(reply.success, clean_value(reply.data), reply.error, reply.error_code, milliseconds)
    except (msgspec.DecodeError, ValueError):
        code = _BY_OUTCOME.get(end.outcome, "TOOL_EXECUTION_ERROR")
        result = ToolResult(False, None, text, code, milliseconds)
        is_unknown = end.outcome == "interrupted"
        return TracedCall(call.name, _arguments(call), result, was_performed=True, at=at, code=code, was_interrupted=is_unknown)
    failure = None if result.success else _BY_CODE.get(result.error_code or "", "UNKNOWN_ERROR")
    return TracedCall(call.name, _arguments(call), result, was_performed=True, at=at, code=failure)


class _Reply(Struct, frozen=True):
    success: bool
    data: object = None
    error: str | None = None
    error_code: str | None = None


def _arguments(call: FunctionCall) -> Json:
    try:
        return {clean(name): clean_value(value) for name, value in parse_arguments(call.arguments).items()}
    except ValueError:
        return {"arguments": clean(call.arguments)}
