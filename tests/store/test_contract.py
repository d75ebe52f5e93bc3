"""What every store promises: one test body, each store."""

import asyncio

import pytest
from msgspec.structs import replace
from tests.kit.waiting import PATIENCE
from tests.store.logs import answer, begin, end, say, spec

from mainspring.core.errors import Malformed, NotFound, StoreError, Superseded
from mainspring.core.events import Reason, Recorded, RunEnded, RunStarted
from mainspring.core.history import Entry
from mainspring.core.items import assistant, user
from mainspring.core.response import Response
from mainspring.core.spec import Conversation, RunSpec
from mainspring.ports import PAGE_BYTES, RUN_METADATA, Document, Filter, Note, Pruned, Segment, Snapshot, Store, StoredRun
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.segment import RECORD_BYTES

AnyStore = Store


async def ended(store: Store, id: str, *said: str, parent: str | None = None, at: float = 1.0) -> None:
    await store.append(id, [*begin(id, parent, at), *end(1)], answer(id, *said))


async def test_a_log_comes_back_as_it_was_appended(store: AnyStore) -> None:
    await store.append("a", begin("a"))
    await store.append("a", say(1, "one ", "two "))
    await store.append("a", say(3, "three"))
    assert await store.events("a") == [*begin("a"), *say(1, "one ", "two ", "three")]


async def test_events_can_be_read_from_any_place_on(store: AnyStore) -> None:
    log = [*begin("a"), *say(1, "b", "c", "d")]
    await store.append("a", log[:3])
    await store.append("a", log[3:])
    for after in range(-2, 5):
        assert await store.events("a", after) == log[max(after + 1, 0) :]


async def test_appends_take_effect_in_order_without_waiting(store: AnyStore) -> None:
    written = [store.append("a", begin("a")), *[store.append("a", say(seq, "x")) for seq in range(1, 50)]]
    for append in written:
        await append
    assert [record.seq for record in await store.events("a")] == list(range(50))


async def test_a_run_under_way_has_no_answer_yet(store: AnyStore) -> None:
    await store.append("a", begin("a", parent="p", at=2.5))
    assert await store.load("a") == StoredRun("a", "in_progress", 2.5, parent="p", model="m")
    assert await store.list_unfinished() == ["a"]


async def test_the_answer_is_stored_with_the_last_event(store: AnyStore) -> None:
    snapshot = answer("a", "hi", status="incomplete")
    await store.append("a", begin("a"))
    await store.append("a", [*say(1, "hi"), *end(2, "incomplete")], snapshot)
    assert await store.load("a") == StoredRun("a", "incomplete", 1.0, model="m", response=snapshot.response)
    assert await store.list_unfinished() == []
    assert len(await store.events("a")) == 3


@pytest.mark.parametrize("first", [0, 1, 2, 4, 99])
async def test_an_append_that_does_not_continue_the_log_is_refused(store: AnyStore, first: int) -> None:
    log = [*begin("a"), *say(1, "b", "c")]
    await store.append("a", log)
    why = "another driver has taken it over" if first < 3 else "what comes before was not written"
    with pytest.raises(Superseded, match=f"goes on with event 3, not {first}; {why}"):
        await store.append("a", begin("a") if first == 0 else say(first, "x"))
    assert await store.events("a") == log


async def test_nothing_follows_the_end(store: AnyStore) -> None:
    await ended(store, "a", "hi")
    with pytest.raises(Superseded, match="has ended"):
        await store.append("a", say(2, "more"))
    assert len(await store.events("a")) == 2


async def test_a_run_begins_with_its_first_event(store: AnyStore) -> None:
    with pytest.raises(Superseded, match="is not stored"):
        await store.append("a", say(1, "x"))
    with pytest.raises(NotFound, match="`a`"):
        await store.load("a")


async def test_after_one_refusal_the_appends_behind_it_are_refused_too(store: AnyStore) -> None:
    await store.append("a", begin("a"))
    lost, behind, other = store.append("a", say(2, "x")), store.append("a", say(3, "y")), store.append("b", begin("b"))
    with pytest.raises(Superseded):
        await lost
    with pytest.raises(Superseded):
        await behind
    await other
    await store.append("a", say(1, "z"))
    assert await store.events("a") == [*begin("a"), *say(1, "z")]


