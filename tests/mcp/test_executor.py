"""MCP tools in runs: bad servers cost nobody but themselves, each principal has connections of its own, and every run ends."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import pytest
from tests.kit.waiting import until
from tests.mcp.conftest import Zoo
from tests.mcp.web import served

from mainspring import Engine
from mainspring.core.events import ToolProgress
from mainspring.core.items import FunctionCallOutput, ToolDefinition
from mainspring.core.run import Run
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, call, turn
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.toolset import Toolset

Open = Callable[..., McpTools]


@pytest.fixture
async def tools_of() -> AsyncIterator[Open]:
    opened: list[McpTools] = []

    def open_tools(*servers: ServerSpec, **options: Any) -> McpTools:
        opened.append(McpTools(servers, **options))
        return opened[-1]

    yield open_tools
    for tools in opened:
        await tools.close()


async def performed(tools: McpTools, made: Toolset, name: str, **arguments: object) -> ToolResult:
    tools.bind("resp_1", made)
    route = made.route(name)
    definition = route.definition if route is not None else ToolDefinition(name, kind="mcp")
    asked = ToolCall("call_1", name, json.dumps(arguments), arguments)
    return await tools.execute(asked, CallContext("resp_1", definition, lambda text: None))


def outputs(run: Run) -> list[FunctionCallOutput]:
    return [entry.item for entry in run.transcript if isinstance(entry.item, FunctionCallOutput)]


async def run_of(tools: McpTools, made: Toolset, *turns: Any) -> Run:
    async with Engine(Scripted(*turns), executors=[tools]) as engine:
        spec = engine.order("go", tools=made.definitions)
        tools.bind(spec.id, made)
        try:
            return await (await engine.start(spec)).wait()
        finally:
            tools.unbind(spec.id)


async def test_a_run_calls_the_tools_of_two_servers(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("good"), zoo.spec("progress"))
    made = await tools.collect_tools()
    assert list(made.routes) == ["good__read", "good__write", "progress__read", "progress__write"]
    both = turn(calls=[call("good__read", text="a"), call("progress__read", text="b")])
    run = await run_of(tools, made, both, turn(say="Done."))
    assert run.text == "Done."
    assert [output.output for output in outputs(run)] == ['{"text": "a"}', "done"]


@pytest.mark.slow
@pytest.mark.parametrize("animal", ["mute", "doomed", "malformed", "garbage", "renamed", "liar", "crash"])
async def test_whatever_one_server_does_the_others_serve_and_the_run_ends(animal: str, zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("good"), zoo.spec(animal), connect_seconds=15)
    made = await tools.collect_tools()
    good = "good__read" if "good__read" in made.routes else "read"
    bad = f"{animal}__read" if f"{animal}__read" in made.routes else "missing"
    turns = [turn(calls=[call(bad, text="a"), call(good, text="b")]) for _ in range(2)]
    run = await run_of(tools, made, *turns, turn(say="Done."))
    assert (run.status, run.text) == ("completed", "Done.")
    served = [output for output in outputs(run) if output.output == '{"text": "b"}' and not output.is_error]
    assert len(served) >= 2


async def test_a_server_that_tells_of_its_progress_without_end_is_not_heard_to_the_end(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("talker"))
    made = await tools.collect_tools()
    async with Engine(Scripted(call("read"), turn(say="Done.")), executors=[tools]) as engine:
        spec = engine.order("go", tools=made.definitions)
        tools.bind(spec.id, made)
        handle = await engine.start(spec)
        told = [record.event.text async for record in handle.events() if isinstance(record.event, ToolProgress)]
    assert handle.run.text == "Done."
    assert len(told) <= 1_000
    assert sum(map(len, told)) < 600_000
    assert told[-1] == "[it tells more than is shown]"


async def test_a_failing_server_has_no_tools_and_says_why(zoo: Zoo, tools_of: Open) -> None:
    gone = ServerSpec("gone", "stdio", command="/no/such/program", trusted=True)
    made = await tools_of(zoo.spec("good"), gone).collect_tools()
    assert list(made.routes) == ["read", "write"]
    assert made.offers[0].error is None
    assert "`gone` cannot be started" in str(made.offers[1].error)


async def test_malformed_tools_are_reported_with_the_others_in_use(zoo: Zoo, tools_of: Open) -> None:
    [offer] = (await tools_of(zoo.spec("malformed")).collect_tools()).offers
    assert [tool.name for tool in offer.tools] == ["read", "write"]
    assert [found.name for found in offer.rejected][-3:] == ["tool 7", "regex", "write"]


async def test_an_error_is_an_output_that_the_model_can_read(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("crash"))
    result = await performed(tools, await tools.collect_tools(), "write")
    assert result.is_error
    assert "whether it was carried out is not known" in str(result.output)


async def test_a_tool_that_only_reads_is_called_again_after_a_crash(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("crash"))
    assert await performed(tools, await tools.collect_tools(), "read", text="a") == ToolResult("call_1", '{"text": "a"}')
    assert zoo.count("crash", "tools/call") == 2


async def test_a_name_that_no_server_has_is_answered(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("good"))
    result = await performed(tools, await tools.collect_tools(), "juggle")
    assert (result.is_error, "No MCP server has a tool `juggle`" in str(result.output)) == (True, True)


async def test_a_run_without_a_set_of_its_own_uses_the_operators_servers(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("good"))
    for name in ("read", "good__read"):
        context = CallContext("resp_resumed", ToolDefinition(name, kind="mcp"), lambda text: None)
        assert await tools.execute(ToolCall("call_1", name, "{}", {}), context) == ToolResult("call_1", "{}")


async def test_an_unchanged_list_is_not_worked_out_again(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("good"))
    first, second = await tools.collect_tools(), await tools.collect_tools()
    assert first.offers[0] is second.offers[0]
    assert zoo.count("good", "tools/list") == 1


async def test_a_schema_that_has_changed_is_told_in_the_next_set(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("changed"))
    before = await tools.collect_tools()
    await performed(tools, before, "read")
    await until(lambda: tools._get_connection(tools.servers[0], "")._listing is None)
    after = await tools.collect_tools()
    assert [(made.definitions[0].parameters or {}).get("required") for made in (before, after)] == [None, ["text"]]


async def test_a_stalled_call_is_stopped_by_its_run(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("stall", timeout=0.2))
    run = await run_of(tools, await tools.collect_tools(), turn(calls=[call("read", text="a")]), turn(say="Done."))
    assert run.text == "Done."
    [output] = outputs(run)
    assert output.is_error
    # What a run stops is cancelled at the server as well.
    await until(lambda: zoo.count("stall", "notifications/cancelled") == 1)


async def test_a_cancelled_run_cancels_its_call_at_the_server(zoo: Zoo, tools_of: Open) -> None:
    tools = tools_of(zoo.spec("stall"))
    made = await tools.collect_tools()
    async with Engine(Scripted(turn(calls=[call("read", text="a")])), executors=[tools]) as engine:
        spec = engine.order("go", tools=made.definitions)
        tools.bind(spec.id, made)
        handle = await engine.start(spec)
        await until(lambda: zoo.count("stall", "tools/call") == 1)
        await engine.cancel(handle.id)
        assert (await handle.wait()).status == "cancelled"
    await until(lambda: zoo.count("stall", "notifications/cancelled") == 1)


async def test_principals_do_not_share_the_servers_they_bring(tools_of: Open) -> None:
    async with served("good") as web:
        tools = tools_of(guard=AddressGuard(["127.0.0.1"]))
        spec = ServerSpec("mine", url=web.url)
        for principal in ("ada", "grace", "ada"):
            assert (await tools.collect_tools([spec], principal=principal)).definitions
        await tools.close()
        opened = [headers for headers in web.headers if "mcp-session-id" not in {name.lower() for name in headers}]
    # Each connection probes and then shakes hands, without a session yet.
    assert len(opened) == 4


async def test_strangers_servers_are_let_go_when_there_are_too_many(tools_of: Open) -> None:
    async with served("good") as web:
        tools = tools_of(guard=AddressGuard(["127.0.0.1"]), most_strangers=1)
        sets = [await tools.collect_tools([ServerSpec("mine", url=web.url)], principal=name) for name in ("ada", "grace", "joan")]
        # Ada's connection is gone; what she was given still works, by a new one.
        tools.bind("resp_1", sets[0])
        context = CallContext("resp_1", sets[0].definitions[0], lambda text: None)
        assert (await tools.execute(ToolCall("call_1", "read", "{}", {}), context)).output == "call 1"
        await tools.close()


async def test_two_servers_need_two_labels(zoo: Zoo) -> None:
    with pytest.raises(ValueError, match="two MCP servers are called `good`"):
        McpTools([zoo.spec("good"), zoo.spec("good")])


async def test_servers_are_asked_at_once(zoo: Zoo, tools_of: Open) -> None:
    async with served("good") as one, served("good") as other:
        gate = asyncio.Barrier(2)

        async def lookup(host: str, port: int) -> Sequence[str]:
            await gate.wait()
            return ["127.0.0.1"]

        guard = AddressGuard(["a.example", "b.example"], lookup=lookup)
        specs = [
            ServerSpec(web.url, url=web.url.replace("127.0.0.1", host))
            for web, host in ((one, "a.example"), (other, "b.example"))
        ]
        tools = tools_of(guard=guard)
        made = await tools.collect_tools(specs)
        assert [offer.error for offer in made.offers] == [None, None]
        await tools.close()


def test_nobody_imports_the_sdk_before_a_server_is_used() -> None:
    code = "import sys, mainspring.tools.mcp.executor; print({'mcp', 'httpx2', 'pydantic', 'aiohttp'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
