"""Vector stores over HTTP, as the official client knows them: files are indexed in the background, and found by words."""

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from openai.types import VectorStore, VectorStoreSearchResponse
from openai.types.vector_stores import VectorStoreFile
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.features.vector_stores import routes
from mainspring.features.vector_stores.filters import parse_filter
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted
from mainspring.storage.memory_runs import MemoryStore

pytestmark = pytest.mark.slow

NOTES = {
    "office.md": "# Office\n\nThe office in Lyon opens at nine.\nIts door code changes every Monday.",
    "travel.txt": "Trains are booked by the travel desk.\nFlights need the approval of a director.",
    "bread.txt": "A sourdough loaf needs a long fermentation.\nBake it hot.",
}


@asynccontextmanager
async def serving(**options: Any) -> AsyncIterator[tuple[AsyncOpenAI, Engine]]:
    engine = Engine(Scripted(), **options)
    async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        yield client, engine


async def send(client: AsyncOpenAI, names: Iterable[str] = tuple(NOTES)) -> dict[str, str]:
    """Sends notes, and returns their ids by name."""
    sent = [await client.files.create(file=(name, NOTES[name].encode()), purpose="assistants") for name in names]
    return {file.filename: file.id for file in sent}


async def settle(client: AsyncOpenAI, store: str) -> VectorStore:
    """The store, once all of its files are indexed."""
    with anyio.fail_after(PATIENCE):
        while (found := await client.vector_stores.retrieve(store)).status == "in_progress":  # noqa: ASYNC110
            await anyio.sleep(0.02)
    return found


async def find(client: AsyncOpenAI, store: str, query: Any, **options: Any) -> list[VectorStoreSearchResponse]:
    return (await client.vector_stores.search(store, query=query, **options)).data


async def test_files_are_indexed_and_found_by_their_words() -> None:
    async with serving() as (client, _):
        ids = await send(client)
        store = await client.vector_stores.create(name="notes", file_ids=list(ids.values()), metadata={"team": "ops"})
        assert VectorStore.model_validate(store.model_dump(), strict=True) == store
        assert (store.object, store.name, store.metadata, store.file_counts.total) == (
            "vector_store",
            "notes",
            {"team": "ops"},
            3,
        )
        done = await settle(client, store.id)
        assert (done.status, done.file_counts.completed, done.file_counts.failed) == ("completed", 3, 0)
        assert done.usage_bytes == sum(len(text) for text in NOTES.values())
        [first, *_] = await find(client, store.id, "When does the office open?")
        assert (first.file_id, first.filename, first.content[0].type) == (ids["office.md"], "office.md", "text")
        assert first.content[0].text == NOTES["office.md"]
        assert (first.score, first.model_dump()["page"], first.model_dump()["line"]) == (1.0, None, 1)
        assert [found.filename for found in await find(client, store.id, "fermenting sourdough")] == ["bread.txt"]
        assert await find(client, store.id, "quantum chromodynamics") == []
        both = await find(client, store.id, ["sourdough", "flights"])
        assert {found.filename for found in both} == {"bread.txt", "travel.txt"}
        assert len(await find(client, store.id, "the office needs approval of a loaf", max_num_results=2)) == 2


async def test_a_file_in_a_store_says_how_it_is() -> None:
    async with serving() as (client, _):
        ids = await send(client)
        store = await client.vector_stores.create()
        made = await client.vector_stores.files.create(
            store.id,
            file_id=ids["travel.txt"],
            attributes={"year": 2024, "public": True},
            chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}},
        )
        assert (made.object, made.status, made.vector_store_id) == ("vector_store.file", "in_progress", store.id)
        files = client.vector_stores.files
        done = await files.poll(ids["travel.txt"], vector_store_id=store.id, poll_interval_ms=20)
        assert VectorStoreFile.model_validate(done.model_dump(), strict=True) == done
        assert (done.status, done.last_error, done.usage_bytes) == ("completed", None, len(NOTES["travel.txt"]))
        assert done.attributes == {"year": 2024, "public": True}
        assert done.chunking_strategy is not None
        assert done.chunking_strategy.model_dump()["static"] == {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}
        changed = await files.update(ids["travel.txt"], vector_store_id=store.id, attributes={"year": 2025})
        assert changed.attributes == {"year": 2025}
        content = await files.content(ids["travel.txt"], vector_store_id=store.id)
        assert [part.text for part in content.data] == [NOTES["travel.txt"]]
        assert [file.id async for file in files.list(store.id)] == [ids["travel.txt"]]
        assert [file.id async for file in files.list(store.id, filter="failed")] == []
        gone = await files.delete(ids["travel.txt"], vector_store_id=store.id)
        assert (gone.deleted, gone.object) == (True, "vector_store.file.deleted")
        assert await find(client, store.id, "trains") == []
        assert (await client.files.retrieve(ids["travel.txt"])).filename == "travel.txt", "the file itself stays"