async def test_what_is_no_log_is_refused(store: AnyStore) -> None:
    for records, snapshot in [
        ([], None),
        (say(0, "x"), None),
        ([*begin("a"), *say(2, "x")], None),
        ([*begin("a"), *end(1)], None),
        (begin("a"), answer("a")),
    ]:
        with pytest.raises(Malformed):
            await store.append("a", records, snapshot)
    assert await store.list_unfinished() == []


async def test_the_caller_may_reuse_its_list(store: AnyStore) -> None:
    records = begin("a")
    written = store.append("a", records)
    records.clear()
    await written
    assert await store.events("a") == begin("a")


async def test_history_is_the_chain_oldest_first(store: AnyStore) -> None:
    await ended(store, "a", "1")
    await ended(store, "b", "2", parent="a")
    await ended(store, "c", "3", parent="b")
    await ended(store, "fork", "4", parent="a")
    entries = [list(answer(id, said).entries) for id, said in [("a", "1"), ("b", "2"), ("c", "3"), ("fork", "4")]]
    assert await store.history("c") == entries[0] + entries[1] + entries[2]
    assert await store.history("fork") == entries[0] + entries[3]


async def test_history_names_the_link_that_is_missing(store: AnyStore) -> None:
    await ended(store, "a")
    await ended(store, "b", parent="a")
    await ended(store, "c", parent="b")
    await store.delete("a")
    with pytest.raises(NotFound, match="`a` is not stored"):
        await store.history("c")
    with pytest.raises(NotFound, match="`nobody` is not stored"):
        await store.history("nobody")


async def test_history_names_the_link_that_has_not_ended(store: AnyStore) -> None:
    await store.append("a", begin("a"))
    await ended(store, "b", parent="a")
    with pytest.raises(NotFound, match="`a` has not ended"):
        await store.history("b")


async def test_a_circle_has_no_history(store: AnyStore) -> None:
    await ended(store, "a", parent="b")
    await ended(store, "b", parent="a")
    await ended(store, "self", parent="self")
    for id in ("a", "b", "self"):
        with pytest.raises(NotFound):
            await store.history(id)


async def listed(store: Store, only: Filter) -> list[str]:
    return [run.id for run in (await store.list(only=only)).runs]


async def page_ids(store: Store, *, limit: int, newest_first: bool) -> list[str]:
    """All ids, page by page; fails if a page that promises more does not deliver."""
    ids: list[str] = []
    while True:
        page = await store.list(limit=limit, after=ids[-1] if ids else None, newest_first=newest_first)
        ids += [run.id for run in page.runs]
        if not page.has_more:
            return ids
        assert len(page.runs) == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 9, 10])
async def test_pages_show_every_run_once_even_those_of_one_moment(store: AnyStore, limit: int) -> None:
    moments = {"a": 5.0, "b": 3.0, "c": 3.0, "d": 3.0, "e": 4.0, "f": 3.0, "g": 9.0, "h": 3.0, "i": 1.0}
    for id, at in moments.items():
        await store.append(id, begin(id, at=at))
    oldest_first = ["i", "b", "c", "d", "f", "h", "e", "a", "g"]
    assert await page_ids(store, limit=limit, newest_first=False) == oldest_first
    assert await page_ids(store, limit=limit, newest_first=True) == oldest_first[::-1]
    assert await store.list_unfinished() == oldest_first


