"""Files are indexed once, by whichever process is there, and by meaning where there is an embedder."""

import asyncio
import sqlite3
import struct
import time
from base64 import b64decode
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from contextlib import closing, suppress
from pathlib import Path

import openai
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI, OpenAI
from tests.kit.databases import database_in
from tests.server.hosting import hosted
from tests.server.process import serving

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import MemoryLimit, Superseded, Unavailable
from mainspring.features.files.files import Files
from mainspring.features.vector_stores import passage_rows as rows
from mainspring.features.vector_stores.chunking import Passage, StaticChunking, cut_passages
from mainspring.features.vector_stores.filters import parse_filter
from mainspring.features.vector_stores.indexing import Indexing
from mainspring.features.vector_stores.passage_rows import NewFile, StoreBody
from mainspring.features.vector_stores.vector_stores import HybridWeights, RankingOptions, SearchOptions
from mainspring.providers.scripted import Scripted
from mainspring.storage.file_folder import FileFolder
from mainspring.storage.location import parse_location
from mainspring.storage.search.vectors import Vectors
from mainspring.storage.search.word_index import Scope
from mainspring.storage.sql import SqlConnection
from mainspring.tools.documents.document_reader import DocumentPage, DocumentReader

pytestmark = pytest.mark.slow

MEANINGS = (("car", "vehicle", "wheels"), ("loaf", "bread", "bakery"), ("rain", "storm", "weather"))


class WordEmbedder:
    """Words of one meaning have one direction. `fails` has it answer nothing."""

    model = "meanings"

    def __init__(self) -> None:
        self.fails = False
        self.count = 0

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        if self.fails:
            raise Unavailable("no embeddings")
        self.count += len(texts)
        return [tuple([0.1 + sum([text.lower().count(word) for word in words]) for words in MEANINGS]) for text in texts]

    async def close(self) -> None:
        return


async def in_pieces(text: str) -> AsyncIterator[bytes]:
    yield text.encode()


async def add(files: Files, name: str, text: str, tenant: str = "") -> NewFile:
    stored = await files.add(tenant, await files.receive(in_pieces(text)), name, "assistants")
    return NewFile(stored.id, name)


def test_words_find_the_same_whether_few_or_many_other_stores_have_them() -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in (statement for migration in rows.SEARCH.migrations for statement in migration):
            connection.execute(statement)
        put_passages(connection, "ours", ["the tide", "tide and tide again", "a tide at noon in the harbour", "ships"])
        alone = rows.find_by_words(connection, "tide harbour", Scope("", "ours"), 10)
        assert [hit.id for hit in alone] == ["1.2", "1.1", "1.0"]
        for count in (1, 40):  # a few more are ranked as well; of many, only those of the store
            put_passages(connection, f"theirs-{count}", ["tide"] * count)
            found = rows.find_by_words(connection, "tide harbour", Scope("", "ours"), 10)
            assert [hit.id for hit in found] == [hit.id for hit in alone]


def put_passages(connection: SqlConnection, store: str, texts: Sequence[str]) -> None:
    rows.add_files(connection, store, "", [NewFile(f"file-{store}", "notes.txt")], 0.0)
    file = rows.list_waiting_files(connection)[0]
    assert rows.claim_file(connection, file, "test")
    rows.add_passages(connection, file, "test", 0, [Passage(text, 1) for text in texts], 0.0)
    rows.finish_file(connection, file.number, "test", "completed")


def an_engine(folder: Path, embedder: WordEmbedder | None = None) -> Engine:
    return Engine(Scripted(), database=database_in(folder), files=FileFolder(folder / "files"), embedder=embedder)


