"""A trace as spans, by the semantic conventions of OpenTelemetry for generative AI. Pure: imports no SDK.

One `invoke_agent` span for the run; in it a `chat` span for every turn and every summary, and an `execute_tool` span for every
call that was performed or denied. Ids follow from the run's id, so a run has the same spans whoever exports them, and a
delegated run finds its parent span by itself.
"""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from mainspring.core.items import Usage, to_json
from mainspring.core.redact import redact_arguments, redact_text
from mainspring.engine.traceparent import derive_span_id, derive_trace_id, parse_traceparent
from mainspring.features.traces.trace_record import UNKNOWN, TraceAction, TraceRecord, TraceStep

Value = str | int | float | bool | tuple[str, ...]

# What backends are called here, and what the conventions call them.
PROVIDERS: Final = {"chat": "openai", "responses": "openai", "gemini": "gcp.gemini", "mistral": "mistral_ai", "xai": "x_ai"}


class Span(Struct, frozen=True):
    """A span that has ended; times are seconds since 1970. `error` is the kind of error it ended with."""

    name: str
    kind: Literal["internal", "client"]
    id: str
    parent: str | None
    start: float
    end: float
    attributes: dict[str, Value]
    error: str = ""
    message: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.start


def build_spans(trace: TraceRecord, provider: str, *, content: bool = False) -> Iterator[Span]:
    """The spans of a run that has ended, the run's own first. `content` adds what was said, to the model and by it, without
    secrets."""
    root = derive_span_id(trace.run_id)
    yield _run_span(trace, root, provider, content)
    for step in trace.execution:
        if step.model_at is not None and step.kind != "step":
            yield _step_span(trace, step, root, provider)
        for action in step.actions:
            if action.completed_at is not None and (action.started_at is not None or action.verdict == "deny"):
                yield _action_span(trace, step, action, root, content)


def derive_trace_hex(trace: TraceRecord) -> str:
    """The id that all spans of a trace share; a run that another one has delegated is in the same trace as that."""
    return derive_trace_id(trace.metadata.parent or trace.run_id, trace.metadata.traceparent)


def _run_span(trace: TraceRecord, id: str, provider: str, content: bool) -> Span:
    outcome, agent = trace.outcome, trace.context.agent_id
    attributes = _drop_empty(
        {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": redact_text(trace.context.model),
            "gen_ai.agent.name": agent,
            "gen_ai.conversation.id": _conversation(trace),
            "gen_ai.response.id": trace.run_id,
            "gen_ai.response.finish_reasons": (outcome.reason.value,) if outcome.reason is not None else (),
            "mainspring.trace.id": trace.trace_id,
            "mainspring.run.status": outcome.run_status,
            "mainspring.tenant": trace.tenant_id,
            "mainspring.failure.code": outcome.failure_code or "",
            "gen_ai.input.messages": _render_message("user", redact_text(trace.input.prompt)) if content else "",
            "gen_ai.output.messages": _render_message("assistant", redact_text(trace.output.result)) if content else "",
        }
    ) | _usage(trace.usage)
    caller = parse_traceparent(trace.metadata.traceparent)
    parent = derive_span_id(trace.metadata.parent) if trace.metadata.parent else None if caller is None else caller.span_id
    error = "" if outcome.failure_code is None or outcome.reason is None else outcome.reason.value
    return Span(
        f"invoke_agent {agent}" if agent else "invoke_agent",
        "internal",
        id,
        parent,
        trace.started_at,
        trace.completed_at if trace.completed_at is not None else trace.started_at,
        attributes | _error(error),
        error,
        redact_text(outcome.failure_message or "") if content else "",  # it may quote what was said
    )


def _step_span(trace: TraceRecord, step: TraceStep, root: str, provider: str) -> Span:
    assert step.model_at is not None
    model = redact_text(trace.context.model)  # clients and their models may call anything by any name
    first = None if step.first_token_at is None else round(step.first_token_at - step.started_at, 6)
    attributes = _drop_empty(
        {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": provider,
            "gen_ai.request.model": model,
            "gen_ai.agent.name": trace.context.agent_id,
            "gen_ai.conversation.id": _conversation(trace),
            "gen_ai.response.finish_reasons": (step.finish,) if step.finish else (),
            "mainspring.step.id": step.step_id,
            "mainspring.step.kind": step.kind,
            "mainspring.nudge": step.nudge,
            "mainspring.withheld": tuple(map(redact_text, step.withheld)),
            "mainspring.adaptations": tuple(map(str, step.adaptations)),
        }
    )
    attributes["gen_ai.request.stream"] = True
    if first is not None:
        attributes["gen_ai.response.time_to_first_chunk"] = first
    for name, parameter in _PARAMETERS.items():
        if (value := trace.input.parameters.get(parameter)) is not None:
            attributes[name] = value
    error = step.error or ("aborted" if step.status == "aborted" else "")
    name, id = f"chat {model}", derive_span_id(trace.run_id, step.step_id)
    attributes |= _usage(step.usage or Usage()) | _error(error)
    return Span(name, "client", id, root, step.started_at, step.model_at, attributes, error)


def _action_span(trace: TraceRecord, step: TraceStep, action: TraceAction, root: str, content: bool) -> Span:
    assert action.completed_at is not None
    tool = redact_text(action.tool) if action.kind is not None else UNKNOWN
    attributes = _drop_empty(
        {
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": tool,
            "gen_ai.tool.call.id": redact_text(action.action_id),
            "gen_ai.tool.type": "function" if action.kind == "function" else "extension",
            "gen_ai.agent.name": trace.context.agent_id,
            "gen_ai.conversation.id": _conversation(trace),
            "mainspring.verdict": action.verdict or "",
            "mainspring.policy": action.policy,
            "gen_ai.tool.call.arguments": redact_arguments(action.input) if content else "",
            "gen_ai.tool.call.result": redact_text(action.output) if content else "",
        }
    )
    error = "denied" if action.verdict == "deny" else {"failure": "tool_error", "timeout": "timeout"}.get(action.status, "")
    start = action.started_at if action.started_at is not None else action.completed_at
    name, id = f"execute_tool {tool}", derive_span_id(trace.run_id, step.step_id, action.action_id)
    return Span(name, "internal", id, root, start, action.completed_at, attributes | _error(error), error)


_PARAMETERS: Final = {
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.max_tokens": "max_turn_tokens",
}


def _conversation(trace: TraceRecord) -> str:
    """Runs that are alone in their conversation have none."""
    return trace.session_id if trace.session_id != trace.run_id else ""


def _usage(usage: Usage) -> dict[str, Value]:
    told: dict[str, Value] = {"gen_ai.usage.input_tokens": usage.input_tokens, "gen_ai.usage.output_tokens": usage.output_tokens}
    further = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write_tokens,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning_tokens,
    }
    return told | {name: count for name, count in further.items() if count}


def _error(error: str) -> dict[str, Value]:
    return {"error.type": error} if error else {}


def _drop_empty(attributes: dict[str, Value]) -> dict[str, Value]:
    return {name: value for name, value in attributes.items() if value}


def _render_message(role: str, text: str) -> str:
    return to_json([{"role": role, "parts": [{"type": "text", "content": text}]}]) if text else ""
