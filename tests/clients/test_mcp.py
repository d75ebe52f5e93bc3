"""MCP servers that a request names, or that the operator configured: listed, called, approved, through unmodified clients."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, OpenAIResponsesModel, RunConfig, Runner
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI, BadRequestError, OpenAI
from tests.clients.process import Served, served
from tests.clients.tap import lint, tapping
from tests.clients.upstream import Model, Upstream, calls, says

TOKEN = "tok-0123456789-secret"


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("mcp")
    command = f"command = {sys.executable!r}\nargs = ['-m', 'mcp_server_time', '--local-timezone', 'UTC']\n"
    (folder / "mainspring.toml").write_text(f"[mcp.clock]\n{command}")
    with served(folder, upstream.url, ["--allow-host", "127.0.0.1"]) as server:
        yield server


@pytest.fixture
def url(portal: BlockingPortal, running: Served) -> Iterator[str]:
    with portal.wrap_async_context_manager(tapping(running.port)) as tap:
        yield tap.url
    lint(tap.streams())


def server(url: str, **more: Any) -> Any:
    return {"type": "mcp", "server_label": "sums", "server_url": url, "require_approval": "never", **more}


@pytest.fixture
def sum_of_two(model: Model) -> None:
    model.hears("2 and 3", calls(("add", {"a": 2, "b": 3})))
    model.hears("5", says("It is five."))


@pytest.mark.usefixtures("sum_of_two")
def test_the_tools_of_a_server_are_listed_and_called(client: OpenAI, model: Model, sums: str) -> None:
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=[server(sums)])
    listed, call, _ = answer.output
    assert listed.type == "mcp_list_tools"
    assert (listed.server_label, sorted([tool.name for tool in listed.tools])) == ("sums", ["add", "ask", "learn"])
    assert call.type == "mcp_call"
    assert (call.server_label, call.name, call.output, call.status) == ("sums", "add", "5", "completed")
    assert answer.output_text == "It is five."
    assert {"add", "ask", "learn", "get_current_time"} <= {tool["function"]["name"] for tool in model.asked[0]["tools"]}


def test_the_tools_of_a_deferred_server_are_searched_for_and_called(client: OpenAI, model: Model, sums: str) -> None:
    tools = [server(sums, defer_loading=True, server_description="Sums of numbers."), {"type": "tool_search"}]
    model.hears("2 and 3", calls(("tool_search", {"query": "adds numbers"})))
    model.hears("add", calls(("add", {"a": 2, "b": 3})))
    model.hears("5", says("It is five."))
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools)
    kinds = [item.type for item in answer.output]
    assert kinds == ["mcp_list_tools", "tool_search_call", "tool_search_output", "mcp_call", "message"]
    first, second = [{tool["function"]["name"]: tool["function"] for tool in asked["tools"]} for asked in model.asked[:2]]
    assert "sums: Sums of numbers." in first["tool_search"]["description"]
    assert "add" not in first
    assert "add" in second
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools[:1])
    assert refused.value.param == "tools"


@pytest.mark.usefixtures("sum_of_two")
def test_a_server_of_the_older_transport_is_brought_like_any_other(client: OpenAI, model: Model, sums_by_sse: str) -> None:
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=[server(sums_by_sse)])
    assert [item.type for item in answer.output] == ["mcp_list_tools", "mcp_call", "message"]
    assert answer.output_text == "It is five."


@pytest.mark.usefixtures("sum_of_two")
@pytest.mark.parametrize("transport", ["", 'transport = "sse"'], ids=["by its url", "by name"])
def test_a_server_of_the_older_transport_is_configured(
    upstream: Upstream, model: Model, sums_by_sse: str, tmp_path: Path, transport: str
) -> None:
    (tmp_path / "mainspring.toml").write_text(f"[mcp.sums]\nurl = {sums_by_sse!r}\n{transport}\n")
    with served(tmp_path, upstream.url) as running, OpenAI(base_url=running.url, api_key="unused") as client:
        answer = client.responses.create(model=model.name, input="What is 2 and 3?")
    assert answer.output_text == "It is five."


@pytest.mark.usefixtures("sum_of_two")
def test_a_stream_tells_of_the_list_and_the_call(client: OpenAI, model: Model, sums: str) -> None:
    with client.responses.stream(model=model.name, input="What is 2 and 3?", tools=[server(sums)]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["mcp_list_tools", "mcp_call", "message"]
    told = [kind for kind in kinds if ".mcp_" in kind]
    assert told == [
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.mcp_call.in_progress",
        *["response.mcp_call_arguments.delta"] * told.count("response.mcp_call_arguments.delta"),
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
    ]


@pytest.mark.usefixtures("sum_of_two")
def test_a_call_waits_for_approval_and_is_made_once_it_is_given(client: OpenAI, model: Model, sums: str) -> None:
    tools = [server(sums, require_approval="always")]
    first = client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools)
    asked = first.output[-1]
    assert asked.type == "mcp_approval_request"
    assert (asked.server_label, asked.name, asked.arguments) == ("sums", "add", '{"a": 2, "b": 3}')
    second = client.responses.create(
        model=model.name,
        previous_response_id=first.id,
        input=[{"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": True}],
        tools=tools,
    )
    call, said = second.output
    assert call.type == "mcp_call"
    assert (call.name, call.output, call.approval_request_id) == ("add", "5", asked.id)
    assert said.type == "message"
    assert second.output_text == "It is five."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool"]


def test_a_call_that_is_refused_is_not_made(client: OpenAI, model: Model, sums: str) -> None:
    model.hears("2 and 3", calls(("add", {"a": 2, "b": 3})))
    model.hears("too hard", says("Then not."))
    tools = [server(sums, require_approval={"always": {"tool_names": ["add"]}})]
    first = client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools)
    refusal: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": first.output[-1].id,
        "approve": False,
        "reason": "too hard",
    }
    second = client.responses.create(model=model.name, previous_response_id=first.id, input=[refusal], tools=tools)
    call = second.output[0]
    assert call.type == "mcp_call"
    assert (call.status, call.output) == ("failed", None)
    assert second.output_text == "Then not."


@pytest.mark.usefixtures("sum_of_two")
def test_a_list_is_told_once_in_a_conversation(client: OpenAI, model: Model, sums: str) -> None:
    model.hears("Thanks", says("Gladly."))
    first = client.responses.create(model=model.name, input="What is 2 and 3?", tools=[server(sums)])
    again = client.responses.create(model=model.name, input="Thanks", previous_response_id=first.id, tools=[server(sums)])
    assert [item.type for item in again.output] == ["message"]


@pytest.mark.usefixtures("sum_of_two")
@pytest.mark.parametrize(
    "choice",
    [
        {"type": "mcp", "server_label": "sums"},
        {"type": "mcp", "server_label": "sums", "name": "add"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp", "server_label": "sums"}]},
    ],
)
def test_tool_choice_names_a_server(client: OpenAI, model: Model, sums: str, choice: Any) -> None:
    tools = [server(sums, allowed_tools=["add"])]
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools, tool_choice=choice)
    assert answer.output_text == "It is five."
    assert model.asked[0]["tool_choice"] in ("required", {"type": "function", "function": {"name": "add"}})


@pytest.mark.usefixtures("sum_of_two")
def test_what_lets_us_in_is_neither_kept_nor_told(client: OpenAI, model: Model, running: Served, sums: str) -> None:
    tools = [server(sums, authorization=TOKEN, headers={"X-Key": TOKEN})]
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=tools)
    assert answer.output_text == "It is five."
    assert TOKEN not in answer.model_dump_json()
    assert TOKEN not in client.responses.retrieve(answer.id).model_dump_json()
    assert not [path for path in running.log.parent.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_a_server_that_is_down_costs_only_its_own_tools(client: OpenAI, model: Model, sums: str) -> None:
    model.hears("2 and 3", calls(("add", {"a": 2, "b": 3})))
    model.hears("5", says("It is five."))
    down: Any = {**server("http://127.0.0.1:9/mcp"), "server_label": "down"}
    answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=[down, server(sums)])
    failed, listed, *_ = answer.output
    assert failed.type == "mcp_list_tools"
    assert failed.tools == []
    assert failed.error
    assert listed.type == "mcp_list_tools"
    assert answer.output_text == "It is five."


@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ({"type": "mcp", "server_label": "x", "command": "sh"}, "command"),
        ({"type": "mcp", "server_label": "x"}, "server_url"),
        ({"type": "mcp", "server_url": "http://127.0.0.1/"}, "server_label"),
        ({"type": "mcp", "server_label": "clock", "server_url": "http://127.0.0.1:9/mcp"}, "two MCP servers"),
        ({"type": "mcp", "server_label": "x", "server_url": "file:///etc/passwd"}, "no HTTP URL"),
    ],
)
def test_a_server_that_is_described_wrongly_is_refused_by_name(client: OpenAI, model: Model, tool: Any, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        client.responses.create(model=model.name, input="Hello", tools=[tool])


def test_the_operator_s_servers_are_there_for_every_request(client: OpenAI, model: Model) -> None:
    model.hears("What time", calls(("get_current_time", {"timezone": "UTC"})))
    model.hears("UTC", says("Late."))
    answer = client.responses.create(model=model.name, input="What time is it?")
    [call, _] = answer.output
    assert call.type == "mcp_call"
    assert (call.server_label, call.name, call.status) == ("clock", "get_current_time", "completed")
    assert answer.output_text == "Late."


@pytest.mark.usefixtures("sum_of_two")
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_openai_agents_uses_a_hosted_server(url: str, model: Model, sums: str, streamed: bool) -> None:
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        agent = Agent("Adder", tools=[HostedMCPTool(server(sums))], model=OpenAIResponsesModel(model.name, client))
        if streamed:
            result = Runner.run_streamed(agent, "What is 2 and 3?", run_config=RunConfig(tracing_disabled=True))
            async for _ in result.stream_events():
                pass
            assert result.final_output == "It is five."
        else:
            done = await Runner.run(agent, "What is 2 and 3?", run_config=RunConfig(tracing_disabled=True))
            assert done.final_output == "It is five."


def test_private_hosts_are_refused_unless_the_operator_allows_them(
    upstream: Upstream, model: Model, sums: str, tmp_path: Path
) -> None:
    model.hears("2 and 3", says("I cannot add."))
    with served(tmp_path, upstream.url) as guarded, OpenAI(base_url=guarded.url, api_key="unused") as client:
        answer = client.responses.create(model=model.name, input="What is 2 and 3?", tools=[server(sums)])
    listed = answer.output[0]
    assert listed.type == "mcp_list_tools"
    assert listed.error is not None
    assert "--allow-host 127.0.0.1" in listed.error
    assert "tools" not in model.asked[0]