@pytest.mark.usefixtures("each_database")
async def test_words_that_very_many_passages_have_still_tell_which_fits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "COMMON", 4)
    monkeypatch.setattr(rows, "MOST_TOGETHER", 1)
    monkeypatch.setattr(rows, "PASSAGES", replace(rows.PASSAGES, common=4))
    said = ["old boat", "red boat", "old red", "boat", "old", "red", "old red boat", "red boat at sea", "old boat at sea"]
    async with an_engine(tmp_path) as engine:
        passages = engine.file_services.passages
        await passages.write(put_passages, "ours", [*said, *["gull"] * 20])

        async def find(query: str, limit: int) -> list[str]:
            found = await passages.read(rows.find_by_words, query, Scope("", "ours"), limit)
            return [said[int(hit.id.partition(".")[2])] for hit in found]

        # None of these is rare. All of them are in one passage, two in others.
        assert await find("old red boat", 1) == ["old red boat"]
        assert set((await find("old red boat", 6))[1:]) == {
            "old boat",
            "red boat",
            "old red",
            "red boat at sea",
            "old boat at sea",
        }
        assert len(await find("boat", 5)) == 5
        # What is rare finds; the others say which of those fits better.
        assert await find("sea red", 2) == ["red boat at sea", "old boat at sea"]
        assert await find("sea old", 2) == ["old boat at sea", "red boat at sea"]
        # Where it finds too few, they find the rest.
        assert "old red" in (await find("sea red old", 5))[2:]


