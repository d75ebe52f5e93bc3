"""Our own client of streamable HTTP: what it sends under either protocol, and what it makes of servers that break the rules."""

import asyncio
import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from aiohttp import web
from tests.kit.waiting import PATIENCE, until
from tests.mcp.conftest import Connect, Zoo
from tests.mcp.wild_web import READ, Json, Wild, begin, encode, event, result, say, serve, stream_of

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.core.items import Json as Answer
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp import http_link, session
from mainspring.tools.mcp.exchange import ToolAnswer
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec

CAPABILITIES: Json = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


def spec(wild: Wild, **more: Any) -> ServerSpec:
    return ServerSpec("wild", url=wild.url, trusted=True, **more)


def text(answer: ToolAnswer) -> str:
    return "".join([block["text"] for block in answer.content])


async def call(connection: McpConnection, **options: Any) -> str:
    return text(await connection.call("read", {}, **options))


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_call_is_answered_as_json_or_as_an_event(is_modern: bool, connect: Connect) -> None:
    async def stream(request: web.Request, message: Json) -> web.StreamResponse:
        return await stream_of(request, b": hello\r\n\r\n", event(encode(message, result=say("event")), name="message"))

    async with serve(Wild(is_modern=is_modern)) as wild:
        connection = connect(spec(wild))
        assert await call(connection) == "read"
        wild.answers["tools/call"] = stream
        assert [await call(connection) for _ in range(3)] == ["event"] * 3
        await connection.close()


async def test_every_request_of_a_session_names_it_and_its_version(connect: Connect) -> None:
    async with serve(Wild(session="se-ssion!")) as wild:
        connection = connect(spec(wild, headers={"X-Key": "spring"}))
        await connection.list_tools()
        await call(connection)
        await until(lambda: wild.count("GET") == 1)
        await connection.close()
    kinds = [message["method"] for message in wild.heard]
    assert kinds[:3] == ["server/discover", "initialize", "notifications/initialized"]
    assert kinds[-1] == "DELETE"
    assert [sent.get("mcp-session-id") for sent in wild.headers] == [None, None] + ["se-ssion!"] * (len(kinds) - 2)
    versions = [sent.get("mcp-protocol-version") for sent in wild.headers]
    assert versions == ["2026-07-28", None] + ["2025-11-25"] * (len(kinds) - 2)
    assert all(sent["x-key"] == "spring" for sent in wild.headers)
    assert all(sent["accept"] == "application/json, text/event-stream" for sent in wild.headers)


async def test_every_stateless_request_says_who_asks_and_for_what(connect: Connect) -> None:
    schema = {
        "type": "object",
        "properties": {
            "region": {"type": "string", "x-mcp-header": "Region"},
            "deep": {"type": "object", "properties": {"count": {"type": "integer", "x-mcp-header": "Count"}}},
            "flag": {"type": "boolean", "x-mcp-header": "Flag"},
        },
    }

    async def tools(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"tools": [{**READ, "name": "zählen", "inputSchema": schema}], "resultType": "complete"})

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = tools
        connection = connect(spec(wild))
        await connection.list_tools()
        await connection.call("zählen", {"region": "süd", "deep": {"count": 42}, "flag": True})
        await connection.call("zählen", {"region": "north"})
        await connection.close()
    assert [message["method"] for message in wild.heard] == ["server/discover", "tools/list", "tools/call", "tools/call"]
    assert [sent["mcp-method"] for sent in wild.headers] == [message["method"] for message in wild.heard]
    assert {sent["mcp-protocol-version"] for sent in wild.headers} == {"2026-07-28"}
    metas = [message["params"]["_meta"] for message in wild.heard]
    assert all(meta["io.modelcontextprotocol/protocolVersion"] == "2026-07-28" for meta in metas)
    assert all(meta["io.modelcontextprotocol/clientInfo"]["name"] == "mainspring" for meta in metas)
    assert all(meta["io.modelcontextprotocol/clientCapabilities"] == CAPABILITIES for meta in metas)
    first, second = wild.list_headers("tools/call")
    assert first["mcp-name"] == f"=?base64?{b64encode('zählen'.encode()).decode()}?="
    assert first["mcp-param-region"] == f"=?base64?{b64encode('süd'.encode()).decode()}?="
    assert (first["mcp-param-count"], first["mcp-param-flag"]) == ("42", "true")
    assert [name for name in second if name.startswith("mcp-param-")] == ["mcp-param-region"]
    assert len({message["id"] for message in wild.heard}) == 4


