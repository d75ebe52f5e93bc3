"""What the Open Responses project checks of a server, in our words: the shapes of answers and events, over both transports."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.clients.samples import PIXEL
from tests.clients.standard import CompactedResponse, Event, Response, SocketErrorTold
from tests.clients.upstream import Model, calls, fails, says
from tests.server.linter import TERMINAL, events_of, linted

Json = dict[str, Any]

WEATHER: Json = {
    "type": "function",
    "name": "get_weather",
    "description": "Get the current weather for a location",
    "parameters": {"type": "object", "properties": {"location": {"type": "string"}}, "required": ["location"]},
}


def said(role: str, content: str | list[Json], **more: str) -> Json:
    return {"type": "message", "role": role, "content": content, **more}


CHECKS: dict[str, list[Json]] = {
    "a basic response": [said("user", "Say hello in exactly 3 words.")],
    "the phases of an assistant's messages": [
        said("user", "Give me a two-step plan."),
        said("assistant", "I will think first.", phase="commentary"),
        said("assistant", "First this, then that.", phase="final_answer"),
        said("user", "Say hello in one sentence."),
    ],
    "a system prompt": [said("system", "You are a pirate."), said("user", "Say hello.")],
    "an image": [
        said(
            "user",
            [{"type": "input_text", "text": "What is this? Say hello."}, {"type": "input_image", "image_url": PIXEL}],
        )
    ],
    "several turns": [
        said("user", "My name is Alice."),
        said("assistant", "Hello Alice!"),
        said("user", "Say hello to me by name."),
    ],
    "several turns in parts": [
        said("user", [{"type": "input_text", "text": "My name is Alice."}]),
        said("assistant", [{"type": "output_text", "text": "Hello Alice!"}]),
        said("user", [{"type": "input_text", "text": "Say hello to me by name."}]),
    ],
}


class Client:
    """Asks by plain HTTP and by WebSocket, and believes only what the standard says."""

    def __init__(self, session: aiohttp.ClientSession, url: str, model: str) -> None:
        self._session, self._url, self._model = session, url, model

    async def post(self, path: str, body: Json) -> tuple[int, bytes]:
        async with self._session.post(f"{self._url}{path}", json=body) as answer:
            return answer.status, await answer.read()

    async def respond(self, body: Json) -> Response:
        status, data = await self.post("/responses", {"model": self._model, **body})
        assert status == 200, data
        return msgspec.json.decode(data, type=Response)

    async def compact(self, body: Json) -> Json:
        status, data = await self.post("/responses/compact", {"model": self._model, **body})
        assert status == 200, data
        msgspec.json.decode(data, type=CompactedResponse)
        return dict(msgspec.json.decode(data))

    @asynccontextmanager
    async def socket(self) -> AsyncIterator["Socket"]:
        async with self._session.ws_connect(f"{self._url}/responses") as connection:
            yield Socket(connection, self._model)


class Socket:
    def __init__(self, connection: aiohttp.ClientWebSocketResponse, model: str) -> None:
        self._connection, self._model = connection, model

    async def turn(self, given: Sequence[Json], **more: object) -> Json:
        """Asks, checks all that is told, and returns the Response, or the error that it is answered with."""
        await self._connection.send_json({"type": "response.create", "model": self._model, "input": given, **more})
        events: list[Json] = []
        while not events or events[-1]["type"] not in TERMINAL:
            data = await self._connection.receive_str(timeout=30)
            event = msgspec.json.decode(data)
            if event["type"] == "error" and "status" in event:
                msgspec.json.decode(data, type=SocketErrorTold)
                return dict(event)
            msgspec.json.decode(data, type=Event)
            events.append(event)
        return linted(events)


@pytest.fixture
async def client(url: str, model: Model) -> AsyncIterator[Client]:
    headers = {"authorization": "Bearer unused"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(60)) as session:
        yield Client(session, url, model.name)


@pytest.mark.parametrize("check", CHECKS)
async def test_the_standard_is_kept_by(client: Client, model: Model, check: str) -> None:
    model.hears("ay hello", says("Hello to you."))
    response = await client.respond({"input": CHECKS[check]})
    assert response.status == "completed"
    assert response.output


async def test_the_standard_is_kept_by_all_at_once(client: Client, model: Model) -> None:
    model.hears("ay hello", says("Hello to you."))
    responses = await asyncio.gather(*[client.respond({"input": given}) for given in CHECKS.values()])
    assert {response.status for response in responses} == {"completed"}
    assert len({response.id for response in responses}) == len(CHECKS)


async def test_every_event_of_a_stream_has_the_shape_of_the_standard(client: Client, model: Model) -> None:
    model.hears("Count from 1 to 5", says("1 2 3 4 5"))
    body = {"model": model.name, "input": [said("user", "Count from 1 to 5.")], "stream": True}
    _, stream = await client.post("/responses", body)
    events = events_of(stream)
    for event in events:
        msgspec.convert(event, Event)
    assert linted(events)["status"] == "completed"


async def test_a_failure_in_a_stream_has_the_shape_of_the_standard(client: Client, model: Model) -> None:
    model.hears("Hello", fails(400))
    _, stream = await client.post("/responses", {"model": model.name, "input": "Hello", "stream": True})
    events = events_of(stream)
    for event in events:
        msgspec.convert(event, Event)
    assert [event["type"] for event in events][-2:] == ["error", "response.failed"]


async def test_a_question_that_needs_a_tool_is_answered_with_its_call(client: Client, model: Model) -> None:
    model.hears("San Francisco", calls(("get_weather", {"location": "San Francisco"})))
    asked = {"input": [said("user", "What is the weather in San Francisco?")], "tools": [WEATHER]}
    response = await client.respond(asked)
    assert [type(item).__name__ for item in response.output] == ["FunctionCall"]
    _, stream = await client.post("/responses", {"model": model.name, "stream": True, **asked})
    for event in events_of(stream):
        msgspec.convert(event, Event)


async def test_a_conversation_is_compacted(client: Client, model: Model) -> None:
    model.hears("", says("They planned a trip."))
    compacted = await client.compact(
        {"input": [said("user", "Plan a trip."), said("assistant", "To Oslo?")], "prompt_cache_key": "trips"}
    )
    assert "compaction" in [item["type"] for item in compacted["output"]]


async def test_what_is_to_be_compacted_needs_a_model(client: Client, model: Model) -> None:
    status, _ = await client.post("/responses/compact", {"input": "Plan a trip."})
    assert status in (400, 422)


async def test_a_socket_answers(client: Client, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    async with client.socket() as socket:
        assert (await socket.turn([said("user", "Hello")]))["status"] == "completed"


async def test_a_socket_answers_one_turn_after_the_other(client: Client, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    async with client.socket() as socket:
        for _ in range(2):
            assert (await socket.turn([said("user", "Hello")], store=False))["status"] == "completed"


async def test_a_socket_goes_on_from_what_is_not_stored(client: Client, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    async with client.socket() as socket:
        first = await socket.turn([said("user", "My name is Ada.")], store=False)
        second = await socket.turn([said("user", "What is my name?")], store=False, previous_response_id=first["id"])
    assert second["status"] == "completed"
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "user"]


async def test_another_socket_knows_nothing_of_it_and_works_all_the_same(client: Client, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    async with client.socket() as socket:
        first = await socket.turn([said("user", "Hello")], store=False)
    async with client.socket() as socket:
        lost = await socket.turn([said("user", "Hello")], store=False, previous_response_id=first["id"])
        assert (lost["error"]["code"], lost["status"]) == ("previous_response_not_found", 400)
        assert (await socket.turn([said("user", "Hello")], store=False))["status"] == "completed"


async def test_a_socket_refuses_to_go_on_from_nothing(client: Client, model: Model) -> None:
    async with client.socket() as socket:
        told = await socket.turn([said("user", "Hello")], store=False, previous_response_id="resp_made_up")
    assert told["error"]["code"] == "previous_response_not_found"


async def test_a_turn_that_fails_takes_what_it_continued_with_it(client: Client, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    orphan = {"type": "function_call_output", "call_id": "call_unknown", "output": "rain"}
    async with client.socket() as socket:
        first = await socket.turn([said("user", "Hello")], store=False)
        assert (await socket.turn([orphan], store=False, previous_response_id=first["id"]))["type"] == "error"
        third = await socket.turn([said("user", "Hello")], store=False, previous_response_id=first["id"])
    assert third["error"]["code"] == "previous_response_not_found"


async def test_a_socket_begins_anew_from_what_was_compacted(client: Client, model: Model) -> None:
    model.hears("", says("They planned a trip."))
    model.hears("And now", says("Pack."))
    spoken = [
        said("user", [{"type": "input_text", "text": "Plan a trip."}]),
        said("assistant", [{"type": "output_text", "text": "To Oslo?"}]),
    ]
    window = (await client.compact({"input": spoken}))["output"]
    async with client.socket() as socket:
        response = await socket.turn([*window, said("user", "And now?")], store=False)
    assert response["status"] == "completed"
