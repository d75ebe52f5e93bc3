"""Tools in namespaces, tools that items bring, and tools that are searched for: with OpenAI's own client and openai-agents.

The model behind the server speaks Chat Completions, which knows none of that.
"""

import json
from typing import Any

import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner, Tool, ToolSearchTool, function_tool, tool_namespace
from openai import AsyncOpenAI, BadRequestError, OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseToolSearchCall, ResponseToolSearchOutputItem
from tests.clients.upstream import Model, calls, says

QUIETLY = RunConfig(tracing_disabled=True)
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"], "additionalProperties": False}


def function(name: str, about: str = "Looks up.", **more: object) -> dict[str, Any]:
    return {"type": "function", "name": name, "description": about, "parameters": SCHEMA, "strict": False, **more}


def namespace(name: str, *tools: dict[str, Any], about: str = "") -> Any:
    return {"type": "namespace", "name": name, "description": about or f"All of {name}.", "tools": list(tools)}


def offered(model: Model, turn: int = -1) -> dict[str, str]:
    return {tool["function"]["name"]: tool["function"].get("description", "") for tool in model.asked[turn].get("tools", ())}


def called(model: Model, turn: int = -1) -> list[str]:
    return [call["function"]["name"] for message in model.messages(turn) for call in message.get("tool_calls") or ()]


CRM, BILLING = namespace("crm", function("find"), about="Customers."), namespace("billing", function("find"))


def test_a_client_gets_its_own_names_and_the_model_others(client: OpenAI, model: Model) -> None:
    """Two namespaces with a tool of one name, and history that the client sends itself."""
    model.hears("Who", calls(("billing__find", {"id": "7"})))
    model.hears("an invoice", says("An invoice."))
    first = client.responses.create(model=model.name, input="Who is 7?", tools=[CRM, BILLING], store=False)
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.namespace, call.name) == ("billing", "find")
    assert first.tools[0].type == "namespace"
    assert list(offered(model)) == ["crm__find", "billing__find"]
    assert "Customers." in offered(model)["crm__find"]
    history: Any = [
        {"role": "user", "content": "Who is 7?"},
        call.model_dump(exclude_none=True),
        {"type": "function_call_output", "call_id": call.call_id, "output": "an invoice"},
    ]
    second = client.responses.create(model=model.name, input=history, tools=[CRM, BILLING], store=False)
    assert second.output_text == "An invoice."
    assert called(model) == ["billing__find"]


def test_a_namespace_may_hold_a_tool_of_its_own_name(client: OpenAI, model: Model) -> None:
    tools = [namespace("find", function("find"), function("count")), function("find")]
    model.hears("Who", calls(("find__find", {"id": "7"})))
    model.hears("Ada", says("Ada."))
    first = client.responses.create(model=model.name, input="Who is 7?", tools=tools)
    [call] = first.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.namespace, call.name) == ("find", "find")
    assert sorted(offered(model)) == ["find", "find__count", "find__find"]
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "Ada"}
    asked: Any = [{"role": "user", "content": "Who is 7?"}, call.model_dump(exclude_none=True), output]
    assert client.responses.create(model=model.name, input=asked, tools=tools).output_text == "Ada."
    assert called(model) == ["find__find"]


def test_names_of_namespaces_are_streamed_and_stored(client: OpenAI, model: Model) -> None:
    model.hears("Who", calls(("crm__find", {"id": "7"})))
    model.hears("Ada", says("Ada."))
    with client.responses.stream(model=model.name, input="Who is 7?", tools=[CRM]) as stream:
        events = list(stream)
        first = stream.get_final_response()
    told = [event.item for event in events if event.type in ("response.output_item.added", "response.output_item.done")]
    assert [(item.namespace, item.name) for item in told if item.type == "function_call"] == [("crm", "find")] * 2
    [done] = [event for event in events if event.type == "response.function_call_arguments.done"]
    assert (done.model_dump()["name"], json.loads(done.arguments)) == ("find", {"id": "7"})
    again = client.responses.retrieve(first.id)
    [call] = again.output
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.namespace, call.name) == ("crm", "find")
    waiting = {"type": "function_call_output", "call_id": call.call_id, "name": "find"}
    assert again.model_dump()["required_input"] == [waiting]
    second = client.responses.create(
        model=model.name,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "Ada"}],
        tools=[CRM],
    )
    assert second.output_text == "Ada."
    assert called(model) == ["crm__find"]