async def test_a_call_whose_headers_are_out_of_date_is_made_again_with_new_ones(connect: Connect) -> None:
    async def mismatch(request: web.Request, message: Json) -> web.StreamResponse:
        wild.answers.pop("tools/call")
        return web.json_response(encode(message, error={"code": -32020, "message": "Header mismatch"}), status=400)

    async with serve(Wild(is_modern=True)) as wild:
        connection = connect(spec(wild))
        await connection.list_tools()
        wild.answers["tools/call"] = mismatch
        assert await call(connection) == "read"
        assert (wild.count("tools/list"), wild.count("tools/call")) == (2, 2)
        await connection.close()


@pytest.mark.parametrize("annotation", ["", "a b", 7, "Same"])
async def test_a_tool_with_headers_that_may_not_be_sent_is_rejected(annotation: object, connect: Connect) -> None:
    properties = {"a": {"type": "string", "x-mcp-header": annotation}, "b": {"type": "string", "x-mcp-header": "same"}}

    async def tools(request: web.Request, message: Json) -> web.StreamResponse:
        bad = {**READ, "name": "bad", "inputSchema": {"type": "object", "properties": properties}}
        return result(message, {"tools": [READ, bad]})

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = tools
        listing = await connect(spec(wild)).list_tools()
    assert [tool.name for tool in listing.tools] == ["read"]
    assert [(found.name, "x-mcp-header" in found.reason) for found in listing.rejected] == [("bad", True)]


async def test_a_list_is_fresh_for_as_long_as_its_server_says(connect: Connect) -> None:
    ttls = iter([0, -5, 60_000])

    async def tools(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"tools": [READ], "resultType": "complete", "ttlMs": next(ttls), "cacheScope": "public"})

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = tools
        connection = connect(spec(wild))
        listings = [await connection.list_tools() for _ in range(4)]
        assert wild.count("tools/list") == 3
        assert [listing.seconds for listing in listings] == [0, 0, 60, 60]
        await connection.close()


async def test_a_list_is_asked_for_again_when_the_stateless_server_says_so(connect: Connect) -> None:
    gate = asyncio.Event()

    async def listen(request: web.Request, message: Json) -> web.StreamResponse:
        meta = {"io.modelcontextprotocol/subscriptionId": message["id"]}
        said = {"_meta": meta, "notifications": message["params"]["notifications"]}
        stream = await begin(request)
        await stream.write(
            event({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": said}),
        )
        await gate.wait()
        await stream.write(event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}))
        await asyncio.Event().wait()
        return stream

    async with serve(Wild(is_modern=True, tells_of_changes=True)) as wild:
        wild.answers["subscriptions/listen"] = listen
        connection = connect(spec(wild))
        first = await connection.list_tools()
        await until(lambda: wild.count("subscriptions/listen") == 1)
        # It says that it tells of changes, so the list is kept though it has no time to live.
        assert await connection.list_tools() is first
        gate.set()
        await until(lambda: connection.cached_tools is None)
        await connection.list_tools()
        assert wild.count("tools/list") == 2
        await connection.close()
        # Nobody listens any more, and the server knows.
        with anyio.fail_after(PATIENCE):
            await wild.cancelled.wait()


