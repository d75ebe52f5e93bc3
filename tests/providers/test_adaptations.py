"""Requests changed for what a backend refuses: any set of refusals gives a request, whatever is in the history."""

from itertools import combinations
from typing import Any

from mainspring.providers.chat.adaptations import _CHANGES, adapt

CALL = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "clock", "strict": True, "parameters": {"type": "object"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "messages": [
        {"role": "user", "content": "What time is it?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "name": "clock", "content": ""},
        {"role": "assistant", "content": "Noon."},
        {"role": "user", "content": "Thanks."},
    ],
    "tools": [TOOL],
    "tool_choice": "required",
    "max_tokens": 9,
}


def test_any_three_refusals_together_give_a_request() -> None:
    for number in (1, 2, 3):
        for refused in combinations(_CHANGES, number):
            messages = adapt(BODY, frozenset(refused))["messages"]
            assert "Thanks." in str(messages[-1]["content"]) or "tool_choice" in refused, refused


def test_nothing_is_said_for_a_system_that_says_nothing() -> None:
    assert adapt(BODY, frozenset({"messages.system"}))["messages"] == BODY["messages"]
