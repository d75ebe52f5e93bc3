"""`mainspring worker` and `serve --role gateway`: one drives, the other accepts and follows, and they share only a database."""

import asyncio
import re
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.kit.databases import find_served
from tests.kit.temporal import Temporal
from tests.kit.waiting import PATIENCE, until
from tests.server.fleet import TOOLS, find_run_id, marked, marks, post, post_once, read_events, read_marks, read_stream
from tests.server.linter import events_of, linted
from tests.server.process import Script, Served, serving, working

from mainspring.core.ids import random_id

# Whatever brings a run to a worker, and wherever it is stored: each kind of both, and the pair that deployments have.
PAIRS = [("sqlite", "lease"), ("postgres", "lease"), ("postgres", "temporal")]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("each_database"),
    pytest.mark.parametrize(("each_database", "dispatching"), PAIRS, indirect=True),
]

WORKFLOW = """
name: sum
inputs: {parts: {type: integer, default: 4}}
steps:
  - {id: share, action: transform, value: '{{ 100 / inputs.parts }}'}
outputs: {share: '{{ steps.share.output }}'}
"""
SCRIPT: Script = [
    {"when": "count", "say": "one two three four five", "pause": 0.05},
    {"when": "talk", "say": "one two three", "calls": [{"name": "stamp", "arguments": {}}]},
    {"when": "talk", "say": "four five"},
    {"when": "stamp", "calls": [{"name": "stamp", "arguments": {}}]},
    {"when": "stamp", "say": "Stamped."},
    {"when": "wipe", "calls": [{"name": "wipe", "arguments": {}}]},
    {"when": "wipe", "say": "Wiped."},
    {"when": "Hello", "say": "Hello!"},
]


@pytest.fixture
def dispatching(request: pytest.FixtureRequest) -> str:
    """The settings of a dispatcher."""
    if request.param == "lease":
        return ""
    temporal: Temporal = request.getfixturevalue("temporal")
    return f'[temporal]\naddress = "{temporal.address}"\ntask_queue = "{random_id("queue")}"\n'


@pytest.fixture
def folder(tmp_path: Path, dispatching: str) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "workflows").mkdir()
    (tmp_path / "workflows" / "sum.yaml").write_text(WORKFLOW)
    rules = '[governance]\nrules = { wipe = "ask" }'
    write_settings(tmp_path, 'tools = ["tools"]', 'workflows = ["workflows"]', dispatching, rules)
    return tmp_path


def write_settings(folder: Path, *texts: str) -> None:
    chosen = 'dispatcher = "temporal"' if any(text.startswith("[temporal]") for text in texts) else ""
    (folder / "mainspring.toml").write_text("\n".join([chosen, *texts]))


@pytest.fixture
def gateway(folder: Path) -> Iterator[Served]:
    with serving(folder, SCRIPT, "--role", "gateway") as served:
        yield served


async def test_a_worker_drives_what_a_gateway_is_asked_for(folder: Path, gateway: Served, http: aiohttp.ClientSession) -> None:
    (folder / "go").touch()
    with working(folder, SCRIPT) as worker:
        status, told = await post(http, gateway, input="stamp")
        assert (status, told["status"]) == (200, "completed")
        assert read_marks(folder) == [("begun", worker.process.pid), ("done", worker.process.pid)]
        status, again = await post(http, gateway, input="Hello", previous_response_id=told["id"])
        assert (status, again["status"]) == (200, "completed")
        status, queued = await post(http, gateway, input="Hello", background=True)
        assert linted(events_of(await read_stream(http, gateway, queued["id"])))["status"] == "completed"
        headers = {"idempotency-key": "once"}
        copies = []
        for _ in range(2):
            async with http.post(f"{gateway.url}/responses", json={"input": "Hello"}, headers=headers) as answer:
                copies.append(await answer.json())
        assert copies[0] == copies[1]


async def test_a_worker_sums_up_for_a_gateway_and_nothing_of_it_stays(
    folder: Path, gateway: Served, http: aiohttp.ClientSession
) -> None:
    script: Script = [{"when": "", "say": "They greeted each other."}]
    with working(folder, script):
        status, made = await post(http, gateway, "/responses/compact", model="m", input="Hello!")
        assert (status, made["object"]) == (200, "response.compaction"), made
        async with http.get(f"{gateway.url}/responses") as answer:
            assert (await answer.json())["data"] == []


async def test_a_stream_of_a_gateway_is_live(folder: Path, gateway: Served, http: aiohttp.ClientSession) -> None:
    with working(folder, SCRIPT):
        async with http.post(f"{gateway.url}/responses", json={"input": "talk", "stream": True}) as answer:
            seen = await read_events(answer, 7)
            run_id = find_run_id(seen)
            with anyio.fail_after(PATIENCE):
                async with http.get(f"{gateway.url}/responses/{run_id}") as under_way:
                    assert (await under_way.json())["status"] == "in_progress", "its events came while it was driven"
                (folder / "go").touch()
                seen += await answer.content.read()
        assert linted(events_of(seen))["status"] == "completed"
        assert seen == await read_stream(http, gateway, run_id)


async def test_a_gateway_cancels_and_approves_what_a_worker_drives(
    folder: Path, gateway: Served, http: aiohttp.ClientSession
) -> None:
    with working(folder, SCRIPT) as worker:
        _, run = await post(http, gateway, input="stamp", background=True)
        await marked(folder, "begun")
        status, told = await post(http, gateway, f"/responses/{run['id']}/cancel")
        assert (status, told["status"]) == (200, "cancelled")
        assert marks(folder) == ["begun", "left"], "it has no effect after that"
        _, asked = await post(http, gateway, input="wipe")
        [question] = [item["id"] for item in asked["output"] if item["type"] == "mcp_approval_request"]
        status, told = await post(http, gateway, f"/approvals/{question}", approve=True)
        assert status == 200, told
        assert linted(events_of(await read_stream(http, gateway, told["id"])))["status"] == "completed"
    assert read_marks(folder) == [(what, worker.process.pid) for what in ("begun", "left", "wiped")]


