"""Recall by meaning: a real embeddings endpoint over HTTP, fusion with words, failures that cost no observation, and tenants."""

import asyncio
import gzip
import os
import random
import sys
import zlib
from contextlib import suppress
from operator import mul
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kit.databases import database_in
from tests.kit.postgres import Postgres
from tests.memory.world import a_memory, embeddings, seen, vector

from mainspring import Engine
from mainspring.core.errors import BadOutput, InvalidRequest, RateLimited, Refused, Unauthorized, Unavailable
from mainspring.features.memory.memory import Memory
from mainspring.features.memory.observation_rows import TO_EMBED
from mainspring.ports import Embedder
from mainspring.providers import openai_embedder
from mainspring.providers.openai_embedder import OpenAIEmbedder
from mainspring.providers.scripted import Scripted, say
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location, parse_location
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.search.embedding import Embedding
from mainspring.storage.search.ranking import Hit, fuse_rankings
from mainspring.storage.search.vectors import PlacedVector, Vectors
from mainspring.storage.search.word_index import Scope
from mainspring.storage.work_turn import TURN_SECONDS, WorkTurn


async def citations(memory: Memory, query: str, tenant: str = "", **options: object) -> list[str]:
    return [each.citation for each in await memory.search(query, tenant=tenant, **options)]  # type: ignore[arg-type]


@pytest.mark.requirement("C34")
async def test_an_observation_is_embedded_and_found_by_its_meaning() -> None:
    async with embeddings() as backend, a_memory(**backend.options()) as memory:
        await memory.capture._keep(seen("The automobile would not start.", id="car"))
        await memory.capture._keep(seen("A fresh baguette every morning.", id="bread"))
        await memory.settle()
        assert backend.asked == [["The automobile would not start.", "A fresh baguette every morning."]]
        assert (await citations(memory, "vehicle"))[0] == "car"
        assert (await citations(memory, "loaf"))[0] == "bread"
        assert backend.asked[1:] == [["vehicle"], ["loaf"]]


async def test_words_and_meaning_are_fused() -> None:
    async with embeddings() as backend, a_memory(**backend.options()) as memory:
        await memory.record(seen("sedan at the corner", id="meaning"))
        await memory.record(seen("the car is red, a car indeed", id="both"))
        await memory.record(seen("ticket 4711 is open", id="word"))
        await memory.settle()
        assert (await citations(memory, "car"))[:2] == ["both", "meaning"]
        assert (await citations(memory, "4711"))[0] == "word"
    ranked = fuse_rankings([Hit("a", 9.0), Hit("b", 8.0)], [Hit("b", 0.9), Hit("c", 0.8)])
    assert [hit.id for hit in ranked] == ["b", "a", "c"]


async def test_the_run_of_an_engine_is_found_by_meaning_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with embeddings() as backend:
        async with Engine(
            Scripted(say("A downpour is coming.")), database=path, memory=a_memory(path, **backend.options())
        ) as engine:
            await engine.run("Go.")
        async with a_memory(path, **backend.options()) as memory:
            await memory.settle()
            assert len(await citations(memory, "drizzle")) == 1
    assert sorted(os.listdir(tmp_path)) == ["runs.db", "runs.db-vectors"]


async def test_secrets_are_not_sent_to_the_embedder() -> None:
    async with embeddings() as backend, a_memory(**backend.options()) as memory:
        await memory.record(seen("The api_key: 'hunter2-correct-horse-7' opens it."))
        await memory.record(seen("marzipan", tags=("pii",)))
        await memory.settle()
        assert "hunter2" not in str(backend.asked)
        assert "marzipan" not in str(backend.asked)


async def test_a_failing_backend_costs_no_observation_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with embeddings() as backend:
        backend.answers = [500, 503, 429]
        async with a_memory(**backend.options()) as memory:
            await memory.record(seen("The car is red.", id="1"))
            await memory.settle()
            assert await citations(memory, "car") == ["1"]
            while backend.answers:
                await memory.settle()
            assert caplog.text.count("recall goes by words alone") == 1
            await memory.settle()
            assert await citations(memory, "automobile") == ["1"]


async def test_a_backend_that_is_not_there_leaves_the_words(caplog: pytest.LogCaptureFixture) -> None:
    async with a_memory(embedding_model="tiny", embedding_url="http://127.0.0.1:9/v1") as memory:
        await memory.record(seen("The car is red.", id="1"))
        await memory.settle()
        assert await citations(memory, "car") == ["1"]
        assert await citations(memory, "automobile") == []
    assert caplog.text.count("recall goes by words alone") == 1


