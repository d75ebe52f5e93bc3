"""Whatever item an answer had, a later request may name it by `item_reference` instead of sending it."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, get_args

import aiohttp
import pytest
from msgspec import Struct
from tests.mcp.web import served
from tests.search.test_web_search import open_services
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.drafts import item_id
from mainspring.core.items import CallForm, Json
from mainspring.features.web_search.searchers import HttpSearcher
from mainspring.features.web_search.web_search import make_web_search
from mainspring.providers.scripted import Scripted, call, calls, cut, say, turn
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.builtin.web_fetch import WebFetch
from mainspring.tools.functions import tool
from mainspring.tools.mcp.executor import McpTools

pytestmark = pytest.mark.slow


class Case(Struct, frozen=True):
    """An answer: its turns, what it is asked for with, and what its items need behind them when they are sent; those that
    mean something only together are sent so."""

    turns: tuple[Any, ...]
    request: Json = {}
    output: Json = {}
    is_together: bool = False


INTERPRETER = {"type": "code_interpreter", "container": {"type": "auto"}}
PATCH = {"type": "create_file", "path": "a", "diff": "+a"}
LATER = {"type": "function", "name": "look", "parameters": {}, "defer_loading": True}
COMPACT = {"context_management": [{"type": "compaction", "compact_threshold": 200}]}
CASES = {
    "words": Case((turn(think="Hm.", say="Hello."),)),
    "function": Case(
        (call("f"),), {"tools": [{"type": "function", "name": "f", "parameters": {}}]}, {"type": "function_call_output"}
    ),
    "custom": Case((call("c", input="x"),), {"tools": [{"type": "custom", "name": "c"}]}, {"type": "custom_tool_call_output"}),
    "local shell": Case(
        (call("local_shell", command=["ls"]),), {"tools": [{"type": "local_shell"}]}, {"type": "local_shell_call_output"}
    ),
    "shell": Case(
        (call("shell", commands=["ls"]),),
        {"tools": [{"type": "shell", "environment": {"type": "local"}}]},
        {"type": "shell_call_output", "output": [{"stdout": "a", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]},
    ),
    "patch": Case(
        (call("apply_patch", **PATCH),),
        {"tools": [{"type": "apply_patch"}]},
        {"type": "apply_patch_call_output", "status": "completed"},
    ),
    "server's tool": Case((calls(call("weather"), call("weather")), say("Sunny."))),
    "interpreter": Case((call("code_interpreter", code="print(1)"), say("One.")), {"tools": [INTERPRETER]}),
    "approval": Case((call("write"),), {"tools": ["mcp"]}),
    "compaction": Case((call("weather"), say("A summary."), say("Sunny.")), COMPACT),
    "search": Case(
        (call("tool_search", query="look"), say("Found.")), {"tools": [LATER, {"type": "tool_search"}]}, is_together=True
    ),
    "client's search": Case(
        (call("tool_search", query="look"),),
        {"tools": [LATER, {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {}}]},
        {"type": "tool_search_output", "execution": "client", "tools": [LATER]},
    ),
    "files": Case((call("file_search", queries=["hours"]), say("Nine.")), {"tools": ["file_search"]}),
    "web": Case((call("web_search", queries=["sourdough"]), say("A night.")), {"tools": [{"type": "web_search"}]}),
    "turn that was cut off": Case((cut(turn(say="Half a word", calls=[call("weather")]), after=2), say("Whole."))),
}
KINDS = {
    "tool_search_output",
    "message",
    "reasoning",
    "function_call",
    "mcp_call",
    "mcp_list_tools",
    "mcp_approval_request",
    "compaction",
}
FORMS = {
    "custom_tool_call" if form == "custom" else f"{form}_call" for form in get_args(CallForm) if form != "server_tool_search"
}
UNSEEN = ("mcp_list_tools", "mcp_approval_request", "compaction")


@tool(effects=("read",))
def weather() -> str:
    """The weather, at length."""
    return "sunny " * 80


@asynccontextmanager
async def serving(case: Case) -> AsyncIterator[tuple[Scripted, Any, Json]]:
    script = Scripted(*case.turns, *[say("Fine.", when="Go on.")] * 8, chunk=4)
    guard = AddressGuard(["127.0.0.1"])
    async with open_services() as services, aiohttp.ClientSession() as session, served("good") as web, AsyncExitStack() as stack:
        search = make_web_search(HttpSearcher("searxng", f"{services.url}/searxng", ""), WebFetch(guard))
        builtins = BuiltinTools(("code_interpreter",))
        engine = Engine(script, tools=[weather], mcp=McpTools(guard=guard), builtins=builtins, parts=[search])
        url = await stack.enter_async_context(hosted(server(engine)))

        async def create(**body: Any) -> Json:
            async with session.post(f"{url}/responses", json=body) as answer:
                told: Json = await answer.json()
                assert answer.status == 200, told
                return told

        async with session.post(f"{url}/vector_stores", json={}) as answer:
            store = (await answer.json())["id"]
        servers = {
            "mcp": {"type": "mcp", "server_label": "web", "server_url": web.url},
            "file_search": {"type": "file_search", "vector_store_ids": [store]},
        }
        brought = [servers.get(tool, tool) if isinstance(tool, str) else tool for tool in case.request.get("tools", [])]
        yield script, create, {**case.request, "tools": brought}


async def walk(name: str) -> set[str]:
    """Asks for the answer, then refers to each of its items in a request of its own. Returns the kinds that it had."""
    case = CASES[name]
    async with serving(case) as (script, create, request):
        answer = await create(input="Go.", **request)
        if case.is_together:
            references = [{"type": "item_reference", "id": item["id"]} for item in answer["output"]]
            told = await create(input=[*references, {"role": "user", "content": "Go on."}], tools=request["tools"])
            assert told["status"] == "completed"
        for item in () if case.is_together else answer["output"]:
            behind = [{"output": "done", **case.output, "call_id": item["call_id"]}] if case.output and "call_id" in item else []
            reference = {"type": "item_reference", "id": item["id"]}
            told = await create(input=[reference, *behind, {"role": "user", "content": "Go on."}], tools=request["tools"])
            assert told["status"] == "completed"
            if item["type"] not in UNSEEN and item.get("status") != "incomplete":
                seen = {item_id(shown).partition("_")[2] for shown in script.requests[-1].items}
                assert item["id"].partition("_")[2] in seen
    return {item["type"] for item in answer["output"]}


async def test_every_kind_of_item_can_be_referred_to() -> None:
    found = {name: await walk(name) for name in CASES}
    assert set().union(*found.values()) == KINDS | FORMS