async def test_a_list_is_asked_for_again_when_the_session_says_so(connect: Connect) -> None:
    gate = asyncio.Event()

    async def stream(request: web.Request, message: Json) -> web.StreamResponse:
        await gate.wait()
        gate.clear()
        return await stream_of(request, event({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}, retry=1))

    async with serve(Wild()) as wild:
        wild.answers["GET"] = stream
        connection = connect(spec(wild))
        for _ in range(2):
            await connection.list_tools()
            gate.set()
            await until(lambda: connection.cached_tools is None)
        await connection.close()


async def test_a_stream_that_breaks_off_is_resumed_behind_its_last_event(connect: Connect) -> None:
    asked: list[Json] = []

    async def cut(request: web.Request, message: Json) -> web.StreamResponse:
        asked.append(message)
        stream = await stream_of(request, event("", number="one", retry=10), b"data: half of")
        assert request.transport is not None
        request.transport.abort()
        return stream

    async def resume(request: web.Request, message: Json) -> web.StreamResponse:
        match request.headers.get("last-event-id"):
            case None:
                return web.Response(status=405)
            case "one":
                return await stream_of(request, event("", number="two"))
            case _:
                return await stream_of(request, event(encode(asked[0], result=say("late")), number="three"))

    async with serve(Wild()) as wild:
        wild.answers.update({"tools/call": cut, "GET": resume})
        connection = connect(spec(wild))
        assert await call(connection) == "late"
        assert wild.count("tools/call") == 1
        assert [sent["last-event-id"] for sent in wild.list_headers("GET") if "last-event-id" in sent] == ["one", "two"]
        await connection.close()