async def test_a_text_that_is_refused_does_not_hold_up_the_others() -> None:
    async with embeddings() as backend, a_memory(**backend.options()) as memory:
        backend.refuses = "poison"
        for id, text in {"1": "a car", "2": "poison", "3": "a loaf"}.items():
            await memory.record(seen(text, id=id))
        await memory.settle()
        backend.refuses = None
        assert (await citations(memory, "automobile"))[0] == "1"
        assert (await citations(memory, "bakery"))[0] == "3"
        assert await citations(memory, "poison", top_k=1) == ["2"]


async def test_many_are_embedded_in_batches() -> None:
    async with embeddings() as backend, a_memory(**backend.options()) as memory:
        for number in range(150):
            await memory.capture._keep(seen(f"fact {number}", id=f"obs_{number}"))
        await memory.settle()
        assert sum(map(len, backend.asked)) == 150
        assert len(backend.asked) <= 5


@pytest.mark.usefixtures("each_database")
async def test_another_model_makes_all_vectors_anew(tmp_path: Path) -> None:
    path = parse_location(database_in(tmp_path, "memory.db"))

    class Other(OpenAIEmbedder):
        """The same words in a space of another size."""

        async def embed(self, texts: object) -> list[tuple[float, ...]]:
            return [(1.0, 0.0) if "car" in text or "wheels" in text else (0.0, 1.0) for text in texts]  # type: ignore[attr-defined]

    async with embeddings() as backend, a_memory(path, **backend.options()) as memory:
        await memory.record(seen("a car", id="car"))
        await memory.record(seen("a loaf", id="loaf"))
        await memory.settle()
    embedder: Embedder = Other("other", "http://127.0.0.1:9/v1")
    async with Memory(path, redact=lambda text, most: text, embedder=embedder) as memory:
        await memory.settle()
        assert await citations(memory, "wheels", top_k=1) == ["car"]


@pytest.mark.usefixtures("each_database")
async def test_forgetting_and_retention_reach_the_vectors(tmp_path: Path) -> None:
    path = parse_location(database_in(tmp_path, "memory.db"))
    async with embeddings() as backend:
        async with a_memory(path, **backend.options()) as memory:
            for number in range(6):
                await memory.record(seen("a car", id=str(number), session_id=str(number % 2)))
            await memory.settle()
            await memory.forget(tenant="", session="0")
            near = await memory._vectors.find_nearest(vector("car"), Scope(""), 10)
            assert {hit.id for hit in near} == {"1", "3", "5"}
        # Without an embedder as well.
        async with a_memory(path, keep_observations=1) as memory:
            near = await memory._vectors.find_nearest(vector("car"), Scope(""), 10)
            assert {hit.id for hit in near} == {"5"}
            assert await citations(memory, "car") == ["5"]


@pytest.mark.slow
@pytest.mark.requirement("D80")
@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.sampled_from(["", "a", "b", "a' OR 1=1"]), st.sampled_from(["car", "rain", "sedan wet"])), max_size=8),
    st.sampled_from(["", "a", "b", "nobody"]),
    st.text(max_size=20) | st.sampled_from(["car", "rain", "automobile"]),
)
async def test_recall_by_meaning_never_crosses_tenants(kept: list[tuple[str, str]], tenant: str, query: str) -> None:
    memory = Memory(redact=lambda text, most: text, embedder=Local())
    async with memory:
        whose = {
            await memory.record(seen(text, id=f"obs_{number}", tenant=owner)): owner for number, (owner, text) in enumerate(kept)
        }
        await memory.settle()
        near = await memory._vectors.find_nearest(vector(query), Scope(tenant), 100)
        assert all(whose[hit.id] == tenant for hit in near)
        assert len(near) == list(whose.values()).count(tenant)
        assert all(whose[each] == tenant for each in await citations(memory, query, tenant, top_k=100))


class Local:
    """What words mean, without a backend."""

    model = "local"

    async def embed(self, texts: object) -> list[list[float]]:
        return [vector(text) for text in texts]  # type: ignore[attr-defined]

    async def close(self) -> None: ...


async def test_even_a_vector_that_lies_about_its_tenant_shows_nothing() -> None:
    async with Memory(redact=lambda text, most: text, embedder=Local()) as memory:
        await memory.record(seen("a car", id="1", tenant="a"))
        await memory.settle()
        await memory._vectors.add([PlacedVector("1", Scope("b", "scout", "s"), vector("car"))])
        assert await citations(memory, "vehicle", "b") == []


