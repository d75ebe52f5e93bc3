"""Counting tokens without asking the model: what counts, and who counts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai import AsyncOpenAI
from tests.server.hosting import hosted
from tests.server.linter import Json

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import FunctionCall, FunctionCallOutput, InputImage, Message, ToolDefinition, user
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import PER_IMAGE, PER_ITEM, estimate, tokens_of, tokens_of_text
from mainspring.providers.scripted import Scripted, say

WEATHER: Json = {"type": "function", "name": "weather", "description": "Says how it is outside.", "parameters": {}}


class World:
    def __init__(self, script: Scripted, url: str) -> None:
        self.script, self.url = script, url

    async def post(self, path: str, body: Json) -> tuple[int, Json]:
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}{path}", json=body) as answer:
            return answer.status, await answer.json()

    async def counted(self, **body: object) -> int:
        status, answer = await self.post("/responses/input_tokens", {"model": "m", **body})
        assert status == 200, answer
        assert answer == {"object": "response.input_tokens", "input_tokens": answer["input_tokens"]}
        count: int = answer["input_tokens"]
        return count


@asynccontextmanager
async def world(script: Scripted) -> AsyncIterator[World]:
    async with hosted(server(Engine(script))) as url:
        yield World(script, url)


async def test_all_that_the_model_would_read_counts() -> None:
    async with world(Scripted(say("Hello Alice."))) as here:
        text = "x" * 35
        plain = await here.counted(input=text)
        assert plain == 10 + PER_ITEM
        assert await here.counted(input=[{"role": "user", "content": text}]) == plain
        assert await here.counted(input=text, instructions=text) == plain * 2
        assert await here.counted(input=text, tools=[WEATHER]) > plain
        assert await here.counted(input=text, tools=[{"type": "custom", "name": "query"}]) > plain
        _, first = await here.post("/responses", {"model": "m", "input": "I am Alice."})
        assert await here.counted(input=text, previous_response_id=first["id"]) > plain
        assert await here.counted(previous_response_id=first["id"]) > 0


async def test_counting_asks_no_model_and_stores_nothing() -> None:
    async with world(Scripted()) as here:
        await here.counted(input="hello", store=True)
        async with aiohttp.ClientSession() as session, session.get(f"{here.url}/responses") as answer:
            assert (await answer.json())["data"] == []
        assert here.script.requests == []


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": 7}, "input"),
        ({"input": "x", "previous_response_id": "resp_nope"}, "previous_response_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
        ({"input": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "?"}]}, "input[0].encrypted_content"),
    ],
)
async def test_what_could_not_be_created_cannot_be_counted(body: Json, param: str) -> None:
    async with world(Scripted()) as here:
        status, refused = await here.post("/responses/input_tokens", body)
        assert (status, refused["error"]["param"]) == (400, param)


async def test_what_names_a_file_or_a_vector_store_that_is_not_the_tenants_cannot_be_counted() -> None:
    async with world(Scripted()) as here:
        search = {"type": "file_search", "vector_store_ids": ["vs_of_another"]}
        part = {"type": "input_file", "file_id": "file-ofanother"}
        for body, param in (
            ({"input": "hello", "tools": [search]}, "tools"),
            ({"input": [{"role": "user", "content": [part]}]}, "input"),
        ):
            counted, created = [
                await here.post(path, {"model": "m", **body}) for path in ("/responses/input_tokens", "/responses")
            ]
            assert counted == created
            assert (counted[0], counted[1]["error"]["param"]) == (404, param)


class Exact(Scripted):
    async def count_tokens(self, request: ModelRequest) -> int:
        return 1000 + len(request.items)


async def test_a_provider_that_can_count_is_asked() -> None:
    async with world(Exact()) as here:
        assert await here.counted(input="hello") == 1001


async def test_openai_python_counts() -> None:
    async with world(Scripted()) as here, AsyncOpenAI(base_url=here.url, api_key="unused") as openai:
        counted = await openai.responses.input_tokens.count(model="m", input="hello there")
        assert counted.object == "response.input_tokens"
        assert counted.input_tokens == await here.counted(input="hello there")


def test_an_image_counts_as_one_of_middling_size_and_not_as_its_data() -> None:
    image = Message("user", (InputImage("data:image/png;base64," + "A" * 100_000),))
    assert tokens_of([image]) == PER_ITEM + PER_IMAGE


def test_calls_outputs_and_tools_count_by_their_text() -> None:
    call = FunctionCall("call_1", "weather", '{"city": "Paris"}')
    output = FunctionCallOutput("call_1", "x" * 70)
    assert tokens_of([call, output]) == 2 * PER_ITEM + tokens_of_text("weather") + tokens_of_text(call.arguments) + 20
    assert estimate([call, output], tools=[ToolDefinition("weather", "Says how it is.")]) > tokens_of([call, output])


@given(st.text(), st.text())
def test_more_text_never_counts_less(some: str, more: str) -> None:
    assert tokens_of_text(some) <= tokens_of_text(some + more) <= tokens_of_text(some) + tokens_of_text(more)
    assert (tokens_of_text(some) > 0) == bool(some)
    assert tokens_of([user(some)]) <= tokens_of([user(some + more)])