def test_names_stay_valid_and_each_for_one_tool(client: OpenAI, model: Model) -> None:
    """Too long, taken by a function of that name, or the same when joined."""
    long = namespace("n" * 60, function("first_of_all"), function("first_of_them"))
    tools: Any = [function("crm__find"), CRM, namespace("a__b", function("c")), namespace("a", function("b__c")), long]
    model.hears("Go", says("Gone."))
    client.responses.create(model=model.name, input="Go", tools=tools)
    names = list(offered(model))
    assert len(set(names)) == len(names) == 6
    assert names[0] == "crm__find"
    assert all(len(name) <= 64 and name.replace("_", "").replace("-", "").isalnum() for name in names)
    model.hears("On", calls((names[1], {"id": "1"}), (names[3], {"id": "2"}), (names[5], {"id": "3"})))
    found = client.responses.create(model=model.name, input="On", tools=tools).output
    told = [(call.namespace, call.name) for call in found if isinstance(call, ResponseFunctionToolCall)]
    assert told == [("crm", "find"), ("a", "b__c"), ("n" * 60, "first_of_them")]
    model.hears("done", says("Done."))
    made: Any = [item.model_dump(exclude_none=True) for item in found]
    outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "done"} for call in made]
    history: Any = [{"role": "user", "content": "On"}, *made, *outputs]
    client.responses.create(model=model.name, input=history, tools=tools, store=False)
    assert called(model) == [names[1], names[3], names[5]]


def test_a_choice_names_tools_of_namespaces(client: OpenAI, model: Model) -> None:
    model.hears("Who", calls(("billing__find", {"id": "7"})))
    chosen: Any = {"type": "function", "name": "billing.find"}
    client.responses.create(model=model.name, input="Who?", tools=[CRM, BILLING], tool_choice=chosen)
    assert model.asked[-1]["tool_choice"] == {"type": "function", "function": {"name": "billing__find"}}
    allowed: Any = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "namespace", "name": "billing"}]}
    [call] = client.responses.create(model=model.name, input="Who?", tools=[CRM, BILLING], tool_choice=allowed).output
    assert call.type == "function_call"
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input="Who?", tools=[CRM], tool_choice={"type": "function", "name": "crm.gone"})
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "namespace", "description": "", "tools": [function("f")]}, "tools[0].name"),
        ({"type": "namespace", "name": "n", "description": "", "tools": []}, "tools[0].tools"),
        (namespace("n", {"type": "web_search"}), "tools[0].tools[0]"),
        (namespace("n", function("not a name")), "tools[0].tools[0]"),
        ({"type": "tool_search", "execution": "somewhere"}, "tools[0].execution"),
        (function("f", defer_loading=True), "tools"),
    ],
)  # fmt: skip
def test_what_cannot_be_honoured_is_refused(client: OpenAI, model: Model, tool: Any, param: str) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input="Hi", tools=[tool])
    assert refused.value.param == param


@pytest.mark.parametrize(
    "item",
    [
        {"type": "additional_tools", "role": "developer", "tools": "none"},
        {"type": "additional_tools", "role": "developer", "tools": ["none"]},
        {"type": "additional_tools", "role": "developer", "tools": [{"type": "namespace", "name": "n"}]},
        {"type": "tool_search_call", "call_id": "c", "execution": "client"},
        {"type": "tool_search_output", "call_id": "c", "execution": "client"},
        {"type": "tool_search_output", "call_id": "c", "execution": "client", "tools": []},
    ],
)
def test_items_that_bring_nothing_readable_are_refused(client: OpenAI, model: Model, item: Any) -> None:
    """The last answers a search that nobody has made."""
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input=[item, {"role": "user", "content": "Go"}])
    assert refused.value.param == "input"


