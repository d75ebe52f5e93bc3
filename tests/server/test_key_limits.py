"""Limits of single keys: requests, tokens and requests at a time, with the headers that clients know."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import aiohttp
import anyio
import openai
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import StoreError
from mainspring.core.items import Usage
from mainspring.http.auth import Keys
from mainspring.http.key_limits import NO_LIMITS, KeyLimits, KeyUse, find_key_limits
from mainspring.ports import Document, Store
from mainspring.providers.scripted import Scripted, say, stall
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.shared_limits import LIMIT, StoreLimits


class House:
    def __init__(self, url: str, keys: Keys) -> None:
        self.url, self.keys = url, keys

    async def client(self, limits: KeyLimits = NO_LIMITS) -> openai.AsyncOpenAI:
        key = await self.keys.create(limits=limits)
        return openai.AsyncOpenAI(base_url=self.url, api_key=key, max_retries=0)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    script = Scripted(stall(when="wait"), say("Hello.", usage=Usage(70, 30)), repeat=True)
    usual = KeyLimits(requests_per_minute=50)
    async with open_store(parse_location(tmp_path / "runs.db")) as store:
        use = KeyUse(StoreLimits(store), partial(find_key_limits, store, usual, None))
        engine = Engine(script, store=store, observers=[use], embedder=OnesEmbedder())
        keys = Keys(store, use=use, limits=usual)
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
        assert refused.value.response.headers["x-ratelimit-remaining-requests"] == "0"
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


async def test_tokens_of_embeddings_count(house: House) -> None:
    async with await house.client(KeyLimits(tokens_per_minute=150)) as client:
        made = await client.embeddings.create(model="ones", input="word " * 90, encoding_format="float")
        assert made.usage.total_tokens > 100
        left = await client.responses.with_raw_response.create(input="hi")
        assert left.headers["x-ratelimit-remaining-tokens"] == str(150 - made.usage.total_tokens)


class OnesEmbedder:
    model = "ones"

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        return [(1.0,) for _ in texts]

    async def close(self) -> None:
        return


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


class FailingStore(MemoryStore):
    """A store whose documents cannot be read while it `fails`."""

    fails = False
    error: Exception = StoreError("the store is gone")

    async def get(self, kind: str, id: str, *, tenant: str = "", parent: str = "") -> Document | None:
        if self.fails:
            raise self.error
        return await super().get(kind, id, tenant=tenant, parent=parent)


class GatedStore(MemoryStore):
    """A store that writes a document when it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.gate = asyncio.Event(), asyncio.Event()

    async def put(self, documents: Sequence[Document], *, if_absent: bool = False) -> bool:
        self.asked.set()
        await self.gate.wait()
        return await super().put(documents, if_absent=if_absent)


def open_use(store: Store) -> KeyUse:
    return KeyUse(StoreLimits(store), partial(find_key_limits, store, KeyLimits(tokens_per_minute=100), None))


async def test_what_a_key_used_at_one_process_it_has_used_at_the_other(location: Location) -> None:
    limits = KeyLimits(requests_per_minute=3, requests_at_once=2)
    async with open_store(location) as one, open_store(location) as other:
        uses = [open_use(store) for store in (one, other)]
        meters = [use.open_meter("key:a", limits) for use in uses]
        for meter in meters:
            assert not (await meter.admit()).refusal
        assert (await meters[0].admit()).code == "too_many_requests"
        assert not (await meters[0].admit(is_message=True)).refusal, "its connection is under way already"
        meters[1].leave()
        refused = await meters[0].admit()
        assert (refused.code, refused.seconds > 0) == ("rate_limit_exceeded", True)
        for use in uses:
            await use.close()


async def test_a_request_that_has_ended_elsewhere_makes_room_at_once(location: Location) -> None:
    limits = KeyLimits(requests_at_once=1)
    async with open_store(location) as one, open_store(location) as other:
        uses = [open_use(store) for store in (one, other)]
        meters = [use.open_meter("key:a", limits) for use in uses]
        for number in range(10):
            assert not (await meters[number % 2].admit()).refusal
            meters[number % 2].leave()
        for use in uses:
            await use.close()


@pytest.mark.parametrize("error", [StoreError("the store is gone"), ValueError("a document is damaged")])
async def test_tokens_are_kept_while_the_store_is_gone(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    async with FailingStore() as store:
        store.error = error
        keys = Keys(store)
        key = f"key:{(await keys.create()).split('_')[1]}"
        worker, server = open_use(store), open_use(store)
        store.fails = True
        worker.open_meter(key).note(60)
        worker.open_meter(key).note(40)
        limits = KeyLimits(tokens_per_minute=100)
        with pytest.raises(StoreError), anyio.fail_after(PATIENCE):
            await server.open_meter(key, limits).admit()
        store.fails = False
        with anyio.fail_after(PATIENCE):
            while not (refused := await server.open_meter(key, limits).admit()).refusal:  # noqa: ASYNC110
                await anyio.sleep(0.01)
        assert refused.code == "rate_limit_exceeded"
        assert len([each for each in caplog.records if each.name == "mainspring.http.key_limits"]) == 2, "once for each meter"
        for use in (worker, server):
            await use.close()


@pytest.mark.parametrize("is_settled", [False, True])
async def test_a_client_that_leaves_while_it_waits_holds_nothing(is_settled: bool) -> None:
    async with GatedStore() as store:
        use = open_use(store)
        meter = use.open_meter("key:a", KeyLimits(requests_at_once=1))
        leaving = asyncio.create_task(meter.admit())
        await store.asked.wait()
        store.gate.set()
        if is_settled:
            await asyncio.sleep(0)  # it is admitted, and does not know yet
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        with anyio.fail_after(PATIENCE):
            assert not (await meter.admit()).refusal
            assert (await meter.admit()).code == "too_many_requests"
            meter.leave()
            assert not (await meter.admit()).refusal
        await use.close()


async def test_a_key_without_limits_leaves_nothing_in_the_store() -> None:
    async with MemoryStore() as store:
        use = KeyUse(StoreLimits(store), partial(find_key_limits, store, NO_LIMITS, None))
        use.open_meter("key:a").note(7)
        await use.close()
        assert use.open_meter("key:a").is_idle
        assert await store.documents(LIMIT) == []