@pytest.mark.parametrize("shift", [0.0, 5.0], ids=["signed", "all above zero"])
async def test_among_many_long_vectors_the_nearest_of_the_tenant_are_found(shift: float) -> None:
    dice = random.Random(5)
    made = {str(number): [dice.gauss(shift, 1.0) for _ in range(128)] for number in range(2000)}
    vectors = Vectors(None)
    await vectors.open_for("m")
    await vectors.add([PlacedVector(id, Scope("ab"[int(id) % 2], "scout", "s"), made[id]) for id in made])
    for wanted in ("0", "998", "1000"):
        question = [number + dice.gauss(0.0, 0.2) for number in made[wanted]]
        for tenant, owner in (("a", True), ("b", False)):
            near = await vectors.find_nearest(question, Scope(tenant), 10)
            assert len(near) == 10
            assert all(int(hit.id) % 2 == "ab".index(tenant) for hit in near)
            assert (near[0].id == wanted) is owner
            assert [hit.score for hit in near] == sorted([hit.score for hit in near], reverse=True)
    await vectors.close()


async def test_agent_and_session_narrow_the_vectors() -> None:
    vectors = Vectors(None)
    await vectors.open_for("m")
    await vectors.add([PlacedVector(f"{a}{s}", Scope("t", a, s), (1.0, 0.0)) for a in "xy" for s in "12"])
    assert {hit.id for hit in await vectors.find_nearest((1.0, 0.1), Scope("t", "x", None), 9)} == {"x1", "x2"}
    assert {hit.id for hit in await vectors.find_nearest((1.0, 0.1), Scope("t", "x", "2"), 9)} == {"x2"}
    assert await vectors.find_nearest((1.0, 0.1, 0.1), Scope("t"), 9) == []
    await vectors.close()


@pytest.mark.parametrize(
    ("status", "kind"), [(401, Unauthorized), (400, Refused), (429, RateLimited), (500, Unavailable)], ids=range(4)
)
async def test_errors_say_whose_fault_it_is(status: int, kind: type[Exception]) -> None:
    async with embeddings() as backend:
        backend.answers = [status]
        embedder = OpenAIEmbedder("tiny", backend.url, "k1")
        with pytest.raises(kind, match=f"the model `tiny`: .*HTTP {status}: .*not now"):
            await embedder.embed(["x"])
        assert await embedder.embed(["car"]) == [tuple(vector("car"))]
        await embedder.close()


@pytest.mark.parametrize(("pieces", "coding"), [(1, "gzip"), (1, "deflate"), (60, None)], ids=["gzip", "deflate", "endless"])
async def test_an_answer_that_is_huge_or_becomes_so_is_not_kept(pieces: int, coding: str | None) -> None:
    blank = b" " * 1_000_000
    piece = blank if coding is None else gzip.compress(blank * 100) if coding == "gzip" else zlib.compress(blank * 100)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-encoding": coding} if coding else {})
        await response.prepare(request)
        with suppress(ConnectionError):
            for _ in range(pieces):
                await response.write(piece)
        return response

    app = web.Application()
    app.router.add_post("/embeddings", answer)
    async with TestServer(app) as backend:
        embedder = OpenAIEmbedder("tiny", str(backend.make_url("/")))
        with pytest.raises(BadOutput, match=r"compressed|more than"):
            await embedder.embed(["x"])
        await embedder.close()


@pytest.mark.parametrize(
    "told", [b"<html>", b'{"data": []}', b'{"data": [{"index": 0, "embedding": []}]}'], ids=["html", "none", "empty"]
)
def test_an_answer_that_is_no_embedding_is_bad_output(told: bytes) -> None:
    with pytest.raises(BadOutput):
        OpenAIEmbedder("tiny", "http://127.0.0.1:9/v1")._parse_vectors(told, 1)


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "apsw", None)
    with pytest.raises(InvalidRequest, match=r"needs apsw; pip install 'mainspring\[vectors\]'"):
        Memory(redact=lambda text, most: text, embedder=Local())


def test_a_model_without_an_address_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"memory\.embedding_url"):
        a_memory(embedding_model="tiny")


