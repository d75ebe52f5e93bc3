"""Responses over WebSocket: every rule of that transport, with real clients on a real server."""

import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
import pytest
from openai import AsyncOpenAI
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted
from tests.server.linter import TERMINAL, Json, events_of, linted
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.events import ModelEvent
from mainspring.core.model_request import ModelRequest
from mainspring.features.responses.websocket import MOST_WAITING, ResponseSockets
from mainspring.http.auth import Keys
from mainspring.http.wire import Dialect
from mainspring.providers.scripted import Scripted, call, calls, fail, say, turn

WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


class Model(Scripted):
    """A script for many clients, which counts how many it answers at once."""

    def __init__(self) -> None:
        super().__init__(
            say("Hello there.", when="hello"),
            say("Your name is Alice.", when="my name?", expect="I am Alice"),
            turn(say="I will begin", stall=True, when="for ever"),
            calls(call("weather", city="Paris"), when="weather"),
            fail("provider_unavailable", when="down"),
            say("A crab is a crab.", when="crab"),
            chunk=3,
            pause=0,
        )
        self.busy = self.most_busy = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            async for event in super().stream(request):
                yield event
        finally:
            self.busy -= 1


class Client:
    """A socket and what is said on it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection

    async def send(self, **frame: object) -> None:
        await self.connection.send(json.dumps(frame))

    async def event(self) -> Json:
        with anyio.fail_after(PATIENCE):
            event: Json = json.loads(await self.connection.recv())
            return event

    async def turn(self) -> list[Json]:
        """Everything up to what ends a turn: a terminal event or an error."""
        events = [await self.event()]
        while events[-1]["type"] not in (*TERMINAL, "error"):
            events.append(await self.event())
        return events

    async def asked(self, text: str | list[Json], **body: object) -> Json:
        """The Response to a request, rebuilt from its events, which must be in order."""
        await self.send(type="response.create", model="m", input=text, **body)
        return linted(await self.turn())

    async def refused(self, **frame: object) -> Json:
        """The error that is the whole answer to a frame, checked for what every error has."""
        await self.send(**frame)
        return envelope(await self.turn())

    async def said_to_have_ended(self) -> ConnectionClosed:
        with anyio.fail_after(PATIENCE), pytest.raises(ConnectionClosed) as caught:
            await self.connection.recv()
        return caught.value


def envelope(events: list[Json]) -> Json:
    [event] = events
    assert set(event) == {"type", "status", "error"}
    assert event["type"] == "error"
    assert set(event["error"]) == {"type", "code", "message", "param"}
    assert isinstance(event["error"]["code"], str)
    assert event["error"]["message"]
    return {"status": event["status"], **event["error"]}


class World:
    """A server and its engine; `opened` connects to it."""

    def __init__(self, engine: Engine, model: Model, url: str) -> None:
        self.engine, self.model, self.url = engine, model, url

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Client]:
        async with connect(f"{self.url.replace('http', 'ws')}/responses") as connection:
            yield Client(connection)

    async def posted(self, body: Json) -> tuple[int, Json]:
        async with aiohttp.ClientSession() as session, session.post(f"{self.url}/responses", json=body) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def world(database: Path | None = None) -> AsyncIterator[World]:
    model = Model()
    engine = Engine(model, database=database)
    async with hosted(server(engine)) as url:
        yield World(engine, model, url)


@asynccontextmanager
async def bare(lifetime: float) -> AsyncIterator[World]:
    """A server of sockets only, with its own limit."""
    model = Model()
    engine = Engine(model)
    sockets = ResponseSockets(engine.core, engine.agents, Dialect(), lifetime=lifetime)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with engine:
            yield

    app = Starlette(routes=[WebSocketRoute("/v1/responses", sockets.serve)], lifespan=lifespan)
    async with hosted(app) as url:
        yield World(engine, model, url)


async def test_w8_w10_w11_a_create_frame_is_answered_by_the_events_of_a_stream() -> None:
    async with world() as here, here.opened() as client:
        made = await client.asked("hello")
        assert made["status"] == "completed"
        assert made["output"][0]["content"][0]["text"] == "Hello there."
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{here.url}/responses/{made['id']}?stream=true") as answer,
        ):
            assert linted(events_of(await answer.read())) == made


async def test_w11_the_events_are_those_of_the_http_stream_one_by_one_and_no_done_follows() -> None:
    async with world() as here, here.opened() as client:
        await client.send(type="response.create", model="m", input="hello")
        told = await client.turn()
        response_id = told[-1]["response"]["id"]
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{here.url}/responses/{response_id}?stream=true") as answer,
        ):
            assert events_of(await answer.read()) == told
        assert (await client.asked("hello"))["status"] == "completed", "what comes next is the next response, not [DONE]"


@pytest.mark.parametrize("store", [True, False])
async def test_a_request_that_generates_nothing_prepares_the_next(store: bool) -> None:
    """As Codex does it: first everything that is known, then the rest, which is what the model is asked."""
    async with world() as here, here.opened() as client:
        options: Json = {"store": store, "instructions": "Be brief.", "tools": [WEATHER]}
        prepared = await client.asked("I am Alice.", generate=False, **options)
        assert (prepared["status"], prepared["output"], prepared["usage"]["total_tokens"]) == ("completed", [], 0)
        assert not here.model.requests
        made = await client.asked("What is my name?", previous_response_id=prepared["id"], **options)
        assert made["output"][0]["content"][0]["text"] == "Your name is Alice."
        nothing = await client.asked([], previous_response_id=prepared["id"], generate=False, **options)
        assert nothing["output"] == []


async def test_background_without_storing_is_refused_here_too() -> None:
    async with world() as here, here.opened() as client:
        refused = await client.refused(type="response.create", model="m", input="hello", background=True, store=False)
        assert (refused["status"], refused["param"]) == (400, "store")


async def test_w9_stream_options_are_ignored_and_background_is_refused() -> None:
    async with world() as here, here.opened() as client:
        for stream in (True, False):
            options: Json = {"stream": stream, "stream_options": {"include_obfuscation": False}, "background": False}
            assert (await client.asked("hello", **options))["status"] == "completed"
        refused = await client.refused(type="response.create", model="m", input="hello", background=True)
        assert (refused["status"], refused["param"]) == (400, "background")
        assert (await client.asked("hello"))["status"] == "completed"


async def test_w12_creates_sent_at_once_are_answered_one_after_the_other_in_order() -> None:
    async with world() as here, here.opened() as client:
        texts = ["hello", "what is a crab?", "hello", "what is a crab?"]
        for text in texts:
            await client.send(type="response.create", model="m", input=text)
        made = [linted(await client.turn()) for _ in texts]
        assert [response["output"][0]["content"][0]["text"] for response in made] == ["Hello there.", "A crab is a crab."] * 2
        assert here.model.most_busy == 1


async def test_w12_an_error_waits_for_its_turn_like_everything_else() -> None:
    async with world() as here, here.opened() as client:
        await client.send(type="response.create", model="m", input="hello")
        await client.send(type="response.steer", input="faster")
        await client.send(type="response.create", model="m", input="what is a crab?")
        assert linted(await client.turn())["status"] == "completed"
        assert envelope(await client.turn())["code"] == "unknown_type"
        assert linted(await client.turn())["output"][0]["content"][0]["text"] == "A crab is a crab."


async def test_w12_more_frames_than_may_wait_are_refused_in_their_turn() -> None:
    async with world() as here, here.opened() as client:
        await client.send(type="response.create", model="m", input="hello")
        created = await client.event()
        assert created["type"] == "response.created"
        for _ in range(MOST_WAITING * 4):
            await client.send(type="nonsense")
        rest = [created, *await client.turn()]
        assert linted(rest)["status"] == "completed"
        codes = [envelope(await client.turn())["code"] for _ in range(MOST_WAITING * 4)]
        assert set(codes) <= {"unknown_type", "too_many_requests"}
        assert (await client.asked("hello"))["status"] == "completed", "whoever has waited is served again"


async def test_w13_two_sockets_are_independent() -> None:
    async with world() as here, here.opened() as one, here.opened() as other:
        await one.send(type="response.create", model="m", input="talk for ever")
        assert (await one.event())["type"] == "response.created"
        mine = await other.asked("hello", store=False)
        assert here.model.busy == 1, "the first is still at it"
        await other.asked("and again, hello", store=False, previous_response_id=mine["id"])


async def test_w14_a_response_that_is_not_stored_continues_on_its_socket() -> None:
    async with world() as here, here.opened() as client:
        first = await client.asked("hello, I am Alice", store=False)
        second = await client.asked("what is my name?", store=False, previous_response_id=first["id"])
        assert second["output"][0]["content"][0]["text"] == "Your name is Alice."
        assert (second["previous_response_id"], second["store"]) == (first["id"], False)
        assert (await here.engine.store.list()).runs == (), "nothing of it was stored"
        third = await client.asked("once more, what is my name?", store=False, previous_response_id=second["id"])
        assert third["status"] == "completed"


async def test_w14_a_client_tool_is_answered_on_the_same_socket_without_storing() -> None:
    async with world() as here, here.opened() as client:
        paused = await client.asked("the weather, please", store=False, tools=[WEATHER])
        made = paused["output"][0]
        answer = [{"type": "function_call_output", "call_id": made["call_id"], "output": "22 degrees"}]
        body: Json = {"store": False, "tools": [WEATHER], "previous_response_id": paused["id"]}
        done = await client.asked([*answer, {"role": "user", "content": "hello"}], **body)
        assert done["status"] == "completed"
        told = here.model.requests[-1].items
        assert [type(item).__name__ for item in told] == ["Message", "FunctionCall", "FunctionCallOutput", "Message"]


async def test_w14_only_the_most_recent_responses_are_remembered() -> None:
    async with world() as here, here.opened() as client:
        ids = [(await client.asked("hello", store=False))["id"] for _ in range(9)]
        frame: Json = {"type": "response.create", "model": "m", "input": "hello", "store": False}
        assert (await client.refused(**frame, previous_response_id=ids[0]))["code"] == "previous_response_not_found"
        assert (await client.asked("hello", store=False, previous_response_id=ids[1]))["status"] == "completed"


async def test_w15_a_stored_response_is_continued_from_the_store_on_a_new_socket() -> None:
    async with world() as here:
        async with here.opened() as client:
            first = await client.asked("hello, I am Alice")
        async with here.opened() as client:
            second = await client.asked("what is my name?", previous_response_id=first["id"])
            assert second["status"] == "completed"


async def test_w15_without_storing_there_is_no_way_back_from_another_socket() -> None:
    frame: Json = {"type": "response.create", "model": "m", "input": "hello", "store": False}
    async with world() as here:
        async with here.opened() as client:
            unstored = await client.asked("hello", store=False)
            stored = await client.asked("hello")
        async with here.opened() as client:
            for known in (unstored, stored):
                refused = await client.refused(**frame, previous_response_id=known["id"])
                assert refused == {
                    "status": 400,
                    "type": "invalid_request_error",
                    "code": "previous_response_not_found",
                    "message": f"Previous response with id '{known['id']}' not found.",
                    "param": "previous_response_id",
                }
            assert (await client.asked("hello", store=False))["status"] == "completed", "and a fresh start works"


@pytest.mark.parametrize("store", [True, False])
async def test_w15_a_made_up_id_is_not_found(store: bool) -> None:
    async with world() as here, here.opened() as client:
        frame: Json = {"type": "response.create", "model": "m", "input": "hello", "store": store}
        refused = await client.refused(**frame, previous_response_id="resp_made_up")
        assert (refused["status"], refused["code"]) == (400, "previous_response_not_found")
        assert (await here.posted({"model": "m", "input": "hello", "previous_response_id": "resp_made_up"}))[0] == 400


async def test_w15_storing_what_continues_an_unstored_response_stores_all_of_it(tmp_path: Path) -> None:
    async with world(tmp_path / "runs.db") as here, here.opened() as client:
        first = await client.asked("hello, I am Alice", store=False)
        second = await client.asked("what is my name?", previous_response_id=first["id"])
        assert second["previous_response_id"] == first["id"]
    async with world(tmp_path / "runs.db") as here, here.opened() as client:
        third = await client.asked("say again, what is my name?", previous_response_id=second["id"])
        assert third["status"] == "completed"
        told = [item.text for item in here.model.requests[0].items]  # type: ignore[attr-defined]
        assert told == [
            "hello, I am Alice",
            "Hello there.",
            "what is my name?",
            "Your name is Alice.",
            "say again, what is my name?",
        ]


ORPHAN: Json = {"type": "function_call_output", "call_id": "call_unknown", "output": "?"}


@pytest.mark.parametrize(
    ("body", "status"),
    [({"input": [ORPHAN]}, 400), ({"input": "hello", "temperature": 9}, 400), ({"input": 7}, 400)],
    ids=["an orphan output", "a value out of range", "a value of the wrong type"],
)
async def test_w16_a_continuation_that_is_refused_forgets_its_parent(body: Json, status: int) -> None:
    async with world() as here, here.opened() as client:
        first = await client.asked("hello", store=False)
        other = await client.asked("hello", store=False)
        frame: Json = {"type": "response.create", "model": "m", "store": False, "previous_response_id": first["id"]}
        assert (await client.refused(**frame, **body))["status"] == status
        again = await client.refused(**frame, input="hello")
        assert again["code"] == "previous_response_not_found"
        kept = await client.asked("hello", store=False, previous_response_id=other["id"])
        assert kept["status"] == "completed", "only that one is forgotten"


async def test_w16_a_continuation_whose_model_fails_forgets_its_parent() -> None:
    async with world() as here, here.opened() as client:
        first = await client.asked("hello", store=False)
        await client.send(type="response.create", model="m", input="are you down?", store=False, previous_response_id=first["id"])
        told = await client.turn()
        assert linted(told)["status"] == "failed"
        assert [event["type"] for event in told if event["type"] == "error"] == [], "an error would end the turn twice"
        frame: Json = {"type": "response.create", "model": "m", "input": "hello", "store": False}
        refused = await client.refused(**frame, previous_response_id=first["id"])
        assert refused["code"] == "previous_response_not_found"


async def test_w18_a_connection_ends_at_its_limit_and_says_so() -> None:
    async with bare(lifetime=0.3) as here, here.opened() as client:
        error = envelope(await client.turn())
        assert (error["status"], error["code"]) == (400, "websocket_connection_limit_reached")
        assert (await client.said_to_have_ended()).rcvd is not None


async def test_w18_at_the_limit_a_response_under_way_is_cancelled() -> None:
    async with bare(lifetime=1) as here, here.opened() as client:
        await client.send(type="response.create", model="m", input="talk for ever")
        created = await client.event()
        while (event := await client.event())["type"] != "error":
            pass
        assert event["error"]["code"] == "websocket_connection_limit_reached"
        run = await (await here.engine.attach(created["response"]["id"])).wait()
        assert run.status == "cancelled"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "invalid_json"),
        ('{"a":' * 5000, "invalid_json"),
        ("[]", "invalid_type"),
        ("7", "invalid_type"),
        ("{}", "unknown_type"),
        ('{"type": 7}', "unknown_type"),
        ('{"type": "response.cancel"}', "unknown_type"),
        ('{"type": "response.create", "input": {"a": 1}}', "invalid_type"),
        ('{"type": "response.create", "input": "x", "tools": 3}', "invalid_type"),
        (b'{"type": "response.create"}', "invalid_json"),
    ],
    ids=[
        "no JSON",
        "too deep",
        "a list",
        "a number",
        "no type",
        "a type that is no text",
        "an unknown type",
        "odd input",
        "odd tools",
        "binary",
    ],
)
async def test_w19_whatever_cannot_be_read_gets_an_envelope_and_the_socket_lives(text: str | bytes, code: str) -> None:
    async with world() as here, here.opened() as client:
        await client.connection.send(text)
        error = envelope(await client.turn())
        assert (error["status"], error["code"]) == (400, code)
        assert (await client.asked("hello"))["status"] == "completed"


@pytest.mark.parametrize("text", [b"\xff", b'{"type": "\xc3'])
async def test_text_that_is_no_utf8_ends_its_connection_and_is_no_failure_of_ours(
    text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    async with world() as here:
        async with here.opened() as client:
            await client.connection.send(text, text=True)
            ended = await client.said_to_have_ended()
            assert ended.rcvd is not None
            assert ended.rcvd.code == 1007
        async with here.opened() as client:
            assert (await client.asked("hello"))["status"] == "completed"
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


async def test_a_client_that_leaves_cancels_its_response_and_what_waits_never_begins() -> None:
    async with world() as here:
        async with here.opened() as client:
            await client.send(type="response.create", model="m", input="talk for ever")
            created = await client.event()
            await client.send(type="response.create", model="m", input="hello")
        with anyio.fail_after(PATIENCE):
            run = await (await here.engine.attach(created["response"]["id"])).wait()
        assert run.status == "cancelled"
        assert len(here.model.requests) == 1


UPGRADE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}


async def test_keys_are_asked_for_at_the_handshake_and_runs_belong_to_their_tenant() -> None:
    engine = Engine(Model())
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, is_local=False)) as url:
        async with aiohttp.ClientSession(headers={"authorization": "Bearer wrong"}) as session:
            async with session.get(f"{url}/responses", headers=UPGRADE) as refused:
                assert refused.status == 401
                assert (await refused.json())["error"]["code"] == "invalid_api_key"
            with pytest.raises(aiohttp.WSServerHandshakeError):
                await session.ws_connect(f"{url}/responses")
        made: list[Json] = []
        for tenant in ("ours", "theirs"):
            bearer = {"authorization": f"Bearer {await keys.create(tenant=tenant)}"}
            async with connect(f"{url.replace('http', 'ws')}/responses", additional_headers=bearer) as connection:
                client = Client(connection)
                for other in made:
                    frame: Json = {"type": "response.create", "model": "m", "input": "hello"}
                    refusal = await client.refused(**frame, previous_response_id=other["id"])
                    assert refusal["code"] == "previous_response_not_found"
                made.append(await client.asked("hello"))
            assert (await engine.attach(made[-1]["id"])).run.spec.tenant == tenant


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


@pytest.mark.parametrize(("end", "code"), [("revoke", "invalid_api_key"), ("expire", "expired_api_key")])
async def test_a_key_that_is_good_no_more_ends_its_connection_before_the_next_frame(end: str, code: str) -> None:
    model, now = Model(), Now()
    engine = Engine(model)
    keys = Keys(engine.store, clock=now)
    async with hosted(server(engine, keys=keys)) as url:
        bearer = {"authorization": f"Bearer {await keys.create(seconds=60)}"}
        async with connect(f"{url.replace('http', 'ws')}/responses", additional_headers=bearer) as connection:
            client = Client(connection)
            assert (await client.asked("hello"))["status"] == "completed"
            if end == "revoke":
                await keys.revoke((await keys.list())[0].id)
            else:
                now.at += 60
            refused = await client.refused(type="response.create", model="m", input="hello")
            assert (refused["status"], refused["code"]) == (401, code)
            closed = (await client.said_to_have_ended()).rcvd
            assert closed is not None
            assert (closed.code, closed.reason) == (1008, code)
    assert len(model.requests) == 1


async def test_the_first_key_ends_connections_that_were_opened_without_one() -> None:
    model = Model()
    engine = Engine(model)
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url, connect(f"{url.replace('http', 'ws')}/responses") as connection:
        client = Client(connection)
        assert (await client.asked("hello"))["status"] == "completed"
        await keys.create()
        refused = await client.refused(type="response.create", model="m", input="hello")
        assert (refused["status"], refused["code"]) == (401, "missing_api_key")
        await client.said_to_have_ended()
    assert len(model.requests) == 1


async def test_openai_python_talks_over_its_own_socket_client() -> None:
    async with world() as here, AsyncOpenAI(base_url=here.url, api_key="unused") as openai, openai.responses.connect() as socket:
        ids: list[str] = []
        for text in ("hello, I am Alice", "what is my name?"):
            if ids:
                await socket.response.create(model="m", input=text, store=False, previous_response_id=ids[-1])
            else:
                await socket.response.create(model="m", input=text, store=False)
            said = ""
            async for event in socket:
                if event.type == "response.output_text.delta":
                    said += event.delta
                if event.type == "response.completed":
                    assert event.response.output_text == said
                    ids.append(event.response.id)
                    break
        assert said == "Your name is Alice."
        await socket.response.create(model="m", input="x", store=False, previous_response_id="resp_made_up")
        failed = await socket.recv()
        assert failed.type == "error"
        assert failed.error.code == "previous_response_not_found"


async def test_aiohttp_talks_too() -> None:
    async with world() as here, aiohttp.ClientSession() as session, session.ws_connect(f"{here.url}/responses") as socket:
        await socket.send_json({"type": "response.create", "model": "m", "input": "hello"})
        events = []
        async for message in socket:
            events.append(message.json())
            if events[-1]["type"] in TERMINAL:
                break
        assert linted(events)["status"] == "completed"