def test_items_bring_tools_for_the_rest_of_the_conversation(client: OpenAI, model: Model) -> None:
    brought: Any = {"type": "additional_tools", "role": "developer", "tools": [function("plain"), CRM]}
    model.hears("Hello", says("Hi."))
    model.hears("Who", calls(("crm__find", {"id": "7"}), ("plain", {"id": "8"})))
    first = client.responses.create(model=model.name, input=[brought, {"role": "user", "content": "Hello"}])
    assert sorted(offered(model)) == ["crm__find", "plain"]
    assert not first.tools
    second = client.responses.create(model=model.name, input="Who is 7?", previous_response_id=first.id)
    told = [(call.namespace, call.name) for call in second.output if isinstance(call, ResponseFunctionToolCall)]
    assert told == [("crm", "find"), (None, "plain")]
    assert [item.type for item in client.responses.input_items.list(first.id, order="asc").data] == [
        "additional_tools",
        "message",
    ]


def test_an_item_may_bring_every_tool_that_codex_has(client: OpenAI, model: Model) -> None:
    """Kinds that nobody has among them: Codex is told what is left out, others are refused."""
    custom, shell = {"type": "custom", "name": "patch", "description": "Patches."}, {"type": "local_shell"}
    brought: Any = {"type": "additional_tools", "role": "developer", "tools": [CRM, custom, {"type": "web_search"}, shell]}
    model.hears("Go", calls(("patch", {"input": "a"}), ("local_shell", {"command": ["ls"]})))
    asked: Any = [brought, {"role": "user", "content": "Go"}]
    told = client.responses.with_raw_response.create(model=model.name, input=asked, extra_headers={"originator": "codex_exec"})
    assert told.headers["Mainspring-Ignored"] == "input[0].tools[2]"
    assert [item.type for item in told.parse().output] == ["custom_tool_call", "local_shell_call"]
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input=asked)
    assert refused.value.param == "input[0].tools[2].type"
    mcp: Any = {
        "type": "additional_tools",
        "role": "developer",
        "tools": [{"type": "mcp", "server_label": "s", "server_url": "u"}],
    }
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input=[mcp, {"role": "user", "content": "Go"}])
    assert refused.value.param == "input"


def test_the_server_searches_among_deferred_tools(client: OpenAI, model: Model) -> None:
    tools: Any = [
        {"type": "tool_search"},
        namespace(
            "crm", function("orders", "Open orders of a customer.", defer_loading=True), function("find"), about="Customers."
        ),
        function("weather", "The weather of a city.", defer_loading=True),
    ]
    model.hears("Orders of 7", calls(("tool_search", {"query": "customer order"})))
    model.hears("crm__orders", calls(("crm__orders", {"id": "7"})))
    with client.responses.stream(model=model.name, input="Orders of 7?", tools=tools) as stream:
        kinds = [event.type for event in stream]
        first = stream.get_final_response()
    assert kinds.count("response.output_item.done") == 3
    assert list(offered(model, 0)) == ["tool_search", "crm__find"]
    assert "crm: Customers." in offered(model, 0)["tool_search"]
    assert "weather: The weather of a city." in offered(model, 0)["tool_search"]
    assert list(offered(model, 1)) == ["tool_search", "crm__orders", "crm__find"]
    search, found, call = first.output
    assert isinstance(search, ResponseToolSearchCall)
    assert (search.execution, search.call_id, search.arguments) == ("server", None, {"query": "customer order"})
    assert isinstance(found, ResponseToolSearchOutputItem)
    [loaded] = found.tools
    assert loaded.type == "namespace"
    assert [tool.name for tool in loaded.tools] == ["orders"]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.namespace, call.name) == ("crm", "orders")
    # Whether the server or the client keeps the history, what was loaded stays so.
    model.hears("two", says("Two."))
    answer: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "two"}
    kept = client.responses.create(model=model.name, input=[answer], previous_response_id=first.id, tools=tools)
    history: Any = [{"role": "user", "content": "Orders of 7?"}, *[item.model_dump() for item in first.output], answer]
    sent = client.responses.create(model=model.name, input=history, tools=tools, store=False)
    assert kept.output_text == sent.output_text == "Two."
    for turn in (-1, -2):
        assert list(offered(model, turn)) == ["tool_search", "crm__orders", "crm__find"]
        assert called(model, turn) == ["tool_search", "crm__orders"]


