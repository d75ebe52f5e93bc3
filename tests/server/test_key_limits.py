"""Limits of single keys: requests, tokens and requests at a time, with the headers that clients know."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import anyio
import openai
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.items import Usage
from mainspring.http.auth import Keys
from mainspring.http.key_limits import NO_LIMITS, KeyLimits, KeyUse
from mainspring.providers.scripted import Scripted, say, stall


class House:
    def __init__(self, url: str, keys: Keys) -> None:
        self.url, self.keys = url, keys

    async def client(self, limits: KeyLimits = NO_LIMITS) -> openai.AsyncOpenAI:
        key = await self.keys.create(limits=limits)
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    script = Scripted(stall(when="wait"), say("Hello.", usage=Usage(70, 30)), repeat=True)
    use = KeyUse()
    engine = Engine(script, database=tmp_path / "runs.db", observers=[use])
    keys = Keys(engine.store, use=use, limits=KeyLimits(requests_per_minute=50))
    async with hosted(server(engine, keys=keys)) as url:
        yield House(url, keys)


async def test_requests_beyond_a_minutes_are_refused_with_the_usual_headers(house: House) -> None:
    async with await house.client(KeyLimits(requests_per_minute=2)) as client, await house.client() as other:
        first = await client.responses.with_raw_response.create(input="hi")
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"].endswith("s")
        await client.responses.create(input="hi")
        with pytest.raises(openai.RateLimitError) as refused:
            await client.responses.create(input="hi")
        assert refused.value.code == "rate_limit_exceeded"
        assert 0 < int(refused.value.response.headers["retry-after"]) <= 60
        usual = await other.responses.with_raw_response.create(input="hi")
        assert usual.headers["x-ratelimit-limit-requests"] == "50"


async def test_tokens_count_once_their_run_has_ended(house: House) -> None:
    async with await house.client(KeyLimits(tokens_per_minute=150)) as client:
        first = await client.responses.with_raw_response.create(input="hi")
        assert first.headers["x-ratelimit-remaining-tokens"] == "150"
        second = await client.responses.with_raw_response.create(input="hi")
        assert second.headers["x-ratelimit-remaining-tokens"] == "50"
        with pytest.raises(openai.RateLimitError):
            await client.responses.create(input="hi")


async def test_each_request_on_a_socket_counts(house: House) -> None:
    async with await house.client(KeyLimits(requests_per_minute=2)) as client, client.responses.connect() as socket:
        told = []
        for _ in range(2):
            await socket.response.create(model="scripted", input="hi")
            while (event := await socket.recv()).type not in ("response.completed", "error"):
                pass
            told.append(event)
        assert [event.type for event in told] == ["response.completed", "error"]
        assert "rate_limit_exceeded" in str(told[1])


async def test_a_key_has_so_many_streams_at_once(house: House) -> None:
    async with await house.client(KeyLimits(requests_at_once=1)) as client:
        stream = await client.responses.create(input="wait", stream=True)
        with anyio.fail_after(PATIENCE):
            await anext(aiter(stream))
        with pytest.raises(openai.RateLimitError) as refused:
            await client.responses.create(input="hi")
        assert refused.value.code == "too_many_requests"
        await stream.close()


async def test_a_key_made_over_http_is_bound_no_less_than_its_maker(house: House) -> None:
    maker = await house.keys.create(limits=KeyLimits(requests_at_once=3))
    async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {maker}"}) as session:
        body = {"name": "ci", "limits": {"tokens_per_minute": 7}}
        async with session.post(f"{house.url}/keys", json=body) as answer:
            made = await answer.json()
        async with session.post(f"{house.url}/keys", json={"limits": {"tokens": 7}}) as answer:
            assert answer.status == 400
        async with session.post(f"{house.url}/keys", json={"limits": {"requests_at_once": 4}}) as answer:
            assert (answer.status, (await answer.json())["error"]["param"]) == (400, "limits.requests_at_once")
    assert made["limits"] == {"requests_per_minute": 50, "tokens_per_minute": 7, "requests_at_once": 3}


def test_the_next_minute_begins_anew() -> None:
    now = [0.0]
    use, limits = KeyUse(lambda: now[0]), KeyLimits(requests_per_minute=1)
    use.admit("key:a", limits)
    now[0] = 60.0
    assert dict(use.admit("key:a", limits).headers)[b"x-ratelimit-remaining-requests"] == b"0"
