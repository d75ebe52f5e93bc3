"""The model behind the server under test: Chat Completions over real HTTP, answering by what is said to it.

Each test has a model of its own, so that any number of them can talk at once. A test says what its model answers to whom
(`model.hears("Hello", says("Hi."))`: the last message of the user or of a tool decides) and looks afterwards at what it was
asked. Requests that a real backend would refuse, or that nobody foresaw, fail the test.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from msgspec import Struct
from tests.kit.waiting import PATIENCE

Json = dict[str, Any]

FIELDS = {
    "model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "temperature", "top_p",
    "max_tokens", "stop", "seed", "response_format", "reasoning_effort", "logprobs", "top_logprobs",
}  # fmt: skip


class Reply(Struct, frozen=True):
    """One turn of the model, as the deltas of its chunks. One that `hangs` says no more until it is released. `asked` is how many
    tokens it counts in what it was asked."""

    deltas: tuple[Json, ...]
    finish: str = "stop"
    hangs: bool = False
    status: int = 200
    asked: int = 11


def says(text: str, *, thinking: str = "") -> Reply:
    thoughts = [{"reasoning_content": piece} for piece in _pieces(thinking)]
    return Reply((*thoughts, *[{"content": piece} for piece in _pieces(text)]))


def hangs(text: str, rest: str = "") -> Reply:
    """Says the text, then nothing for as long as it is not released; then the rest."""
    return Reply((*says(text).deltas, {}, *says(rest).deltas), hangs=True)


def calls(*wanted: tuple[str, Json], saying: str = "") -> Reply:
    """Calls tools, all heads and pieces of arguments in chunks of their own, as the common backends do."""
    deltas: list[Json] = [{"content": piece} for piece in _pieces(saying)]
    for index, (name, arguments) in enumerate(wanted):
        head = {"index": index, "id": f"call_{name}_{index}", "type": "function", "function": {"name": name, "arguments": ""}}
        deltas.append({"tool_calls": [head]})
        text = json.dumps(arguments)
        for start in range(0, len(text), 7):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": text[start : start + 7]}}]})
    return Reply(tuple(deltas), "tool_calls")


def fails(status: int) -> Reply:
    return Reply((), status=status)


def is_cut(reply: Reply) -> Reply:
    """The same, ended by the limit on tokens."""
    return Reply(reply.deltas, "length")


class Model:
    """What one test's model answers, and what it was asked."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Json] = []
        self.faults: list[str] = []
        self.gone = threading.Event()
        self._rules: dict[str, Reply | Callable[[str], Reply]] = {}
        self._heard: set[str] = set()
        self._release = threading.Event()

    def hears(self, words: str, reply: Reply | Callable[[str], Reply]) -> None:
        """Answers so, or by what it says, whenever the last message contains these words; of several rules the longest counts."""
        self._rules[words] = reply

    def release(self) -> None:
        self._release.set()

    async def released(self) -> None:
        assert await asyncio.to_thread(self._release.wait, PATIENCE), "the test never released the model"

    def messages(self, number: int = -1) -> list[Json]:
        """The messages of a request."""
        return list(self.asked[number]["messages"])

    def answer(self, body: Json) -> Reply:
        """Checks a request and finds its answer."""
        self.asked.append(body)
        self.faults += _faults(body)
        last = body["messages"][-1] if body["messages"] else {}
        fitting = [words for words in self._rules if words in _words(last)]
        if not fitting:
            self.faults.append(f"nothing is foreseen for the last message: {last}")
            return fails(500)
        self._heard.add(words := max(fitting, key=len))
        reply = self._rules[words]
        return reply if isinstance(reply, Reply) else reply(_words(last))

    def check(self) -> None:
        self._release.set()
        assert not self.faults, "\n".join(self.faults)
        assert self._heard == set(self._rules), f"never heard: {set(self._rules) - self._heard}"


