"""An approval is used up by the call it was given for, and not by a server that is away or has other tools by then."""

from typing import Any

import pytest
from tests.mcp.web import served

from mainspring import Engine
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Unknown
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.executor import McpTools

pytestmark = pytest.mark.slow


def tool(url: str, **more: object) -> Unknown:
    return Unknown({"type": "mcp", "server_label": "web", "server_url": url, **more})


def engine_with(*turns: Any) -> Engine:
    return Engine(Scripted(*turns), mcp=McpTools(guard=AddressGuard(["127.0.0.1"]), connect_seconds=5))


async def test_an_approval_is_kept_while_its_server_is_away_and_used_when_it_is_back() -> None:
    async with engine_with(call("write"), say("Written.")) as engine, served("good") as web:
        first = await engine.run("Write.", tools=[tool(web.url)])
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        yes = (ApprovalResponse(asked.id, True),)
        away = [
            [tool("http://127.0.0.1:9/mcp")],
            [tool(web.url, allowed_tools=["read"])],
            [],
        ]
        for tools in away:
            with pytest.raises(InvalidRequest, match="`write` was approved, and is none of the tools") as raised:
                await engine.run(yes, previous=first.spec.id, tools=tools)
            assert (raised.value.code, raised.value.param) == ("approved_tool_missing", "tools")
        assert web.calls == 0
        second = await engine.run(yes, previous=first.spec.id, tools=[tool(web.url)])
        assert (second.text, web.calls) == ("Written.", 1)
        with pytest.raises(InvalidRequest, match="has been given already"):
            await engine.run(yes, previous=first.spec.id, tools=[tool(web.url)])
        assert web.calls == 1


async def test_an_approval_is_for_the_server_it_was_asked_about() -> None:
    async with engine_with(call("write"), say("Written.")) as engine, served("good") as web, served("good") as other:
        first = await engine.run("Write.", tools=[tool(web.url)])
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        yes = (ApprovalResponse(asked.id, True),)
        with pytest.raises(InvalidRequest, match="takes or does something else now"):
            await engine.run(yes, previous=first.spec.id, tools=[tool(other.url)])
        assert (web.calls, other.calls) == (0, 0)
        second = await engine.run(yes, previous=first.spec.id, tools=[tool(web.url)])
        assert (second.text, web.calls, other.calls) == ("Written.", 1, 0)


async def test_why_the_server_is_away_is_told() -> None:
    async with engine_with(call("write")) as engine, served("good") as web:
        first = await engine.run("Write.", tools=[tool(web.url)])
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        with pytest.raises(InvalidRequest, match=r"an MCP server failed: MCP server `web` cannot be used"):
            await engine.run((ApprovalResponse(asked.id, True),), previous=first.spec.id, tools=[tool("http://127.0.0.1:9/mcp")])


async def test_a_call_can_be_refused_though_its_server_is_away() -> None:
    async with engine_with(call("write"), say("Then not.")) as engine, served("good") as web:
        first = await engine.run("Write.", tools=[tool(web.url)])
        [asked] = [item for item in first.output if isinstance(item, ApprovalRequest)]
        second = await engine.run((ApprovalResponse(asked.id, False, "no"),), previous=first.spec.id)
        assert (second.text, web.calls) == ("Then not.", 0)
