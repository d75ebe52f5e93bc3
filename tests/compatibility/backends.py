"""Two backends at one address, Chat Completions and Responses, that answer by the last words and keep what they were asked."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from tests.compatibility.cases import Json

URL = {"type": "url_citation", "url": "https://example.org", "title": "t", "start_index": 0, "end_index": 1}
DELTAS: dict[str, list[Json]] = {
    "hello": [{"content": "Hi."}],
    "think": [{"reasoning_content": "So."}, {"content": "Hi."}],
    "refuse": [{"refusal": "No."}],
    "cite": [{"content": "Hi."}, {"annotations": [{"type": "url_citation", "url_citation": URL}]}],
    "cut": [{"content": "Hi"}],
}
ARGUMENTS: dict[str, Json] = {"query": {"input": "x"}, "shell": {"commands": ["ls"]}}


class Backends:
    """`asked` are the bodies of all requests, latest last."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Json] = []

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        last = body["messages"][-1]
        words = last["content"] if isinstance(last["content"], str) else "hello"
        if words == "fail":
            return web.json_response({"error": {"message": "The backend is unwell."}}, status=500)
        deltas, finish = DELTAS.get(words, DELTAS["hello"]), "length" if words == "cut" else "stop"
        if words.startswith("call "):
            name = words.removeprefix("call ")
            function = {"name": name, "arguments": json.dumps(ARGUMENTS.get(name, {}))}
            deltas = [{"tool_calls": [{"index": 0, "id": "call_9", "type": "function", "function": function}]}]
            finish = "tool_calls"
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
        chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
        return await _stream(request, [*chunks, {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}])

    async def respond(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(await request.json())
        part = {"type": "output_text", "text": "Hi.", "annotations": []}
        message = {"type": "message", "id": "msg_9", "role": "assistant", "status": "completed", "content": [part]}
        place = {"item_id": "msg_9", "output_index": 0, "content_index": 0}
        done = {"id": "resp_9", "object": "response", "status": "completed", "output": [message]}
        return await _stream(request, [
            {"type": "response.created", "response": {**done, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**message, "content": []}},
            {"type": "response.output_text.delta", **place, "delta": "Hi."},
            {"type": "response.output_item.done", "output_index": 0, "item": message},
            {"type": "response.completed", "response": done},
        ])  # fmt: skip


@asynccontextmanager
async def answering() -> AsyncIterator[Backends]:
    backends = Backends()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", backends.chat)
    app.router.add_post("/v1/responses", backends.respond)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    backends.url = "http://{}:{}/v1".format(*runner.addresses[0][:2])
    try:
        yield backends
    finally:
        await runner.cleanup()


async def _stream(request: web.Request, events: list[Json]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for event in events:
        await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
    await response.write(b"data: [DONE]\n\n")
    return response