class Upstream:
    """The backend: every test's model under one address."""

    def __init__(self) -> None:
        self.url = ""
        self.strays: list[str] = []
        self._models: dict[str, Model] = {}

    def model(self, name: str) -> Model:
        self._models[name] = model = Model(name)
        return model

    async def list(self, request: web.Request) -> web.Response:
        listed = [{"id": name, "object": "model", "created": 1, "owned_by": "tests"} for name in self._models]
        return web.json_response({"object": "list", "data": listed})

    async def complete(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        model = self._models.get(body.get("model"))
        if model is None:
            self.strays.append(str(body.get("model")))
            return web.json_response({"error": {"message": f"no model {body.get('model')}"}}, status=404)
        reply = model.answer(body)
        if reply.status != 200:
            return web.json_response({"error": {"message": "The backend is unwell."}}, status=reply.status)
        try:
            return await self._stream(request, model, reply, body)
        except (ConnectionError, asyncio.CancelledError):
            model.gone.set()
            raise

    async def _stream(self, request: web.Request, model: Model, reply: Reply, asked: Json) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": model.name}

        async def tell(delta: Json, finish: str | None = None) -> None:
            choice = {"index": 0, "delta": delta, "logprobs": _chances(asked, delta), "finish_reason": finish}
            await response.write(_sse({**head, "choices": [choice], "usage": None}))

        await tell({"role": "assistant", "content": ""})
        for delta in reply.deltas:
            if reply.hangs and not delta:
                await model.released()
            await tell(delta)
        await tell({}, reply.finish)
        told = len(reply.deltas)
        usage = {"prompt_tokens": reply.asked, "completion_tokens": told, "total_tokens": reply.asked + told}
        await response.write(_sse({**head, "choices": [], "usage": usage}))
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def serving() -> AsyncIterator[Upstream]:
    upstream = Upstream()
    app = web.Application(client_max_size=2**26)
    app.router.add_get("/v1/models", upstream.list)
    app.router.add_post("/v1/chat/completions", upstream.complete)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    upstream.url = "http://{}:{}/v1".format(*runner.addresses[0][:2])
    try:
        yield upstream
    finally:
        await runner.cleanup()


def _sse(payload: Json) -> bytes:
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def _pieces(text: str) -> list[str]:
    """The text as tokens, roughly: words with the space before them."""
    return [word if number == 0 else f" {word}" for number, word in enumerate(text.split(" "))] if text else []


def _chances(asked: Json, delta: Json) -> Json | None:
    """Log probabilities for whoever asks for them: each piece is a token, and there is little doubt."""
    if not asked.get("logprobs") or not delta.get("content"):
        return None
    token = {"token": delta["content"], "logprob": -0.25, "bytes": list(delta["content"].encode())}
    return {"content": [{**token, "top_logprobs": [token] * asked.get("top_logprobs", 0)}], "refusal": None}


def _words(message: Json) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return " ".join([part["text"] for part in content if part["type"] == "text"])


def _faults(body: Json) -> list[str]:
    """What a strict backend would refuse."""
    faults = [f"unknown field {field}" for field in body if field not in FIELDS]
    if body.get("stream") is not True or body.get("stream_options") != {"include_usage": True}:
        faults.append("the server always streams, and wants to know the usage")
    for tool in body.get("tools", ()):
        if tool.keys() != {"type", "function"} or not isinstance(tool["function"].get("parameters"), dict):
            faults.append(f"a malformed tool: {tool}")
    return faults + _misplaced(body["messages"])


def _misplaced(messages: Sequence[Json]) -> list[str]:
    """Every call is answered directly behind it, and every output answers one."""
    faults, waiting = [], list[str]()
    for message in messages:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                faults.append(f"the output of no call: {message}")
            else:
                waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            faults.append(f"calls without output: {waiting}")
        waiting = [call["id"] for call in message.get("tool_calls", ())]
        if not message.get("content") and not waiting:
            faults.append(f"a message that says nothing: {message}")
    if waiting:
        faults.append(f"calls without output: {waiting}")
    return faults
