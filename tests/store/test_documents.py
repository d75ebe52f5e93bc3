"""What every store promises about documents: one test body, each store."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.store.logs import answer, begin, end

from mainspring.core.errors import StoreError, Superseded
from mainspring.ports import Document, Store
from mainspring.storage.sqlite_runs import SqliteStore

AnyStore = Store


def note(id: str, body: bytes = b"{}", *, tenant: str = "", parent: str = "", kind: str = "note") -> Document:
    return Document(kind, id, body, tenant, parent)


def ids(documents: Sequence[Document]) -> list[str]:
    return [document.id for document in documents]


async def test_a_document_comes_back_as_it_was_put(store: AnyStore) -> None:
    assert await store.put([note("a", b'{"x":1}', tenant="acme")])
    found = await store.get("note", "a", tenant="acme")
    assert found is not None
    assert found.number > 0
    assert found == replace(note("a", b'{"x":1}', tenant="acme"), number=found.number)


async def test_a_document_is_found_only_where_it_is(store: AnyStore) -> None:
    await store.put([note("top"), note("a", parent="top")])
    for missing in (
        store.get("note", "b", parent="top"),
        store.get("other", "a", parent="top"),
        store.get("note", "a", tenant="acme", parent="top"),
        store.get("note", "a"),
    ):
        assert await missing is None


async def test_putting_again_replaces_the_body_and_keeps_the_place(store: AnyStore) -> None:
    await store.put([note("a"), note("b")])
    assert await store.put([note("a", b"[2]")])
    assert [(document.id, document.body) for document in await store.documents("note")] == [("a", b"[2]"), ("b", b"{}")]


async def test_put_if_absent_writes_all_or_nothing(store: AnyStore) -> None:
    assert await store.put([note("a", b"[1]")], if_absent=True)
    assert not await store.put([note("b"), note("a", b"[2]"), note("c")], if_absent=True)
    assert [(document.id, document.body) for document in await store.documents("note")] == [("a", b"[1]")]


async def test_of_many_who_put_if_absent_at_once_one_does(store: AnyStore) -> None:
    offers = [note("a", b"%d" % place) for place in range(50)]
    done = await asyncio.gather(*[store.put([offer], if_absent=True) for offer in offers])
    assert done.count(True) == 1
    found = await store.get("note", "a")
    assert found is not None
    assert found.body == offers[done.index(True)].body


async def test_of_many_on_one_file_one_puts_if_absent(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as left, SqliteStore(tmp_path / "runs.db") as right:
        for place in range(30):
            offers = [store.put([note(f"n{place}")], if_absent=True) for store in (left, right)]
            assert sorted(await asyncio.gather(*offers)) == [False, True]


async def test_documents_are_listed_in_order_from_any_place_on(store: AnyStore) -> None:
    await store.put([note("top"), *[note(f"n{place}", parent="top") for place in range(5)], note("else", parent="top", kind="x")])
    oldest_first = await store.documents("note", parent="top")
    assert ids(oldest_first) == ["n0", "n1", "n2", "n3", "n4"]
    numbers = [document.number for document in oldest_first]
    assert numbers == sorted(set(numbers))
    assert ids(await store.documents("note", parent="top", newest_first=True, limit=2)) == ["n4", "n3"]
    assert ids(await store.documents("note", parent="top", after=numbers[1], limit=2)) == ["n2", "n3"]
    assert ids(await store.documents("note", parent="top", after=numbers[1], newest_first=True)) == ["n0"]
    assert ids(await store.documents("note", parent="top", after=numbers[4] + 1, newest_first=True, limit=1)) == ["n4"]
    assert await store.documents("note", tenant="acme", parent="top") == []


async def test_no_more_documents_are_read_than_there_is_room_for(store: AnyStore) -> None:
    await store.put([note("top"), *[note(f"n{place}", b"x" * 100, parent="top") for place in range(5)]])
    for most, count in ((0, 1), (99, 1), (100, 2), (101, 2), (1000, 5)):
        assert len(await store.documents("note", parent="top", most_bytes=most)) == count
    assert ids(await store.documents("note", parent="top", newest_first=True, limit=3, most_bytes=150)) == ["n4", "n3"]
    last = (await store.documents("note", parent="top", most_bytes=150))[-1]
    assert ids(await store.documents("note", parent="top", after=last.number, limit=2, most_bytes=150)) == ["n2", "n3"]


async def test_a_removed_document_is_gone_and_its_number_never_used_again(store: AnyStore) -> None:
    await store.put([note("a"), note("b")])
    removed = (await store.documents("note"))[-1]
    assert await store.remove("note", "b")
    assert not await store.remove("note", "b")
    assert await store.get("note", "b") is None
    await store.put([note("b")])
    again = await store.get("note", "b")
    assert again is not None
    assert again.number > removed.number


async def test_only_the_document_that_was_seen_is_removed(store: AnyStore) -> None:
    await store.put([note("a")])
    seen = await store.get("note", "a")
    assert seen is not None
    assert not await store.remove("note", "a", number=seen.number + 1)
    assert await store.remove("note", "a", number=seen.number)
    assert not await store.remove("note", "a", tenant="acme")


async def test_what_belongs_to_a_document_goes_with_it(store: AnyStore) -> None:
    await store.put([note("top"), note("a", parent="top"), note("b", parent="top", kind="x"), note("other")])
    await store.put([note("top", tenant="acme"), note("a", tenant="acme", parent="top")])
    await store.remove("note", "top")
    assert ids(await store.documents("note")) == ["other"]
    assert await store.documents("note", parent="top") == await store.documents("x", parent="top") == []
    assert ids(await store.documents("note", tenant="acme", parent="top")) == ["a"]


async def test_nothing_can_belong_to_what_is_not_there(store: AnyStore) -> None:
    assert not await store.put([note("other"), note("a", parent="top")])
    assert await store.documents("note") == []


async def test_documents_are_written_with_the_end_of_a_run(store: AnyStore) -> None:
    await store.put([note("top")])
    snapshot = replace(answer("a", "hi"), documents=(note("one", parent="top"), note("lost", parent="gone")))
    await store.append("a", [*begin("a"), *end(1)], snapshot)
    assert ids(await store.documents("note", parent="top")) == ["one"]
    assert await store.documents("note", parent="gone") == []
    assert (await store.load("a")).status == "completed"
    with pytest.raises(Superseded):
        await store.append("a", end(1), replace(answer("a", "hi"), documents=(note("two", parent="top"),)))
    assert ids(await store.documents("note", parent="top")) == ["one"]


async def test_documents_outlive_the_process(tmp_path: Path) -> None:
    async with SqliteStore(tmp_path / "runs.db") as store:
        await store.put([note("a", b'"kept"')])
    async with SqliteStore(tmp_path / "runs.db") as store:
        assert [document.body for document in await store.documents("note")] == [b'"kept"']


async def test_a_closed_store_has_no_documents(store: AnyStore) -> None:
    await store.close()
    for question in (store.put([note("a")]), store.get("note", "a"), store.remove("note", "a"), store.documents("note")):
        with pytest.raises(StoreError, match="not open"):
            await question
