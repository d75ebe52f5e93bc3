"""The events of a stream in their exact order, turn upon turn, with a tool that the server performs in between."""

from itertools import groupby
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.server.linter import events_of, linted
from tests.server.process import Script, serving

TOOLS = '''
from mainspring import tool
from mainspring.ports import CallContext


@tool
def clock(context: CallContext) -> str:
    """Tells the time."""
    context.progress("looking")
    return "half past nine"
'''
SCRIPT: Script = [
    {"when": "time", "calls": [{"name": "clock", "arguments": {}}]},
    {"when": "time", "say": "Half past nine.", "expect": "half past nine"},
]
CALL = ["response.output_item.added", "response.function_call_arguments.delta", "response.function_call_arguments.done"]
TEXT = [
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
]


async def streamed(folder: Path, headers: dict[str, str]) -> list[dict[str, Any]]:
    (folder / "tools.py").write_text(TOOLS)
    with serving(folder, SCRIPT, "--tool", "tools") as served:
        body = {"model": "m", "input": "What time is it?", "stream": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{served.url}/responses", json=body, headers=headers) as answer,
        ):
            events = events_of(await answer.read())
    assert linted(events)["status"] == "completed"
    return events


@pytest.mark.requirement("A21", "A31", "A32", "A33", "S7")
@pytest.mark.parametrize("by", ["header", "setting"])
async def test_call_then_text_come_in_the_documented_order_as_one_stream(tmp_path: Path, by: str) -> None:
    if by == "setting":
        (tmp_path / "mainspring.toml").write_text('server_calls = "function_call"\n')
    events = await streamed(tmp_path, {"OpenResponses-Version": "1"} if by == "header" else {})
    kinds = [kind for kind, _ in groupby([event["type"] for event in events])]
    output = ["response.output_item.added", "response.output_item.done"]
    start = ["response.created", "response.in_progress"]
    assert kinds == [*start, *CALL, "response.output_item.done", *output, *TEXT, "response.completed"]
    items = [event["item"]["type"] for event in events if event["type"] == "response.output_item.done"]
    assert items == ["function_call", "function_call_output", "message"]


@pytest.mark.requirement("A34")
async def test_a_running_tool_sends_no_events_of_its_own_unless_asked_for(tmp_path: Path) -> None:
    bare = {event["type"] for event in await streamed(tmp_path, {"OpenResponses-Version": "1"})}
    assert bare == {"response.created", "response.in_progress", *CALL, *TEXT, "response.completed"}
    quiet = {event["type"] for event in await streamed(tmp_path, {})}
    arguments = {"response.mcp_call_arguments.delta", "response.mcp_call_arguments.done"}
    at_work = {"response.mcp_call.in_progress", "response.mcp_call.completed"}
    assert quiet == (bare - {*CALL[1:]}) | arguments | at_work
    told = await streamed(tmp_path, {"Mainspring-Extensions": "on"})
    assert [event["text"] for event in told if event["type"] == "mainspring:tool_progress"] == ["looking"]
