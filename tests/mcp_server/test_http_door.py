"""The door `/mcp`: what it refuses, and in which words; sessions and their bounds."""

from pathlib import Path

import aiohttp
import pytest
from tests.mcp_server.world import ALL, Wire, make_engine
from tests.server.hosting import hosted

from mainspring.app.server import server
from mainspring.core.items import Json, decode
from mainspring.features.mcp_server.client_sessions import SESSION, ClientSession
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.http.auth import Keys
from mainspring.providers.scripted import say

LIST = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}


NO_MESSAGES = {
    b"": -32700,
    b"{": -32700,
    b"\xff": -32700,
    b"[" * 2_000: -32700,
    b"[]": -32600,
    b"7": -32600,
    b'{"method": "tools/list"}': -32600,
    b'{"jsonrpc": "2.0", "id": null, "method": "tools/list"}': -32600,
    b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": 7}': -32600,
    b'{"jsonrpc": "2.0", "id": 1, "method": ""}': -32600,
}


async def test_what_is_no_message_is_answered_with_what_to_send(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")))) as url:
        wire = Wire(http, url)
        for body, code in NO_MESSAGES.items():
            told = await wire.send(body)
            assert told is not None
            assert (wire.status, told["error"]["code"], told["id"]) == (400, code, None), body[:80]
            assert len(told["error"]["message"]) < 250


async def test_pages_of_others_may_not_connect_even_with_a_key(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys, offer = Keys(engine.store), OfferSettings(allow_origins=("https://app.example.com",))
    async with hosted(server(engine, keys=keys, offer=offer)) as url:
        statuses = {}
        for key in ("", await keys.create()):
            wire = Wire(http, url, key)
            for origin in ("https://evil.example.com", "null", "https://app.example.com", url.removesuffix("/v1")):
                await wire.send(LIST, {"origin": origin})
                statuses[bool(key), origin] = wire.status
        assert [status for (has_key, _), status in statuses.items() if not has_key] == [401] * 4
        assert [status for (has_key, _), status in statuses.items() if has_key] == [403, 403, 400, 400]


async def test_a_request_is_in_a_session_or_says_itself_who_sends_it(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        await wire.send(LIST)
        assert wire.status == 400
        await wire.send(LIST, {"mcp-session-id": "unknown"})
        assert wire.status == 404
        talk = await wire.open()
        assert len((await talk.ask("tools/list"))["result"]["tools"]) == 5
        # A session ends when its client says so.
        async with http.delete(wire.url, headers=talk.headers) as answer:
            assert answer.status == 200
        await talk.ask("tools/list")
        assert wire.status == 404


@pytest.mark.parametrize(
    ("asked", "given"), [("2025-11-25", "2025-11-25"), ("2024-11-05", "2024-11-05"), ("2019-01-01", "2025-11-25")]
)
async def test_the_revision_is_negotiated(asked: str, given: str, tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")))) as url:
        assert (await Wire(http, url).open(revision=asked)).hello["protocolVersion"] == given


async def test_each_key_has_its_own_number_of_sessions(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, offer=OfferSettings(sessions_per_key=2))) as url:
        ada, bob = [Wire(http, url, await keys.create()) for _ in range(2)]
        talks = [await wire.open() for wire in (bob, ada, ada, ada)]
        statuses = []
        for talk in talks:
            await talk.ask("tools/list")
            statuses.append(talk.wire.status)
        assert statuses == [200, 404, 200, 200]
        # A session is its key's alone.
        await bob.send(LIST, talks[-1].headers)
        assert bob.status == 404


async def test_a_session_outlives_the_server(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    headers: dict[str, str] = {}
    for _ in range(2):
        async with hosted(server(make_engine(tmp_path, say("Done."), database=tmp_path / "runs.db"))) as url:
            wire = Wire(http, url)
            headers = headers or (await wire.open()).headers
            await wire.send(LIST, headers)
            assert wire.status == 200


async def test_headers_must_say_what_the_body_says(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire, add = Wire(http, url), {"name": "add", "arguments": {"a": 1, "b": 2}}
        for wrong in ({"mcp-name": "wipe"}, {"mcp-method": "tools/list"}, {"mcp-protocol-version": "2025-11-25"}):
            told = await wire.ask("tools/call", add, headers=wrong)
            assert (wire.status, told["error"]["code"]) == (400, -32020)
        assert "result" in await wire.ask("tools/call", add, headers={"mcp-name": "=?base64?YWRk?="})


async def test_a_session_keeps_the_capabilities_that_are_read_and_no_more(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    async with hosted(server(engine)) as url:
        large: Json = {"x": "y" * 65_536}
        for capabilities, key in (
            ({"elicitation": {"url": {}}, "experimental": large}, "result"),
            ({"elicitation": large}, "error"),
        ):
            params = {"protocolVersion": "2025-11-25", "capabilities": capabilities}
            told = await Wire(http, url).send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
            assert told is not None
            assert key in told
        [kept] = await engine.store.documents(SESSION, parent="nobody")
        assert decode(kept.body, ClientSession).capabilities == {"elicitation": {"url": {}}}


async def test_ids_of_requests_are_bounded(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")))) as url:
        talk = await Wire(http, url).open()
        for id, status in (("x" * 200, 200), ("x" * 201, 400), (2**63 - 1, 200), (2**63, 400)):
            await talk.send({**LIST, "id": id})
            assert talk.wire.status == status
