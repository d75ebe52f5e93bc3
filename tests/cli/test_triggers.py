"""`mainspring schedules` and `mainspring webhooks` on a database."""

import json
from pathlib import Path

from tests.cli.command import Shell

from mainspring.core.ids import random_id
from mainspring.core.items import Json, encode
from mainspring.engine.engine import Engine
from mainspring.features.triggers.incoming import OWNER, WEBHOOK, IncomingWebhook, WebhookDefinition
from mainspring.features.triggers.outbox import DEAD, Delivery, Outbox
from mainspring.features.triggers.schedule import ScheduleDefinition
from mainspring.features.triggers.schedules import Schedules
from mainspring.features.triggers.signatures import make_secret
from mainspring.features.triggers.webhook_endpoints import Endpoints
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted
from mainspring.storage.sqlite_runs import SqliteStore


async def fill(file: Path) -> tuple[str, str]:
    """A database with a schedule, one of a file, a webhook, and an endpoint with a dead letter. Returns the ids of these."""
    async with SqliteStore(file) as store, Engine(Scripted(), store) as engine:
        schedules = Schedules(store, engine.presence, random_id)
        for name, of_file in (("a-schedule-with-quite-a-long-name", False), ("of-file", True)):
            definition = ScheduleDefinition(name=name, agent="noter", cron="30 2 1 1 *", timezone="America/St_Johns")
            await schedules.create("", definition, of_file=of_file)
        webhook = IncomingWebhook("wh_1", WebhookDefinition(name="notes", agent="noter"), make_secret(), 1.0)
        await store.put([Document(WEBHOOK, "wh_1", encode(webhook)), Document(OWNER, "wh_1", b"")])
        endpoint = await Endpoints(store, Outbox(store), random_id).create("", "https://example.org/in", ("response.failed",))
        letter = Delivery("evt_1", "response.failed", 1.0, {"id": "resp_1"}, 14, 2.0, "it answered with HTTP 500")
        await store.put([Document(DEAD, "evt_1", encode(letter), parent=endpoint.id)])
        return webhook.secret, endpoint.id


def parsed(out: str) -> list[Json]:
    return [json.loads(line) for line in out.splitlines()]


async def test_schedules_are_listed_in_80_columns_paused_run_and_removed(shell: Shell) -> None:
    await fill(shell.folder / "runs.db")
    name, database = "a-schedule-with-quite-a-long-name", ("--database", "runs.db")
    listed = shell.run("schedules", "list", *database)
    assert (listed.code, max([len(line) for line in listed.out.splitlines()]) <= 80) == (0, True), listed.out
    assert "01-01 02:30-03:30" in listed.out, "the next time in the zone of the schedule"
    assert "a-schedule-with-qui…  " in listed.out, "what is cut says so"
    assert shell.run("schedules", "run", name, *database).code == 0
    assert shell.run("schedules", "pause", name, *database).code == 0
    refused = shell.run("schedules", "run", name, *database)
    assert (refused.code != 0, "resume" in refused.err) == (True, True)
    shown = parsed(shell.run("schedules", "show", name, *database, "--json").out)[0]
    assert (shown["state"], [each["outcome"] for each in shown["recent"]]) == ("paused", ["skipped"])
    assert parsed(shell.run("schedules", "resume", name, *database, "--json").out)[0]["state"] == "active"
    assert shell.run("schedules", "remove", name, *database).code == 0
    kept = shell.run("schedules", "remove", "of-file", *database)
    assert (kept.code != 0, "file" in kept.err) == (True, True)
    assert [each["name"] for each in parsed(shell.run("schedules", "list", *database, "--json").out)] == ["of-file"]


async def test_webhooks_are_listed_without_secrets_rotated_redelivered_and_removed(shell: Shell) -> None:
    secret, endpoint = await fill(shell.folder / "runs.db")
    database = ("--database", "runs.db")
    listed = shell.run("webhooks", "list", *database)
    assert max([len(line) for line in listed.out.splitlines()]) <= 80
    everything = (
        listed.out + shell.run("webhooks", "list", *database, "--json").out + shell.run("webhooks", "show", "wh_1", *database).out
    )
    assert "whsec_" not in everything
    rotated = shell.run("webhooks", "rotate", "wh_1", *database).out.strip()
    assert (rotated.startswith("whsec_"), rotated != secret) == (True, True)
    letters = parsed(shell.run("webhooks", "deliveries", endpoint, *database, "--json").out)
    assert [(each["id"], each["state"], each["attempts"]) for each in letters] == [("evt_1", "dead", 14)]
    assert shell.run("webhooks", "redeliver", endpoint, "evt_1", *database).code == 0
    pending = parsed(shell.run("webhooks", "deliveries", endpoint, "--pending", *database, "--json").out)
    assert [(each["id"], each["attempts"]) for each in pending] == [("evt_1", 0)]
    for id in ("wh_1", endpoint):
        assert shell.run("webhooks", "remove", id, *database).code == 0
    gone = shell.run("webhooks", "show", "wh_1", *database)
    assert (gone.code != 0, "webhooks list" in gone.err) == (True, True)