async def test_a_stream_that_never_gets_on_is_given_up(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_link, "RESUME_SECONDS", 0.01)

    async def prime(request: web.Request, message: Json) -> web.StreamResponse:
        return await stream_of(request, event("", number="one", retry=0))

    async with serve(Wild()) as wild:
        wild.answers.update({"tools/call": prime, "GET": prime})
        with pytest.raises(ToolUnavailable, match="ended without an answer"):
            await call(connect(spec(wild)))


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_cancelled_call_is_cancelled_at_the_server(is_modern: bool, connect: Connect) -> None:
    async def stall(request: web.Request, message: Json) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with serve(Wild(is_modern=is_modern)) as wild:
        wild.answers["tools/call"] = stall
        connection = connect(spec(wild))
        caller = asyncio.create_task(call(connection))
        await until(lambda: wild.count("tools/call") == 1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        with anyio.fail_after(PATIENCE):
            await wild.cancelled.wait()
        if not is_modern:
            await until(lambda: wild.count("notifications/cancelled") == 1)
            number = next(message["id"] for message in wild.heard if message["method"] == "tools/call")
            assert wild.heard[-1]["params"]["requestId"] == number
        wild.answers.clear()
        assert await call(connection) == "read"
        # A stateless server is told by the end of the connection, and by nothing else.
        assert wild.count("notifications/cancelled") == (0 if is_modern else 1)
        await connection.close()


async def test_progress_is_told_of_this_call_and_not_after_its_end(connect: Connect) -> None:
    async def tell(request: web.Request, message: Json) -> web.StreamResponse:
        token = message["params"]["_meta"]["progressToken"]
        steps: list[Json] = [
            {"progressToken": token, "progress": 1, "total": 2},
            {"progressToken": token + 1, "progress": 9},
            {"progressToken": token, "progress": 10**400},
            {"progressToken": token, "progress": 2, "message": "nearly\nthere"},
        ]
        said = [event({"jsonrpc": "2.0", "method": "notifications/progress", "params": step}) for step in steps]
        return await stream_of(request, *said, event(encode(message, result=say("done"))), said[0])

    told: list[str] = []
    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/call"] = tell
        connection = connect(spec(wild))
        assert await call(connection, progress=told.append) == "done"
        assert told == ["1 of 2", "nearly there"]
        wild.answers.clear()
        assert await call(connection) == "read"
        assert told == ["1 of 2", "nearly there"]
        await connection.close()


async def test_questions_within_a_session_are_answered_or_refused(connect: Connect) -> None:
    async def ask(request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        for method in ("ping", "elicitation/create", "sampling/createMessage"):
            await stream.write(event({"jsonrpc": "2.0", "id": f"q-{method}", "method": method, "params": {"message": "?"}}))
        await until(lambda: len([heard for heard in wild.heard if "method" not in heard]) == 3)
        await stream.write(event(encode(message, result=say("asked"))))
        return stream

    async def answer(question: Answer) -> Answer:
        return {"name": question["message"]}

    async with serve(Wild()) as wild:
        wild.answers["tools/call"] = ask
        connection = connect(spec(wild), elicit=answer)
        assert await call(connection) == "asked"
        await connection.close()
    ping, elicited, sampled = [heard for heard in wild.heard if "method" not in heard]
    assert ping == {"jsonrpc": "2.0", "id": "q-ping", "result": {}}
    assert elicited["result"] == {"action": "accept", "content": {"name": "?"}}
    assert sampled["error"]["code"] == -32601


async def test_a_redirect_on_the_same_server_is_followed_with_the_body(connect: Connect) -> None:
    async def elsewhere(request: web.Request, message: Json) -> web.StreamResponse:
        if request.path == "/mcp":
            raise web.HTTPTemporaryRedirect("/mcp/")
        return result(message, say("followed"))

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/call"] = elsewhere
        connection = connect(spec(wild))
        assert await call(connection) == "followed"
        await connection.close()


@pytest.mark.parametrize(
    "location",
    ["http://169.254.169.254/latest", "http://localhost/mcp", "//10.0.0.1/mcp", "file:///etc/passwd", "http://u:p@127.0.0.1/"],
)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_leads_away_from_the_server(status: int, location: str, connect: Connect) -> None:
    async def elsewhere(request: web.Request, message: Json) -> web.StreamResponse:
        return web.Response(status=status, headers={"location": location})

    async with serve(Wild()) as wild:
        wild.answers["tools/call"] = elsewhere
        connection = connect(spec(wild))
        with pytest.raises(ToolUnavailable, match="not followed"):
            await call(connection, repeatable=True)
        assert wild.count("tools/call") == 1
        await connection.close()


async def test_redirects_without_end_are_given_up(connect: Connect) -> None:
    async def around(request: web.Request, message: Json) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect("/mcp/")

    async with serve(Wild()) as wild:
        wild.answers["tools/call"] = around
        with pytest.raises(ToolUnavailable, match="redirects more than 5 times"):
            await call(connect(spec(wild)))


async def test_a_name_that_leads_to_a_private_address_is_not_asked(connect: Connect) -> None:
    async def lookup(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with serve(Wild()) as wild:
        inside = ServerSpec("inside", url=wild.url.replace("127.0.0.1", "inside.example"))
        with pytest.raises(InvalidRequest, match="is not public"):
            await connect(inside, guard=AddressGuard(lookup=lookup)).list_tools()
        assert wild.heard == []


def _deep(message: Json) -> str:
    return f'{{"jsonrpc": "2.0", "id": {message["id"]}, "result": {"[" * 100_000}'


BAD: dict[str, Any] = {
    "another id": lambda message: json.dumps({"jsonrpc": "2.0", "id": 4_711, "result": say("for somebody else")}),
    "an id of another type": lambda message: json.dumps({"jsonrpc": "2.0", "id": str(message["id"]), "result": say("no")}),
    "no id": lambda message: json.dumps({"jsonrpc": "2.0", "result": say("no")}),
    "two answers": lambda message: (
        json.dumps(encode(message, result=say("one"))) + json.dumps(encode(message, result=say("two")))
    ),
    "a batch": lambda message: json.dumps([encode(message, result=say("one"))]),
    "no version": lambda message: json.dumps({"id": message["id"], "result": say("no")}),
    "no JSON": lambda message: "<html>",
    "nothing": lambda message: "",
    "half": lambda message: json.dumps(encode(message, result=say("one")))[:-5],
    "a deep hole": _deep,
    "no object": lambda message: json.dumps(encode(message, result=[1])),
    "no content": lambda message: json.dumps(encode(message, result={"content": "text"})),
    "an unknown type": lambda message: json.dumps(encode(message, result={**say("no"), "resultType": "task"})),
    "neither content nor type": lambda message: json.dumps(encode(message, result={})),
    "no blocks": lambda message: json.dumps(encode(message, result={"content": ["text"]})),
    "a request": lambda message: json.dumps({"jsonrpc": "2.0", "id": message["id"], "method": "ping"}),
}


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("what", BAD)
async def test_an_answer_that_is_none_fails_its_call_and_no_other(what: str, is_stream: bool, connect: Connect) -> None:
    await fail_one_call(connect, BAD[what], "MCP server `wild`", is_stream=is_stream)


async def fail_one_call(connect: Connect, say_it: Callable[[Json], str], words: str, *, is_stream: bool) -> None:
    """A call that is answered so fails with these words, is not made again, and the next one is answered."""

    async def answer(request: web.Request, message: Json) -> web.StreamResponse:
        said = say_it(message)
        if is_stream:
            return await stream_of(request, event(said))
        return web.Response(text=said, content_type="application/json")

    async with serve(Wild(is_modern=True)) as wild:
        connection = connect(spec(wild))
        await connection.list_tools()
        wild.answers["tools/call"] = answer
        with pytest.raises(ToolUnavailable, match=words):
            await call(connection)
        assert wild.count("tools/call") == 1
        wild.answers.clear()
        assert await call(connection) == "read"
        await connection.close()


async def test_of_two_answers_in_a_stream_the_first_counts(connect: Connect) -> None:
    async def twice(request: web.Request, message: Json) -> web.StreamResponse:
        return await stream_of(request, *[event(encode(message, result=say(word))) for word in ("one", "two")])

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/call"] = twice
        connection = connect(spec(wild))
        assert [await call(connection) for _ in range(3)] == ["one"] * 3
        await connection.close()


@pytest.mark.parametrize(
    "said", [b": still here\n\n", event({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})]
)
async def test_a_stream_that_never_ends_is_left_at_the_deadline_or_the_limit(said: bytes, connect: Connect) -> None:
    async def endless(request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        while True:
            await stream.write(said * 1_000)
            await asyncio.sleep(0)

    async with serve(Wild(is_modern=True)) as wild:
        connection = connect(spec(wild))
        await connection.list_tools()
        wild.answers["tools/call"] = endless
        with pytest.raises(ToolUnavailable, match=r"did not answer within 0\.3 s|more than 64 MiB"):
            await call(connection, seconds=0.3)
        wild.answers.clear()
        assert await call(connection) == "read"
        await connection.close()


@pytest.mark.parametrize("line", [b"\n", b"\r", b":\n", b"data\n"])
async def test_a_stream_of_short_lines_is_left_long_before_it_has_many_bytes(line: bytes, connect: Connect) -> None:
    async def chatter(request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        for _ in range(100):
            await stream.write(line * 1_000)
        await stream.write(b"\n" + event(encode(message, result=say("late"))))
        return stream

    async with serve(Wild(is_modern=True)) as wild:
        connection = connect(spec(wild))
        await connection.list_tools()
        wild.answers["tools/call"] = chatter
        with pytest.raises(ToolUnavailable, match="too many lines"):
            await call(connection)
        await connection.close()


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_server_that_never_stops_talking_of_its_own_accord_is_not_listened_to(is_modern: bool, connect: Connect) -> None:
    said = event({"jsonrpc": "2.0", "method": "notifications/message", "params": {"text": "x" * 1_000_000}})

    async def flood(request: web.Request, message: Json) -> web.StreamResponse:
        stream = await begin(request)
        try:
            while True:
                await stream.write(said)
        finally:  # cancelled, or told by the write
            wild.cancelled.set()

    async with serve(Wild(is_modern=is_modern, tells_of_changes=True)) as wild:
        wild.answers.update({"GET": flood, "subscriptions/listen": flood})
        connection = connect(spec(wild))
        assert await call(connection) == "read"
        with anyio.fail_after(PATIENCE):
            await wild.cancelled.wait()
        assert await call(connection) == "read"
        assert wild.count("GET") + wild.count("subscriptions/listen") == 1
        await connection.close()


async def test_pages_without_end_are_read_up_to_a_limit(connect: Connect) -> None:
    long = "x" * (1 << 20)

    async def pages(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"tools": [{**READ, "description": long}], "nextCursor": "again", "resultType": "complete"})

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = pages
        connection = connect(spec(wild))
        await connection.list_tools()
        # All pages together are one message's worth, 16 MiB.
        assert wild.count("tools/list") == 16
        long = ""
        await connection.list_tools(is_fresh=True)
        assert wild.count("tools/list") == 16 + 100
        await connection.close()


async def test_a_page_of_very_many_tools_that_are_none_is_not_told_one_by_one(connect: Connect) -> None:
    async def tools(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"tools": [0] * 100_000})

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = tools
        listing = await connect(spec(wild)).list_tools()
    assert listing.tools == ()
    assert len(listing.rejected) == 2_001


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_message_of_millions_of_values_is_not_parsed(is_stream: bool, connect: Connect) -> None:
    def say_much(message: Json) -> str:
        return json.dumps(encode(message, result=say("many", structuredContent={"many": [{}] * 1_000_000})))

    await fail_one_call(connect, say_much, "more than 131072 values", is_stream=is_stream)


async def test_a_server_that_closes_its_connections_is_asked_on_new_ones(connect: Connect) -> None:
    async def once(request: web.Request, message: Json) -> web.StreamResponse:
        response = result(message, say("once"))
        response.force_close()
        return response

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/call"] = once
        connection = connect(spec(wild))
        assert [await call(connection) for _ in range(5)] == ["once"] * 5
        assert wild.count("server/discover") == 1
        await connection.close()


async def test_a_result_that_its_own_schema_forbids_is_an_error(connect: Connect) -> None:
    async def tools(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, {"tools": [{**READ, "outputSchema": {"type": "object", "required": ["word"]}}]})

    async def lie(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, say("none", structuredContent={"wort": "none"}))

    async def fail(request: web.Request, message: Json) -> web.StreamResponse:
        return result(message, say("failed", isError=True))

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["tools/list"] = tools
        connection = connect(spec(wild))
        with pytest.raises(ToolUnavailable, match="no structured content"):
            await call(connection)
        wild.answers["tools/call"] = lie
        with pytest.raises(ToolUnavailable, match=r"with what it may not.*word"):
            await call(connection)
        wild.answers["tools/call"] = fail
        assert (await connection.call("read", {})).is_error
        await connection.close()


async def test_a_session_id_that_could_smuggle_is_not_taken(connect: Connect) -> None:
    async with serve(Wild(session="a b")) as wild:
        with pytest.raises(ToolUnavailable, match="the handshake: The id of its session cannot be sent back"):
            await connect(spec(wild)).list_tools()


@pytest.mark.parametrize(("versions", "told"), [(["2030-01-01"], "-32022"), (["2024-11-05"], None), ([], None)])
async def test_a_server_of_other_versions_is_asked_in_an_older_one_if_it_has_one(
    versions: list[str], told: str | None, connect: Connect
) -> None:
    async def refuse(request: web.Request, message: Json) -> web.StreamResponse:
        data = {"supported": versions, "requested": "2026-07-28"}
        error = {"code": -32022, "message": "Unsupported protocol version", "data": data}
        return web.json_response(encode(message, error=error), status=400)

    async with serve(Wild()) as wild:
        wild.answers["server/discover"] = refuse
        connection = connect(spec(wild))
        if told is None:
            assert await call(connection) == "read"
        else:
            with pytest.raises(ToolUnavailable, match=told):
                await call(connection)
            assert wild.count("initialize") == 0
        await connection.close()


async def test_a_server_that_was_slow_to_hear_the_first_question_is_asked_it_again(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HTTP_DISCOVER_SECONDS", 0.01)

    async def hang(request: web.Request, message: Json) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async def refuse(request: web.Request, message: Json) -> web.StreamResponse:
        monkeypatch.undo()
        del wild.answers["server/discover"]
        data = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
        error = {"code": -32022, "message": "this connection is serving another protocol", "data": data}
        return web.json_response(encode(message, error=error), status=400)

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers |= {"server/discover": hang, "initialize": refuse}
        connection = connect(spec(wild))
        assert await call(connection) == "read"
        assert connection.protocol == "2026-07-28"
        assert wild.count("initialize") == 1
        await connection.close()


@pytest.mark.parametrize("is_modern", [True, False])
async def test_a_notice_whose_parameters_are_none_does_not_fail_the_call(is_modern: bool, connect: Connect) -> None:
    async def chatter(request: web.Request, message: Json) -> web.StreamResponse:
        notices: list[Json] = [
            {"jsonrpc": "2.0", "method": "notifications/progress", "params": params} for params in ([], [1], "x", 5, None)
        ]
        asked: Json = {"jsonrpc": "2.0", "id": "q", "method": "roots/list", "params": ["x"]}
        answer = encode(message, result=say("read"))
        return await stream_of(request, *[event(each) for each in (*notices, asked, answer)])

    async with serve(Wild(is_modern=is_modern)) as wild:
        wild.answers["tools/call"] = chatter
        connection = connect(spec(wild))
        assert await call(connection) == "read"
        await connection.close()


async def test_a_server_that_describes_itself_in_no_known_form_is_used_all_the_same(connect: Connect) -> None:
    async def discover(request: web.Request, message: Json) -> web.StreamResponse:
        about: Json = {"supportedVersions": ["2026-07-28"], "capabilities": {}, "_meta": ["odd"], "serverInfo": None}
        return result(message, about)

    async with serve(Wild(is_modern=True)) as wild:
        wild.answers["server/discover"] = discover
        connection = connect(spec(wild))
        assert await call(connection) == "read"
        await connection.close()


@pytest.mark.parametrize("offered", ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05", "1999-01-01", 7])
async def test_the_version_that_the_server_offers_is_spoken_if_it_is_known(offered: object, connect: Connect) -> None:
    async def initialize(request: web.Request, message: Json) -> web.StreamResponse:
        about = {"protocolVersion": offered, "capabilities": {}, "serverInfo": {"name": "wild", "version": "1"}}
        return result(message, about)

    async with serve(Wild()) as wild:
        wild.answers["initialize"] = initialize
        connection = connect(spec(wild))
        if str(offered) < "2000" or offered == 7:
            with pytest.raises(ToolUnavailable, match="Unsupported protocol version from the server"):
                await connection.list_tools()
        else:
            await connection.list_tools()
            assert [sent["mcp-protocol-version"] for sent in wild.list_headers("tools/list")] == [offered]
        await connection.close()


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_the_sdk_is_not_imported_to_call_a_tool(transport: str, zoo: Zoo) -> None:
    command = zoo.spec("good")
    how = {"http": "url=sys.argv[1]", "stdio": f"command=sys.executable, args={command.args!r}, sandboxed=False"}[transport]
    code = (
        "import asyncio, sys\nfrom mainspring.tools.mcp.server_connection import McpConnection\n"
        "from mainspring.tools.mcp.server_specs import ServerSpec\n"
        "async def main():\n"
        f"    connection = McpConnection(ServerSpec('wild', {transport!r}, {how}, trusted=True))\n"
        "    print((await connection.call('read', {})).is_error)\n    await connection.close()\n"
        "asyncio.run(main())\nprint({'mcp', 'mcp_types', 'httpx2', 'pydantic'} & set(sys.modules))\n"
    )
    async with serve(Wild()) as wild:
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, wild.url, stdout=subprocess.PIPE)
        out, _ = await process.communicate()
    assert out.decode().split() == ["False", "set()"]
