"""Runs that share a conversation: each finds what was there when it began, and adds its own when it ends."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.engine.test_engine import ASK_USER, SEARCH, search, searcher
from tests.kit.engine import RecordingExecutor, make_engine, make_order

from mainspring.core.conversation_items import CONVERSATION, ITEM
from mainspring.core.errors import (
    AlreadyInConversation,
    Interrupted,
    InvalidRequest,
    NotFound,
    PreviousNotFound,
    StoreError,
    Unavailable,
)
from mainspring.core.events import RunStarted
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Message, Unknown, decode, user
from mainspring.core.spec import Conversation, RunSpec
from mainspring.engine.engine import Engine
from mainspring.ports import CallContext, Document, Store, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, call, calls, fail, say, stall
from mainspring.storage.memory_runs import MemoryStore
from mainspring.storage.sqlite_runs import SqliteStore


@pytest.fixture
async def store(each_store: Store) -> Store:
    await each_store.put([Document(CONVERSATION, "conv_1", b"{}"), Document(CONVERSATION, "conv_1", b"{}", tenant="acme")])
    return each_store


class Waiting(RecordingExecutor):
    """Performs a call when it may."""

    def __init__(self) -> None:
        super().__init__(search)
        self.has_begun, self.may_end = anyio.Event(), anyio.Event()

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        self.has_begun.set()
        await self.may_end.wait()
        return await super().execute(call, context)


def engine_of(script: Scripted, store: Store, hands: RecordingExecutor | None = None) -> Engine:
    return make_engine(script, store, searcher() if hands is None else hands)


def order(id: str, *given: str | Item, **options: Any) -> RunSpec:
    items = tuple([user(item, id=f"msg_{id}_{place}") if isinstance(item, str) else item for place, item in enumerate(given)])
    return make_order(id, items, **{"tools": (SEARCH, ASK_USER), "conversation": Conversation("conv_1"), **options})


async def items(store: Store, tenant: str = "") -> list[Item]:
    return [decode(document.body, Item) for document in await store.documents(ITEM, tenant=tenant, parent="conv_1")]


def texts(found: list[Item]) -> list[str]:
    return [item.text if isinstance(item, Message) else type(item).__name__ for item in found]


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_run_finds_what_was_said_and_adds_its_own(store: Store, is_stored: bool) -> None:
    with Scripted(call("search", q="hats"), say("Floor 2."), say("You are welcome.")) as script:
        async with engine_of(script, store) as engine:
            await (await engine.start(order("resp_1", "Hats?", store=is_stored))).wait()
            run = await (await engine.start(order("resp_2", "Thanks.", store=is_stored))).wait()
            assert run.text == "You are welcome."
    told = ["Hats?", "FunctionCall", "FunctionCallOutput", "Floor 2.", "Thanks."]
    assert texts(list(script.requests[-1].items)) == told
    assert texts(await items(store)) == [*told, "You are welcome."]
    assert len((await store.list()).runs) == (2 if is_stored else 0)


async def test_a_run_stores_its_place_in_the_conversation_and_no_copy_of_it(store: Store) -> None:
    async with engine_of(Scripted(say("One."), say("Two.")), store) as engine:
        await (await engine.start(order("resp_1", "1?"))).wait()
        await (await engine.start(order("resp_2", "2?"))).wait()
    first, second = [(await store.events(id))[0].event for id in ("resp_1", "resp_2")]
    assert isinstance(first, RunStarted)
    assert isinstance(second, RunStarted)
    assert first.spec.conversation == Conversation("conv_1", 0)
    seen = (await store.documents(ITEM, parent="conv_1"))[1].number
    assert second.spec.conversation == Conversation("conv_1", seen)
    assert len(second.spec.input) == 1


STORED = """
    SELECT length(response) + length(entries) + (SELECT sum(length(body)) FROM segments WHERE run = number) FROM runs WHERE id = ?
