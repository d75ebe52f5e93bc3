"""`Idempotency-Key`: however often a request is sent, and whoever dies meanwhile, there is one run for it."""

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.kit.databases import database_in
from tests.kit.waiting import PATIENCE
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.core.errors import Superseded
from mainspring.core.events import ModelEvent
from mainspring.core.items import Json, ToolDefinition, encode
from mainspring.core.model_request import ModelRequest
from mainspring.core.run import Run
from mainspring.core.spec import RunSpec
from mainspring.engine.handle import Handle
from mainspring.http.faults import Fault
from mainspring.http.idempotency import GRACE, LIFE, RUN_KEY, IdempotentRuns, Reservation
from mainspring.parts import PartContents
from mainspring.ports import Document, OrderContext, OrderStep
from mainspring.providers.scripted import Scripted, call, calls, fail, say

pytestmark = pytest.mark.usefixtures("each_database")

BODY: Json = {"model": "scripted", "input": "hello"}


class Answer(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def body(self) -> Json:
        found: Json = json.loads(self.text)
        return found


class Client:
    def __init__(self, session: aiohttp.ClientSession, base_url: str) -> None:
        self._session, self._url = session, f"{base_url}/responses"

    async def post(self, key: str, body: Json = BODY) -> Answer:
        async with self._session.post(self._url, json=body, headers={"Idempotency-Key": key}) as answer:
            return Answer(answer.status, {name.lower(): value for name, value in answer.headers.items()}, await answer.text())

    async def leave_after_first_byte(self, key: str, body: Json) -> None:
        async with self._session.post(self._url, json=body, headers={"Idempotency-Key": key}) as answer:
            await answer.content.read(1)
            answer.close()


@asynccontextmanager
async def client_of(script: Scripted, folder: Path) -> AsyncIterator[Client]:
    async with (
        hosted(server(Engine(script, database=database_in(folder)))) as base_url,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        yield Client(session, base_url)


def model() -> Scripted:
    """Answers every run that says hello, and keeps what it was asked."""
    return Scripted(say("Hello there.", when="hello", pause=0))


def identified(text: str) -> set[str]:
    """The ids of the responses that a stream tells of."""
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return {event["response"]["id"] for event in events if "response" in event}


@pytest.mark.parametrize(
    "options", [{}, {"stream": True}, {"background": True}, {"store": False}, {"store": False, "stream": True}]
)
async def test_fifty_racing_duplicates_cause_one_run(tmp_path: Path, options: Json) -> None:
    script = model()
    answers: list[Answer] = []
    async with client_of(script, tmp_path) as client:

        async def send() -> None:
            answers.append(await client.post("one", BODY | options))

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(send)
        late = await client.post("one", BODY | options)
    assert [answer.status for answer in (*answers, late)] == [200] * 51
    if options.get("stream"):
        assert len({answer.text for answer in (*answers, late)}) == 1
        assert len(identified(late.text)) == 1
    else:
        assert len({answer.body["id"] for answer in (*answers, late)}) == 1
    assert len(script.requests) == 1


async def test_the_same_key_with_another_body_is_a_conflict(tmp_path: Path) -> None:
    script = model()
    async with client_of(script, tmp_path) as client:
        first = await client.post("one")
        other = await client.post("one", BODY | {"input": "hello again"})
        assert (other.status, other.body["error"]["code"]) == (409, "idempotency_key_reused")
        assert other.headers["x-should-retry"] == "false"
        assert (await client.post("one")).body == first.body
    assert len(script.requests) == 1


async def test_another_key_is_another_run(tmp_path: Path) -> None:
    script = model()
    async with client_of(script, tmp_path) as client:
        assert (await client.post("one")).body["id"] != (await client.post("two")).body["id"]
    assert len(script.requests) == 2


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"background": True, "stream": True}])
async def test_after_a_restart_the_response_is_returned_and_not_made_again(tmp_path: Path, options: Json) -> None:
    async with client_of(model(), tmp_path) as client:
        first = await client.post("one", BODY | options)
    script = model()
    async with client_of(script, tmp_path) as client:
        again = await client.post("one", BODY | options)
    assert (again.status, again.text) == (200, first.text)
    assert script.requests == []


