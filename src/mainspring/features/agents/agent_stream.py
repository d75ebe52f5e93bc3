"""A run as the events of the iterative runtime: a projection of its log, record by record.

`render_events` is pure: whoever streams folds the log along, so missed events can be rendered again at any time.
"""

from typing import Literal

from msgspec import Struct

from mainspring.core.delegation import is_delegation
from mainspring.core.events import (
    CallJudged,
    Compacted,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnEnded,
    TurnStarted,
)  # fmt: skip
from mainspring.core.items import FunctionCall, Json, Message, ToolDefinition, text_of
from mainspring.core.run import Run
from mainspring.features.agents.agent_result import read_result

EventType = Literal[
    "loop_started", "iteration_started", "llm_request", "llm_token", "llm_response", "tool_call_requested", "tool_call_started",
    "tool_call_completed", "tool_call_blocked", "loop_detected", "confirmation_prompt", "confirmation_result",
    "context_compressed", "delegation_started", "delegation_progress", "delegation_completed", "error", "completed",
]  # fmt: skip


class ToolLoopEvent(Struct, frozen=True):
    event_type: EventType
    iteration: int
    timestamp: float
    data: Json = {}


def render_events(before: Run | None, record: Recorded, after: Run) -> list[ToolLoopEvent]:
    """The events of a record, given the run before and after it. The last event of a run is always `completed`."""
    return [ToolLoopEvent(kind, after.turns, record.at, data) for kind, data in _render_pairs(before or after, record, after)]


Pairs = list[tuple[EventType, Json]]


def _render_pairs(before: Run, record: Recorded, after: Run) -> Pairs:
    match record.event:
        case RunStarted(spec):
            tools = [tool.name for tool in spec.tools if isinstance(tool, ToolDefinition)]
            most = spec.limits.max_turns
            started: Json = {"agent": spec.agent, "run_id": spec.id, "model": spec.model, "max_iterations": most, "tools": tools}
            return [("loop_started", started)]
        case TurnStarted():
            return [("iteration_started", {}), ("llm_request", {"model": after.spec.model})]
        case TextDelta(_, delta):
            return [("llm_token", {"token": delta})]
        case TurnEnded():
            return _render_turn(before, record.event, after)
        case CallJudged(verdict="deny" | "ask" | "client"):
            return _render_blocked(record.event, before)
        case ToolStarted(call_id):
            return _call_event("tool_call_started", "delegation_started", _find_call(before, call_id))
        case ToolProgress(call_id, text):
            named = _find_call(before, call_id)
            return [("delegation_progress", {**named, "text": text})] if _is_agent(named) else []
        case ToolEnded():
            return _render_ended(record.event, before)
        case Nudged(kind, text):
            if kind == "repeat":
                return [("loop_detected", {"warned": True, "message": text})]
            return [("confirmation_prompt", {"message": text})] if kind == "confirm" else []
        case ToolWithheld(name, reason):
            return [("loop_detected", {"warned": True, "withheld": name, "message": reason})]
        case Compacted(error=None):
            return [("context_compressed", {})]
        case RunEnded():
            return _render_end(after)
        case _:
            return []


def _render_turn(before: Run, event: TurnEnded, after: Run) -> Pairs:
    if event.error is not None:
        return [("error", {"phase": "llm", "code": event.error.code, "message": event.error.message})]
    calls = [call.item for call in after.calls]
    tokens = 0 if event.usage is None else event.usage.total_tokens
    said = [entry.item.text for entry in after.transcript[len(before.transcript) :] if isinstance(entry.item, Message)]
    answer: Json = {"content": "".join(said), "finish_reason": event.finish, "tool_calls": len(calls), "tokens": tokens}
    pairs: Pairs = [("llm_response", answer)]
    if before.is_confirming:
        pairs.append(("confirmation_result", {"confirmed": not calls}))
    return [*pairs, *[("tool_call_requested", {**_describe_call(call), "arguments": call.arguments}) for call in calls]]


def _render_blocked(event: CallJudged, before: Run) -> Pairs:
    why = {"verdict": event.verdict, "policy": event.policy, "reason": event.reason}
    blocked: Pairs = [("tool_call_blocked", {**_find_call(before, event.call_id), **why})]
    return [*blocked, ("loop_detected", {"warned": False})] if event.stop is Reason.REPEATED_CALL else blocked


def _render_ended(event: ToolEnded, before: Run) -> Pairs:
    named, output = _find_call(before, event.call_id), text_of(event.output)
    if event.outcome == "reused":
        return [("tool_call_completed", {**named, "success": not event.is_error, "output": output, "reused": True})]
    if not before.call(event.call_id).is_started:
        return [("tool_call_blocked", {**named, "verdict": "deny", "policy": "run", "reason": output})]
    done = {**named, "success": not event.is_error, "output": output, "duration_ms": round(event.seconds * 1000, 3)}
    return _call_event("tool_call_completed", "delegation_completed", done)


def _call_event(kind: EventType, delegation: EventType, data: Json) -> Pairs:
    return [(kind, data), (delegation, data)] if _is_agent(data) else [(kind, data)]


def _render_end(after: Run) -> Pairs:
    result = read_result(after)
    data: Json = {
        "termination_reason": result.termination_reason,
        "total_tokens": result.tokens_used,
        "tokens_available": not after.usage.is_estimated,
        "tool_calls_made": result.tool_calls_made,
        "tools_used": list(result.tools_used),
        "output": result.output,
        "run_id": result.run_id,
        "error": result.error,
    }
    failed: Pairs = []
    if after.error is not None:
        failed = [("error", {"phase": "run", "code": after.error.code, "message": after.error.message})]
    return [*failed, ("completed", data)]


def _find_call(run: Run, call_id: str) -> Json:
    return _describe_call(run.call(call_id).item)


def _describe_call(call: FunctionCall) -> Json:
    return {"call_id": call.call_id, "tool": call.name}


def _is_agent(data: Json) -> bool:
    return is_delegation(str(data["tool"]))
