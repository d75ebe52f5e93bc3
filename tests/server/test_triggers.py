"""Triggers at the door: real servers on one database, killed around a due time, and what keys may do."""

import time
from collections import Counter
from io import BytesIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.agents.world import written as agent
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, serving
from tests.triggers.test_webhooks_out import receiving

from mainspring.features.triggers.signatures import sign_message

SETTINGS = 'agents = ["agents"]\nworkflows = ["flows"]\nallow_hosts = ["127.0.0.1"]\n'
FLOW = """
name: digest
inputs: {topic: {type: string, required: true}}
steps:
  - {id: loud, action: transform, value: "{{ inputs.topic | upper }}"}
outputs: {text: "{{ steps.loud.output }}"}
"""
SCRIPT: Script = [{"say": "noted"}]


def prepared(folder: Path) -> Path:
    (folder / "flows").mkdir()
    (folder / "flows" / "digest.yaml").write_text(FLOW)
    agent(folder / "agents", "noter", inputs={"topic": {"required": True}})
    (folder / "mainspring.toml").write_text(SETTINGS)
    return folder


async def answer(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> tuple[int, Any]:
    async with http.request(method, url, **options) as response:
        return response.status, await response.json()


async def firings(http: aiohttp.ClientSession, url: str, name: str, count: int) -> list[dict[str, Any]]:
    """The recent firings of a schedule, once there are so many."""
    with anyio.fail_after(PATIENCE):
        while True:
            _, shown = await answer(http, "GET", f"{url}/schedules/{name}")
            if len(shown["recent"]) >= count:
                return list(shown["recent"])
            await anyio.sleep(0.05)


@pytest.mark.slow
async def test_each_due_time_is_fired_once_by_two_servers_of_which_one_is_killed(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = prepared(tmp_path)
    with serving(folder, SCRIPT) as first, serving(folder, SCRIPT) as second:
        every_second = {"every": "1s", "overlap": "allow", "missed": "all", "inputs": {"topic": "tides"}}
        for body in ({"name": "agents", "agent": "noter"}, {"name": "flows", "workflow": "digest"}):
            status, made = await answer(http, "POST", f"{first.url}/schedules", json={**body, **every_second})
            assert (status, made["state"]) == (200, "active"), made
        await firings(http, second.url, "agents", 2)
        first.kill()
        killed_at = time.time()
        with anyio.fail_after(PATIENCE):
            while (await firings(http, second.url, "agents", 2))[-1]["due"] < killed_at + 3:  # noqa: ASYNC110
                await anyio.sleep(0.1)
        for name in ("agents", "flows"):
            status, paused = await answer(http, "POST", f"{second.url}/schedules/{name}/pause")
            assert (status, paused["state"]) == (200, "paused")
            times = [each["due"] for each in paused["recent"]]
            assert [later - earlier for earlier, later in pairwise(times)] == pytest.approx([1.0] * (len(times) - 1))
            assert {each["outcome"] for each in paused["recent"]} == {"started"}
            assert set(Counter([each["run_id"] for each in paused["recent"]]).values()) == {1}
        _, runs = await answer(http, "GET", f"{second.url}/workflows/digest/runs?limit=100")
        _, shown = await answer(http, "GET", f"{second.url}/schedules/flows")
        fired = {each["run_id"] for each in shown["recent"]}
        assert fired <= {run["id"] for run in runs["data"]}
        assert len(runs["data"]) == len(fired) or len(fired) == 20, "no due time has started more than one run"


@pytest.mark.slow
async def test_schedules_are_refused_with_the_field_at_fault_and_belong_to_their_tenant(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = prepared(tmp_path)
    with serving(folder, SCRIPT, env={"MAINSPRING_API_KEY": "operator"}) as served:
        url, operator = f"{served.url}/schedules", {"Authorization": "Bearer operator"}

        async def make_key(tenant: str, *scopes: str) -> dict[str, str]:
            body = {"tenant": tenant, "scopes": scopes}
            _, key = await answer(http, "POST", f"{served.url}/keys", json=body, headers=operator)
            return {"Authorization": f"Bearer {key['key']}", "id": key["id"]}

        acme, other = await make_key("acme", "triggers", "agents:invoke"), await make_key("other", "*")
        hourly = {"name": "hourly", "agent": "noter", "cron": "0 * * * *", "inputs": {"topic": "x"}}
        for change, status, param in (
            ({"inputs": {}}, 422, "inputs"),
            ({"inputs": {"topic": "x" * 65_536}}, 400, "inputs"),
            ({"inputs": {"topic": "x", "more": 1}}, 422, "inputs"),
            ({"agent": "nobody"}, 400, "agent"),
            ({"agent": "", "workflow": "digest"}, 403, "workflow"),
            ({"cron": "0 25 * * *"}, 400, "cron"),
            ({"timezone": "Moon"}, 400, "timezone"),
            ({"every": "5m"}, 400, "cron"),
            ({"name": "No"}, 400, "name"),
            ({"colour": "red"}, 400, "colour"),
        ):
            code, told = await answer(http, "POST", url, json=hourly | change, headers=acme)
            assert (code, told["error"]["param"]) == (status, param), told
        assert (await answer(http, "POST", url, json=hourly, headers=acme))[0] == 200
        assert (await answer(http, "POST", url, json=hourly, headers=acme))[0] == 409
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/run"), ("POST", "/pause")):
            assert (await answer(http, method, f"{url}/hourly{path}", headers=other))[0] == 404
        assert (await answer(http, "GET", url, headers=other))[1]["data"] == []
        hook = {"name": "notes", "agent": "noter", "mapping": {"topic": "/title"}}
        large = {"name": "notes", "agent": "noter", "inputs": {"topic": "x" * 65_536}}
        assert (await answer(http, "POST", f"{served.url}/webhooks", json=large, headers=acme))[0] == 400
        _, webhook = await answer(http, "POST", f"{served.url}/webhooks", json=hook, headers=acme)
        # Nobody starts what another key's triggers start who may not start it themselves.
        for weak in (await make_key("acme", "triggers"), await make_key("acme", "triggers", "workflows:run")):
            for path in ("schedules/hourly/run", "schedules/hourly/resume", f"webhooks/{webhook['id']}/rotate"):
                code, told = await answer(http, "POST", f"{served.url}/{path}", json={}, headers=weak)
                assert (code, told["error"]["code"]) == (403, "insufficient_scope")
        hourly["name"] = "shell"
        strong = await make_key("acme", "triggers", "agents:invoke", "tools:execute")
        assert (await answer(http, "POST", url, json=hourly, headers=strong))[0] == 200
        for method in ("", "/run"):
            assert (await answer(http, "POST", f"{url}/shell{method}", json=hourly, headers=acme))[0] == 403
        await answer(http, "DELETE", f"{served.url}/keys/{acme['id']}", headers=operator)
        again = await make_key("acme", "triggers", "agents:invoke")
        assert (await answer(http, "POST", f"{url}/hourly/run", headers=again))[0] == 200
        with anyio.fail_after(PATIENCE):
            while (shown := (await answer(http, "GET", f"{url}/hourly", headers=again))[1])["state"] != "stopped":  # noqa: ASYNC110
                await anyio.sleep(0.05)
        assert acme["id"] in shown["stopped"]
        assert (await answer(http, "POST", f"{url}/hourly/run", headers=again))[0] == 409


@pytest.mark.slow
async def test_schedules_of_a_folder_are_those_of_its_files(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    folder = prepared(tmp_path)
    (folder / "mainspring.toml").write_text(SETTINGS + 'schedules = ["schedules"]\n')
    (folder / "schedules").mkdir()
    file = folder / "schedules" / "soon.yaml"
    file.write_text("name: soon\nworkflow: digest\ninputs: {topic: tides}\nevery: 1s\noverlap: queue\n")
    with serving(folder, SCRIPT) as served:
        assert (await firings(http, served.url, "soon", 1))[0]["outcome"] == "started"
        status, told = await answer(http, "DELETE", f"{served.url}/schedules/soon")
        assert (status, told["error"]["code"]) == (409, "trigger_conflict")
        file.unlink()
        with anyio.fail_after(PATIENCE):
            while (await answer(http, "GET", f"{served.url}/schedules/soon"))[0] != 404:  # noqa: ASYNC110
                await anyio.sleep(0.05)


@pytest.mark.slow
async def test_messages_come_in_without_a_key_and_events_go_out_whichever_server_lives(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    folder = prepared(tmp_path)
    async with receiving() as receiver:
        with serving(folder, SCRIPT, env={"MAINSPRING_API_KEY": "operator"}) as first:
            operator = {"Authorization": "Bearer operator"}
            body = {"name": "notes", "agent": "noter", "mapping": {"topic": "/title"}}
            status, webhook = await answer(http, "POST", f"{first.url}/webhooks", json=body, headers=operator)
            assert status == 200
            _, listed = await answer(http, "GET", f"{first.url}/webhooks", headers=operator)
            assert [each["secret"] for each in listed["data"]] == [None]
            url = f"{first.url}/webhooks/{webhook['id']}/receive"

            async def send(message: bytes, id: str, secret: str = webhook["secret"]) -> tuple[int, Any]:
                return await answer(
                    http, "POST", url, data=BytesIO(message), headers=sign_message(secret, id, time.time(), message)
                )

            assert (await send(b"x" * (1024 * 1024 + 1), "large"))[0] == 413
            assert (await answer(http, "POST", url, data=b"{}"))[0] == 401
            assert (await send(b"{}", "forged", "whsec_AAAA"))[0] == 401
            assert (await send(b"{}", "empty"))[0] == 422
            sink = {"url": f"{receiver.url}/in", "events": ["response.completed"]}
            with serving(folder, SCRIPT, env={"MAINSPRING_API_KEY": "operator"}) as second:
                _, endpoint = await answer(http, "POST", f"{first.url}/webhook_endpoints", json=sink, headers=operator)
                receiver.status = 500
                status, taken = await send(b'{"title": "tides"}', "one")
                assert (status, taken["duplicate"]) == (200, False)
                await receiver.wait(1)
                first.kill()
                receiver.status = 200
                await receiver.wait(2)
                url = f"{second.url}/webhooks/{webhook['id']}/receive"
                assert (await send(b'{"title": "tides"}', "one"))[1] == {**taken, "duplicate": True}
        events = {message for _, _, message in receiver.messages}
        assert len(events) == 1
        assert taken["run_id"] in events.pop().decode()
        assert endpoint["secret"].startswith("whsec_")
    private = {"url": "http://127.0.0.1:1/", "events": ["response.failed"]}
    (folder / "mainspring.toml").write_text(SETTINGS.replace("127.0.0.1", "example.org"))
    with serving(folder, SCRIPT) as third:
        status, told = await answer(http, "POST", f"{third.url}/webhook_endpoints", json=private)
        assert (status, told["error"]["param"]) == (400, "url")