async def test_what_was_not_stored_cannot_be_shown_after_a_restart(tmp_path: Path) -> None:
    async with client_of(model(), tmp_path) as client:
        await client.post("one", BODY | {"store": False})
    async with client_of(Scripted(), tmp_path) as client:
        again = await client.post("one", BODY | {"store": False})
        assert (again.status, again.body["error"]["code"]) == (409, "idempotency_response_gone")


async def test_a_client_that_was_cut_off_comes_back_to_its_response(tmp_path: Path) -> None:
    script = Scripted(say("A rather long answer to your hello.", when="hello", pause=0.001))
    async with client_of(script, tmp_path) as client:
        await client.leave_after_first_byte("one", BODY | {"stream": True})
        again = await client.post("one", BODY | {"stream": True})
    assert "response.completed" in again.text
    assert len(script.requests) == 1


async def test_a_refused_request_gives_its_key_back(tmp_path: Path) -> None:
    async with client_of(model(), tmp_path) as client:
        refused = await client.post("one", BODY | {"previous_response_id": "resp_0"})
        assert (refused.status, refused.body["error"]["code"]) == (400, "previous_response_not_found")
        assert (await client.post("one")).status == 200


@pytest.mark.parametrize("options", [{}, {"stream": True}, {"store": False}, {"store": False, "stream": True}])
async def test_a_run_that_failed_before_it_said_anything_gives_its_key_back(tmp_path: Path, options: Json) -> None:
    script = Scripted(fail("rate_limit_exceeded"), say("Hello there."))
    async with client_of(script, tmp_path) as client:
        failed = await client.post("one", BODY | options)
        done = await client.post("one", BODY | options)
        again = await client.post("one", BODY | options)
    assert "rate_limit_exceeded" in failed.text
    assert "Hello there." in done.text
    assert (again.status, again.text) == (200, done.text)
    assert len(script.requests) == 2


async def test_a_failure_is_tried_again_after_a_restart_too(tmp_path: Path) -> None:
    async with client_of(Scripted(fail("rate_limit_exceeded")), tmp_path) as client:
        assert (await client.post("one")).status == 429
    async with client_of(model(), tmp_path) as client:
        assert (await client.post("one")).status == 200


async def test_a_failure_in_the_background_gives_its_key_back_once_it_has_ended(tmp_path: Path) -> None:
    async with process(Scripted(fail("rate_limit_exceeded"), say("Hello there.")), tmp_path) as engine:
        idempotency = IdempotentRuns(engine.core)
        failed = await idempotency.start(order("resp_1", background=True), "one", b"{}", is_followed=False)
        await failed.wait()
        done = await idempotency.start(order("resp_2", background=True), "one", b"{}", is_followed=False)
        assert (done.id, (await done.wait()).text) == ("resp_2", "Hello there.")


async def test_a_run_that_failed_after_its_tool_had_run_keeps_its_key(tmp_path: Path) -> None:
    stamps: list[str] = []

    def stamp() -> str:
        """Stamps a paper."""
        stamps.append("stamped")
        return "done"

    script = Scripted(calls(call("stamp")), fail("rate_limit_exceeded"))
    engine = Engine(script, tools=[stamp], database=database_in(tmp_path))
    async with hosted(server(engine)) as base_url, aiohttp.ClientSession() as session:
        client = Client(session, base_url)
        failed, again = await client.post("one"), await client.post("one")
    assert (failed.status, failed.body["status"]) == (200, "failed")
    assert again.text == failed.text
    assert stamps == ["stamped"]


class Busy(Scripted):
    """Counts how many it answers at once."""

    busy = most_busy = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        self.busy += 1
        self.most_busy = max(self.busy, self.most_busy)
        try:
            async for event in super().stream(request):
                yield event
        finally:
            self.busy -= 1


async def test_racing_duplicates_of_what_fails_cause_one_run_at_a_time(tmp_path: Path) -> None:
    script = Busy(fail("rate_limit_exceeded"), fail("rate_limit_exceeded"), say("Hello there."))
    statuses: list[int] = []
    async with client_of(script, tmp_path) as client:

        async def send() -> None:
            statuses.append((await client.post("one")).status)

        async with anyio.create_task_group() as group:
            for _ in range(50):
                group.start_soon(send)
        with anyio.fail_after(PATIENCE):
            while statuses[-1] == 429:
                await send()
    assert set(statuses) <= {200, 429}
    assert (len(script.requests), script.most_busy) == (3, 1)