async def _say(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_a_batch_counts_its_files_and_each_has_its_own_error() -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("word/document.xml", b" " * 60_000_000)
    bad = {
        "damaged.pdf": b"%PDF-1.4 and nothing more",
        "bomb.docx": archive.getvalue(),
        "text.pdf": b"I am no PDF",
        "blank.txt": b" \n ",
        "program.bin": b"\0\1\2\3",
    }
    async with serving() as (client, engine):
        ids = await send(client)
        for name, data in bad.items():
            ids[name] = (await client.files.create(file=(name, data), purpose="assistants")).id
        small = await engine.files.receive(_say(b"x"))
        # Nothing of it may be read, so its bytes need not be there.
        ids["huge.txt"] = (await engine.files.add("", replace(small, size=500 << 20), "huge.txt", "assistants")).id
        store = await client.vector_stores.create(name="mixed")
        batches = client.vector_stores.file_batches
        batch = await batches.create(store.id, file_ids=list(ids.values()))
        assert (batch.object, batch.status, batch.file_counts.total) == ("vector_store.files_batch", "in_progress", 9)
        done = await batches.poll(batch.id, vector_store_id=store.id, poll_interval_ms=20)
        assert (done.status, done.file_counts.completed, done.file_counts.failed) == ("completed", 3, 6)
        failed = [file async for file in batches.list_files(batch.id, vector_store_id=store.id, filter="failed")]
        codes = {file.id: file.last_error.code for file in failed if file.last_error is not None}
        invalid = ("damaged.pdf", "bomb.docx", "text.pdf", "blank.txt", "huge.txt")
        assert codes == {ids["program.bin"]: "unsupported_file", **dict.fromkeys([ids[name] for name in invalid], "invalid_file")}
        assert [file.id async for file in batches.list_files(batch.id, vector_store_id=store.id, limit=2, order="asc")] == [
            *ids.values()
        ]
        assert [found.filename for found in await find(client, store.id, "sourdough")] == ["bread.txt"]


async def test_a_cancelled_batch_indexes_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (client, engine):
        ids = await send(client)
        begun, release = asyncio.Event(), asyncio.Event()
        read = engine.files.load

        async def load(*args: Any) -> bytes:
            begun.set()
            await release.wait()
            return await read(*args)

        monkeypatch.setattr(engine.files, "load", load)
        store = await client.vector_stores.create()
        batch = await client.vector_stores.file_batches.create(store.id, file_ids=list(ids.values()))
        with anyio.fail_after(PATIENCE):
            await begun.wait()
        cancelled = await client.vector_stores.file_batches.cancel(batch.id, vector_store_id=store.id)
        release.set()
        assert (cancelled.status, cancelled.file_counts.cancelled) == ("cancelled", 3)
        assert (await settle(client, store.id)).file_counts.completed == 0
        assert await find(client, store.id, "sourdough") == []


async def test_a_batch_that_is_done_stays_completed() -> None:
    async with serving() as (client, _):
        ids = await send(client)
        store = await client.vector_stores.create()
        batches = client.vector_stores.file_batches
        batch = await batches.create_and_poll(store.id, file_ids=list(ids.values()), poll_interval_ms=10)
        assert await batches.cancel(batch.id, vector_store_id=store.id) == batch


FILES: list[tuple[str, dict[str, Any]]] = [
    ("a", {"year": 2020, "region": "us", "draft": True}),
    ("b", {"year": 2022, "region": "eu"}),
    ("c", {"year": 2024, "region": "eu", "draft": False}),
]


EUROPE = {"type": "eq", "key": "region", "value": "eu"}


@pytest.fixture(scope="module")
async def library() -> AsyncIterator[tuple[AsyncOpenAI, str]]:
    """A store with three files that differ in their attributes."""
    async with serving() as (client, _):
        store = await client.vector_stores.create()
        entries: list[Any] = []
        for name, attributes in FILES:
            sent = await client.files.create(
                file=(f"{name}.txt", f"A report about widgets, number {name}.".encode()), purpose="assistants"
            )
            entries.append({"file_id": sent.id, "attributes": attributes})
        batch = await client.vector_stores.file_batches.create(store.id, files=entries)
        await client.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id, poll_interval_ms=20)
        yield client, store.id


