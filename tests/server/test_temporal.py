"""Temporal as the dispatcher, on its real dev server. What holds for every dispatcher is in `test_worker.py`."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import aiohttp
import anyio
import pytest
from tests.kit.temporal import Temporal, running_temporal
from tests.kit.waiting import PATIENCE, until
from tests.server.fleet import TOOLS, ended, marked, marks, post
from tests.server.process import Script, Served, serving, working

from mainspring import __version__
from mainspring.core.ids import random_id

pytestmark = pytest.mark.slow

POISON: Script = [{"when": "poison", "calls": [{"name": "explode", "arguments": {}}]} for _ in range(9)]
SCRIPT: Script = [
    {"when": "stamp", "calls": [{"name": "stamp", "arguments": {}}]},
    {"when": "stamp", "say": "Stamped."},
    *POISON,
    {"when": "Hello", "say": "Hello!"},
]


@pytest.fixture
def folder(tmp_path: Path, temporal: Temporal) -> Path:
    (tmp_path / "tools.py").write_text(TOOLS)
    write_settings(tmp_path, temporal)
    return tmp_path


def write_settings(folder: Path, temporal: Temporal, *more: str) -> None:
    where = f'[temporal]\naddress = "{temporal.address}"\ntask_queue = "{random_id("queue")}"'
    (folder / "mainspring.toml").write_text("\n".join(['tools = ["tools"]', 'dispatcher = "temporal"', where, *more]))


@pytest.fixture
def gateway(folder: Path) -> Iterator[Served]:
    with serving(folder, SCRIPT, "--role", "gateway") as served:
        yield served


async def workflow(temporal: Temporal, run_id: str) -> dict[str, Any]:
    """The workflow of a run, once it is closed."""
    with anyio.fail_after(PATIENCE):
        while True:
            told = json.loads(temporal.run("workflow", "describe", "--workflow-id", run_id, "--output", "json"))
            if told["workflowExecutionInfo"]["status"] != "WORKFLOW_EXECUTION_STATUS_RUNNING":
                return dict(told)
            await anyio.sleep(0.05)


def has_failed(served: Served, run_id: str) -> bool:
    with urlopen(f"{served.url}/responses/{run_id}", timeout=PATIENCE) as answer:
        return bool(json.load(answer)["status"] == "failed")


def is_over(worker: Served, served: Served, run_id: str) -> bool:
    return worker.process.poll() is not None or has_failed(served, run_id)


async def test_a_run_is_one_workflow_that_knows_nothing_but_its_id(
    folder: Path, gateway: Served, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    with working(folder, SCRIPT):
        status, told = await post(http, gateway, input="Hello, I am Rumpelstiltskin")
        assert (status, told["status"]) == (200, "completed")
        closed = await workflow(temporal, told["id"])
        assert closed["workflowExecutionInfo"]["type"]["name"] == "mainspring.run"
        assert closed["result"] == "ended"
        history = temporal.run("workflow", "show", "--workflow-id", told["id"], "--output", "json")
    events = [event["eventType"] for event in json.loads(history)["events"]]
    assert events.count("EVENT_TYPE_ACTIVITY_TASK_SCHEDULED") == 1
    assert "Rumpelstiltskin" not in history
    told_of = [event.get("workflowTaskCompletedEventAttributes", {}) for event in json.loads(history)["events"]]
    versions = {attributes["workerVersion"]["buildId"] for attributes in told_of if attributes}
    assert versions == {__version__}, "Temporal's own is a hash of all sources, which takes seconds to make"


async def test_a_cancel_ends_the_workflow_by_a_signal(
    folder: Path, gateway: Served, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    with working(folder, SCRIPT):
        _, run = await post(http, gateway, input="stamp", background=True)
        await marked(folder, "begun")
        status, told = await post(http, gateway, f"/responses/{run['id']}/cancel")
        assert (status, told["status"]) == (200, "cancelled")
        assert (await workflow(temporal, run["id"]))["result"] == "cancelled"
    history = temporal.run("workflow", "show", "--workflow-id", run["id"], "--output", "json")
    assert "EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED" in history


@pytest.mark.parametrize("command", [("signal", "--name", "cancel"), ("cancel",)])
async def test_a_run_is_cancelled_by_the_tools_of_temporal(
    folder: Path, gateway: Served, temporal: Temporal, http: aiohttp.ClientSession, command: tuple[str, ...]
) -> None:
    with working(folder, SCRIPT):
        _, run = await post(http, gateway, input="stamp", background=True)
        await marked(folder, "begun")
        temporal.run("workflow", command[0], "--workflow-id", run["id"], *command[1:])
        assert (await ended(http, gateway, run["id"]))["status"] == "cancelled"
        assert (await workflow(temporal, run["id"]))["result"] == "cancelled"
    assert marks(folder) == ["begun", "left"]


async def test_a_run_goes_on_while_temporal_is_gone_and_new_ones_are_refused(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, http: aiohttp.ClientSession
) -> None:
    with running_temporal(tmp_path_factory.mktemp("own")) as temporal, ExitStack() as stack:
        write_settings(folder, temporal)
        gateway = stack.enter_context(serving(folder, SCRIPT, "--role", "gateway"))
        stack.enter_context(working(folder, SCRIPT))
        _, run = await post(http, gateway, input="stamp", background=True)
        await marked(folder, "begun")
        temporal.stop()
        status, told = await post(http, gateway, input="Hello")
        assert (status, told["error"]["code"]) == (503, "dispatcher_unavailable")
        assert temporal.address in told["error"]["message"]
        assert "\n" not in told["error"]["message"]
        (folder / "go").touch()
        assert (await ended(http, gateway, run["id"]))["status"] == "completed"
        assert marks(folder) == ["begun", "done"]
        # It comes back with nothing in its memory.
        temporal.start()
        status, told = await post(http, gateway, input="Hello")
        assert (status, told["status"]) == (200, "completed")


async def test_a_worker_waits_for_temporal_and_says_so(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, http: aiohttp.ClientSession
) -> None:
    with running_temporal(tmp_path_factory.mktemp("own")) as temporal:
        temporal.stop()
        write_settings(folder, temporal)
        with working(folder, SCRIPT) as worker, serving(folder, SCRIPT, "--role", "gateway") as gateway:
            assert worker.process.stdout is not None
            line = next((line for line in worker.warnings.splitlines() if temporal.address in line), "")
            while not line:
                said = worker.process.stdout.readline()
                assert said
                line = said if temporal.address in said else ""
            assert "check `address` and `namespace` in `[temporal]`" in line
            temporal.start()
            status, told = await post(http, gateway, input="Hello")
            assert (status, told["status"]) == (200, "completed")


@pytest.mark.requirement("M6")
async def test_a_run_that_ends_every_worker_fails_after_a_few(
    folder: Path, gateway: Served, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    run_id = ""
    for _ in range(8):
        # The first one has it from Temporal; those that follow may find it by the store when they start, and die of it.
        with suppress(AssertionError), working(folder, SCRIPT) as worker:
            run_id = run_id or (await post(http, gateway, input="poison", background=True))[1]["id"]
            await until(partial(is_over, worker, gateway, run_id))
        if has_failed(gateway, run_id):
            break
    told = await ended(http, gateway, run_id)
    assert (told["status"], told["error"]["reason"]) == ("failed", "resume_limit")
    assert 2 <= len(marks(folder)) <= 5
    with working(folder, SCRIPT):
        assert (await workflow(temporal, run_id))["result"] == "ended"
        status, told = await post(http, gateway, input="Hello")
        assert (status, told["status"]) == (200, "completed")


@pytest.mark.usefixtures("each_database")
@pytest.mark.parametrize("each_database", ["postgres"], indirect=True)
async def test_a_frozen_worker_loses_its_run_and_does_nothing_more_when_it_wakes_up(
    folder: Path, gateway: Served, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    with working(folder, SCRIPT) as frozen:
        _, run = await post(http, gateway, input="stamp", background=True)
        await marked(folder, "begun")
        with working(folder, SCRIPT):
            frozen.process.send_signal(signal.SIGSTOP)
            told = await ended(http, gateway, run["id"])
            frozen.process.send_signal(signal.SIGCONT)
            assert (told["status"], told["output"][-1]["content"][0]["text"]) == ("completed", "Stamped.")
            assert (await workflow(temporal, run["id"]))["result"] == "ended"
            # Both work on.
            for _ in range(4):
                assert (await post(http, gateway, input="Hello"))[1]["status"] == "completed"
            assert await ended(http, gateway, run["id"]) == told
        assert frozen.stop() == 0, "with no call under way any more"
    assert marks(folder) == ["begun", "left"]


async def test_what_a_server_drove_itself_is_handed_to_temporal_when_it_dies(
    folder: Path, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    with working(folder, SCRIPT), serving(folder, SCRIPT, "--role", "gateway") as gateway:
        with serving(folder, SCRIPT) as served:
            _, run = await post(http, served, input="stamp", background=True)
            await marked(folder, "begun")
            served.kill()
        told = await ended(http, gateway, run["id"])
        assert told["status"] == "completed"
        assert (await workflow(temporal, run["id"]))["result"] == "ended"
    assert marks(folder) == ["begun"], "the call is told to have been interrupted, and is not repeated"


async def test_versioned_workers_take_runs_once_their_version_is_current(
    folder: Path, temporal: Temporal, http: aiohttp.ClientSession
) -> None:
    name = random_id("fleet")
    write_settings(folder, temporal, f'deployment = "{name}"\nbuild_id = "one"')
    with working(folder, SCRIPT), serving(folder, SCRIPT, "--role", "gateway") as gateway:
        command = ("worker", "deployment", "set-current-version", "--deployment-name", name, "--build-id", "one", "--yes")
        with anyio.fail_after(PATIENCE):
            while True:
                try:
                    temporal.run(*command)
                    break
                except AssertionError:  # It has not been heard of yet.
                    await anyio.sleep(0.1)
        status, told = await post(http, gateway, input="Hello")
        assert (status, told["status"]) == (200, "completed")
        described = json.dumps(await workflow(temporal, told["id"]))
    assert name in described


def test_without_the_package_it_is_named(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['temporalio'] = None\n"
        "from mainspring.app.build import _choose_dispatcher\n"
        "from mainspring.app.settings import Settings\n"
        "from mainspring.storage.memory_runs import MemoryStore\n"
        "_choose_dispatcher(Settings(), MemoryStore())\n"
        "try: _choose_dispatcher(Settings(dispatcher='temporal'), MemoryStore())\n"
        "except Exception as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Temporal needs another package: pip install 'mainspring[temporal]'\n"
