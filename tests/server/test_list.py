"""`GET /v1/responses`: which responses are listed, and in which order."""

from pathlib import Path

import aiohttp
from tests.server.linter import Json
from tests.server.process import Served, serving
from tests.server.test_serve import WEATHER, get, post, settled

SCRIPT: list[Json] = [
    {"when": "hello", "say": "Hello there."},
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