async def test_a_page_ends_where_its_answers_get_large(store: AnyStore) -> None:
    for place in range(5):
        await ended(store, f"r{place}", "x" * (PAGE_BYTES // 2 - 100_000), at=float(place))
    first = await store.list(limit=4)
    if isinstance(store, MemoryStore):  # has them in memory anyway
        assert (len(first.runs), first.has_more) == (4, True)
        return
    assert ([run.id for run in first.runs], first.has_more) == (["r4", "r3", "r2"], True)
    rest = await store.list(limit=4, after="r2")
    assert ([run.id for run in rest.runs], rest.has_more) == (["r1", "r0"], False)


async def test_runs_can_be_listed_by_status(store: AnyStore) -> None:
    for place in range(6):
        id = f"r{place}"
        await store.append(id, begin(id, at=float(place)))
        if place % 2:
            await store.append(id, end(1, "failed"), answer(id, status="failed"))
    failed = Filter(status=("failed",))
    first = await store.list(only=failed, limit=2)
    assert ([run.id for run in first.runs], first.has_more) == (["r5", "r3"], True)
    rest = await store.list(only=failed, limit=2, after="r3")
    assert ([run.id for run in rest.runs], rest.has_more) == (["r1"], False)
    assert await listed(store, Filter(status=("in_progress",))) == ["r4", "r2", "r0"]
    assert await listed(store, Filter(status=("in_progress", "failed"))) == ["r5", "r4", "r3", "r2", "r1", "r0"]
    assert rest.runs[0] == await store.load("r1")


async def test_runs_can_be_listed_by_tenant(store: AnyStore) -> None:
    for place, tenant in enumerate(["", "acme", "", "acme", "acme", ""]):
        order = replace(spec(f"r{place}"), tenant=tenant)
        await store.append(f"r{place}", [Recorded(0, float(place), RunStarted(order))])
    assert (await store.load("r1")).tenant == "acme"
    first = await store.list(only=Filter("acme"), limit=2)
    assert ([run.id for run in first.runs], first.has_more) == (["r4", "r3"], True)
    rest = await store.list(only=Filter("acme", ("in_progress",)), limit=2, after="r3")
    assert ([run.id for run in rest.runs], rest.has_more) == (["r1"], False)
    assert await listed(store, Filter("")) == ["r5", "r2", "r0"]
    assert len((await store.list()).runs) == 6
    with pytest.raises(NotFound, match="`r2`"):
        await store.list(only=Filter("acme"), after="r2")


async def test_runs_can_be_listed_by_all_that_is_known_of_their_order(store: AnyStore) -> None:
    orders = [
        replace(spec("r0"), model="other"),
        spec("r1", parent="r0"),
        spec("r2", background=True),
        replace(spec("r3"), conversation=Conversation("conv_1", 3)),
        replace(spec("r4", parent="r0", background=True), model="other"),
    ]
    for at, order in enumerate(orders):
        await store.append(order.id, [Recorded(0, float(at), RunStarted(order))])
    assert await listed(store, Filter(model="other")) == ["r4", "r0"]
    assert await listed(store, Filter(parent="r0")) == ["r4", "r1"]
    assert await listed(store, Filter(background=True)) == ["r4", "r2"]
    assert await listed(store, Filter(background=False)) == ["r3", "r1", "r0"]
    assert await listed(store, Filter(conversation="conv_1")) == ["r3"]
    assert await listed(store, Filter(conversation="conv")) == []
    assert await listed(store, Filter(since=1.0, before=3.0)) == ["r2", "r1"]
    assert await listed(store, Filter(parent="r0", background=True, model="other", since=4.0)) == ["r4"]
    page = await store.list(only=Filter(parent="r0"), limit=1, after="r3")
    assert ([run.id for run in page.runs], page.has_more) == (["r1"], False), "the last one seen need not fit"


async def test_the_history_of_another_tenant_is_not_found(store: AnyStore) -> None:
    order = replace(spec("a"), tenant="acme")
    await store.append("a", [Recorded(0, 1.0, RunStarted(order)), *end(1)], answer("a", "hi"))
    assert await store.history("a") == await store.history("a", tenant="acme") == list(answer("a", "hi").entries)
    with pytest.raises(NotFound, match="`a` is not stored"):
        await store.history("a", tenant="")


async def test_a_page_after_an_unknown_run_is_not_found(store: AnyStore) -> None:
    with pytest.raises(NotFound, match="`gone`") as caught:
        await store.list(after="gone")
    assert caught.value.param == "after"


async def test_an_empty_store_lists_nothing(store: AnyStore) -> None:
    page = await store.list()
    assert (page.runs, page.has_more) == ((), False)


async def test_a_deleted_run_is_gone_and_its_driver_superseded(store: AnyStore) -> None:
    await store.append("a", begin("a"))
    await store.delete("a")
    with pytest.raises(Superseded, match="deleted"):
        await store.append("a", say(1, "x"))
    for gone in (store.events("a"), store.load("a"), store.history("a"), store.delete("a")):
        with pytest.raises(NotFound, match="`a`"):
            await gone
    assert (await store.list()).runs == ()
    await store.append("a", begin("a"))
    assert await store.events("a") == begin("a")


async def test_a_background_run_says_so(store: AnyStore) -> None:
    await store.append("a", [Recorded(0, 1.0, RunStarted(spec("a", background=True)))])
    assert (await store.load("a")).background is True


async def test_a_closed_store_cannot_be_used(store: AnyStore) -> None:
    await store.append("a", begin("a"))
    await store.close()
    await store.close()
    with pytest.raises(StoreError, match="not open"):
        await store.append("a", say(1, "x"))
    for question in (
        store.events("a"),
        store.load("a"),
        store.history("a"),
        store.list(),
        store.list_unfinished(),
        store.delete("a"),
    ):
        with pytest.raises(StoreError, match="not open"):
            await question


async def test_items_are_found_by_id_within_their_tenant(store: Store) -> None:
    said = assistant("Hello.", id="msg_said")
    entries = (Entry(user("Hi.", id="msg_heard"), "input"), Entry(said, "model", 1))
    order = RunSpec(id="resp_1", model="m", input=(), tenant="a")
    log = [Recorded(0, 1.0, RunStarted(order)), Recorded(1, 2.0, RunEnded("failed", Reason.CANCELLED))]
    told = Response(id="resp_1", created_at=1, status="failed", model="m", text={})
    await store.append("resp_1", log, Snapshot(told, entries))
    found = await store.items(["msg_said", "msg_heard", "msg_none", "%"], tenant="a")
    assert found == {"msg_said": said, "msg_heard": entries[0].item}
    assert await store.items(["msg_said"], tenant="b") == {}


async def test_an_item_that_several_runs_hold_is_found_until_the_last_of_them_is_gone(store: Store) -> None:
    for id in ("a", "b"):
        await ended(store, id, "hi")
    for id in ("b", "a"):
        assert await store.items(["msg_0"]) == {"msg_0": assistant("hi", id="msg_0")}
        await store.delete(id)
    assert await store.items(["msg_0"]) == {}


async def test_items_are_told_apart_however_odd_their_ids(store: Store) -> None:
    items = [user(id, id=id) for id in ("\0", "\0a", "a\0", "a\0b", "%", "' OR 1=1", "\N{SNOWMAN}", "x" * 100_000)]
    snapshot = Snapshot(answer("a").response, tuple([Entry(item, "input") for item in items]))
    await store.append("a", [*begin("a"), *end(1)], snapshot)
    assert await store.items([item.id for item in items]) == {item.id: item for item in items}
    await store.delete("a")
    assert await store.items([item.id for item in items]) == {}


async def test_segments_of_many_runs_are_appended_at_once_and_each_has_its_own_outcome(store: Store) -> None:
    await store.append("old", begin("old"))
    segments = [
        Segment("a", [*begin("a"), *end(1)], answer("a", "hi"), [Note(b"{}")]),
        Segment("old", say(7, "too late")),
        Segment("old", say(1, "in time")),
        Segment("unstored", (), notes=[Note(b"{}", "call_1")]),
        Segment("b", begin("b")),
    ]
    first, late, *rest = await store.append_all(segments)
    assert isinstance(late, Superseded)
    assert [first, *rest] == [None] * 4
    assert await store.events("old") == [*begin("old"), *say(1, "in time")]
    assert (await store.load("a")).response == answer("a", "hi").response
    assert await store.list_unfinished() == ["old", "b"]
    assert [link.note.call for link in await store.audit()] == ["", "call_1"]
    with pytest.raises(NotFound):
        await store.load("unstored")
    await store.close()
    assert [type(error) for error in await store.append_all(segments[:2])] == [StoreError, StoreError]


async def test_runs_that_ended_before_a_time_are_pruned_and_no_others(store: Store) -> None:
    for place in range(250):
        id = f"r{place}"
        await store.append(id, [*begin(id, at=float(place)), *end(1, at=place + 0.5)], answer(id, "hi"), [Note(b"{}")])
    await store.append("open", begin("open", at=0.0))
    await store.append("late", [*begin("late", at=1.0), *end(1, at=500.0)], answer("late", "hi"))
    beside = [Document(RUN_METADATA, id, b"{}") for id in ("r7", "r240", "late")]
    assert await store.put([*beside, Document("other", "r7", b"{}")])
    pruned = 0
    while gone := (await store.prune(240.5, skip=["r8"])).count:
        pruned += gone
    assert pruned == 239
    pruned += (await store.prune(240.5)).count
    assert pruned == 240
    left = [run.id for run in (await store.list(limit=1000, newest_first=False)).runs]
    assert left == ["open", "late", *[f"r{place}" for place in range(240, 250)]]
    with pytest.raises(NotFound):
        await store.events("r7")
    await store.delete("late")
    assert [each.id for each in await store.documents(RUN_METADATA)] == ["r240"]
    assert [each.id for each in await store.documents("other")] == ["r7"]
    assert (await store.events("r240")) == [*begin("r240", at=240.0), *end(1, at=240.5)]
    assert len(await store.audit()) == 250
    assert await store.items(["msg_0"]) == {"msg_0": assistant("hi", id="msg_0")}


@pytest.mark.requirement("M9")
async def test_what_a_kept_run_continues_is_not_pruned(store: Store) -> None:
    async def add(id: str, parent: str | None, at: float) -> None:
        await store.append(id, [*begin(id, parent, at), *end(1, at=at)], answer(id, "hi"))

    for number in range(250):  # more than are deleted at once
        await add(f"long{number}", f"long{number - 1}" if number else None, 1.0)
    await add("root", None, 1.0)
    await add("branch", "root", 2.0)
    await add("twig", "root", 2.0)
    await add("new", "branch", 100.0)
    pruned = 0
    while gone := (await store.prune(50.0)).count:
        pruned += gone
    assert pruned == 251
    assert {run.id for run in (await store.list(limit=1000)).runs} == {"root", "branch", "new"}
    assert len(await store.history("new")) > 2
    await store.delete("new")
    assert await store.prune(50.0) == Pruned(2)


async def test_what_must_be_read_is_measured_before(store: Store) -> None:
    await ended(store, "a", "hi")
    await ended(store, "b", "hi " * 1000, parent="a")
    await store.put([Document("n", "top", b"12"), Document("n", "in", b"12345", parent="top")])
    assert await store.measure_documents("n", parent="top") == 5
    assert await store.measure_documents("n") == 2
    assert await store.measure_run("nobody") == await store.measure_history("nobody") == 0
    if store.is_durable:
        assert await store.measure_history("b") > await store.measure_history("a") > 0
        assert await store.measure_run("a") > 0
        await store.append("c", [*begin("c"), *say(1, *"x" * 100)])
        assert await store.measure_run("c") > 100 * RECORD_BYTES, "a record takes more memory than its text takes in the store"
        assert await store.measure_history("b", tenant="acme") == 0


async def test_a_log_is_followed_as_it_grows_until_it_ends(store: Store) -> None:
    await store.append("a", begin("a"))
    seen: list[Recorded] = []
    has_begun = asyncio.Event()

    async def follow() -> None:
        async for records in store.follow("a"):
            seen.extend(records)
            has_begun.set()

    following = asyncio.create_task(follow())
    await has_begun.wait()
    for seq in range(1, 5):
        await store.append("a", say(seq, f"word {seq}"))
    await store.append("a", end(5), answer("a", "hi"))
    async with asyncio.timeout(PATIENCE):
        await following
    assert seen == await store.events("a")
    assert [record.seq async for batch in store.follow("a", 3) for record in batch] == [4, 5]
    assert [batch async for batch in store.follow("a", 5)] == []
    with pytest.raises(NotFound):
        await anext(store.follow("nobody"))


async def test_moments_of_a_clock_that_counts_whole_seconds_come_back(store: Store) -> None:
    log = [replace(record, at=5 * int(record.at)) for record in (*begin("a"), *say(1, "b", "c"), *end(3))]
    await store.append("a", log[:2])
    await store.append("a", log[2:], answer("a", "bc"))
    assert await store.events("a") == log
