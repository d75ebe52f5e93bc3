"""The Response object, as a view of a run: `response(run)`.

`status` is the internal one, `requires_action` included; what a client is shown of it is the front door's business.
"""

from msgspec import UNSET, Struct, UnsetType

from mainspring.core.history import approval_id
from mainspring.core.items import FunctionCall, Item, Json, Tool, ToolDefinition, Unknown, Usage
from mainspring.core.reasons import incomplete_reason
from mainspring.core.run import Run
from mainspring.core.spec import ToolChoice


class Response(Struct, frozen=True, kw_only=True):
    """Every field that one of the two standards requires, in the union of both; what is unknown is null."""

    id: str
    object: str = "response"
    created_at: int
    completed_at: int | None = None
    status: str
    background: bool = False
    conversation: Json | UnsetType = UNSET
    error: Json | None = None
    incomplete_details: Json | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    max_tool_calls: int | None = None
    metadata: dict[str, str] = {}
    model: str
    output: tuple[Item, ...] = ()
    parallel_tool_calls: bool = True
    previous_response_id: str | None = None
    reasoning: Json | None = None
    required_input: tuple[Json, ...] | None = None
    service_tier: str = "default"
    store: bool = True
    temperature: float = 1.0
    text: Json
    tool_choice: str | Json = "auto"
    tools: tuple[Json, ...] = ()
    top_logprobs: int = 0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    truncation: str = "disabled"
    usage: Json | None = None
    safety_identifier: str | None = None
    prompt: Json | UnsetType = UNSET
    prompt_cache_key: str | None = None
    user: str | None = None
    stop_sequence: str | UnsetType = UNSET
    """Ours: the text before which the answer has ended, of those that the request named."""


def response(run: Run) -> Response:
    """The Response that this run is now; while it runs, `output` is what has been said so far."""
    spec = run.spec
    fields: Json = {
        "id": spec.id,
        "created_at": int(run.started_at),
        "completed_at": int(run.clock) if run.status in ("completed", "requires_action") else None,
        "status": run.status,
        "background": spec.background,
        "conversation": {"id": spec.conversation.id} if spec.conversation is not None else UNSET,
        "error": {"code": run.error.code, "message": run.error.message} if run.error else None,
        "incomplete_details": {"reason": why} | _tell_rungs(run) if (why := incomplete_reason(run)) else None,
        "instructions": spec.instructions,
        "max_output_tokens": spec.limits.max_output_tokens,
        "max_tool_calls": spec.limits.max_tool_calls,
        "metadata": spec.metadata,
        "model": spec.model,
        "output": run.output,
        "parallel_tool_calls": spec.parallel_tool_calls,
        "previous_response_id": spec.parent,
        "reasoning": spec.sampling.reasoning,
        "required_input": _required_input(run),
        "store": spec.store,
        "text": spec.sampling.text or {"format": {"type": "text"}},
        "tool_choice": _choice(spec.tool_choice),
        "tools": tuple([_tool(tool) for tool in spec.tools if not _is_servers(tool)]),
        "truncation": spec.window.truncation,
        "usage": _usage(run.usage) if run.has_ended else None,
        "stop_sequence": run.stop_sequence,
    }
    if spec.sampling.temperature is not None:
        fields["temperature"] = spec.sampling.temperature
    if spec.sampling.top_p is not None:
        fields["top_p"] = spec.sampling.top_p
    fields |= {name: value for name, value in spec.echo.items() if name in Response.__struct_fields__}
    return Response(**fields)


def _required_input(run: Run) -> tuple[Json, ...] | None:
    """What a paused run waits for, one stub per open call."""
    if run.status != "requires_action":
        return None
    return tuple(
        [
            {"type": "mcp_approval_response", "approval_request_id": approval_id(call.item)}
            if call.verdict == "ask"
            else {"type": _output_type(call.item), "call_id": call.item.call_id, "name": call.item.own_name}
            for call in run.calls
        ]
    )


def _output_type(call: FunctionCall) -> str:
    match call.form:
        case "custom":
            return "custom_tool_call_output"
        case "tool_search":
            return "tool_search_output"
        case str(form):
            return f"{form}_call_output"
        case _:
            return "function_call_output"


def _choice(choice: ToolChoice) -> str | Json:
    if choice.allowed is not None:
        tools = [{"type": "function", "name": name} for name in choice.allowed]
        return {"type": "allowed_tools", "mode": choice.mode, "tools": tools}
    return {"type": "function", "name": choice.name} if choice.name else choice.mode


def _is_servers(tool: Tool) -> bool:
    """The tools of a Response are those that its client declared."""
    return isinstance(tool, ToolDefinition) and tool.kind != "function"


def _tool(tool: Tool) -> Json:
    if not isinstance(tool, ToolDefinition):
        return tool.data if isinstance(tool, Unknown) else {}
    return {
        "type": "function",
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
        "strict": tool.strict,
    }


def _usage(usage: Usage) -> Json:
    told: Json = {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
    }
    return {**told, "estimated": True} if usage.is_estimated else told


def _tell_rungs(run: Run) -> Json:
    """What was done about a model that goes round in circles. Runs of older versions did not tell."""
    return {"rungs": list(run.rungs)} if run.rungs and run.spec.limits.max_cycle is not None else {}
