"""Webhooks in: signed, taken once, and what is not so is refused."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest
from tests.agents.world import engine_of
from tests.agents.world import written as agent

from mainspring import Engine
from mainspring.core.errors import CallerError, InvalidInputs, NotFound
from mainspring.features.triggers.incoming import (
    WEBHOOK,
    IncomingWebhook,
    MessageReused,
    ReceivedMessage,
    WebhookDefinition,
    Webhooks,
    find_value,
)
from mainspring.features.triggers.signatures import BadSignature, make_secret, sign_message
from mainspring.features.triggers.targets import Targets
from mainspring.http.auth import ApiCaller, Keys
from mainspring.http.faults import Fault
from mainspring.ports import Document, Store
from mainspring.providers.scripted import say

NOTES = WebhookDefinition(name="notes", agent="noter", mapping={"topic": "/issue/title"})
BODY = msgspec.json.encode({"issue": {"title": "tides"}})


class World:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.keys = engine, Keys(engine.store)
        self.webhooks = Webhooks(engine.store, Targets(engine.agents, engine.workflows, self.keys), engine.core.new_id)

    async def send(
        self, webhook: IncomingWebhook, body: bytes = BODY, id: str = "msg_1", *, secret: str = "", at: float | None = None
    ) -> ReceivedMessage:
        headers = sign_message(secret or webhook.secret, id, time.time() if at is None else at, body)
        head = await self.webhooks.open_message(headers)
        return await self.webhooks.receive(await self.webhooks.find_owner(webhook.id), webhook.id, head, body)


@pytest.fixture
async def world(tmp_path: Path, each_store: Store) -> AsyncIterator[World]:
    agent(tmp_path, "noter", inputs={"topic": {"required": True}})
    engine, _ = engine_of(tmp_path, *[say("noted")] * 9, store=each_store)
    async with engine:
        yield World(engine)


async def test_a_message_starts_one_run_with_inputs_of_its_body_however_often_it_comes(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    results: list[ReceivedMessage] = []

    async def send() -> None:
        results.append(await world.send(webhook))

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(send)
    results.append(await world.send(webhook, at=time.time() - 5))
    assert len({each.run_id for each in results}) == 1
    assert results[-1].duplicate
    runs = (await world.engine.store.list()).runs
    run = await (await world.engine.attach(results[0].run_id)).wait()
    assert (len(runs), run.status, run.spec.metadata) == (1, "completed", {"webhook": "notes"})
    assert "tides" in str(run.spec.input)


async def test_a_deleted_run_is_not_started_again_by_the_same_message(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    first = await world.send(webhook)
    await (await world.engine.attach(first.run_id)).wait()
    await world.engine.forget(first.run_id)
    assert await world.send(webhook) == ReceivedMessage(first.run_id, duplicate=True)
    assert (await world.engine.store.list()).runs == ()


async def test_what_is_not_signed_with_the_secret_or_too_old_is_refused(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    with pytest.raises(BadSignature) as caught:
        await world.send(webhook, secret=make_secret())
    assert caught.value.param == "webhook-signature"
    for late in (-301, 301):
        with pytest.raises(BadSignature) as caught:
            await world.send(webhook, at=time.time() + late)
        assert caught.value.param == "webhook-timestamp"
    headers = sign_message(webhook.secret, "msg_1", time.time(), BODY)
    head = await world.webhooks.open_message(headers)
    with pytest.raises(BadSignature):
        await world.webhooks.receive("", webhook.id, head, BODY + b" ")
    for name in headers:
        with pytest.raises(BadSignature):
            await world.webhooks.open_message({other: value for other, value in headers.items() if other != name})
    assert (await world.engine.store.list()).runs == ()


async def test_an_id_with_another_body_is_refused(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    await world.send(webhook)
    with pytest.raises(MessageReused):
        await world.send(webhook, msgspec.json.encode({"issue": {"title": "moon"}}))


async def test_a_message_without_what_is_needed_is_refused_and_may_come_again_with_it(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    for body, code in ((b"{}", "invalid_inputs"), (b"no json", "invalid_json")):
        with pytest.raises(CallerError) as caught:
            await world.send(webhook, body)
        assert caught.value.code == code
    assert not (await world.send(webhook)).duplicate


async def test_the_old_secret_is_good_for_as_long_as_was_said(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    rotated = await world.webhooks.rotate("", webhook.id, 3600)
    await world.send(webhook, id="old")
    await world.send(rotated, id="new")
    at_once = await world.webhooks.rotate("", webhook.id, 0)
    with pytest.raises(BadSignature):
        await world.send(rotated, id="newer")
    await world.send(at_once, id="newest")


async def test_inputs_that_the_agent_does_not_take_are_refused_when_it_is_made(world: World) -> None:
    for definition in (
        WebhookDefinition(name="notes", agent="noter"),
        WebhookDefinition(name="notes", agent="noter", mapping={"colour": ""}),
        WebhookDefinition(name="notes", agent="noter", inputs={"topic": "x"}, mapping={"topic": ""}),
    ):
        with pytest.raises(InvalidInputs) as caught:
            await world.webhooks.create(ApiCaller(), definition)
        assert caught.value.param == "inputs"


async def test_a_webhook_without_a_secret_is_not_there(world: World) -> None:
    webhook = await world.webhooks.create(ApiCaller(), NOTES)
    bare = msgspec.structs.replace(webhook, secret="")
    await world.engine.store.put([Document(WEBHOOK, webhook.id, msgspec.json.encode(bare))])
    assert await world.webhooks.list("") == []
    with pytest.raises(NotFound):
        await world.send(webhook, secret=make_secret())


async def test_the_webhook_of_a_revoked_key_says_so(world: World) -> None:
    id = (await world.keys.create(tenant="acme")).split("_")[1]
    webhook = await world.webhooks.create(ApiCaller("acme", ("*",), f"key:{id}"), NOTES)
    run = (await world.engine.attach((await world.send(webhook)).run_id)).run
    assert (run.spec.tenant, run.spec.caller.subject) == ("acme", f"key:{id}")
    await world.keys.revoke(id)
    with pytest.raises(Fault) as caught:
        await world.send(webhook, id="msg_2")
    assert caught.value.code == "trigger_stopped"


def test_pointers_lead_where_rfc_6901_says() -> None:
    sent = {"a/b": [10, {"~": "x"}], "": 0}
    assert find_value(sent, "") is sent
    assert [find_value(sent, pointer) for pointer in ("/a~1b/0", "/a~1b/1/~0", "/")] == [10, "x", 0]
    missing = find_value(sent, "/nothing")
    assert find_value(sent, "/a~1b/9") is missing
    assert find_value(sent, "/a~1b/0/deeper") is missing
