"""What goes wrong with a backend, and the one kind of error each failure is."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.waiting import GROWING
from tests.providers.backend import (
    ASKED,
    DONE,
    QUESTION,
    Backend,
    ask,
    begun,
    call_piece,
    chunk,
    events_of,
    folded,
    sse,
    usage_chunk,
)

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    Misconfigured,
    ModelNotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import ItemDone, ItemStarted, ModelEvent, TextDelta, TurnEnded
from mainspring.core.ids import counting
from mainspring.core.items import FunctionCall, Json, Message, OutputText, Usage, encode, user
from mainspring.core.model_request import ModelRequest
from mainspring.providers import http_client as _http
from mainspring.providers.chat.provider import Chat
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.http_client import Http
from mainspring.providers.reply import read_finish
from mainspring.providers.turn import TurnBuilder

STOP = chunk(finish="stop")


async def failing(chat: Chat, *, cut: asyncio.Event | None = None) -> tuple[list[ModelEvent], ProviderError]:
    """The events before the failure, which the engine must be able to record, and the failure. The first event sets `cut`."""
    events: list[ModelEvent] = []
    try:
        async for event in chat.stream(QUESTION):
            events.append(event)
            if cut is not None:
                cut.set()
    except ProviderError as error:
        folded(events)
        return events, error
    finally:
        await chat.close()
    pytest.fail(f"did not fail: {events}")


async def failure_of(backend: Backend, *, api_key: str | None = None) -> ProviderError:
    return (await failing(Chat(backend.url, api_key=api_key)))[1]


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (400, b'{"error": {"message": "bad temperature"}}', Refused, "{url}/chat/completions answered HTTP 400: bad temperature"),
        (404, b'{"error": "no model `clockwork`"}', ModelNotFound,
         "{url}/chat/completions answered HTTP 404: no model `clockwork`; check the model name"),
        (400, b'{"error": {"message": "No.", "code": "model_not_found"}}', ModelNotFound,
         "{url}/chat/completions answered HTTP 400: No.; check the model name"),
        (404, b'{"detail": "Not Found"}', Misconfigured,
         "{url}/chat/completions answered HTTP 404: Not Found; check the backend's base URL"),
        (405, b"", Misconfigured, "{url}/chat/completions answered HTTP 405; check the backend's base URL"),
        (400, b"HTTP request to an HTTPS server", Misconfigured,
         "{url}/chat/completions answered HTTP 400: HTTP request to an HTTPS server; check the backend's base URL"),
        (402, b'{"error": {"message": "No credits"}}', Unauthorized,
         "{url}/chat/completions answered HTTP 402: No credits; check the API key and the account"),
        (422, b'{"detail": [{"loc": ["body", "top_p"], "msg": "too big"}]}', Refused,
         "{url}/chat/completions answered HTTP 422: body.top_p: too big"),
        (400, b'{"object": "error", "message": "This model\'s maximum context length is 8 tokens", "code": 400}', ContextOverflow,
         "{url}/chat/completions answered HTTP 400: This model's maximum context length is 8 tokens; "
         "shorten the conversation or choose a model with a larger context"),
        (400, b'{"error": {"code": "context_length_exceeded", "message": "too much"}}', ContextOverflow,
         "{url}/chat/completions answered HTTP 400: too much; shorten the conversation or choose a model with a larger context"),
        (401, b'[{"error": {"message": "Incorrect key"}}]', Unauthorized,
         "{url}/chat/completions answered HTTP 401: Incorrect key; check the API key"),
        (403, b'{"detail": "not yours"}', Unauthorized, "{url}/chat/completions answered HTTP 403: not yours; check the API key"),
        (429, b"", RateLimited, "{url}/chat/completions answered HTTP 429; try again later"),
        (500, b"<!doctype html><h1>oh no</h1>", Unavailable,
         "{url}/chat/completions answered HTTP 500: an HTML page; try again, or look at the server's log"),
        (503, b"loading\n model", Unavailable,
         "{url}/chat/completions answered HTTP 503: loading model; try again, or look at the server's log"),
        (502, b'{"error": {"message": "Provider returned error", "code": 502, "metadata": {"raw": "too hot"}}}', Unavailable,
         "{url}/chat/completions answered HTTP 502: Provider returned error (too hot); try again, or look at the server's log"),
        (418, b'{"odd": [1]}', Refused, '{url}/chat/completions answered HTTP 418: {{"odd": [1]}}'),
    ],
)  # fmt: skip
async def test_a_status_means_one_kind_of_error(
    backend: Backend, status: int, body: bytes, kind: type[ProviderError], message: str
) -> None:
    backend.replies(body, status=status, mime="application/json")
    error = await failure_of(backend)
    assert (type(error), error.message) == (kind, message.format(url=backend.url))


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "20"}, 20.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 30.0),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 0.0),
        ({"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
async def test_a_rate_limit_says_when_to_come_back(backend: Backend, headers: dict[str, str], seconds: float | None) -> None:
    backend.replies(b'{"error": {"message": "slow down"}}', status=429, headers=headers)
    error = await failure_of(backend)
    assert isinstance(error, RateLimited)
    assert error.retry_after == seconds
    assert error.message.endswith("slow down; try again later" if seconds is None else f"slow down; try again in {seconds:g} s")


@pytest.mark.parametrize("status", [408, 425, 498, 500, 503, 529])
async def test_a_backend_that_is_unavailable_may_say_when_to_come_back(backend: Backend, status: int) -> None:
    backend.replies(b"overloaded", status=status, headers={"Retry-After": "20"})
    backend.replies(b"overloaded", status=status)
    assert [(await failure_of(backend)).retry_after for _ in range(2)] == [20.0, None]


async def test_the_key_is_never_in_a_message(backend: Backend) -> None:
    backend.replies(b'{"error": {"message": "Incorrect key: sk-very-secret"}}', status=401)
    backend.replies(b"data: {sk-very-secret\n\n")
    backend.replies(b'data: {"error": "sk-very-secret is spent"}\n\n')
    for _ in range(3):
        error = await failure_of(backend, api_key="sk-very-secret")
        assert "***" in error.message
        assert "sk-very-secret" not in error.message


async def test_a_key_in_a_header_is_never_in_a_message_either(backend: Backend) -> None:
    backend.replies(b'{"error": {"message": "Incorrect key: very-secret, sent by Mainspring"}}', status=401)
    _, error = await failing(Chat(backend.url, headers={"Authorization": "Token very-secret", "X-Title": "Mainspring"}))
    assert error.message.endswith("HTTP 401: Incorrect key: ***, sent by Mainspring; check the API key")


async def test_a_redirect_is_not_followed(backend: Backend) -> None:
    backend.replies(status=301, headers={"Location": "https://clock/v1/chat/completions"})
    error = await failure_of(backend)
    assert isinstance(error, Misconfigured)
    assert error.message.endswith("redirects to https://clock/v1/chat/completions; set the base URL to match")


async def test_a_web_page_is_no_answer(backend: Backend) -> None:
    backend.replies(b"<html>Welcome</html>", mime="text/html; charset=utf-8")
    error = await failure_of(backend)
    assert isinstance(error, BadOutput)
    assert error.message.endswith("answered with a web page; check the base URL, which usually ends in /v1")


async def test_complaints_about_other_things_are_not_tried_again(backend: Backend) -> None:
    backend.replies(b'{"error": {"message": "unknown field `stream_options`"}}', status=400)
    plain = {key: value for key, value in ASKED.items() if key != "stream_options"}
    backend.replies(b'{"error": {"message": "bad luck, stream_options or not"}}', status=400, expect=plain)
    error = await failure_of(backend)
    assert error.message.endswith("HTTP 400: bad luck, stream_options or not")


@pytest.mark.parametrize(
    ("raw", "kind", "message"),
    [
        (b'data: {"error": {"message": "out of memory", "type": "server_error"}}\n\n', Unavailable, "out of memory"),
        (b'data: {"error": "out of memory"}\n\n', Unavailable, "out of memory"),
        (b'event: error\ndata: {"message": "out of memory"}\n\n', Unavailable, "out of memory"),
        (b"event: error\ndata: out of memory\n\n", Unavailable, "out of memory"),
        (b'error: {"message": "out of memory", "code": 500}\n\n', Unavailable, "out of memory"),
        (b'{"error": {"message": "out of memory"}}\n', Unavailable, "out of memory"),
        (b'data: {"object": "error", "message": "out of memory", "code": 500}\n\n', Unavailable, "out of memory"),
        (b'data: {"error": {"message": "slow down", "code": 429}, "choices": []}\n\n', RateLimited, "slow down"),
        (b'data: {"error": {"message": "slow down", "type": "rate_limit_exceeded"}}\n\n', RateLimited, "slow down"),
        (b'data: {"error": {"message": "bad tool", "code": "400"}}\n\n', Refused, "bad tool"),
        (b'data: {"error": {"message": "the context window is full"}}\n\n', ContextOverflow, "the context window is full"),
        (b'data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n', Unavailable, "gave up on the answer (`error`)"),
    ],
)  # fmt: skip
async def test_an_error_in_the_middle_ends_the_turn(
    backend: Backend, raw: bytes, kind: type[ProviderError], message: str
) -> None:
    backend.replies(sse(chunk({"content": "It is"})), raw, sse(STOP), DONE)
    events, error = await failing(Chat(backend.url, new_id=counting()))
    assert events == [ItemStarted(begun("msg_1")), TextDelta("msg_1", "It is")]
    assert type(error) is kind
    assert message in error.message
    assert error.message.startswith(backend.url)


@pytest.mark.parametrize(
    "raw",
    [
        b'data: {"choices": [{"delta": {"content": "no\n\n',
        b"data: tick tock\n\n",
        b'data: {"choices": 5}\n\n',
        b'data: {"choices": [{"delta": {"content": {"text": 1}}}]}\n\n',
        b"data: 7\n\n",
        b'data: {"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n\n",
        b'data: {"choices": [{"delta": {"content": "no"}}]} trailing\n\n',
    ],
)
async def test_what_cannot_be_read_is_bad_output_that_quotes_it(backend: Backend, raw: bytes) -> None:
    backend.replies(sse(chunk({"content": "It is"})) + raw, sse(STOP), DONE)
    events, error = await failing(Chat(backend.url, new_id=counting()))
    assert events == [ItemStarted(begun("msg_1")), TextDelta("msg_1", "It is")]
    assert type(error) is BadOutput
    assert raw[6:40].decode().strip()[:20] in error.message
    assert len(error.message) < 500


async def test_a_call_that_is_never_named_is_bad_output(backend: Backend) -> None:
    backend.replies(sse(chunk(call_piece(0, id="a", arguments='{"at": 1}')), chunk(finish="tool_calls")), DONE)
    error = await failure_of(backend)
    assert type(error) is BadOutput
    assert error.message == 'the model called a tool without naming it, with arguments `{"at": 1}`; ask again'


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        *[
            (begin, end)
            for end in (b"", b'data: {"choices": [{"delta": {}, "finish_reason": null}]}\n\n')
            for begin in (b"", sse(chunk({"content": "It is"})), sse(chunk(call_piece(0, id="a", name="look"))))
        ],
        (b"", DONE),
        (sse(chunk({"reasoning_content": "Well"})), DONE),
        (sse(chunk(call_piece(0, id="a", name="look", arguments='{"at": '))), DONE),
    ],
)
async def test_a_stream_that_ends_before_its_finish_is_not_an_answer(backend: Backend, begin: bytes, end: bytes) -> None:
    backend.replies(*[raw for raw in (begin, end) if raw])
    error = await failure_of(backend)
    assert type(error) is Unavailable
    assert error.message == f"the stream of {backend.url} ended before the answer was complete; try again"


@pytest.mark.parametrize("usage", [None, Usage(3, 1)])
async def test_an_answer_that_ends_properly_needs_no_reason_for_it(backend: Backend, usage: Usage | None) -> None:
    counted = [usage_chunk(3, 1)] if usage else []
    backend.replies(sse(chunk({"content": "It is noon."}), *counted), DONE)
    *_, done, end = await ask(backend)
    assert done == ItemDone(Message("assistant", (OutputText("It is noon."),), id="msg_1"))
    assert end == TurnEnded("stop", usage)


async def test_a_call_that_ends_properly_needs_no_reason_for_it(backend: Backend) -> None:
    backend.replies(sse(chunk(call_piece(0, id="a", name="look", arguments="{}"))), DONE)
    *_, done, end = await ask(backend)
    assert done == ItemDone(FunctionCall("a", "look", "{}", id="fc_1"))
    assert end == TurnEnded("stop")


async def test_a_broken_connection_is_unavailable(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "It is"})), ending="abort")
    events, error = await failing(Chat(backend.url, new_id=counting()), cut=backend.release)
    assert events == [ItemStarted(begun("msg_1")), TextDelta("msg_1", "It is")]
    assert type(error) is Unavailable
    assert error.message.startswith(f"the connection to {backend.url}/chat/completions broke within its answer (")


async def test_a_connection_that_breaks_behind_the_finish_has_only_ended(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "noon"}, finish="stop")), ending="abort")
    chat = Chat(backend.url)
    events: list[ModelEvent] = []
    async for event in chat.stream(QUESTION):
        events.append(event)
        backend.release.set()
    await chat.close()
    assert events[-1] == TurnEnded("stop")


async def test_silence_before_the_answer_is_unavailable() -> None:
    async with raw_server(lambda _: None) as url:
        _, error = await failing(Chat(url, timeout=0.05))
    assert error.message == f"{url}/chat/completions sent nothing for 0.05 s; is the model loaded? raise `timeout` if it is slow"
    assert type(error) is Unavailable


async def test_silence_within_the_answer_is_unavailable(backend: Backend) -> None:
    for seconds in GROWING:
        backend.replies(sse(chunk({"content": "It is"})), ending="silence")
        events, error = await failing(Chat(backend.url, timeout=seconds))
        if len(events) == 2:
            break
    assert type(error) is Unavailable
    assert error.message == f"{backend.url}/chat/completions fell silent for {seconds:g} s within its answer; try again"
    await backend.gone.wait()


async def test_silence_behind_the_done_marker_does_not_hold_the_answer_up(backend: Backend) -> None:
    backend.replies(sse(chunk({"content": "noon"}), STOP), DONE, ending="silence")
    assert (await ask(backend))[-1] == TurnEnded("stop")
    await backend.gone.wait()


async def test_no_server_is_unavailable_and_says_where() -> None:
    async with raw_server(lambda _: None) as url:
        pass
    _, error = await failing(Chat(url.replace("http://", "http://me:secret@")))
    assert type(error) is Unavailable
    assert error.message.startswith(f"no server answers at {url} (")
    assert error.message.endswith("); is it running?")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"tick tock\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nnonsense\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Encoding: gzip\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n{",
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\ndata: {}\n\n",
    ],
)
async def test_a_server_that_does_not_speak_http_well_is_unavailable(reply: bytes) -> None:
    def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()

    async with raw_server(answer) as url:
        _, error = await failing(Chat(url))
    assert type(error) is Unavailable


NOON = b'{"choices": [{"message": {"content": "noon"}}]}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(NOON), NOON)


async def test_a_kept_connection_that_its_server_has_closed_is_replaced() -> None:
    served: list[asyncio.StreamWriter] = []

    def answer(writer: asyncio.StreamWriter) -> None:
        if writer in served:
            writer.close()
        else:
            served.append(writer)
            writer.write(ANSWER)

    async with raw_server(answer) as url:
        chat = Chat(url)
        for _ in range(3):
            assert (await events_of(chat))[-1] == TurnEnded("stop")
        await chat.close()
    assert len(served) == 3


async def test_a_new_connection_that_is_closed_is_not_tried_again() -> None:
    served: list[asyncio.StreamWriter] = []

    def answer(writer: asyncio.StreamWriter) -> None:
        served.append(writer)
        writer.close()

    async with raw_server(answer) as url:
        _, error = await failing(Chat(url))
    assert type(error) is Unavailable
    assert error.message.startswith(f"{url}/chat/completions closed the connection without an answer (")
    assert len(served) == 1


small = st.text(max_size=3)
scalars = st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "stop", "error", "thinking", "{}", "\n"])
anything = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["text", "type", "name"]), inner, max_size=2),
    max_leaves=4,
)


def nearly(**fields: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """An object with these fields, some of them missing and now and then something else in their place."""
    return st.fixed_dictionaries({}, optional={name: field | anything for name, field in fields.items()})


functions = nearly(name=st.just("look"), arguments=anything)
calls = nearly(index=st.integers(0, 1), id=st.sampled_from(["", "a", "b"]), function=functions)
deltas = nearly(content=small, reasoning=small, refusal=small, tool_calls=st.lists(calls), annotations=st.lists(anything))
choices = nearly(index=st.just(0), delta=deltas, message=deltas, finish_reason=st.sampled_from(["stop", "length"]))
usages = nearly(prompt_tokens=st.integers(), completion_tokens=st.floats(0, 9), total_tokens=anything)
chunks = nearly(choices=st.lists(choices, max_size=2), usage=usages, error=st.none(), object=st.just("chunk"))


@given(st.lists(chunks, max_size=6))
def test_whatever_a_backend_sends_events_are_sound_and_failures_are_its_own(sent: list[Json]) -> None:
    answer = ChatCompletionReply(TurnBuilder(counting()), Http("http://clock/v1", api_key=None, headers=None, timeout=1.0))
    events: list[ModelEvent] = []
    with suppress(ProviderError):
        for piece in (*sent, STOP):
            events.extend(answer.feed(b"data: " + json.dumps(piece).encode() + b"\n\n"))
        events.extend(answer.end())
    run = folded(events)
    encode(run.output)
    encode(run.usage)


@pytest.mark.parametrize("listed", [b"tick", b'{"data": [{"name": "a"}]}', b'"a"'])
async def test_a_list_of_models_that_cannot_be_read_is_bad_output(backend: Backend, listed: bytes) -> None:
    backend.replies(listed, expect=None, mime="application/json")
    chat = Chat(backend.url)
    with pytest.raises(BadOutput, match="no list of models"):
        await chat.models()
    await chat.close()


async def test_listing_models_fails_like_asking(backend: Backend) -> None:
    backend.replies(b'{"error": "who are you?"}', expect=None, status=401)
    chat = Chat(backend.url)
    with pytest.raises(Unauthorized, match="who are you"):
        await chat.models()
    await chat.close()


@asynccontextmanager
async def raw_server(answer: Callable[[asyncio.StreamWriter], None]) -> AsyncIterator[str]:
    """A server below HTTP: it reads the head of each request and lets `answer` write what it likes."""
    open_writers: list[asyncio.StreamWriter] = []

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                answer(writer)

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"http://{host}:{port}/v1"
    finally:
        server.close()
        for writer in open_writers:
            writer.close()
        await server.wait_closed()


async def test_a_backend_that_keeps_the_line_open_behind_its_answer_does_not_hold_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_http, "LAST_SECONDS", 0.02)
    hung_up = asyncio.Event()

    async def answers(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"Hi."},"finish_reason":"stop"}]}\n\n')
        await hung_up.wait()
        return answer

    app = web.Application()
    app.router.add_post("/v1/chat/completions", answers)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider = Chat(f"http://127.0.0.1:{runner.addresses[0][1]}/v1")
    request = ModelRequest(run_id="r", model="m", items=[user("Hello")])
    events = [event async for event in provider.stream(request)]
    hung_up.set()
    await provider.close()
    await runner.cleanup()
    assert type(events[-1]).__name__ == "TurnEnded"


@pytest.mark.parametrize(
    ("reason", "finish"),
    [
        ("model_context_window_exceeded", "length"),
        ("budget_exceeded", "length"),
        ("maxTokens", "length"),
        ("incomplete", "length"),
        ("refusal", "content_filter"),
        ("moderation", "content_filter"),
        ("SPII", "content_filter"),
        ("COMPLETE", "stop"),
        ("eos_token", "stop"),
        ("end_turn", "stop"),
    ],
)
def test_an_answer_is_complete_only_if_its_end_was_in_good_order(reason: str, finish: str) -> None:
    assert read_finish(reason, {"stop": "stop"}, "http://backend") == finish


@pytest.mark.parametrize("reason", ["quota_exceeded", "deadline_exceeded", "rate_limit", "time_limit", "server_error"])
def test_a_backend_that_gave_up_has_not_answered(reason: str) -> None:
    with pytest.raises(Unavailable, match="gave up"):
        read_finish(reason, {"stop": "stop"}, "http://backend")
