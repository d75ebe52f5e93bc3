"""Namespaces, deferred tools and tools that items bring: a Responses backend gets them as they are, others get flat names."""

from importlib import import_module
from typing import Any

import aiohttp
import msgspec
import pytest
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from tests.providers.dialects import Spoken, SpokenCall
from tests.providers.dialects.published import check
from tests.providers.dialects.responses import DIALECT, frames_of, response
from tests.providers.dialects.server import serving
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Json
from mainspring.providers.responses.provider import Responses

SCHEMA: Json = {"type": "object", "properties": {}}


def function(name: str, **more: object) -> Json:
    return {"type": "function", "name": name, "description": "Does.", "parameters": SCHEMA, "strict": False, **more}


CRM: Json = {"type": "namespace", "name": "crm", "description": "Customers.", "tools": [function("find", defer_loading=True)]}
BROUGHT: Json = {
    "type": "additional_tools",
    "id": "at_1",
    "role": "developer",
    "tools": [{"type": "namespace", "name": "billing", "description": "Bills.", "tools": [function("find")]}, function("plain")],
}
SEARCH: Json = {
    "id": "tsc_1", "type": "tool_search_call", "execution": "server", "call_id": None, "arguments": {"paths": ["crm"]},
    "status": "completed",
}  # fmt: skip
FOUND: Json = {
    "id": "tso_1", "type": "tool_search_output", "execution": "server", "call_id": None, "tools": [CRM], "status": "completed",
}  # fmt: skip


def made(namespace: str | None, name: str, number: int) -> Json:
    call = {"id": f"fc_{number}", "type": "function_call", "call_id": f"call_{number}", "name": name, "arguments": "{}"}
    return {**call, "status": "completed"} | ({"namespace": namespace} if namespace else {})


def told(*items: Json) -> list[bytes]:
    events: list[Json] = [{"type": "response.created", "response": response()}]
    for index, item in enumerate(items):
        for kind in ("added", "done"):
            events.append({"type": f"response.output_item.{kind}", "output_index": index, "item": item})
    return frames_of([*events, {"type": "response.completed", "response": response(status="completed", output=list(items))}])


async def test_a_responses_backend_gets_what_the_client_sent_and_gives_it_back() -> None:
    tools = [CRM, function("weather", defer_loading=True), {"type": "tool_search"}]
    answer = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    named = [("crm", "find"), ("weather", "weather"), ("billing", "find"), (None, "plain")]
    output = [SEARCH, FOUND, *[made(*path, number) for number, path in enumerate(named)]]
    async with serving(DIALECT, judges=False) as fake, aiohttp.ClientSession() as session:
        fake.replies(*told(*output))
        fake.replies(*told({**answer, "content": [{"type": "output_text", "text": "Done.", "annotations": []}]}))
        upstream = Responses(fake.url)
        async with hosted(server(Engine(upstream))) as url:

            async def create(**body: Any) -> Json:
                async with session.post(f"{url}/responses", json={"model": "m", "tools": tools, **body}) as reply:
                    return dict(await reply.json())

            first = await create(input=[BROUGHT, {"role": "user", "content": "Go"}])
            calls = [item for item in first["output"] if item["type"] == "function_call"]
            outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in calls]
            second = await create(input=outputs, previous_response_id=first["id"])
        await upstream.close()
    asked, again = [msgspec.json.decode(body) for body in fake.bodies]
    for body in (asked, again):
        check(ResponseCreateParamsStreaming, body)
        assert body["tools"] == tools
        assert body["input"][0] == BROUGHT
    assert [item["type"] for item in first["output"]] == ["tool_search_call", "tool_search_output", *["function_call"] * 4]
    assert [(call.get("namespace"), call["name"]) for call in calls] == named
    sent = [item for item in again["input"] if item["type"] == "function_call"]
    assert [(call.get("namespace"), call["name"]) for call in sent] == named
    assert [item["type"] for item in again["input"]][2:4] == ["tool_search_call", "tool_search_output"]
    assert second["output"][0]["content"][0]["text"] == "Done."


async def test_a_search_of_the_client_passes_through_a_responses_backend() -> None:
    search = {"type": "tool_search", "execution": "client", "description": "Finds.", "parameters": SCHEMA}
    async with serving(DIALECT, judges=False) as fake, aiohttp.ClientSession() as session:
        wanted = {**SEARCH, "execution": "client", "call_id": "call_s", "arguments": {"query": "customers"}}
        fake.replies(*told(wanted))
        fake.replies(*told(made("crm", "find", 1)))
        upstream = Responses(fake.url)
        async with hosted(server(Engine(upstream))) as url:

            async def create(**body: Any) -> Json:
                async with session.post(f"{url}/responses", json={"model": "m", "tools": [search], **body}) as reply:
                    return dict(await reply.json())

            first = await create(input="Go")
            [call] = first["output"]
            found = {"type": "tool_search_output", "call_id": call["call_id"], "execution": "client", "tools": [CRM]}
            second = await create(input=[found], previous_response_id=first["id"])
        await upstream.close()
    assert (call["type"], call["execution"], call["arguments"]) == ("tool_search_call", "client", {"query": "customers"})
    asked, again = [msgspec.json.decode(body) for body in fake.bodies]
    assert asked["tools"] == again["tools"] == [search]
    assert [item["type"] for item in again["input"]] == ["message", "tool_search_call", "tool_search_output"]
    assert again["input"][2]["tools"] == [CRM]
    assert [(item["namespace"], item["name"]) for item in second["output"]] == [("crm", "find")]


@pytest.mark.parametrize("name", ["chat", "ollama", "gemini", "anthropic"])
async def test_every_other_backend_gets_flat_names_and_searches_go_through_functions(name: str) -> None:
    """By each vendor's own rules for a request. What was searched and called is in the history of the last one."""
    tools = [CRM, BROUGHT["tools"][0], {"type": "tool_search"}]
    dialect = import_module(f"tests.providers.dialects.{name}").DIALECT
    async with serving(dialect) as fake, aiohttp.ClientSession() as session:
        fake.says(Spoken(calls=(SpokenCall("tool_search", ('{"paths": ["crm"]}',), id="call_abc1"),)))
        fake.says(Spoken(calls=(SpokenCall("crm__find", id="call_abc2"), SpokenCall("billing__find", id="call_abc3"))))
        fake.says(Spoken(text=("Found.",)))
        provider = dialect.provider(fake.url)
        async with hosted(server(Engine(provider))) as url:

            async def create(**body: Any) -> Json:
                async with session.post(f"{url}/responses", json={"model": "clockwork-2", "tools": tools, **body}) as reply:
                    return dict(await reply.json())

            first = await create(input="Go")
            *searched, one, other = first["output"]
            outputs = [{"type": "function_call_output", "call_id": call["call_id"], "output": "ok"} for call in (one, other)]
            history = [{"role": "user", "content": "Go"}, *first["output"], *outputs]
            second = await create(input=history, store=False)
        await provider.close()
    assert [item["type"] for item in searched] == ["tool_search_call", "tool_search_output"]
    assert [(call["namespace"], call["name"]) for call in (one, other)] == [("crm", "find"), ("billing", "find")]
    assert second["output"][-1]["content"][0]["text"] == "Found."
    assert [set(asked.tools) for asked in fake.asked] == [
        {"billing__find", "tool_search"},
        {"crm__find", "billing__find", "tool_search"},
        {"crm__find", "billing__find", "tool_search"},
    ]
