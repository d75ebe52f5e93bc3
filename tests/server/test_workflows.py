"""Workflows over HTTP: a real server process, killed and started again, and whose keys may do what."""

import json
import re
import threading
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.agents.world import written as agent
from tests.server.hosting import hosted
from tests.server.process import Script, Served, serving
from tests.workflows.world import Tally, engine_for, tallying, written

from mainspring.app.server import server
from mainspring.features.workflows.routes import HEARTBEAT_SECONDS
from mainspring.http.auth import Keys

SETTINGS = 'workflows = ["flows"]\nagents = ["agents"]\nallow_hosts = ["127.0.0.1"]\n'
SCRIPT: Script = [{"when": "tides", "say": '{"notes": "the moon"}'}, {"say": "unasked"}]
DIGEST = """
name: digest
description: Joins an agent and a transformation.
inputs: {topic: {type: string, required: true}}
steps:
  - {id: research, action: invoke-agent, agent: researcher, inputs: {topic: "{{ inputs.topic }}"}}
  - {id: loud, action: transform, value: "{{ steps.research.output.notes | upper }}"}
outputs: {text: "{{ steps.loud.output }}"}
"""
CALLS = """
name: calls
inputs: {base: {type: string}}
steps:
  - {id: first, action: http-request, method: POST, url: "{{ inputs.base }}/first"}
  - {id: second, action: http-request, method: POST, repeatable: true, url: "{{ inputs.base }}/second", depends_on: [first]}
  - {id: third, action: transform, value: "{{ steps.second.output.status }}"}
outputs: {status: "{{ steps.third.output }}"}
"""


def prepared(folder: Path) -> Path:
    written(folder / "flows", DIGEST, CALLS)
    agent(folder / "agents", "researcher", inputs={"topic": {"required": True}}, outputs={"notes": {}})
    (folder / "mainspring.toml").write_text(SETTINGS)
    return folder


async def answer(http: aiohttp.ClientSession, method: str, url: str, **options: Any) -> tuple[int, Any]:
    async with http.request(method, url, **options) as response:
        return response.status, await response.json()


def parsed(stream: bytes) -> list[dict[str, Any]]:
    """The events of a stream, each with the type that its frame names."""
    frames = [frame.split(b"\n") for frame in stream.split(b"\n\n") if frame.startswith(b"event: ")]
    events = [json.loads(lines[1].removeprefix(b"data: ")) for lines in frames]
    assert [lines[0].removeprefix(b"event: ").decode() for lines in frames] == [event["type"] for event in events]
    return events