@pytest.mark.usefixtures("each_database")
async def test_passages_are_found_by_words_and_by_meaning(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with an_engine(tmp_path, embedder) as engine:
        stores = engine.vector_stores
        texts = {"a": "The car was parked.", "b": "A loaf on the table.", "c": "Rain over the parked bicycles."}
        store = await stores.create(
            "", StoreBody("s"), [await add(engine.files, f"{name}.txt", text) for name, text in texts.items()]
        )
        other = await stores.create("", StoreBody("t"), [await add(engine.files, "d.txt", "Another car, parked.")])
        await engine.file_services.indexing.work()

        async def find(query: str, **options: float) -> list[str]:
            weights = HybridWeights(options.get("meaning", 1.0), options.get("words", 1.0))
            asked = SearchOptions(10, ranking=RankingOptions(hybrid_search=weights))
            return [found.passage.filename for found in await stores.search("", store.id, [query], asked)]

        assert (await find("bakery"))[0] == "b.txt", "no word of it is there"
        assert (await find("a vehicle that was parked"))[0] == "a.txt", "first in both lists"
        assert (await find("parked weather", words=0.0))[0] == "c.txt"
        assert set(await find("parked", meaning=0.0)) >= {"a.txt", "c.txt"}
        assert "d.txt" not in await find("car"), "it is in another store"
        [found] = await stores.search("", other.id, ["vehicle"], SearchOptions())
        assert found.passage.filename == "d.txt"
        only = parse_filter({"type": "eq", "key": "kind", "value": "x"})
        [last] = await stores.list_files("", store.id, None, 1, newest_first=True, only={})
        await stores.change_attributes("", store.id, last.file, {"kind": "x"})
        assert [
            found.passage.filename for found in await stores.search("", store.id, ["vehicle"], SearchOptions(filter=only))
        ] == ["c.txt"]
        before = embedder.count
        some = parse_filter({"type": "ne", "key": "kind", "value": "x"})
        found_some = await stores.search("", store.id, ["vehicle"], SearchOptions(filter=some))
        assert [each.passage.filename for each in found_some] == ["a.txt", "b.txt"]
        assert embedder.count == before + 1, "a query is embedded once, however many files it is held against"
        await stores.remove("", other.id)
        await engine.file_services.indexing.work()
        assert await engine.file_services.passages.find_nearest("vehicle", other.id, [None], 10) == []


async def test_what_could_not_be_embedded_is_found_by_words_and_embedded_later(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    embedder.fails = True
    async with an_engine(tmp_path, embedder) as engine:
        store = await engine.vector_stores.create("", StoreBody(), [await add(engine.files, "a.txt", "The car was parked.")])
        await engine.file_services.indexing.work()
        assert (await engine.vector_stores.count(store.id))[0].completed == 1
        assert len(await engine.vector_stores.search("", store.id, ["parked"], SearchOptions())) == 1
        assert await engine.vector_stores.search("", store.id, ["vehicle"], SearchOptions()) == []
        embedder.fails = False
        await engine.file_services.indexing.work()
        assert len(await engine.vector_stores.search("", store.id, ["vehicle"], SearchOptions())) == 1


async def test_texts_are_embedded_over_http() -> None:
    engine = Engine(Scripted(), embedder=WordEmbedder())
    async with hosted(server(engine)) as url, AsyncOpenAI(base_url=url, api_key="unused", max_retries=0) as client:
        for encoding in ("float", "base64", None):
            options = {} if encoding is None else {"encoding_format": encoding}
            told = await client.embeddings.create(model="meanings", input=["a car", "bread, bread"], **options)  # type: ignore[arg-type]
            vectors = [each.embedding for each in told.data]
            if encoding == "base64":
                vectors = [list(struct.unpack("<3f", b64decode(str(vector)))) for vector in vectors]
            assert [each.index for each in told.data] == [0, 1]
            assert vectors[1] == pytest.approx([0.1, 2.1, 0.1])
            assert told.usage.prompt_tokens > 0
        with pytest.raises(openai.NotFoundError, match="known: `meanings`"):
            await client.embeddings.create(model="other", input="x")
        for given, param in (
            ({"input": ""}, "input"),
            ({"input": [[1, 2]]}, "input"),
            ({"input": "x", "dimensions": 7}, "dimensions"),
        ):
            with pytest.raises(openai.BadRequestError) as raised:
                await client.embeddings.create(model="meanings", **given)
            assert str(raised.value.param).startswith(param)


@pytest.mark.usefixtures("each_database")
async def test_two_engines_index_each_file_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = DocumentReader.read
    begun: Counter[str] = Counter()

    async def count(self: DocumentReader, name: str, data: bytes, tenant: str = "") -> tuple[DocumentPage, ...]:
        begun[name] += 1
        return await read(self, name, data, tenant)

    monkeypatch.setattr(DocumentReader, "read", count)
    async with an_engine(tmp_path) as one, an_engine(tmp_path) as other:
        files = [await add(one.files, f"{number}.txt", f"text {number}") for number in range(8)]
        store = await one.vector_stores.create("", StoreBody(), files)
        await asyncio.gather(one.file_services.indexing.work(), other.file_services.indexing.work())
        assert (await other.vector_stores.count(store.id))[0].completed == 8
        assert begun == Counter({f"{number}.txt": 1 for number in range(8)})


@pytest.mark.usefixtures("each_database")
async def test_whoever_lost_a_file_writes_nothing_more(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        passages = engine.file_services.passages
        store = await engine.vector_stores.create("", StoreBody(), [await add(engine.files, "a.txt", "text")])
        file = await engine.vector_stores.get_file("", store.id, (await passages.read(rows.list_waiting_files))[0].file)
        assert await passages.write(rows.claim_file, file, "slow")
        assert not await passages.write(rows.claim_file, file, "late"), "it is not as it was known"
        [held] = await passages.read(rows.list_waiting_files)
        assert await passages.write(rows.claim_file, held, "fast")
        cut = list(cut_passages([DocumentPage(None, "", "text")], StaticChunking()))
        for attempt in (
            passages.write(rows.add_passages, file, "slow", 0, cut, 0.0),
            passages.write(rows.finish_file, file.number, "slow", "completed"),
            passages.clear(file.number, "slow"),
        ):
            with pytest.raises(Superseded):
                await attempt
        await engine.file_services.indexing.work()
        assert (await engine.vector_stores.count(store.id))[0].completed == 1, "nobody drives `fast`"


@pytest.mark.usefixtures("each_database")
async def test_what_is_written_of_a_file_that_is_taken_out_meanwhile_does_not_stay(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as one, an_engine(tmp_path) as other:
        store = await one.vector_stores.create("", StoreBody(), [await add(one.files, "a.txt", "text")])
        [file] = await one.file_services.passages.read(rows.list_waiting_files)
        assert await one.file_services.passages.write(rows.claim_file, file, "me")
        cut = list(cut_passages([DocumentPage(None, "", "text")], StaticChunking()))
        loop, removals = asyncio.get_running_loop(), list[Future[None]]()

        async def take_out() -> None:
            await other.vector_stores.remove_file("", store.id, file.file)
            await other.file_services.passages.remove_left()

        def write(connection: SqlConnection) -> None:
            rows.add_passages(connection, file, "me", 0, cut, 0.0)
            removals.append(asyncio.run_coroutine_threadsafe(take_out(), loop))
            with suppress(TimeoutError):  # it waits for the transaction, or is done long before
                removals[0].result(0.5)

        await one.file_services.passages.write(write)
        await asyncio.wrap_future(removals[0])
        assert await one.file_services.passages.read(rows.list_passages, file.number, 10) == []


@pytest.mark.usefixtures("each_database")
async def test_a_search_that_notes_its_time_undoes_no_change_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with an_engine(tmp_path) as engine:
        store = await engine.vector_stores.create("", StoreBody("old", expires_days=2))
        later = store.active_at + 1000

        async def rename() -> float:
            await engine.file_services.passages.write(rows.change_store, store.id, {"name": "new"}, store.active_at)
            return later

        monkeypatch.setattr(engine.files.store, "read_clock", rename)
        await engine.vector_stores.search("", store.id, ["word"], SearchOptions())
        kept = await engine.file_services.passages.read(rows.get_store, store.id, "")
        assert kept is not None
        assert (kept.body.name, kept.active_at) == ("new", later)
        assert kept.expires_at == pytest.approx(later + 2 * 86_400)


async def test_a_filter_finds_what_others_rank_above(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        texts = [("theirs", "gadget gadget gadget")] * 12 + [("mine", "a gadget among many other words in a longer line")] * 17
        made = [(await add(engine.files, f"{number}.txt", f"{text} {number}"), kind) for number, (kind, text) in enumerate(texts)]
        files = [replace(file, attributes={"kind": kind}) for file, kind in made]
        store = await engine.vector_stores.create("", StoreBody(), files)
        await engine.file_services.indexing.work()
        mine = parse_filter({"type": "eq", "key": "kind", "value": "mine"})
        [found] = await engine.vector_stores.search("", store.id, ["gadget"], SearchOptions(1, mine))
        assert (found.passage.attributes, found.score) == ({"kind": "mine"}, 1.0)


def test_a_killed_server_loses_nothing_of_a_batch(tmp_path: Path) -> None:
    text = "\n".join([f"Line {number} is about gadgets." for number in range(400)])
    with serving(tmp_path, [{"say": "Hello."}]) as served, OpenAI(base_url=served.url, api_key="unused") as client:
        ids = [client.files.create(file=(f"{n}.txt", f"{text} {n}".encode()), purpose="assistants").id for n in range(12)]
        store = client.vector_stores.create()
        batch = client.vector_stores.file_batches.create(store.id, file_ids=ids)
        while client.vector_stores.retrieve(store.id).file_counts.completed < 1:
            time.sleep(0.01)
        served.kill()  # in the middle, as a rule
    with serving(tmp_path, [{"say": "Hello."}]) as served, OpenAI(base_url=served.url, api_key="unused") as client:
        done = client.vector_stores.file_batches.poll(batch.id, vector_store_id=store.id, poll_interval_ms=50)
        assert (done.status, done.file_counts.completed, done.file_counts.total) == ("completed", 12, 12)
        sizes = {id: len(client.vector_stores.files.content(id, vector_store_id=store.id).data) for id in ids}
        assert len(set(sizes.values())) == 1, "no passage is missing or there twice"


@pytest.mark.parametrize("size", [100, 300, 4096])
@pytest.mark.parametrize("overlap", [0, 50])
def test_passages_hold_all_of_a_text_and_name_their_lines(size: int, overlap: int) -> None:
    lines = [f"{number}: " + "word " * (number * 7 % 90) + "end." for number in range(300)]
    text = "\n".join(lines) + "\n" + "".join([f"{number:05}" for number in range(1_000)])
    cut = list(cut_passages([DocumentPage(3, "", text)], StaticChunking(size, overlap)))
    assert all(len(passage.text) <= size * 4 and passage.page == 3 for passage in cut)
    place = 0
    for passage in cut:
        found = text.find(passage.text, max(0, place - overlap * 4))
        assert 0 <= found <= place, "nothing is left out"
        assert passage.line == text.count("\n", 0, found) + 1
        place = found + len(passage.text)
    assert place == len(text)


@pytest.mark.parametrize("blank", [" ", "\n", "\t\n "])
def test_what_is_blank_is_skipped(blank: str) -> None:
    text = "first" + blank * 20_000 + "last"
    first, last = cut_passages([DocumentPage(None, "", text)], StaticChunking(100, 50))
    assert (first.text.strip(), first.line) == ("first", 1)
    assert (last.text.strip(), last.line) == ("last", text.count("\n", 0, text.index(last.text)) + 1 if "\n" in blank else 1)


class ShortReader(DocumentReader):
    """Notes whose files it reads. There is no memory for those of `poor`."""

    def __init__(self) -> None:
        self.read_for: list[str] = []

    async def read(self, name: str, data: bytes, tenant: str = "") -> tuple[DocumentPage, ...]:
        self.read_for.append(tenant)
        if tenant == "poor":
            raise MemoryLimit("no memory is left for this tenant")
        return (DocumentPage(None, "", data.decode()),)


async def test_tenants_take_turns_and_one_without_memory_holds_up_nobody(tmp_path: Path) -> None:
    async with an_engine(tmp_path) as engine:
        reader = ShortReader()
        indexing = Indexing(engine.file_services.passages, engine.files, reader, lambda: engine.core.presence)
        stores = {}
        for tenant, count in (("many", 4), ("poor", 1), ("one", 1), ("other", 1)):
            files = [await add(engine.files, f"{number}.txt", f"word {number}", tenant) for number in range(count)]
            stores[tenant] = await engine.vector_stores.create(tenant, StoreBody(), files)
        await indexing.work()
        assert reader.read_for == ["many", "one", "other", "poor", "many", "many", "many"]
        counts = {tenant: (await engine.vector_stores.count(store.id))[0] for tenant, store in stores.items()}
        assert [counts[tenant].completed for tenant in ("many", "one", "other")] == [4, 1, 1]
        assert counts["poor"].in_progress == 1


@pytest.mark.usefixtures("each_database")
async def test_of_two_changes_of_a_store_at_once_none_is_lost(tmp_path: Path) -> None:
    async with hosted(server(an_engine(tmp_path))) as url, AsyncOpenAI(base_url=url, api_key="x") as client:
        store = await client.vector_stores.create(name="old")
        for number in range(5):
            name, metadata = f"name {number}", {"n": str(number)}
            await asyncio.gather(
                client.vector_stores.update(store.id, name=name), client.vector_stores.update(store.id, metadata=metadata)
            )
            kept = await client.vector_stores.retrieve(store.id)
            assert (kept.name, kept.metadata) == (name, metadata)


async def test_passages_get_vectors_of_a_new_model_though_a_process_ends_as_it_changes(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    async with an_engine(tmp_path, embedder) as engine:
        store = await engine.vector_stores.create("", StoreBody(), [await add(engine.files, "a.txt", "The car was parked.")])
        await engine.file_services.indexing.work()
    location = parse_location(database_in(tmp_path))
    assert location.file is not None
    vectors = Vectors(location.file.with_name(f"{location.file.name}-passages"))

    async def end() -> None:
        raise Unavailable("the process ends here")

    with pytest.raises(Unavailable):
        await vectors.open_for("new", end)
    await vectors.close()
    new = WordEmbedder()
    new.model = "new"
    async with an_engine(tmp_path, new) as engine:
        await engine.file_services.indexing.work()
        assert len(await engine.vector_stores.search("", store.id, ["vehicle"], SearchOptions())) == 1