async def test_without_a_worker_who_waits_is_told_so_and_who_does_not_is_served_later(
    folder: Path, gateway: Served, http: aiohttp.ClientSession
) -> None:
    _, queued = await post(http, gateway, input="stamp", background=True)
    asked = post_once(http, gateway, input="stamp"), post_once(http, gateway, "/workflows/sum/runs", inputs={})
    for status, told in await asyncio.wait_for(asyncio.gather(*asked), PATIENCE):
        assert (status, told["error"]["code"]) == (503, "no_worker")
        assert "mainspring worker" in told["error"]["message"]
    status, told = await post(http, gateway, input="Hello", store=False)
    assert (status, told["error"]["param"]) == (400, "store")
    assert marks(folder) == []
    (folder / "go").touch()
    with working(folder, SCRIPT):
        assert linted(events_of(await read_stream(http, gateway, queued["id"])))["status"] == "completed"
    assert len(marks(folder)) == 2, "the request that was refused is not performed later"


async def test_a_killed_worker_is_replaced_by_another(folder: Path, gateway: Served, http: aiohttp.ClientSession) -> None:
    with ExitStack() as workers:
        first = workers.enter_context(working(folder, SCRIPT))
        answer = await http.post(f"{gateway.url}/responses", json={"input": "count", "stream": True})
        seen = await read_events(answer, 5)
        workers.enter_context(working(folder, SCRIPT))
        first.kill()
        with anyio.fail_after(PATIENCE):
            seen += await answer.content.read()
    assert linted(events_of(seen))["status"] == "completed", "the stream of the gateway outlives the worker"


async def test_a_worker_takes_up_no_more_than_it_may_and_says_how_it_is(
    folder: Path, gateway: Served, http: aiohttp.ClientSession
) -> None:
    options = ("--runs-at-once", "1", "--health-port", "0")
    with working(folder, SCRIPT, *options) as one, working(folder, SCRIPT, *options) as other:
        queued = [(await post(http, gateway, input="stamp", background=True))[1]["id"] for _ in range(6)]
        await until(lambda: len(marks(folder)) >= 2)
        (folder / "go").touch()
        for run_id in queued:
            assert linted(events_of(await read_stream(http, gateway, run_id)))["status"] == "completed"
        counted = 0
        for worker in (one, other):
            assert worker.process.stdout is not None
            while not (found := re.search(r"health +(http\S+)/healthz", worker.process.stdout.readline())):
                pass
            for path, expected in (("/healthz", 200), ("/readyz", 200), ("/metrics", 200), ("/v1/responses", 404)):
                async with http.get(found[1] + path) as answer:
                    assert answer.status == expected
                    if path == "/metrics":
                        counted += sum(map(int, re.findall(r"^mainspring_runs_total\{.*\} (\d+)$", await answer.text(), re.M)))
        assert counted == 6
    open_calls, peak = {one.process.pid: 0, other.process.pid: 0}, 0
    for mark in read_marks(folder):
        open_calls[mark.pid] += 1 if mark.what == "begun" else -1
        peak = max(peak, *open_calls.values())
    assert peak == 1


async def test_a_workflow_that_a_gateway_accepts_is_driven_by_a_worker(
    folder: Path, gateway: Served, http: aiohttp.ClientSession
) -> None:
    status, started = await post(http, gateway, "/workflows/sum/runs", inputs={}, background=True)
    assert (status, started["status"]) == (200, "running")
    where = f"{gateway.url}/workflows/sum/runs/{started['id']}"
    with working(folder, SCRIPT, "--workers", "2") as worker:
        with anyio.fail_after(PATIENCE):
            async with http.get(f"{where}/events") as answer:
                assert "workflow_resumed" in await answer.text()
        async with http.get(where) as answer:
            told = await answer.json()
        assert (told["status"], told["outputs"]) == ("success", {"share": 25.0})
        worker.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(worker.process.wait, PATIENCE) == 0


async def test_a_container_is_found_by_gateways_and_workers(folder: Path, dispatching: str, http: aiohttp.ClientSession) -> None:
    script: Script = [
        {"when": "write", "calls": [{"name": "code_interpreter", "arguments": {"code": "open('a.txt', 'w').write('written')"}}]},
        {"when": "write", "say": "Written."},
        {"when": "read", "calls": [{"name": "code_interpreter", "arguments": {"code": "print(open('a.txt').read())"}}]},
        {"when": "read", "say": "Read."},
    ]
    kept = f'files = "{folder / "files"}"' if find_served() else ""
    write_settings(folder, 'builtins = ["code_interpreter"]', kept, dispatching)
    tool = {"type": "code_interpreter", "container": {"type": "auto"}}
    with serving(folder, script, "--role", "gateway") as gateway, working(folder, script), working(folder, script):
        status, told = await post(http, gateway, input="write", tools=[tool])
        assert (status, told["status"]) == (200, "completed"), told
        [container] = [item["container_id"] for item in told["output"] if item["type"] == "code_interpreter_call"]
        async with http.get(f"{gateway.url}/containers/{container}/files") as answer:
            assert [file["path"] for file in (await answer.json())["data"]] == ["a.txt"]
        for _ in range(3):  # by whichever worker
            include = ["code_interpreter_call.outputs"]
            _, told = await post(http, gateway, input="read", tools=[{**tool, "container": container}], include=include)
            [call] = [item for item in told["output"] if item["type"] == "code_interpreter_call"]
            assert "written" in call["outputs"][0]["logs"]