@pytest.mark.parametrize("key", ["", "x" * 256], ids=["empty", "long"])
async def test_a_key_that_is_none_is_refused(tmp_path: Path, key: str) -> None:
    async with client_of(Scripted(), tmp_path) as client:
        assert (await client.post(key)).status == 400


class Now:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.at = 1_000_000.0

    def __call__(self) -> float:
        return self.at


@asynccontextmanager
async def process(script: Scripted, folder: Path) -> AsyncIterator[Engine]:
    """What another process would have: an engine and a connection of its own to the same file."""
    async with Engine(script, database=database_in(folder)) as engine:
        yield engine


def order(id: str, text: str = "hello", **options: Any) -> RunSpec:
    return replace(Engine(Scripted()).order(text, **options), id=id)


async def reserved(engine: Engine, id: str, at: float, key: str = "one", body: bytes = b"{}") -> None:
    """The reservation of a process that has not got any further."""
    held = Reservation(sha256(body).hexdigest(), at, id)
    assert await engine.store.put([Document(RUN_KEY, sha256(f"\0{key}".encode()).hexdigest(), encode(held))], if_absent=True)


async def test_duplicates_that_race_in_two_processes_cause_one_run(tmp_path: Path) -> None:
    left, right = model(), model()
    runs: list[Run] = []

    async def send(idempotency: IdempotentRuns, id: str) -> None:
        runs.append(await (await idempotency.start(order(id), "one", b"{}")).wait())

    async with process(left, tmp_path) as one, process(right, tmp_path) as two, anyio.create_task_group() as group:
        both = [IdempotentRuns(one.core), IdempotentRuns(two.core)]
        for number in range(50):
            group.start_soon(send, both[number % 2], f"resp_{number}")
    assert len(left.requests) + len(right.requests) == 1
    assert len({run.spec.id for run in runs}) == 1
    assert [run.text for run in runs] == ["Hello there."] * 50


async def test_a_run_in_another_process_is_waited_for_by_those_who_follow_it(tmp_path: Path) -> None:
    async with (
        process(Scripted(calls(call("wait"), when="hello"), say("Hi.")), tmp_path) as one,
        process(Scripted(), tmp_path) as two,
    ):
        handle = await IdempotentRuns(one.core).start(
            order("resp_1", tools=[ToolDefinition("wait")], background=True), "one", b"{}"
        )
        seen = await IdempotentRuns(two.core).start(order("resp_2", background=True), "one", b"{}", is_followed=False)
        assert seen.id == "resp_1"
        followed = await IdempotentRuns(two.core).start(order("resp_3"), "one", b"{}")
        assert await followed.wait() == await handle.wait()


async def test_everybody_who_follows_a_run_in_another_process_waits_for_its_end(tmp_path: Path) -> None:
    gate = anyio.Event()

    async def hold() -> str:
        """Waits."""
        await gate.wait()
        return "done"

    script = Scripted(calls(call("hold")), say("Hi."))
    async with (
        Engine(script, tools=[hold], database=database_in(tmp_path)) as one,
        process(Scripted(), tmp_path) as two,
    ):
        await IdempotentRuns(one.core).start(order("resp_1", tools=one.definitions), "one", b"{}")
        elsewhere, statuses = IdempotentRuns(two.core), []

        async def follow(id: str) -> None:
            statuses.append((await (await elsewhere.start(order(id), "one", b"{}")).wait()).status)

        async with anyio.create_task_group() as group:
            for number in range(2, 5):
                group.start_soon(follow, f"resp_{number}")
            await anyio.wait_all_tasks_blocked()
            gate.set()
    assert statuses == ["completed"] * 3


async def test_a_reservation_whose_run_is_about_to_start_is_waited_for(tmp_path: Path) -> None:
    async with process(model(), tmp_path) as one, process(Scripted(), tmp_path) as two:
        await reserved(one, "resp_1", at=time.time())
        joined: list[Handle] = []

        async def join() -> None:
            joined.append(await IdempotentRuns(two.core).start(order("resp_2"), "one", b"{}"))

        async with anyio.create_task_group() as group:
            group.start_soon(join)
            await anyio.wait_all_tasks_blocked()
            assert joined == []
            await one.start(order("resp_1"))
        assert (joined[0].id, joined[0].run.text) == ("resp_1", "Hello there.")