@pytest.mark.slow
async def test_workflows_are_listed_shown_and_carried_out(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with serving(prepared(tmp_path), SCRIPT) as served:
        url = f"{served.url}/workflows"
        status, listed = await answer(http, "GET", url)
        assert (status, [workflow["name"] for workflow in listed["data"]], listed["problems"]) == (200, ["calls", "digest"], [])
        status, shown = await answer(http, "GET", f"{url}/digest")
        assert (status, shown["steps"][0]["action"], shown["execution"]["parallel_limit"]) == (200, "invoke-agent", 4)
        status, run = await answer(http, "POST", f"{url}/digest/runs", json={"inputs": {"topic": "tides"}})
        assert (status, run["status"], run["outputs"]) == (200, "success", {"text": "THE MOON"})
        assert [(step["id"], step["status"]) for step in run["steps"]] == [("research", "success"), ("loud", "success")]
        status, again = await answer(http, "GET", f"{url}/digest/runs/{run['id']}")
        assert (status, again) == (200, run)
        status, response = await answer(http, "GET", f"{served.url}/responses/{run['steps'][0]['run_id']}")
        assert (status, response["status"]) == (200, "completed"), "the agent's work can be looked at like any response"
        status, dry = await answer(http, "POST", f"{url}/digest/runs", json={"inputs": {"topic": "x"}, "dry_run": True})
        assert (status, dry["status"]) == (200, "skipped")
        status, page = await answer(http, "GET", f"{url}/digest/runs?limit=1")
        assert (page["data"][0]["id"], page["has_more"]) == (dry["id"], True)
        await faults(http, url, run["id"])


async def faults(http: aiohttp.ClientSession, url: str, run_id: str) -> None:
    for method, path, body, expected, told in (
        ("GET", "/digst", None, 404, "did you mean `digest`"),
        ("POST", "/digst/runs", {}, 404, "did you mean `digest`"),
        ("POST", "/digest/runs", {}, 422, "`topic` (string) is missing"),
        ("POST", "/digest/runs", {"inputs": {"topic": 3}}, 422, "must be of type string"),
        ("POST", "/digest/runs", {"inputs": []}, 400, "inputs"),
        ("GET", "/digest/runs/wfr_none", None, 404, "there is no workflow run"),
        ("GET", f"/calls/runs/{run_id}", None, 404, "there is no run"),
        ("POST", f"/calls/runs/{run_id}/cancel", None, 404, "there is no run"),
        ("GET", f"/digest/runs/{run_id}/events?starting_after=x", None, 400, "starting_after"),
        ("DELETE", f"/digest/runs/{run_id}", None, 405, "is not possible"),
    ):
        status, fault = await answer(http, method, url + path, json=body)
        assert (status, told in fault["error"]["message"]) == (expected, True), (path, fault)


class Held:
    """Holds the request to `/second` until it is let go."""

    def __init__(self, tally: Tally) -> None:
        self.there, self.go = threading.Event(), threading.Event()
        tally.on_arrival = self._arrived

    def _arrived(self, path: str) -> None:
        if path == "/second":
            self.there.set()
            self.go.wait(60)


async def begun(http: aiohttp.ClientSession, served: Served, tally: Tally, held: Held) -> str:
    body = {"inputs": {"base": tally.url}, "background": True}
    status, run = await answer(http, "POST", f"{served.url}/workflows/calls/runs", json=body)
    assert (status, run["status"]) == (200, "running")
    assert held.there.wait(30)
    return f"/workflows/calls/runs/{run['id']}"


async def streamed(http: aiohttp.ClientSession, url: str) -> bytes:
    async with http.get(url) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        return await response.read()


@pytest.mark.slow
async def test_a_killed_server_goes_on_where_it_was_and_so_does_a_stream(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with tallying() as tally:
        held = Held(tally)
        with serving(prepared(tmp_path), SCRIPT) as first:
            path = await begun(http, first, tally, held)
            async with http.get(f"{first.url}{path}/events") as response:
                seen = b""
                while seen.count(b"\n\n") < 4:
                    seen += await response.content.readany()
                first.kill()
        held.go.set()
        with serving(tmp_path, SCRIPT) as second:
            before = parsed(seen)
            rest = parsed(await streamed(http, f"{second.url}{path}/events?starting_after={before[-1]['sequence_number']}"))
            whole = parsed(await streamed(http, f"{second.url}{path}/events"))
            status, run = await answer(http, "GET", f"{second.url}{path}")
    assert before + rest == whole
    assert [event["sequence_number"] for event in whole] == list(range(len(whole)))
    kinds = [event["type"] for event in whole]
    assert kinds[:4] == ["workflow_started", "step_started", "step_completed", "step_started"]
    assert "workflow_resumed" in kinds
    assert kinds[-1] == "workflow_completed"
    assert (status, run["status"], run["outputs"]) == (200, "success", {"status": 200})
    assert tally.counted == {"/first": 1, "/second": 1}
    assert tally.arrivals.count("POST /first") == 1


async def test_a_run_that_goes_on_or_has_ended_is_not_begun_again_by_resume(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with tallying() as tally:
        held = Held(tally)
        with serving(prepared(tmp_path), SCRIPT) as served:
            path = await begun(http, served, tally, held)
            status, run = await answer(http, "POST", f"{served.url}{path}/resume")
            assert (status, run["status"]) == (200, "running")
            held.go.set()
            await streamed(http, f"{served.url}{path}/events")
            status, run = await answer(http, "POST", f"{served.url}{path}/resume")
            assert (status, run["status"]) == (200, "success")
            other = path.replace("/calls/", "/others/")
            assert (await answer(http, "POST", f"{served.url}{other}/resume"))[0] == 404
    assert tally.counted == {"/first": 1, "/second": 1}


@pytest.mark.slow
async def test_cancel_ends_a_run_and_its_stream(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with tallying() as tally:
        held = Held(tally)
        with serving(prepared(tmp_path), SCRIPT) as served:
            path = await begun(http, served, tally, held)
            status, run = await answer(http, "POST", f"{served.url}{path}/cancel")
            assert (status, run["status"]) == (200, "cancelled")
            stream = await streamed(http, f"{served.url}{path}/events")
            held.go.set()
            status, again = await answer(http, "POST", f"{served.url}{path}/cancel")
    assert parsed(stream)[-1]["type"] == "workflow_cancelled"
    assert stream.endswith(b"data: [DONE]\n\n")
    assert again == run


async def test_a_quiet_stream_says_that_it_lives(
    tmp_path: Path, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert HEARTBEAT_SECONDS <= 15
    monkeypatch.setattr("mainspring.features.workflows.routes.HEARTBEAT_SECONDS", 0.05)
    with tallying() as tally:
        held = Held(tally)
        engine = engine_for(tmp_path, CALLS)
        async with hosted(server(engine)) as url:
            body = {"inputs": {"base": tally.url}, "background": True}
            _, run = await answer(http, "POST", f"{url}/workflows/calls/runs", json=body)
            async with http.get(f"{url}/workflows/calls/runs/{run['id']}/events") as response:
                seen = b""
                while seen.count(b"event: heartbeat") < 2:
                    seen += await response.content.readany()
                held.go.set()
                seen += await response.content.read()
    beats = [event for event in parsed(seen) if event["type"] == "heartbeat"]
    assert beats[0]["run_id"] == run["id"]
    numbers = [event["sequence_number"] for event in parsed(seen) if event["type"] != "heartbeat"]
    assert numbers == list(range(len(numbers))), "a heartbeat is no event of the run"


async def test_keys_need_the_scope_and_see_the_runs_of_their_tenant(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = engine_for(tmp_path, "name: plain\nsteps: [{id: s, action: transform, value: 1}]", database=tmp_path / "db")
    await engine.store.open()
    keys = Keys(engine.store)
    mine = await keys.create(tenant="mine", scopes=["workflows:run"])
    theirs = await keys.create(tenant="theirs", scopes=["workflows:run"])
    other = await keys.create(tenant="mine", scopes=["responses"])
    async with hosted(server(engine, keys=keys)) as base:
        url = f"{base}/workflows"
        status, fault = await answer(http, "POST", f"{url}/plain/runs", json={}, headers=bearer(other))
        assert (status, "`workflows:run`" in fault["error"]["message"]) == (403, True)
        status, run = await answer(http, "POST", f"{url}/plain/runs", json={}, headers=bearer(mine))
        assert (status, run["status"]) == (200, "success")
        for path in ("", "/events"):
            status, _ = await answer(http, "GET", f"{url}/plain/runs/{run['id']}{path}", headers=bearer(theirs))
            assert status == 404
        status, _ = await answer(http, "POST", f"{url}/plain/runs/{run['id']}/cancel", headers=bearer(theirs))
        assert status == 404
        _, page = await answer(http, "GET", f"{url}/plain/runs", headers=bearer(theirs))
        assert page["data"] == []
        status, _ = await answer(http, "GET", f"{base}/responses", headers=bearer(mine))
        assert status == 403


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_a_typo_starts_nothing_and_a_key_starts_one_run(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    text = "name: plain\ninputs: {n: {default: 1}}\nsteps: [{id: s, action: transform, value: '{{ inputs.n }}'}]"
    engine = engine_for(tmp_path, text)
    async with hosted(server(engine)) as base:
        url = f"{base}/workflows/plain/runs"
        status, fault = await answer(http, "POST", url, json={"input": {"n": 2}})
        assert (status, fault["error"]["code"], fault["error"]["param"]) == (400, "unknown_parameter", "input")
        assert "did you mean `inputs`?" in fault["error"]["message"]
        headers = {"idempotency-key": "k1", "traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        status, first = await answer(http, "POST", url, json={"inputs": {"n": 2}}, headers=headers)
        assert (status, first["status"]) == (200, "success")
        assert await answer(http, "POST", url, json={"inputs": {"n": 2}}, headers=headers) == (200, first)
        status, fault = await answer(http, "POST", url, json={"inputs": {"n": 3}}, headers=headers)
        assert (status, fault["error"]["code"]) == (409, "idempotency_key_reused")
        status, fault = await answer(http, "POST", url, json={}, headers={"idempotency-key": "k" * 256})
        assert (status, fault["error"]["param"]) == (400, "Idempotency-Key")
        status, page = await answer(http, "GET", url)
        assert [run["id"] for run in page["data"]] == [first["id"]]
        assert (await engine.workflows.attach(first["id"])).run.order.traceparent == headers["traceparent"]
        status, fault = await answer(http, "GET", url.replace("plain", "plane"))
        assert (status, "did you mean `plain`" in fault["error"]["message"]) == (404, True)


def test_a_workflow_that_multiplies_is_refused_at_the_start(tmp_path: Path) -> None:
    """Ten workflows of ten steps each, every step the next workflow."""
    levels = [
        f"name: w{n}\nsteps:\n" + "".join([f"  - {{id: s{k}, action: sub-workflow, workflow: w{n + 1}}}\n" for k in range(10)])
        for n in range(9)
    ]
    written(prepared(tmp_path) / "flows", *levels, "name: w9\nsteps: [{id: one, action: transform, value: 1}]\n")
    with serving(tmp_path, SCRIPT) as served:
        assert re.search(r"`w0` has 2,111,111,110 steps .* at most 10,000", served.warnings)


async def test_an_expression_that_holds_what_it_made_cannot_fill_the_memory(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    held = "'\U0001f600' * 900000, " * 250
    hungry = f'name: hungry\nsteps: [{{id: one, action: transform, value: "{{{{ [{held}] | length }}}}"}}]\n'
    written(prepared(tmp_path) / "flows", hungry)
    with serving(tmp_path, SCRIPT) as served:
        _, run = await answer(http, "POST", f"{served.url}/workflows/hungry/runs", json={"inputs": {}})
        assert run["status"] == "failed"
        told = await anyio.Path(f"/proc/{served.process.pid}/status").read_text()
        (peak,) = [int(line.split()[1]) for line in told.split("\n") if line.startswith("VmHWM")]
        assert peak < 500_000, "kilobytes"