@pytest.mark.parametrize(
    ("filter", "names"),
    [
        (EUROPE, "bc"),
        ({"type": "ne", "key": "region", "value": "eu"}, "a"),
        ({"type": "gt", "key": "year", "value": 2020}, "bc"),
        ({"type": "gte", "key": "year", "value": 2022}, "bc"),
        ({"type": "lt", "key": "year", "value": 2022}, "a"),
        ({"type": "lte", "key": "year", "value": 2022}, "ab"),
        ({"type": "in", "key": "year", "value": [2020, 2024]}, "ac"),
        ({"type": "nin", "key": "year", "value": [2020, 2024]}, "b"),
        ({"type": "eq", "key": "draft", "value": True}, "a"),
        ({"type": "eq", "key": "draft", "value": 1}, ""),
        ({"type": "gt", "key": "region", "value": 5}, ""),
        ({"type": "eq", "key": "missing", "value": "x"}, ""),
        ({"type": "in", "key": "draft", "value": [1, 0]}, ""),
        ({"type": "in", "key": "year", "value": [2020.0, "2024"]}, "a"),
        ({"type": "and", "filters": [EUROPE, {"type": "lt", "key": "year", "value": 2023}]}, "b"),
        ({"type": "or", "filters": [EUROPE, {"type": "and", "filters": [{"type": "lt", "key": "year", "value": 2021}]}]}, "abc"),
    ],
)  # fmt: skip
async def test_filters_leave_the_files_that_they_fit(library: tuple[AsyncOpenAI, str], filter: Any, names: str) -> None:
    client, store = library
    found = await find(client, store, "widgets", filters=filter)
    assert sorted([each.filename.removesuffix(".txt") for each in found]) == list(names)
    assert all(each.attributes == dict(FILES)[each.filename.removesuffix(".txt")] for each in found)


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"filters": {"type": "like", "key": "a", "value": "b"}}, "filters"),
        ({"filters": {"type": "in", "key": "a", "value": "b"}}, "filters"),
        ({"filters": {"type": "and", "filters": ["x"]}}, "filters.filters[0]"),
        ({"filters": {"type": "and", "filters": []}}, "filters"),
        ({"filters": {"type": "or", "filters": [{"type": "and", "filters": [EUROPE] * 100}] * 11}}, "filters"),
        ({"max_num_results": 51}, "max_num_results"),
        ({"ranking_options": {"score_threshold": 2}}, "ranking_options.score_threshold"),
        (
            {"ranking_options": {"hybrid_search": {"embedding_weight": 0, "text_weight": 0}}},
            "ranking_options.hybrid_search",
        ),
    ],
)
async def test_a_search_that_cannot_be_made_is_refused_by_name(
    library: tuple[AsyncOpenAI, str], options: Any, param: str
) -> None:
    client, store = library
    with pytest.raises(openai.BadRequestError) as raised:
        await find(client, store, "widgets", **options)
    assert raised.value.param == param


@pytest.mark.parametrize(
    ("query", "searched"),
    [
        ("Could you please tell me what the widgets' report is about?", "widgets report"),
        ("What\u2019s a T-shirt in C3.5?", "T-shirt C3.5"),
        ("Who are you?", "Who are you?"),
        ("Où est la tour Eiffel ?", "Où est la tour Eiffel"),
    ],
)
async def test_a_query_is_rewritten_on_request(library: tuple[AsyncOpenAI, str], query: str, searched: str) -> None:
    client, store = library
    told = await client.vector_stores.with_raw_response.search(store, query=[query, "widgets"], rewrite_query=True)
    assert json.loads(told.text)["search_query"] == [searched, "widgets"]
    assert len(json.loads(told.text)["data"]) == 3


class Counted(str):
    """Counts what it is compared with."""

    __hash__ = str.__hash__
    times = 0

    def __eq__(self, other: object) -> bool:
        Counted.times += 1
        return str(self) == other


def test_values_of_a_filter_are_looked_up_and_not_gone_through() -> None:
    """There may be many, and as many files: whoever compares each pair holds up everybody else."""
    values = [f"region {number}" for number in range(60_000)]
    wanted = parse_filter({"type": "nin", "key": "region", "value": values})
    assert wanted.fits({"region": Counted("eu")})
    assert not wanted.fits({"region": Counted("region 59999")})
    assert Counted.times < 5


async def test_a_threshold_leaves_the_best(library: tuple[AsyncOpenAI, str]) -> None:
    client, store = library
    found = await find(client, store, "widgets", ranking_options={"score_threshold": 1.0})
    assert [each.score for each in found] == [1.0]


