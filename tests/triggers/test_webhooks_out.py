"""Webhooks out: who is told of ended runs and waiting approvals, by a real receiver on loopback."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web
from openai import OpenAI
from openai.types.webhooks import ResponseCompletedWebhookEvent
from tests.agents.world import engine_of, look, write
from tests.agents.world import written as agent
from tests.kit.waiting import PATIENCE
from tests.workflows.world import engine_for

from mainspring import Engine
from mainspring.core.errors import NotFound
from mainspring.core.items import encode
from mainspring.features.prompts.prompts import PromptContent
from mainspring.features.triggers.deliveries import Deliverer
from mainspring.features.triggers.outbox import DEAD, DELIVERY, Delivery, EventType, load_outbox
from mainspring.features.triggers.targets import Targets
from mainspring.features.triggers.webhook_endpoints import Endpoints
from mainspring.http.auth import Keys
from mainspring.ports import Ask, Document, Store
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard

ALL: tuple[EventType, ...] = (
    "response.completed",
    "response.failed",
    "response.incomplete",
    "response.cancelled",
    "approval.requested",
    "workflow.completed",
    "workflow.failed",
    "workflow.cancelled",
)


PROMPTED = """
name: prompted
inputs: {prompt: {type: string}}
steps: [{id: s, action: invoke-agent, agent: "{{ inputs.prompt }}", inputs: {topic: tides}}]
"""
FAILING = "name: failing\nsteps: [{id: s, action: validate, value: 1, schema: {const: 2}}]"


class Receiver:
    """Keeps what it is sent, and answers with `status`; at `/slow` it never answers."""

    def __init__(self) -> None:
        self.status, self.url = 200, ""
        self.messages: list[tuple[str, dict[str, str], bytes]] = []
        self.came = asyncio.Condition()

    async def take(self, request: web.Request) -> web.Response:
        if request.path == "/slow":
            await asyncio.Event().wait()
        async with self.came:
            self.messages.append(
                (request.path, {name.lower(): value for name, value in request.headers.items()}, await request.read())
            )
            self.came.notify_all()
        return web.Response(status=self.status)

    async def wait(self, count: int) -> None:
        with anyio.fail_after(PATIENCE):
            async with self.came:
                await self.came.wait_for(lambda: len(self.messages) >= count)


@asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    receiver, app = Receiver(), web.Application()
    app.router.add_post("/{path}", receiver.take)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


class World:
    """An engine with endpoints, and a deliverer that tries again at once."""

    def __init__(self, engine: Engine, allowed: tuple[str, ...] = ("127.0.0.1",)) -> None:
        self.engine, self.keys = engine, Keys(engine.store)
        self.endpoints = Endpoints(engine.store, engine.outbox, engine.core.new_id)
        targets = Targets(engine.agents, engine.workflows, self.keys)
        self.outcomes: list[str] = []
        self.deliverer = Deliverer(
            engine.store,
            engine.core.presence,
            engine.outbox,
            self.endpoints,
            targets,
            AddressGuard(allowed),
            count=self.outcomes.append,
            first_pause=0.001,
            most_attempts=3,
        )

    @asynccontextmanager
    async def delivering(self) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(self.deliverer.run)
            yield
            group.cancel_scope.cancel()

    async def wait_for(self, kind: str, endpoint: str, count: int, tenant: str = "") -> None:
        with anyio.fail_after(PATIENCE):
            while len(await self.engine.store.documents(kind, tenant=tenant, parent=endpoint)) != count:  # noqa: ASYNC110
                await anyio.sleep(0.01)


class _Asks:
    name = "asks"
    never_waits = True

    async def judge(self, call: Any, run: Any) -> Any:
        return Ask("may it?")


@pytest.fixture
async def world(tmp_path: Path, each_store: Store) -> AsyncIterator[World]:
    agent(tmp_path, "noter")
    engine, _ = engine_of(tmp_path, *[say("noted")] * 9, store=each_store)
    async with engine:
        yield World(engine)


async def test_the_end_of_a_run_is_told_as_the_sdk_of_openai_reads_it(world: World, receiver: Receiver) -> None:
    endpoint = await world.endpoints.create("", f"{receiver.url}/in", ALL)
    async with world.delivering():
        run = await world.engine.run("hello")
        await receiver.wait(1)
        await world.wait_for(DELIVERY, endpoint.id, 0)
    _, headers, body = receiver.messages[0]
    event = OpenAI(api_key="none").webhooks.unwrap(body, headers, secret=endpoint.secret)
    assert isinstance(event, ResponseCompletedWebhookEvent)
    assert (event.data.id, event.object) == (run.spec.id, "event")
    assert (len(receiver.messages), world.outcomes) == (1, ["delivered"])


async def test_the_ends_of_workflows_are_told_and_a_prompt_is_a_step(tmp_path: Path, receiver: Receiver) -> None:
    script = Scripted(say("Hushed."), say("noted"))
    engine = engine_for(tmp_path, PROMPTED, FAILING, model=script)
    async with engine:
        made = await engine.agents.prompts.create("", PromptContent(instructions="Whisper of {{ topic }}."))
        world = World(engine)
        await world.endpoints.create("", f"{receiver.url}/in", ("workflow.completed", "workflow.failed", "workflow.cancelled"))
        async with world.delivering():
            whole = await engine.workflows.run("prompted", {"prompt": made.id})
            failed = await engine.workflows.run("failing")
            await engine.workflows.run("failing", dry_run=True)
            lost = await engine.workflows.run("prompted", {"prompt": "pmpt_none"})
            await receiver.wait(3)
    assert "Whisper of tides." in str(script.requests[0].instructions)
    told = [json.loads(body) for _, _, body in receiver.messages]
    ends = {(event["type"], event["data"]["id"], event["data"]["status"]) for event in told}
    assert ends == {
        ("workflow.completed", whole.id, "success"),
        ("workflow.failed", failed.id, "failed"),
        ("workflow.failed", lost.id, "failed"),
    }


async def test_only_wanted_events_of_the_own_tenant_are_told_and_none_of_what_is_not_stored(world: World) -> None:
    failures = await world.endpoints.create("", "http://127.0.0.1:9/x", ("response.failed",))
    other = await world.endpoints.create("acme", "http://127.0.0.1:9/x", ALL)
    mine = await world.endpoints.create("", "http://127.0.0.1:9/x", ALL)
    await world.engine.run("hello")
    await world.engine.run("hello", store=False)
    counts = [
        len(await world.endpoints.list_deliveries(*key, dead=False))
        for key in (("", failures.id), ("acme", other.id), ("", mine.id))
    ]
    assert counts == [0, 0, 1]
    with pytest.raises(NotFound):
        await world.endpoints.get("", other.id)
    await world.endpoints.remove("", mine.id)
    await world.engine.run("hello")
    assert await world.engine.store.documents(DELIVERY, parent=mine.id) == []


async def test_a_call_that_waits_for_a_person_is_told(tmp_path: Path, receiver: Receiver) -> None:
    engine, _ = engine_of(tmp_path, call("write", text="x"), tools=[look, write], policies={"custom": (_Asks(),)})
    async with engine:
        world = World(engine)
        await world.endpoints.create("", f"{receiver.url}/in", ("approval.requested",))
        async with world.delivering():
            run = await engine.run("hello")
            await receiver.wait(1)
    _, _, body = receiver.messages[0]
    assert f'"response_id":"{run.spec.id}","tool":"write"' in body.decode()


async def test_a_failed_delivery_is_tried_again_then_a_dead_letter_and_delivered_on_demand(
    world: World, receiver: Receiver
) -> None:
    receiver.status = 500
    endpoint = await world.endpoints.create("", f"{receiver.url}/in", ALL)
    async with world.delivering():
        await world.engine.run("hello")
        await world.wait_for(DEAD, endpoint.id, 1)
        assert (len(receiver.messages), world.outcomes) == (3, ["failed", "failed", "dead"])
        letter = (await world.endpoints.list_deliveries("", endpoint.id, dead=True))[0]
        assert (letter.attempts, "500" in letter.error) == (3, True)
        receiver.status = 204
        await world.endpoints.redeliver("", endpoint.id, letter.id)
        await world.wait_for(DELIVERY, endpoint.id, 0)
        await receiver.wait(4)
    assert len({headers["webhook-id"] for _, headers, _ in receiver.messages}) == 1
    assert await world.endpoints.list_deliveries("", endpoint.id, dead=True) == []


async def test_a_new_event_is_tried_at_once_however_many_wait_for_another_attempt(world: World, receiver: Receiver) -> None:
    endpoint = await world.endpoints.create("", f"{receiver.url}/in", ALL)
    later = await world.engine.store.read_clock() + 3600
    waiting = [Delivery(f"evt_{number}", "response.failed", 0.0, {"id": "x"}, 1, later) for number in range(250)]
    await world.engine.store.put([Document(DELIVERY, each.id, encode(each), "", endpoint.id) for each in waiting])
    async with world.delivering():
        for count in (1, 2):
            await world.engine.run("hello")
            await receiver.wait(count)
            await world.wait_for(DELIVERY, endpoint.id, len(waiting))


async def test_dead_letters_are_bounded_in_number_and_age(world: World, receiver: Receiver) -> None:
    receiver.status = 500
    endpoint = await world.endpoints.create("", f"{receiver.url}/in", ALL)
    now = await world.engine.store.read_clock()
    ages = [*[0.0] * 500, 31.0, 29.0, *[0.0] * 498]
    letters = [
        Delivery(f"evt_{place}", "response.failed", 0.0, {"id": "x"}, 3, now - days * 86_400) for place, days in enumerate(ages)
    ]
    await world.engine.store.put([Document(DEAD, each.id, encode(each), "", endpoint.id) for each in letters])
    async with world.delivering():
        await world.engine.run("hello")
        await world.wait_for(DEAD, endpoint.id, 999)
    kept = {document.id for document in await world.engine.store.documents(DEAD, parent=endpoint.id)}
    assert {each.id for each in letters} - kept == {"evt_0", "evt_500"}


async def test_a_slow_receiver_holds_up_no_other(world: World, receiver: Receiver) -> None:
    slow = await world.endpoints.create("", f"{receiver.url}/slow", ALL)
    await world.endpoints.create("", f"{receiver.url}/in", ALL)
    async with world.delivering():
        await world.engine.run("one")
        await world.engine.run("two")
        await receiver.wait(2)
        assert len(await world.endpoints.list_deliveries("", slow.id, dead=False)) == 2
    assert {path for path, *_ in receiver.messages} == {"/in"}


async def test_an_address_that_is_not_public_is_never_asked(world: World, receiver: Receiver) -> None:
    guarded = World(world.engine, allowed=())
    endpoint = await guarded.endpoints.create("", f"{receiver.url}/in", ALL)
    async with guarded.delivering():
        await guarded.engine.run("hello")
        await guarded.wait_for(DEAD, endpoint.id, 1)
    assert receiver.messages == []


async def test_the_endpoint_of_a_revoked_key_stops_and_says_so(world: World, receiver: Receiver) -> None:
    id = (await world.keys.create(tenant="acme")).split("_")[1]
    endpoint = await world.endpoints.create("acme", f"{receiver.url}/in", ALL, f"key:{id}")
    await world.keys.revoke(id)
    async with world.delivering():
        await world.engine.run("hello", tenant="acme")
        await world.wait_for(DEAD, endpoint.id, 1, "acme")
    assert id in (await world.endpoints.get("acme", endpoint.id)).stopped
    assert receiver.messages == []
    await world.engine.run("hello", tenant="acme")
    assert await world.endpoints.list_deliveries("acme", endpoint.id, dead=False) == []


async def test_a_new_secret_signs_beside_the_old_one(world: World, receiver: Receiver) -> None:
    endpoint = await world.endpoints.create("", f"{receiver.url}/in", ALL)
    rotated = await world.endpoints.rotate("", endpoint.id, 3600)
    async with world.delivering():
        await world.engine.run("hello")
        await receiver.wait(1)
    _, headers, body = receiver.messages[0]
    for secret in (endpoint.secret, rotated.secret):
        OpenAI(api_key="none").webhooks.unwrap(body, headers, secret=secret)


async def test_two_processes_deliver_each_event_once_and_one_takes_up_what_the_other_left(
    tmp_path: Path, location: Any, receiver: Receiver
) -> None:
    agent(tmp_path, "noter")
    async with AsyncExitStack() as stack:
        engines = [engine_of(tmp_path, *[say("noted")] * 9, database=location)[0] for _ in range(2)]
        first, second = [World(await stack.enter_async_context(engine)) for engine in engines]
        endpoint = await first.endpoints.create("", f"{receiver.url}/in", ALL)
        await load_outbox(second.engine.store, second.engine.outbox)
        await second.engine.run("nobody delivers this here")
        async with first.delivering(), second.delivering():
            for world in (first, second):
                world.engine.outbox.wake(("", endpoint.id))
            for world in (first, second, first):
                await world.engine.run("hello")
            await receiver.wait(4)
            await first.wait_for(DELIVERY, endpoint.id, 0)
        assert len({headers["webhook-id"] for _, headers, _ in receiver.messages}) == len(receiver.messages) == 4
