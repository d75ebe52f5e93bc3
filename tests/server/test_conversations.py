"""Conversations as the official client uses them, on a real server with a real file."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import openai
import pytest
from openai import AsyncOpenAI
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Message
from mainspring.providers.scripted import Scripted, call, say

ASK_USER = {"type": "function", "name": "ask_user", "parameters": {"type": "object", "properties": {}}, "strict": False}


@asynccontextmanager
async def client_of(script: Scripted, path: Path) -> AsyncIterator[AsyncOpenAI]:
    """The client of a server that runs as long as the block does."""
    async with (
        hosted(server(Engine(script, database=path / "runs.db"))) as base_url,
        AsyncOpenAI(base_url=base_url, api_key="none", max_retries=0) as client,
    ):
        yield client


async def texts(client: AsyncOpenAI, conversation: str) -> list[str]:
    """All that is in a conversation, page by page: words where there are any, else the item's type."""
    found = client.conversations.items.list(conversation, order="asc", limit=2)
    return [item.content[0].text if item.type == "message" else item.type async for item in found]  # type: ignore[union-attr]


def said(script: Scripted) -> list[str]:
    return [item.text for item in script.requests[-1].items if isinstance(item, Message)]


async def test_a_conversation_is_created_read_changed_and_deleted(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        made = await client.conversations.create(metadata={"topic": "hats"}, items=[{"role": "user", "content": "Hi."}])
        assert (made.object, made.id[:5], made.metadata) == ("conversation", "conv_", {"topic": "hats"})
        assert await client.conversations.retrieve(made.id) == made
        changed = await client.conversations.update(made.id, metadata={"topic": "caps"})
        assert (changed.id, changed.metadata) == (made.id, {"topic": "caps"})
        assert await client.conversations.retrieve(made.id) == changed
        assert await texts(client, made.id) == ["Hi."]
        gone = await client.conversations.delete(made.id)
        assert (gone.id, gone.object, gone.deleted) == (made.id, "conversation.deleted", True)
        for lost in (client.conversations.retrieve(made.id), client.conversations.delete(made.id)):
            with pytest.raises(openai.NotFoundError, match=made.id):
                await lost


async def test_a_conversation_may_begin_empty(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        made = await client.conversations.create()
        page = await client.conversations.items.list(made.id)
        assert (page.data, page.has_more, made.metadata) == ([], False, {})


async def test_items_are_added_listed_read_and_removed(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        made = await client.conversations.create()
        added = await client.conversations.items.create(
            made.id, items=[{"role": "user", "content": text} for text in ("one", "two", "three")]
        )
        ids = [item.id for item in added.data]
        assert (added.object, added.first_id, added.last_id, len(ids)) == ("list", ids[0], ids[2], 3)
        assert await texts(client, made.id) == ["one", "two", "three"]
        newest = await client.conversations.items.list(made.id, limit=2)
        assert ([item.id for item in newest.data], newest.has_more) == ([ids[2], ids[1]], True)
        rest = await client.conversations.items.list(made.id, limit=2, after=str(ids[1]))
        assert ([item.id for item in rest.data], rest.has_more) == ([ids[0]], False)
        one = await client.conversations.items.retrieve(str(ids[0]), conversation_id=made.id)
        assert one == rest.data[0]
        assert await client.conversations.items.delete(str(ids[1]), conversation_id=made.id) == made
        assert await texts(client, made.id) == ["one", "three"]
        with pytest.raises(openai.NotFoundError, match=str(ids[1])):
            await client.conversations.items.retrieve(str(ids[1]), conversation_id=made.id)
        with pytest.raises(openai.NotFoundError, match=str(ids[1])) as caught:
            await client.conversations.items.list(made.id, after=str(ids[1]))
        assert caught.value.param == "after"


async def test_an_item_is_in_a_conversation_once(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        made = await client.conversations.create(items=[{"role": "user", "content": "Hi.", "id": "msg_1", "type": "message"}])  # type: ignore[list-item]
        again = {"role": "user", "content": "Hi.", "id": "msg_1", "type": "message"}
        for items in ([{"role": "user", "content": "New."}, again], [again, again]):
            with pytest.raises(openai.BadRequestError, match="msg_1") as caught:
                await client.conversations.items.create(made.id, items=items)  # type: ignore[arg-type]
            assert caught.value.code == "item_already_in_conversation"
        assert await texts(client, made.id) == ["Hi."]


async def test_a_reference_is_what_it_names_and_one_that_names_nothing_is_refused(tmp_path: Path) -> None:
    async with client_of(Scripted(say("A bowler."), say("Black.", expect="A bowler.")), tmp_path) as client:
        answer = await client.responses.create(model="scripted", input="Which hat?")
        named = {"type": "item_reference", "id": answer.output[0].id}
        made = await client.conversations.create(items=[{"role": "user", "content": "Hi."}, named])  # type: ignore[list-item]
        assert await texts(client, made.id) == ["Hi.", "A bowler."]
        await client.responses.create(model="scripted", input="Which colour?", conversation=made.id)
        lost = [{"type": "item_reference", "id": "msg_lost"}]
        for add in (client.conversations.create(items=lost), client.conversations.items.create(made.id, items=lost)):  # type: ignore[arg-type]
            with pytest.raises(openai.BadRequestError, match="Item with id 'msg_lost' not found") as caught:
                await add
            assert caught.value.param == "items"


async def test_at_most_twenty_items_are_added_at_a_time(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        items = [{"role": "user", "content": str(number)} for number in range(21)]
        with pytest.raises(openai.BadRequestError, match="items must have at most 20 elements"):
            await client.conversations.create(items=items)  # type: ignore[arg-type]
        made = await client.conversations.create(items=items[:20])  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="items must have at most 20 elements"):
            await client.conversations.items.create(made.id, items=items)  # type: ignore[arg-type]
        assert len(await texts(client, made.id)) == 20


async def test_responses_read_the_conversation_and_add_to_it(tmp_path: Path) -> None:
    script = Scripted(say("Hello, I am Tick."), say("Tick."))
    async with client_of(script, tmp_path) as client:
        made = await client.conversations.create(items=[{"role": "developer", "content": "Be brief."}])
        first = await client.responses.create(input="Hi.", conversation=made.id, model="scripted")
        assert first.conversation is not None
        assert first.conversation.id == made.id
        await client.responses.create(input="Your name?", conversation={"id": made.id}, model="scripted")
        assert said(script) == ["Be brief.", "Hi.", "Hello, I am Tick.", "Your name?"]
        assert await texts(client, made.id) == ["Be brief.", "Hi.", "Hello, I am Tick.", "Your name?", "Tick."]
        kept = await client.responses.retrieve(first.id)
        assert kept.conversation == first.conversation


async def test_a_streamed_response_is_in_the_conversation_when_its_stream_ends(tmp_path: Path) -> None:
    async with client_of(Scripted(say("Hello."), say("Hello.")), tmp_path) as client:
        made = await client.conversations.create()
        for _ in range(2):
            stream = await client.responses.create(input="Hi.", conversation=made.id, model="scripted", stream=True)
            events = [event async for event in stream]
            assert events[-1].type == "response.completed"
            assert (await texts(client, made.id))[-2:] == ["Hi.", "Hello."]
        assert len(await texts(client, made.id)) == 4


async def test_what_is_not_to_be_stored_is_not_said_in_a_conversation(tmp_path: Path) -> None:
    async with client_of(Scripted(say("Hello.")), tmp_path) as client:
        made = await client.conversations.create()
        with pytest.raises(openai.BadRequestError, match="send one of them") as refused:
            await client.responses.create(input="Hi.", conversation=made.id, model="scripted", store=False)
        assert refused.value.param == "store"
        assert await texts(client, made.id) == []


async def test_a_pending_call_of_the_conversation_is_answered_by_the_next_request(tmp_path: Path) -> None:
    script = Scripted(call("ask_user"), say("Thanks, 42.", expect="42"))
    async with client_of(script, tmp_path) as client:
        made = await client.conversations.create()
        tools = [ASK_USER]
        first = await client.responses.create(input="Go.", conversation=made.id, model="scripted", tools=tools)  # type: ignore[arg-type]
        [wanted] = first.output
        assert wanted.type == "function_call"
        with pytest.raises(openai.BadRequestError, match=f"No tool output found for function call {wanted.call_id}"):
            await client.responses.create(input="Never mind.", conversation=made.id, model="scripted")
        output = {"type": "function_call_output", "call_id": wanted.call_id, "output": "42"}
        second = await client.responses.create(input=[output], conversation=made.id, model="scripted")  # type: ignore[list-item]
        assert second.output_text == "Thanks, 42."
        assert await texts(client, made.id) == ["Go.", "function_call", "function_call_output", "Thanks, 42."]


async def test_a_conversation_outlives_the_server(tmp_path: Path) -> None:
    async with client_of(Scripted(say("Hello.")), tmp_path) as client:
        made = await client.conversations.create()
        await client.responses.create(input="Hi.", conversation=made.id, model="scripted")
    script = Scripted(say("Bye."))
    async with client_of(script, tmp_path) as client:
        await client.responses.create(input="Well?", conversation=made.id, model="scripted")
        assert said(script) == ["Hi.", "Hello.", "Well?"]


async def test_an_unknown_conversation_is_not_found_and_a_wrong_one_refused(tmp_path: Path) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        with pytest.raises(openai.NotFoundError, match="'conv_x' not found") as caught:
            await client.responses.create(input="Hi.", conversation="conv_x", model="scripted")
        assert caught.value.param == "conversation"
        with pytest.raises(openai.BadRequestError, match="conversation must be"):
            await client.responses.create(input="Hi.", conversation={"id": 1}, model="scripted")  # type: ignore[call-overload]
        made = await client.conversations.create()
        with pytest.raises(openai.BadRequestError, match="exclude each other"):
            await client.responses.create(input="Hi.", conversation=made.id, previous_response_id="resp_1", model="scripted")
        for items in ("Hi.", [1], [{"type": "message", "role": "boss"}]):
            with pytest.raises(openai.BadRequestError, match="items"):
                await client.conversations.items.create(made.id, items=items)  # type: ignore[arg-type]
        with pytest.raises(openai.BadRequestError, match="compaction_trigger") as caught_trigger:
            await client.conversations.items.create(made.id, items=[{"type": "compaction_trigger"}])
        assert caught_trigger.value.param == "items"
        with pytest.raises(openai.BadRequestError, match="metadata"):
            await client.conversations.update(made.id, metadata={"k": "v" * 513})
