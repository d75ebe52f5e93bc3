"""Tools in words, for a model or a server that knows none: in the form in which calls are then read from its text."""

from collections.abc import Sequence
from typing import Final

from mainspring.core.items import Json
from mainspring.providers.json_text import json_text


def describe_tools(functions: Sequence[Json], *, name: str = "", is_required: bool = False) -> str:
    """What tools there are and how they are called; `name` is the one to call, if there is one."""
    wish = f" Answer by calling `{name}`." if name else " Answer by calling one of them." if is_required else ""
    return f"{_TOOLS_TOLD}{wish}\n<tools>\n" + "\n".join(map(json_text, functions)) + "\n</tools>"


def retell_calls(messages: Sequence[Json]) -> list[Json]:
    """The messages with their calls and outputs in words."""
    told: list[Json] = []
    for message in messages:
        if message["role"] == "tool":
            message = {"role": "user", "content": write_output(message["content"])}
        elif calls := message.get("tool_calls"):
            made = [write_call(call["function"]["name"], json_text(call["function"]["arguments"])) for call in calls]
            message = {"role": "assistant", "content": "\n".join([*filter(None, [message["content"]]), *made])}
        told.append(message)
    return told


def write_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def write_output(output: str) -> str:
    return f"<tool_response>\n{output}\n</tool_response>"


_TOOLS_TOLD: Final = (
    "You can call tools. To call one, answer with nothing but a block\n<tool_call>\n"
    '{"name": "the tool", "arguments": {"its": "arguments"}}\n</tool_call>\n'
    "for each call. What it returns comes in <tool_response> tags; then answer. "
    "These are the tools, each with the JSON Schema of its arguments."
)