@pytest.mark.slow
@pytest.mark.parametrize(
    "prepare",
    ["", "CREATE EXTENSION vector;", 'CREATE SCHEMA "What?"; CREATE EXTENSION vector SCHEMA "What?";'],
    ids=["without", "with", "in a schema of its own"],
)
async def test_on_a_server_the_nearest_are_found_with_and_without_pgvector(postgres: Postgres, prepare: str) -> None:
    url = postgres.database()
    postgres.psql(url, prepare)
    async with Memory(parse_location(url), redact=lambda text, most: text, embedder=Local()) as memory:
        for number, text in enumerate(["a car", "rain and a car", "a loaf", "rain"]):
            await memory.record(seen(text, id=str(number), tenant="ab"[number == 3], session_id=str(number)))
        await memory.settle()
        near = await memory._vectors.find_nearest(vector("car"), Scope("a"), 10)
        assert [hit.id for hit in near] == ["0", "1", "2"]
        assert near[0].score == pytest.approx(0.0, abs=1e-6)
        assert [hit.id for hit in await memory._vectors.find_nearest(vector("car"), Scope("a", member="1"), 1)] == ["1"]
        assert await memory._vectors.find_nearest([1.0, 2.0], Scope("a"), 10) == []
        assert await citations(memory, "vehicle", "a", top_k=1) == ["0"]
        await memory.forget(tenant="a", session="0")
        assert [hit.id for hit in await memory._vectors.find_nearest(vector("car"), Scope("a"), 10)] == ["1", "2"]


@pytest.mark.slow
async def test_of_processes_that_share_a_memory_one_embeds_each_text(location: Location) -> None:
    asked: list[str] = []

    class Slow(Local):
        async def embed(self, texts: object) -> list[list[float]]:
            asked.extend(texts)  # type: ignore[arg-type]
            await asyncio.sleep(0.02)  # the others see the same queue meanwhile
            return await super().embed(texts)

    place = location if location.file is None else parse_location(location.file.with_name("memory.db"))
    async with open_store(location) as one, open_store(location) as other:
        memories = [Memory(place, redact=lambda text, most: text, embedder=Slow()) for _ in range(2)]
        for memory, store in zip(memories, (one, other), strict=True):
            await memory.open(store)
        for number in range(60):
            await memories[number % 2].record(seen(f"fact {number}", id=f"obs_{number}"))
        await asyncio.gather(*[memory.settle() for memory in memories])
        assert sorted(asked) == sorted([f"fact {number}" for number in range(60)])
        for memory in memories:
            await memory.close()


async def test_who_has_lost_the_turn_asks_for_no_more_texts() -> None:
    assert openai_embedder.SECONDS < TURN_SECONDS, "a turn outlasts a request"
    asked: list[list[str]] = []

    class Picky(Local):
        async def embed(self, texts: object) -> list[list[float]]:
            asked.append(list(texts))  # type: ignore[call-overload]
            if len(asked[-1]) > 1:
                raise Refused("one of them is no text")
            return await super().embed(texts)

    class LostTurn(WorkTurn):
        async def take(self) -> bool:
            return len(asked) < 2

    async with Memory(redact=lambda text, most: text) as memory:
        await memory.record(seen("a", id="obs_1"))
        await memory.record(seen("b", id="obs_2"))
        embedding = Embedding(Picky(), memory._database, memory._vectors, TO_EMBED)
        await memory._vectors.open_for("local")
        await embedding._embed_all(LostTurn(MemoryStore(), "memory"))
        assert asked == [["a", "b"], ["a"]]


async def test_those_found_among_many_are_those_that_are_nearest() -> None:
    dice = random.Random(3)
    rows = [tuple([dice.gauss(0, 1) for _ in range(64)]) for _ in range(8_000)]
    vectors = Vectors(None, 512)
    assert not await vectors.open_for("tiny")
    await vectors.add([PlacedVector(str(number), Scope("t"), row) for number, row in enumerate(rows)])
    found, wanted = 0, 0
    lengths = [sum(map(mul, row, row)) ** 0.5 for row in rows]
    for number in range(12):
        question = tuple([0.35 * mine + dice.gauss(0, 1) for mine in rows[number]])
        close = [sum(map(mul, row, question)) / length for row, length in zip(rows, lengths, strict=True)]
        nearest = sorted(range(len(rows)), key=lambda each: close[each], reverse=True)[:10]
        hits = await vectors.find_nearest(question, Scope("t"), 10)
        found, wanted = found + len({hit.id for hit in hits} & {str(each) for each in nearest}), wanted + 10
    await vectors.remove(["0"])
    assert "0" not in [hit.id for hit in await vectors.find_nearest(rows[0], Scope("t"), 10)]
    await vectors.close()
    assert found >= 0.85 * wanted


async def test_more_numbers_than_vectors_have_are_refused_before_they_are_made() -> None:
    async def answer(request: web.Request) -> web.Response:
        told = b'{"data": [{"embedding": [' + b"0," * 200_000 + b"0]}]}"
        return web.Response(body=told, content_type="application/json")

    app = web.Application()
    app.router.add_post("/embeddings", answer)
    async with TestServer(app) as backend:
        embedder = OpenAIEmbedder("tiny", str(backend.make_url("/")))
        with pytest.raises(BadOutput, match="no vectors are that long"):
            await embedder.embed(["a"])
        await embedder.close()