"""


async def test_the_hundredth_response_of_a_conversation_takes_the_room_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteStore(path) as store:
        await store.put([Document(CONVERSATION, "conv_1", b"{}")])
        async with engine_of(Scripted(*[say("A rather long answer.")] * 100), store) as engine:
            for number in range(100, 200):
                await (await engine.start(order(f"resp_{number}", "Again?"))).wait()
        assert len(await items(store)) == 200
    with closing(sqlite3.connect(path)) as connection:
        first, last = [connection.execute(STORED, (id,)).fetchone()[0] for id in ("resp_100", "resp_199")]
    assert last - first < 50  # longer numbers


async def test_a_client_call_of_the_conversation_is_answered_by_the_next_request(store: Store) -> None:
    with Scripted(call("ask_user", q="?"), say("Thanks, 42.", expect="42")) as script:
        async with engine_of(script, store) as engine:
            paused = await (await engine.start(order("resp_1", "Go."))).wait()
            assert paused.status == "requires_action"
            [made] = [item for item in paused.output if isinstance(item, FunctionCall)]
            with pytest.raises(InvalidRequest, match=f"No tool output found for function call {made.call_id}"):
                await engine.start(order("resp_2", "Never mind."))
            answer = FunctionCallOutput(made.call_id, "42", id="fco_1")
            run = await (await engine.start(order("resp_3", answer))).wait()
    assert run.text == "Thanks, 42."
    assert texts(await items(store)) == ["Go.", "FunctionCall", "FunctionCallOutput", "Thanks, 42."]


async def test_of_two_runs_at_once_neither_sees_the_other_and_both_are_kept(store: Store) -> None:
    script = Scripted(calls(call("search"), when="left?"), say("There.", when="left?"), say("Here.", when="right?"))
    hands = Waiting()
    async with engine_of(script, store, hands) as engine:
        left = await engine.start(order("resp_1", "left?"))
        await hands.has_begun.wait()
        right = await (await engine.start(order("resp_2", "right?"))).wait()
        hands.may_end.set()
        assert ((await left.wait()).inherited, right.inherited) == (0, 0)
    assert texts(await items(store)) == ["right?", "Here.", "left?", "FunctionCall", "FunctionCallOutput", "There."]


async def test_a_resumed_run_sees_the_conversation_as_it_was(store: Store) -> None:
    async with engine_of(Scripted(say("Hello.")), store) as engine:
        await (await engine.start(order("resp_1", "Hi."))).wait()
    async with engine_of(Scripted(stall()), store) as engine:
        handle = await engine.start(order("resp_2", "Go on."))
        async for _ in handle.events():
            if handle.run.in_turn:
                break
    with pytest.raises(Interrupted):
        await handle.wait()
    await store.put([Document(ITEM, "msg_late", b'{"type":"message","role":"user","id":"msg_late"}', parent="conv_1")])
    script = Scripted(say("Fine."))
    async with engine_of(script, store) as engine:
        [resumed] = await engine.resume_all()
        await resumed.wait()
    assert texts(list(script.requests[0].items)) == ["Hi.", "Hello.", "Go on."]
    assert texts(await items(store)) == ["Hi.", "Hello.", "", "Go on.", "Fine."]


async def test_what_ended_can_be_read_when_its_conversation_is_gone(store: Store) -> None:
    async with engine_of(Scripted(call("ask_user", q="?"), say("Thanks.")), store) as engine:
        paused = await (await engine.start(order("resp_1", "Go."))).wait()
        [made] = [item for item in paused.output if isinstance(item, FunctionCall)]
        await (await engine.start(order("resp_2", FunctionCallOutput(made.call_id, "42", id="fco_1")))).wait()
        await store.remove(CONVERSATION, "conv_1")
        for id, text in (("resp_1", ""), ("resp_2", "Thanks.")):
            assert (await engine.attach(id)).run.text == text


@pytest.mark.parametrize("is_stored", [True, False])
async def test_a_run_whose_conversation_is_removed_ends_well_and_leaves_no_orphans(store: Store, is_stored: bool) -> None:
    async with engine_of(Scripted(say("A rather long answer.", pause=0)), store) as engine:
        handle = await engine.start(order("resp_1", "Go.", store=is_stored))
        await store.remove(CONVERSATION, "conv_1")
        assert (await handle.wait()).status == "completed"
    assert await items(store) == []


async def test_an_item_is_not_added_twice(store: Store) -> None:
    async with engine_of(Scripted(say("Hello.")), store) as engine:
        await (await engine.start(order("resp_1", "Hi."))).wait()
        with pytest.raises(AlreadyInConversation, match="msg_resp_1_0"):
            await engine.start(order("resp_2", user("Hi.", id="msg_resp_1_0")))


async def test_items_without_an_id_get_one(store: Store) -> None:
    async with engine_of(Scripted(say("Hm.")), store) as engine:
        await (await engine.start(order("resp_1", Unknown({"type": "x"}), user("Hi.")))).wait()
    assert [document.id for document in await store.documents(ITEM, parent="conv_1")][:2] == ["item_1_0", "item_1_1"]


async def test_a_run_goes_on_from_one_in_a_conversation_even_in_another_engine(store: Store) -> None:
    async with engine_of(Scripted(say("One."), say("Two.")), store) as engine:
        await (await engine.start(order("resp_1", "1?"))).wait()
        await (await engine.start(order("resp_2", "2?"))).wait()
    script = Scripted(say("Three."))
    async with engine_of(script, store) as engine:
        await (await engine.start(order("resp_3", "3?", conversation=None, parent="resp_2"))).wait()
    assert texts(list(script.requests[0].items)) == ["1?", "One.", "2?", "Two.", "3?"]
    assert len(await items(store)) == 4


async def test_a_conversation_belongs_to_its_tenant(store: Store) -> None:
    async with engine_of(Scripted(say("Hello."), say("Hello.")), store) as engine:
        await (await engine.start(order("resp_1", "Hi.", tenant="acme"))).wait()
        assert (len(await items(store, "acme")), len(await items(store))) == (2, 0)
        for stranger in (order("resp_2", "Hi.", tenant="other"), order("resp_2", "Hi.", conversation=Conversation("conv_2"))):
            with pytest.raises(NotFound, match=r"Conversation with id 'conv_.' not found") as caught:
                await engine.start(stranger)
            assert caught.value.param == "conversation"


async def test_a_run_of_another_tenant_cannot_be_continued_though_it_is_remembered(store: Store) -> None:
    async with engine_of(Scripted(say("Hello."), say("Again.")), store) as engine:
        await (await engine.start(order("resp_1", "Hi.", conversation=None, tenant="acme"))).wait()
        with pytest.raises(PreviousNotFound, match="'resp_1' not found"):
            await engine.start(order("resp_2", "Hi.", conversation=None, parent="resp_1"))
        follow = order("resp_2", "More.", conversation=None, parent="resp_1", tenant="acme")
        assert (await (await engine.start(follow)).wait()).text == "Again."
    assert (await store.load("resp_2")).tenant == "acme"


async def test_a_resumed_run_keeps_its_tenant(store: Store) -> None:
    async with engine_of(Scripted(stall()), store) as engine:
        await engine.start(order("resp_1", "Go.", tenant="acme", background=True))
    async with engine_of(Scripted(say("Done.")), store) as engine:
        [resumed] = await engine.resume_all()
        assert (await resumed.wait()).spec.tenant == "acme"
    assert texts(await items(store, "acme")) == ["Go.", "Done."]


async def test_a_run_that_failed_before_it_said_anything_leaves_nothing_and_can_be_sent_again(store: Store) -> None:
    async with engine_of(Scripted(fail(Unavailable("no model")), say("Hello.")), store) as engine:
        failed = await (await engine.start(order("resp_1", "Hi."))).wait()
        assert (failed.status, await items(store)) == ("failed", [])
        await (await engine.start(order("resp_1b", "Hi."))).wait()
    assert texts(await items(store)) == ["Hi.", "Hello."]


class Unwritable(MemoryStore):
    async def put(self, documents: object, *, if_absent: bool = False) -> bool:
        raise StoreError("the disk is full")


async def test_an_unstored_run_that_cannot_add_to_its_conversation_fails() -> None:
    store = Unwritable()
    await MemoryStore.put(store, [Document(CONVERSATION, "conv_1", b"{}")])
    async with engine_of(Scripted(say("Hello.")), store) as engine:
        run = await (await engine.start(order("resp_1", "Hi.", store=False))).wait()
    assert (run.status, run.error and run.error.message) == ("failed", "the disk is full")