async def test_a_reservation_whose_process_died_is_taken_over_under_the_same_id(tmp_path: Path) -> None:
    script, now = model(), Now()
    async with process(script, tmp_path) as engine:
        await reserved(engine, "resp_1", at=now.at)
        now.at += GRACE + 1
        idempotency = IdempotentRuns(engine.core, now)
        runs: list[Run] = []

        async def send(id: str) -> None:
            runs.append(await (await idempotency.start(order(id), "one", b"{}")).wait())

        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(send, f"resp_{number + 2}")
    assert {run.spec.id for run in runs} == {"resp_1"}
    assert len(script.requests) == 1


async def test_should_the_dead_wake_up_one_of_them_gets_the_log(tmp_path: Path) -> None:
    now = Now()
    async with process(model(), tmp_path) as one, process(model(), tmp_path) as two:
        await reserved(one, "resp_1", at=now.at - GRACE - 1)
        await (await IdempotentRuns(two.core, now).start(order("resp_2"), "one", b"{}")).wait()
        with pytest.raises(Superseded):
            await (await one.start(order("resp_1"))).wait()
        assert len((await one.store.list()).runs) == 1


@pytest.mark.parametrize("ends", ["loses its run", "is stopped"])
async def test_one_that_was_taken_for_dead_leaves_the_key_to_the_run_that_began(tmp_path: Path, ends: str) -> None:
    is_frozen, goes_on, now = anyio.Event(), anyio.Event(), Now()

    class Freezes(OrderStep):
        name = "freezes"

        async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
            is_frozen.set()
            await goes_on.wait()
            return order

    frozen = Engine(model(), database=database_in(tmp_path), parts=[PartContents(steps=(Freezes(),))])
    async with frozen as one, process(model(), tmp_path) as two:

        async def send() -> None:
            with suppress(Superseded):
                await IdempotentRuns(one.core, now).start(order("resp_1", background=True), "one", b"{}")
                pytest.fail("the log has two writers")

        async with anyio.create_task_group() as group:
            group.start_soon(send)
            await is_frozen.wait()
            now.at += GRACE + 1
            elsewhere = IdempotentRuns(two.core, now)
            assert (await elsewhere.start(order("resp_2", background=True), "one", b"{}")).id == "resp_1"
            if ends == "is stopped":
                group.cancel_scope.cancel()
            goes_on.set()
        assert (await elsewhere.start(order("resp_3"), "one", b"{}")).id == "resp_1"
        assert len((await two.store.list()).runs) == 1


async def test_keys_are_good_for_a_day_and_forgotten_after_it(tmp_path: Path) -> None:
    script, now = model(), Now()
    async with process(script, tmp_path) as engine:
        idempotency = IdempotentRuns(engine.core, now)
        for number in range(3):
            await (await idempotency.start(order(f"resp_{number}"), f"key {number}", b"{}")).wait()
        now.at += LIFE
        assert (await idempotency.start(order("resp_8"), "key 0", b"{}")).id == "resp_0"
        now.at += 1
        assert (await idempotency.start(order("resp_9"), "key 0", b"[]")).id == "resp_9"
        assert len(await engine.store.documents(RUN_KEY)) == 1


async def test_a_deleted_response_frees_its_key(tmp_path: Path) -> None:
    now = Now()
    async with process(model(), tmp_path) as engine:
        idempotency = IdempotentRuns(engine.core, now)
        await (await idempotency.start(order("resp_1"), "one", b"{}")).wait()
        await engine.forget("resp_1")
        now.at += GRACE + 1
        assert (await (await idempotency.start(order("resp_2"), "one", b"{}")).wait()).text == "Hello there."


async def test_a_key_belongs_to_its_tenant(tmp_path: Path) -> None:
    async with process(model(), tmp_path) as engine:
        idempotency = IdempotentRuns(engine.core)
        for id, tenant in (("resp_1", ""), ("resp_2", "acme")):
            assert (await idempotency.start(order(id, tenant=tenant), "one", tenant.encode())).id == id
        with pytest.raises(Fault, match="another request body"):
            await idempotency.start(order("resp_3", tenant="acme"), "one", b"")