async def test_stores_are_listed_changed_and_deleted() -> None:
    async with serving() as (client, _):
        first = await client.vector_stores.create(name="first", expires_after={"anchor": "last_active_at", "days": 7})
        second = await client.vector_stores.create(name="second")
        assert first.expires_at is not None
        assert first.expires_at - first.created_at == 7 * 86_400
        assert [store.id async for store in client.vector_stores.list()] == [second.id, first.id]
        assert [store.id async for store in client.vector_stores.list(limit=1, order="asc")] == [first.id, second.id]
        third = await client.vector_stores.create()
        assert [store.id async for store in client.vector_stores.list(before=first.id)] == [third.id, second.id]
        assert [store.id for store in (await client.vector_stores.list(before=first.id, limit=1)).data] == [second.id]
        between = client.vector_stores.list(after=first.id, before=third.id, order="asc")
        assert [store.id async for store in between] == [second.id]
        changed = await client.vector_stores.update(first.id, name="new", metadata={"a": "b"})
        assert (changed.name, changed.metadata) == ("new", {"a": "b"})
        assert changed.expires_after is not None
        assert (await client.vector_stores.update(first.id, expires_after=None)).expires_at is None
        gone = await client.vector_stores.delete(second.id)
        assert (gone.id, gone.deleted, gone.object) == (second.id, True, "vector_store.deleted")
        with pytest.raises(openai.NotFoundError) as raised:
            await client.vector_stores.retrieve(second.id)
        assert raised.value.param == "vector_store_id"


async def test_a_deleted_file_is_found_in_no_store() -> None:
    async with serving() as (client, _):
        ids = await send(client)
        stores = [await client.vector_stores.create(file_ids=list(ids.values())) for _ in range(2)]
        for store in stores:
            await settle(client, store.id)
        await client.files.delete(ids["bread.txt"])
        for store in stores:
            assert await find(client, store.id, "sourdough") == []
            assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 2


async def test_an_expired_store_says_so_and_its_passages_go() -> None:
    class Clock(MemoryStore):
        now = 1_000_000.0

        async def read_clock(self) -> float:
            return self.now

    clock = Clock()
    async with serving(store=clock) as (client, engine):
        ids = await send(client)
        days: Any = {"anchor": "last_active_at", "days": 1}
        store = await client.vector_stores.create(file_ids=list(ids.values()), expires_after=days)
        await settle(client, store.id)
        clock.now += 86_000
        assert len(await find(client, store.id, "sourdough")) == 1
        clock.now += 86_000
        assert (await client.vector_stores.retrieve(store.id)).status == "completed", "it was used meanwhile"
        clock.now += 1_000
        assert (await client.vector_stores.retrieve(store.id)).status == "expired"
        with pytest.raises(openai.BadRequestError) as raised:
            await find(client, store.id, "sourdough")
        assert raised.value.code == "vector_store_expired"
        await engine.vector_stores.expire()
        assert (await client.vector_stores.retrieve(store.id)).file_counts.total == 0


async def test_a_store_of_another_tenant_does_not_exist(tmp_path: Path) -> None:
    engine = Engine(Scripted(), database=tmp_path / "runs.db")
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys)) as url:
        ours, theirs = await keys.create(tenant="acme"), await keys.create(tenant="other")
        async with AsyncOpenAI(base_url=url, api_key=ours) as acme, AsyncOpenAI(base_url=url, api_key=theirs) as other:
            ids = await send(acme)
            store = await acme.vector_stores.create(file_ids=list(ids.values()))
            await settle(acme, store.id)
            own = await other.vector_stores.create()
            assert [found.id async for found in other.vector_stores.list()] == [own.id]
            file = ids["bread.txt"]
            for asked in (
                other.vector_stores.retrieve(store.id),
                other.vector_stores.update(store.id, name="mine"),
                other.vector_stores.delete(store.id),
                other.vector_stores.search(store.id, query="sourdough"),
                other.vector_stores.files.retrieve(file, vector_store_id=store.id),
                other.vector_stores.files.content(file, vector_store_id=store.id),
                other.vector_stores.files.create(own.id, file_id=file),
                other.vector_stores.file_batches.create(own.id, file_ids=[file]),
                other.vector_stores.create(file_ids=[file]),
            ):
                with pytest.raises(openai.NotFoundError):
                    await asked
            assert len(await find(acme, store.id, "sourdough")) == 1


async def test_content_that_is_not_all_of_a_file_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving() as (client, _):
        long = "\n".join([f"Line {number} of a longer text." for number in range(40)])
        file = await client.files.create(file=("long.txt", long.encode()), purpose="assistants")
        store = await client.vector_stores.create(
            file_ids=[file.id],
            chunking_strategy={"type": "static", "static": {"max_chunk_size_tokens": 100, "chunk_overlap_tokens": 0}},
        )
        await settle(client, store.id)
        whole = await client.vector_stores.files.content(file.id, vector_store_id=store.id)
        monkeypatch.setattr(routes, "MOST_CONTENT", len(whole.data) - 1)
        part = await client.vector_stores.files.content(file.id, vector_store_id=store.id)
        assert len(part.data) == len(whole.data) - 1
        assert [page.model_dump()["has_more"] for page in (whole, part)] == [False, True]