def test_searches_at_once_are_told_in_their_order_and_sent_back_so(client: OpenAI, model: Model) -> None:
    tools: Any = [function("apples", defer_loading=True), function("pears", defer_loading=True), {"type": "tool_search"}]
    model.hears("Fruit", calls(("tool_search", {"query": "apples"}), ("tool_search", {"query": "pears"})))
    model.hears("pears", says("Both."))
    told = client.responses.create(model=model.name, input="Fruit?", tools=tools)
    found = [[tool.name for tool in item.tools] for item in told.output if isinstance(item, ResponseToolSearchOutputItem)]  # type: ignore[union-attr]
    assert found == [["apples"], ["pears"]]
    model.hears("Again", says("Both again."))
    history: Any = [*[item.model_dump() for item in told.output], {"role": "user", "content": "Again"}]
    client.responses.create(model=model.name, input=history, tools=tools, store=False)
    outputs = [message["content"] for message in model.messages() if message["role"] == "tool"]
    assert ["apples" in outputs[0], "pears" in outputs[1]] == [True, True]


def test_a_path_loads_a_whole_namespace_and_nothing_is_found_in_words(client: OpenAI, model: Model) -> None:
    crm = namespace("crm", *[function(f"tool_{number}", "Does.", defer_loading=True) for number in range(20)])
    tools: Any = [crm, {"type": "tool_search", "execution": "server"}]
    model.hears("Everything", calls(("tool_search", {"paths": ["crm"]})))
    model.hears("crm__tool_19", calls(("tool_search", {"query": "volcano"})))
    model.hears("No tool fits", says("Nothing."))
    told = client.responses.create(model=model.name, input="Everything", tools=tools)
    assert len(offered(model, 1)) == 21
    assert told.output_text == "Nothing."
    assert [item.type for item in told.output][:4] == ["tool_search_call", "tool_search_output"] * 2


def test_the_client_searches_and_brings_what_it_finds(client: OpenAI, model: Model) -> None:
    """Also tools that it never declared."""
    search: Any = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SCHEMA}
    model.hears("Who", calls(("tool_search", {"id": "people"})))
    model.hears("crm__find", calls(("crm__find", {"id": "7"}), ("weather", {"id": "8"})))
    first = client.responses.create(model=model.name, input="Who is 7?", tools=[search])
    [call] = first.output
    assert isinstance(call, ResponseToolSearchCall)
    assert (call.execution, call.arguments) == ("client", {"id": "people"})
    assert first.model_dump()["required_input"][0]["type"] == "tool_search_output"
    loaded = [namespace("crm", function("find", defer_loading=True)), function("weather", defer_loading=True)]
    answer: Any = {
        "type": "tool_search_output",
        "call_id": call.call_id,
        "execution": "client",
        "tools": loaded,
        "status": "completed",
    }
    second = client.responses.create(model=model.name, input=[answer], previous_response_id=first.id, tools=[search])
    assert list(offered(model)) == ["tool_search", "crm__find", "weather"]
    told = [(made.namespace, made.name) for made in second.output if isinstance(made, ResponseFunctionToolCall)]
    assert told == [("crm", "find"), ("weather", "weather")]
    [sent] = client.responses.input_items.list(second.id).data
    assert sent.type == "tool_search_output"


@function_tool
def find(id: str) -> str:
    """Finds a customer."""
    return f"Ada {id}"


@function_tool(defer_loading=True)
def weather(id: str) -> str:
    """The weather of a city."""
    return f"sun over {id}"


async def test_openai_agents_calls_tools_of_namespaces_and_searches(url: str, model: Model) -> None:
    model.hears("Who", calls(("crm__find", {"id": "7"})))
    model.hears("Ada 7", calls(("tool_search", {"query": "weather"})))
    model.hears("weather", calls(("weather", {"id": "Oslo"})))
    model.hears("sun over Oslo", says("Ada, in the sun."))
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client:
        tools: list[Tool] = [*tool_namespace(name="crm", description="Customers.", tools=[find]), weather, ToolSearchTool()]
        agent = Agent("a", model=OpenAIResponsesModel(model.name, client), tools=tools)
        assert (await Runner.run(agent, "Who is 7?", run_config=QUIETLY)).final_output == "Ada, in the sun."
