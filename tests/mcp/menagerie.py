"""Servers reached by HTTP that misbehave, one function each: what is done to a good server to make it bad."""

import asyncio
import gzip
import json
from collections.abc import Callable

from aiohttp import web
from tests.mcp.wild_web import READ, Handler, Json, Wild, begin, encode, event, result, say


async def hang(request: web.Request, message: Json) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("nothing ends this")


async def hang_in_stream(request: web.Request, message: Json) -> web.StreamResponse:
    await begin(request)
    return await hang(request, message)


def reply(found: Json) -> Handler:
    async def answer(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **found})

    return answer


def respond(status: int = 200, text: str = "", kind: str = "application/json", **headers: str) -> Handler:
    async def answer(request: web.Request, message: Json) -> web.StreamResponse:
        return web.Response(status=status, text=text, content_type=kind, headers=headers)

    return answer


def stream(*said: Callable[[Json], Json]) -> Handler:
    async def answer(request: web.Request, message: Json) -> web.StreamResponse:
        opened = await begin(request)
        for each in said:
            await opened.write(event(each(message)))
        return opened

    return answer


async def nest(request: web.Request, message: Json) -> web.StreamResponse:
    deep = f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {"[" * 100_000}{"]" * 100_000}}}'
    return web.Response(text=deep, content_type="application/json")


async def swell(request: web.Request, message: Json) -> web.StreamResponse:
    opened = web.StreamResponse(headers={"content-type": "application/json"})
    await opened.prepare(request)
    for _ in range(400):
        await opened.write(b" " * 65_536)
    return opened


async def compress(request: web.Request, message: Json) -> web.StreamResponse:
    body = gzip.compress(json.dumps(encode(message, result=say("read"))).encode())
    return web.Response(body=body, headers={"content-encoding": "gzip", "content-type": "application/json"})


async def abort(request: web.Request, message: Json) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def next_page(request: web.Request, message: Json) -> web.StreamResponse:
    page = int(message["params"].get("cursor", 0))
    found = {"tools": [{**READ, "name": f"read{page}"}], "nextCursor": str(page + 1)}
    return await reply(found)(request, message)


async def keep_changing(request: web.Request, message: Json) -> web.StreamResponse:
    opened = await begin(request)
    for _ in range(200):
        await opened.write(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}))
    return await hang(request, message)


def ask(method: str, params: Json) -> Handler:
    """Asks something of its own accord, on the stream of a call, and never answers that."""
    asked = {"jsonrpc": "2.0", "id": "q", "method": method, "params": params}

    async def answer(request: web.Request, message: Json) -> web.StreamResponse:
        opened = await begin(request)
        await opened.write(event(asked))
        return await hang(request, message)

    return answer


def want(requests: Json, state: str = "s") -> Handler:
    return reply({"resultType": "input_required", "inputRequests": requests, "requestState": state})


def _progress(message: Json) -> Json:
    token = message["params"]["_meta"]["progressToken"]
    return {"jsonrpc": "2.0", "method": "notifications/progress", "params": {"progressToken": token, "progress": 1}}


def _answer(message: Json) -> Json:
    return encode(message, result=say("read"))


TASK = {"taskId": "t", "createdAt": "", "lastUpdatedAt": "", "ttlMs": None, "pollIntervalMs": 50}
AGAIN = {"resultType": "task", "taskId": "t"}
HASTY = {"taskId": "u", "pollIntervalMs": 0}
BEGUN = reply({"resultType": "task", "status": "working", **TASK})
NESTED: Json = {"message": "?", "requestedSchema": {"type": "object", "properties": {"a": {"type": "object"}}}}
FORM: Json = {"a": {"method": "elicitation/create", "params": NESTED}}
SAMPLE: Json = {"messages": [{"role": "user", "content": {"type": "text", "text": "?"}}], "maxTokens": 1}
POISON: Json = {**READ, "name": "read\r\nX-Evil: 1"}
STRICT: Json = {**READ, "outputSchema": {"type": "object", "required": ["a"]}}

# By name: whether it speaks the stateless protocol, and what it does instead of what it should.
ANIMALS: dict[str, tuple[bool, dict[str, Handler]]] = {
    "hangs at discover": (True, {"server/discover": hang}),
    "hangs at initialize": (False, {"initialize": hang}),
    "hangs at initialized": (False, {"notifications/initialized": hang}),
    "hangs at list": (True, {"tools/list": hang}),
    "hangs at call": (True, {"tools/call": hang}),
    "hangs in stream": (False, {"tools/call": hang_in_stream}),
    "hangs at both streams": (False, {"GET": hang_in_stream, "tools/call": hang_in_stream}),
    "wrong id": (True, {"tools/call": stream(lambda message: {**_answer(message), "id": 999})}),
    "two answers": (True, {"tools/call": stream(_answer, _answer)}),
    "progress after the end": (True, {"tools/call": stream(_answer, _progress, _progress)}),
    "progress for others": (False, {"tools/call": stream(lambda m: {**_progress(m), "id": None}, _answer)}),
    "endless pages": (True, {"tools/list": next_page}),
    "changes all the time": (False, {"GET": keep_changing}),
    "gigantic result": (True, {"tools/call": swell}),
    "gigantic list": (True, {"tools/list": swell}),
    "deep result": (True, {"tools/call": nest}),
    "deep list": (False, {"tools/list": nest}),
    "redirect to a private address": (True, {"tools/call": respond(307, Location="http://169.254.169.254/latest")}),
    "redirect in a circle": (True, {"tools/call": respond(307, Location="/mcp")}),
    "locked": (True, {"server/discover": respond(401)}),
    "broken": (False, {"tools/call": respond(500, "oops", "text/plain")}),
    "page": (True, {"tools/call": respond(200, "<html>Welcome!</html>", "text/html")}),
    "zip": (True, {"tools/call": compress}),
    "abort": (True, {"tools/call": abort}),
    "accepts": (True, {"tools/call": respond(202)}),
    "no JSON": (True, {"tools/call": respond(200, "{]")}),
    "wants input for ever": (True, {"tools/call": want({})}),
    "has much to remember": (True, {"tools/call": want(FORM, "s" * 400_000)}),
    "nested form": (True, {"tools/call": want(FORM)}),
    "samples": (True, {"tools/call": want({"a": {"method": "sampling/createMessage", "params": SAMPLE}})}),
    "samples in session": (False, {"tools/call": ask("sampling/createMessage", SAMPLE)}),
    "wants roots": (False, {"tools/call": ask("roots/list", {})}),
    "endless task": (True, {"tools/call": BEGUN, "tasks/get": reply({"status": "working", **TASK})}),
    "strange task": (True, {"tools/call": BEGUN, "tasks/get": reply({"status": "asleep", **TASK})}),
    "task of many ids": (True, {"tools/call": BEGUN, "tasks/get": reply({"status": "working", **TASK, **HASTY})}),
    "task in a task": (True, {"tools/call": BEGUN, "tasks/get": reply({**TASK, "status": "completed", "result": AGAIN})}),
    "strange version": (True, {"server/discover": reply({"supportedVersions": ["3000-01-01"], "capabilities": {}})}),
    "no content": (True, {"tools/call": reply({"content": "all of it"})}),
    "breaks its promise": (True, {"tools/list": reply({"tools": [STRICT]})}),
    "poisoned name": (True, {"tools/list": reply({"tools": [READ, POISON]})}),
}  # fmt: skip


def make(name: str) -> Wild:
    is_modern, answers = ANIMALS[name]
    wild = Wild(is_modern=is_modern)
    if "task" in name:
        wild.capabilities = {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}}
    wild.answers |= answers
    return wild
