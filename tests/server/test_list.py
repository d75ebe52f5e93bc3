"""`GET /v1/responses`: which responses are listed, and in which order."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import anyio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted
from tests.server.linter import Json
from tests.server.process import Served, serving
from tests.server.test_connections import create_key
from tests.server.test_memory_quota import Client
from tests.server.test_serve import WEATHER, get, post, settled

from mainspring.http.app import build_app
from mainspring.http.auth import Keys, get_tenant
from mainspring.http.endpoints import Endpoint
from mainspring.http.faults import json_response
from mainspring.http.queries import Page, make_page
from mainspring.storage.memory_runs import MemoryStore

SCRIPT: list[Json] = [
    {"when": "hello", "say": "Hello there."},
    {"when": "x", "say": "Hello there."},
    {"when": "down", "fail": {"code": "provider_unavailable", "message": "nobody is at home"}},
    {"when": "weather", "calls": [{"name": "weather", "arguments": {"city": "Paris"}}]},
]


async def listed(served: Served, query: str) -> list[str]:
    status, page = await get(served, f"/responses?{query}")
    assert status == 200, page
    return [told["id"] for told in page["data"]]


async def made(served: Served, body: Json) -> Json:
    status, told = await post(served, body)
    assert status == 200, told
    return told


async def test_responses_are_listed_by_what_they_say_of_themselves(tmp_path: Path) -> None:
    with serving(tmp_path, SCRIPT) as served:
        first = await made(served, {"input": "hello", "model": "one"})
        second = await made(served, {"input": "hello", "model": "two", "previous_response_id": first["id"]})
        paused = await made(served, {"input": "weather", "tools": [WEATHER]})
        behind = await made(served, {"input": "hello", "background": True})
        await settled(served, behind["id"], "queued")
        await settled(served, behind["id"])
        await post(served, {"input": "down"})
        [failed] = await listed(served, "status=failed")

        everything = [failed, behind["id"], paused["id"], second["id"], first["id"]]
        assert await listed(served, "") == everything
        assert await listed(served, "order=asc") == everything[::-1]
        assert await listed(served, "model=two") == [second["id"]]
        assert await listed(served, "background=true") == [behind["id"]]
        assert await listed(served, "background=false&model=one") == [first["id"]]
        assert await listed(served, f"previous_response_id={first['id']}") == [second["id"]]
        assert await listed(served, "status=completed") == everything[1:], "as the wire tells it, what waits is completed"
        assert await listed(served, "status=requires_action") == [paused["id"]]
        assert await listed(served, f"status=completed&limit=2&after={behind['id']}") == [paused["id"], second["id"]]


async def test_a_key_reads_two_lists_at_a_time_and_keeps_nobody_else_from_theirs(http: aiohttp.ClientSession) -> None:
    under_way, begun, may_end = Counter[str](), anyio.Event(), anyio.Event()

    async def read(request: Request) -> HttpResponse:
        """Lists nothing, in its own time."""
        tenant = get_tenant(request)
        under_way[tenant] += 1
        if tenant == "other":
            begun.set()
        await may_end.wait()
        return json_response(make_page([], [], has_more=False))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield

    async with MemoryStore() as store:
        keys = Keys(store)
        heads = {tenant: {"authorization": f"Bearer {await keys.create(tenant=tenant)}"} for tenant in ("acme", "other")}
        endpoint = Endpoint("GET", "/v1/things", read, "responses", Page)
        app = build_app([endpoint], keys=keys, is_local=True, version="0", lifespan=lifespan)
        async with hosted(app) as url, anyio.create_task_group() as tasks:

            async def ask(tenant: str) -> None:
                async with http.get(f"{url}/things", headers=heads[tenant]) as answer:
                    assert answer.status == 200

            for _ in range(8):
                tasks.start_soon(ask, "acme")
            with anyio.fail_after(PATIENCE):
                while under_way["acme"] < 2:  # noqa: ASYNC110
                    await anyio.sleep(0.01)
                tasks.start_soon(ask, "other")
                await begun.wait()
            assert under_way["acme"] == 2
            may_end.set()
        assert under_way == {"acme": 8, "other": 1}


async def test_responses_are_listed_by_their_conversation(tmp_path: Path) -> None:
    with serving(tmp_path, SCRIPT) as served:
        await made(served, {"input": "hello"})
        talk = await _conversation(served)
        within = await made(served, {"input": "hello", "conversation": talk})
        assert await listed(served, f"conversation={talk}") == [within["id"]]
        assert await listed(served, "conversation=conv_other") == []


async def test_created_after_and_before_leave_out_the_second_they_name(tmp_path: Path) -> None:
    with serving(tmp_path, SCRIPT) as served:
        told = await made(served, {"input": "hello"})
        at = told["created_at"]
        for query, fits in [(f"created_after={at}", False), (f"created_after={at - 1}", True),
                            (f"created_before={at}", False), (f"created_before={at + 1}", True)]:  # fmt: skip
            assert await listed(served, query) == ([told["id"]] if fits else [])


async def _conversation(served: Served) -> str:
    async with aiohttp.ClientSession() as session, session.post(f"{served.url}/conversations", json={}) as answer:
        return str((await answer.json())["id"])


def test_a_page_of_any_list_ends_at_its_bytes(tmp_path: Path) -> None:
    """However many entries are asked for: responses, their items, traces, items of conversations."""
    key = create_key(tmp_path, "one")
    with serving(tmp_path, SCRIPT) as served:
        client = Client(served, key)
        talk = client.ask("conversations", {})[1]["id"]
        for _ in range(5):
            client.tell(3_000_000, instructions="hello " + "x" * 3_000_000, conversation=talk)
        several = [{"role": "user", "content": f"hello {number}" + "x" * 1_000_000} for number in range(10)]
        run = client.ask("responses", {"input": several})[1]["id"]
        counts = {"responses": 6, f"responses/{run}/input_items": 10, "traces": 6, f"conversations/{talk}/items": 10}
        for path, count in counts.items():
            seen: list[str] = []
            has_more = True
            while has_more:
                status, page = client.ask(f"{path}?limit=100{f'&after={seen[-1]}' if seen else ''}", method="GET")
                assert status == 200, page
                assert len(json.dumps(page)) < 13_000_000
                assert page["data"]
                has_more = page["has_more"]
                seen += [entry.get("id") or entry["run_id"] for entry in page["data"]]
            assert len(seen) == len(set(seen)) == count
