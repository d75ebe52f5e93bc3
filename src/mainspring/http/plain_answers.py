"""What a run leaves to its client, for APIs whose answers are one message and have no items."""

from collections.abc import Iterator

from mainspring.core.items import ApprovalRequest, FunctionCall, Reasoning
from mainspring.core.response import Response

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


def list_thoughts(item: Reasoning) -> Iterator[tuple[Thought, str]]:
    for index, summary in enumerate(item.summary):
        if summary.text:
            yield (item.id, True, index), summary.text
    for index, thought in enumerate(item.content or ()):
        if thought.text:
            yield (item.id, False, index), thought.text
