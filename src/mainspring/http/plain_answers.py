"""What a run leaves to its client, for APIs whose answers are one message and have no items."""

from collections.abc import Iterator

from mainspring.core.items import ApprovalRequest, FunctionCall, Json, Message, Reasoning, ToolDefinition
from mainspring.core.response import Response
from mainspring.core.spec import RunSpec

Thought = tuple[str, bool, int]
"""A part of what was thought: the item, whether it is a summary, and the place."""


def find_client_calls(told: Response) -> list[FunctionCall]:
    """The calls that the client is to perform. Those that a policy denied are not among them: whoever sees a call performs it."""
    wanted = {stub.get("call_id") for stub in told.required_input or ()}
    return [item for item in told.output if isinstance(item, FunctionCall) and item.call_id in wanted]


def describe_waiting(told: Response) -> list[str]:
    """What is said of calls that wait for a person: these APIs have no other way to tell of them."""
    wanted = {stub.get("approval_request_id") for stub in told.required_input or ()}
    asked = [item for item in told.output if isinstance(item, ApprovalRequest) and item.id in wanted]
    return [f"[`{item.name}` waits for a person to approve it, as `{item.id}`, and has not run]" for item in asked]


def list_messages(told: Response) -> list[Message]:
    """What was said. Of an answer that is to be JSON, that is the last message: what was said between calls would spoil it."""
    said = [item for item in told.output if isinstance(item, Message)]
    return said[-1:] if _wants_json(told.text) else said


def waits_with_words(spec: RunSpec) -> bool:
    """Whether it is known only at the end which message is the answer: it is to be JSON, and the server's tools work for it."""
    return _wants_json(spec.sampling.text) and any(
        not isinstance(tool, ToolDefinition) or tool.kind != "function" for tool in spec.tools
    )


def _wants_json(text: Json | None) -> bool:
    match (text or {}).get("format"):
        case {"type": "json_object" | "json_schema"}:
            return True
        case _:
            return False


def list_thoughts(item: Reasoning) -> Iterator[tuple[Thought, str]]:
    for index, summary in enumerate(item.summary):
        if summary.text:
            yield (item.id, True, index), summary.text
    for index, thought in enumerate(item.content or ()):
        if thought.text:
            yield (item.id, False, index), thought.text
