"""The hosted tool `file_search`, as the official client knows it: items, events, results on demand, and citations in place."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseFileSearchToolCall
from tests.search.test_vector_stores import NOTES, send, settle
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import FunctionCall, FunctionCallOutput, ToolDefinition, Usage, assistant
from mainspring.core.model_request import ModelRequest
from mainspring.features.vector_stores.file_search import list_notes, read_results
from mainspring.http.auth import Keys
from mainspring.ports import ModelInfo
from mainspring.providers.scripted import Scripted, call, say

pytestmark = pytest.mark.slow


class CitingModel:
    """Searches once, and then cites the first result of what it was given. It asserts that it is told how."""

    name = "citing"
    runs_in_place = True

    def __init__(self, query: str = "When does the office open?") -> None:
        self.query = query
        self.requests: list[ModelRequest] = []

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.requests.append(request)
        outputs = [item for item in request.items if isinstance(item, FunctionCallOutput)]
        if not outputs:
            [tool] = [tool for tool in request.tools if isinstance(tool, ToolDefinition)]
            assert "cite" in tool.description
            item = FunctionCall("call_1", tool.name, msgspec.json.encode({"queries": [self.query]}).decode(), id="fc_1")
            yield ItemStarted(item)
            yield ItemDone(item)
        else:
            mark = read_results(outputs[-1].output)[0].cite
            message = assistant(f"At nine.{mark} I made this up.【99.9】 Truly.{mark}", id=f"msg_{len(self.requests)}")
            yield ItemStarted(assistant("", id=message.id))
            for letter in message.text:
                yield TextDelta(message.id, letter)
            yield ItemDone(message)
        yield TurnEnded(usage=Usage())

    async def models(self) -> list[ModelInfo]:
        return []

    async def close(self) -> None:
        return


@asynccontextmanager
async def serving(model: Any) -> AsyncIterator[tuple[AsyncOpenAI, str, dict[str, str]]]:
    """A client, a vector store with all notes, and the ids of these."""
    engine = Engine(model)
    async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        ids = await send(client)
        store = await client.vector_stores.create(file_ids=list(ids.values()))
        await settle(client, store.id)
        yield client, store.id, ids


def declare(store: str, **options: Any) -> Any:
    return [{"type": "file_search", "vector_store_ids": [store], **options}]


async def test_the_model_searches_and_what_it_cites_is_annotated() -> None:
    model = CitingModel()
    async with serving(model) as (client, store, ids):
        told = await client.responses.create(model="m", input="When?", tools=declare(store))
        assert Response.model_validate(told.model_dump(), strict=True).output == told.output
        search, message = told.output
        assert isinstance(search, ResponseFileSearchToolCall)
        assert (search.status, search.queries, search.results) == ("completed", [model.query], None)
        assert search.id.startswith("fs_")
        assert message.type == "message"
        [part] = message.content
        assert part.type == "output_text"
        notes = [note.model_dump() for note in part.annotations]
        places = [place for place in range(len(part.text)) if part.text.startswith("【", place)]
        expected = {"type": "file_citation", "file_id": ids["office.md"], "filename": "office.md"}
        assert notes == [{**expected, "index": places[0]}, {**expected, "index": places[2]}], "nobody has told of 99.9"
        kept = await client.responses.retrieve(told.id)
        assert kept.output == told.output
        assert told.tools[0].model_dump(exclude_unset=True) == declare(store)[0]
        [output] = [item for item in model.requests[1].items if isinstance(item, FunctionCallOutput)]
        [first, *_] = read_results(output.output)
        assert (first.text, first.filename, first.line) == (NOTES["office.md"], "office.md", 1)


async def test_results_are_shown_to_who_asks_for_them() -> None:
    async with serving(CitingModel()) as (client, store, ids):
        told = await client.responses.create(
            model="m", input="When?", tools=declare(store, max_num_results=1), include=["file_search_call.results"]
        )
        search = told.output[0]
        assert isinstance(search, ResponseFileSearchToolCall)
        assert search.results is not None
        [result] = search.results
        assert (result.file_id, result.filename, result.score) == (ids["office.md"], "office.md", 1.0)
        assert (result.text, result.attributes) == (NOTES["office.md"], {})


async def test_results_are_shown_to_who_asks_for_them_later() -> None:
    async with serving(CitingModel()) as (client, store, ids):
        told = await client.responses.create(model="m", input="When?", tools=declare(store, max_num_results=1))
        later = await client.responses.retrieve(told.id, include=["file_search_call.results"])
        plain = await client.responses.retrieve(told.id)
    [made, shown, hidden] = [response.output[0] for response in (told, later, plain)]
    assert isinstance(made, ResponseFileSearchToolCall)
    assert isinstance(shown, ResponseFileSearchToolCall)
    assert (made.results, hidden) == (None, made)
    assert [result.file_id for result in shown.results or ()] == [ids["office.md"]]


async def test_events_come_in_their_order() -> None:
    async with serving(CitingModel()) as (client, store, _):
        stream = await client.responses.create(model="m", input="When?", tools=declare(store), stream=True)
        events = [event async for event in stream]
        kinds = [event.type for event in events]
        begin = kinds.index("response.output_item.added")
        assert kinds[begin : begin + 5] == [
            "response.output_item.added",
            "response.file_search_call.in_progress",
            "response.file_search_call.searching",
            "response.file_search_call.completed",
            "response.output_item.done",
        ]
        assert kinds.count("response.output_text.annotation.added") == 2
        noted = kinds.index("response.output_text.annotation.added")
        assert "response.output_text.delta" in kinds[:noted]
        assert kinds[noted + 2] == "response.output_text.done"
        last = events[-1]
        assert last.type == "response.completed"
        text = "".join([event.delta for event in events if event.type == "response.output_text.delta"])
        assert last.response.output_text == text


async def test_a_conversation_goes_on_with_what_was_found_before() -> None:
    model = CitingModel()
    async with serving(model) as (client, store, ids):
        tools, shown = declare(store), ["file_search_call.results"]
        first = await client.responses.create(model="m", input="When?", tools=tools)
        second = await client.responses.create(model="m", input="Sure?", tools=tools, previous_response_id=first.id)
        [message] = second.output
        assert message.type == "message"
        assert message.content[0].model_dump()["annotations"][0]["file_id"] == ids["office.md"]
        sent = await client.responses.create(model="m", input="When?", tools=tools, include=shown, store=False)  # type: ignore[arg-type]
        history: Any = [{"role": "user", "content": "When?"}, *[item.model_dump(exclude_none=True) for item in sent.output]]
        again = await client.responses.create(model="m", input=[*history, {"role": "user", "content": "Sure?"}], tools=tools)
        assert again.output[0].model_dump()["content"][0]["annotations"][0]["file_id"] == ids["office.md"]


async def test_filters_and_thresholds_hold() -> None:
    model = CitingModel("office sourdough flights")
    async with serving(model) as (client, store, ids):
        await client.vector_stores.files.update(ids["bread.txt"], vector_store_id=store, attributes={"kind": "food"})
        only = {"type": "eq", "key": "kind", "value": "food"}
        told = await client.responses.create(
            model="m", input="?", tools=declare(store, filters=only), include=["file_search_call.results"]
        )
        assert [result.filename for result in told.output[0].results] == ["bread.txt"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"max_num_results": 51}, 400),
        ({"filters": {"type": "like"}}, 400),
        ({"ranking_options": {"ranker": "best"}}, 400),
        ({"vector_store_ids": []}, 400),
        ({"vector_store_ids": ["vs_none"]}, 404),
    ],
)
async def test_a_search_that_cannot_be_made_is_refused_before_the_run(options: dict[str, Any], status: int) -> None:
    model = Scripted(say("Never."))
    async with hosted(server(Engine(model))) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        store = await client.vector_stores.create()
        with pytest.raises(openai.APIStatusError) as raised:
            await client.responses.create(model="m", input="?", tools=declare(store.id, **options))
        assert raised.value.status_code == status
        assert str(raised.value.param).startswith("tools")
        assert model.requests == []


async def test_a_search_without_queries_is_told_to_the_model() -> None:
    model = Scripted(call("file_search"), say("I see."))
    async with serving(model) as (client, store, _):
        told = await client.responses.create(model="m", input="?", tools=declare(store))
        assert told.output[0].model_dump()["status"] == "failed"
        assert told.output_text == "I see."


async def test_a_store_of_another_tenant_is_not_searched() -> None:
    model = CitingModel()
    engine = Engine(model)
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        ours, theirs = await keys.create(tenant="acme"), await keys.create(tenant="other")
        async with AsyncOpenAI(base_url=url, api_key=ours) as acme, AsyncOpenAI(base_url=url, api_key=theirs) as other:
            ids = await send(acme)
            store = await acme.vector_stores.create(file_ids=list(ids.values()))
            await settle(acme, store.id)
            with pytest.raises(openai.NotFoundError):
                await other.responses.create(model="m", input="When?", tools=declare(store.id))
            assert model.requests == []
            assert (await acme.responses.create(model="m", input="When?", tools=declare(store.id))).status == "completed"


def test_text_without_marks_is_left_alone() -> None:
    assert list_notes({}, "Plain words 【no mark】, 【1.2】.") == []
