"""`mainspring serve --workers N`: several processes serve one address, any of them any request, and one that dies is replaced."""

import json
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.kit.databases import database_in
from tests.kit.processes import run as run_command
from tests.kit.waiting import PATIENCE, until
from tests.server.fleet import TOOLS, find_last_number, find_run_id, marked, marks, read_events, whole_events
from tests.server.linter import events_of, linted
from tests.server.process import Script, Served, serving

from mainspring.app.serve_command import count_cores

pytestmark = pytest.mark.slow
# For what the processes share by their database; how they are supervised has nothing to do with it.
on_each_database = pytest.mark.usefixtures("each_database")

SCRIPT: Script = [
    {"when": "count", "say": "one two three four five", "pause": 0.05},
    {"when": "stamp", "calls": [{"name": "stamp", "arguments": {}}]},
    {"when": "stamp", "say": "Stamped."},
    {"when": "wipe", "calls": [{"name": "wipe", "arguments": {}}]},
    {"when": "wipe", "say": "Wiped."},
    {"when": "Hello", "say": "Hello!"},
]
KEYS = [f"key{number}" for number in range(16)]
for _key in KEYS:
    SCRIPT += [
        {"when": f"mark {_key}.", "calls": [{"name": "stamp", "arguments": {"seconds": 0.5, "name": _key}}]},
        {"when": f"mark {_key}.", "say": "Marked."},
    ]


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text('[governance]\nrules = { wipe = "ask" }\n')
    with serving_workers(tmp_path) as served:
        yield served


@contextmanager
def serving_workers(folder: Path, *options: str) -> Iterator[Served]:
    """Two processes at one address; whatever happens, none is left."""
    tools = ("--tool", "tools") if (folder / "tools.py").exists() else ()
    with serving(folder, SCRIPT, "--workers", "2", *tools, *options) as served:
        try:
            yield served
        finally:
            for pid in children(served):
                os.kill(pid, signal.SIGKILL)


def children(served: Served) -> list[int]:
    """The processes that serve, oldest first."""
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()]
    return []


class Client:
    """A client whose only connection is to one of the processes."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self.session, self.url = session, url

    async def get(self, path: str) -> Any:
        async with self.session.get(self.url + path) as answer:
            return await answer.json()

    async def post(self, path: str, headers: dict[str, str] | None = None, **body: Any) -> Any:
        async with self.session.post(self.url + path, json=body, headers=headers) as answer:
            return await answer.json()

    async def stream(self, run_id: str, after: int | None = None) -> bytes:
        behind = "" if after is None else f"&starting_after={after}"
        with anyio.fail_after(PATIENCE):
            async with self.session.get(f"{self.url}/responses/{run_id}?stream=true{behind}") as answer:
                return await answer.read()


@asynccontextmanager
async def connecting(served: Served, pid: int) -> AsyncIterator[Client]:
    """A client of this process. The others are stopped while it connects, and go on if one of them holds a lock that it needs."""
    others = [each for each in children(served) if each != pid]
    connector = aiohttp.TCPConnector(limit=1, keepalive_timeout=2 * PATIENCE)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(2 * PATIENCE)) as session:
        client = Client(session, served.url)
        for seconds in (0.5, 1, 2, 4, 8, 16, 32):
            for other in others:
                os.kill(other, signal.SIGSTOP)
            with anyio.move_on_after(seconds) as waiting:
                await client.post("/responses", model="m", input="Hello", store=False)
            for other in others:
                os.kill(other, signal.SIGCONT)
            if not waiting.cancelled_caught:
                break
            await anyio.sleep(min(seconds, 2))
        else:
            raise AssertionError("it answers nothing while the others are stopped")
        yield client


@asynccontextmanager
async def both(served: Served) -> AsyncIterator[tuple[Client, Client]]:
    first, second = children(served)
    async with connecting(served, first) as one, connecting(served, second) as other:
        yield one, other


@on_each_database
async def test_any_process_serves_any_request(workers: Served, tmp_path: Path) -> None:
    async with both(workers) as (one, other):
        run = await one.post("/responses", model="m", input="count", background=True)
        whole = await other.stream(run["id"])
        assert linted(events_of(whole))["status"] == "completed"
        assert whole == await one.stream(run["id"])
        again = await other.post("/responses", model="m", input="Hello", previous_response_id=run["id"])
        assert again["status"] == "completed", again
        conversation = await one.post("/conversations", items=[{"role": "user", "content": "Remember 7."}])
        said = await other.post("/responses", model="m", input="Hello", conversation=conversation["id"])
        assert said["status"] == "completed"
        items = await one.get(f"/conversations/{conversation['id']}/items")
        assert len(items["data"]) == 3
        key = {"idempotency-key": "once"}
        copies = [await client.post("/responses", key, model="m", input="Hello") for client in (one, other)]
        assert copies[0] == copies[1]


@on_each_database
async def test_a_cancel_reaches_the_process_that_drives_the_run(workers: Served, tmp_path: Path) -> None:
    async with both(workers) as (one, other):
        run = await one.post("/responses", model="m", input="stamp", background=True)
        await marked(tmp_path, "begun")
        assert (await other.post(f"/responses/{run['id']}/cancel"))["status"] == "cancelled"
        assert marks(tmp_path) == ["begun", "left"], "it has no effect after that"


@on_each_database
async def test_an_approval_is_answered_once_at_whichever_process(workers: Served, tmp_path: Path) -> None:
    async with both(workers) as (one, other):
        run = await one.post("/responses", model="m", input="wipe")
        [asked] = [item["id"] for item in run["output"] if item["type"] == "mcp_approval_request"]
        answers: list[Any] = []

        async def approve(client: Client) -> None:
            answers.append(await client.post(f"/approvals/{asked}", approve=True))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(approve, one)
            tasks.start_soon(approve, other)
        assert sorted([answer.get("object", "refused") for answer in answers]) == ["refused", "response"]
        [goes_on] = [answer["id"] for answer in answers if "id" in answer]
        assert linted(events_of(await other.stream(goes_on)))["status"] == "completed"
    assert marks(tmp_path) == ["wiped"]


@on_each_database
async def test_a_killed_process_is_replaced_and_its_runs_go_on(workers: Served, tmp_path: Path) -> None:
    first, second = children(workers)
    async with connecting(workers, second) as other, connecting(workers, first) as one:
        async with one.session.post(f"{workers.url}/responses", json={"model": "m", "input": "count", "stream": True}) as live:
            seen = whole_events(await read_events(live, 6))
            before = await counted_runs(workers)
            os.kill(first, signal.SIGKILL)
        run_id, last = find_run_id(seen), find_last_number(seen)
        with anyio.fail_after(PATIENCE):
            rest = await other.stream(run_id, last)
            while not rest.endswith(b"[DONE]\n\n"):  # nobody has taken it up yet
                await anyio.sleep(0.2)
                rest = await other.stream(run_id, last)
        assert seen + rest == await other.stream(run_id)
        assert linted(events_of(seen + rest))["status"] == "completed"
    await until(lambda: len(children(workers)) == 2)
    assert first not in children(workers)
    async with both(workers) as (_, newer):
        assert (await newer.get(f"/responses/{run_id}"))["status"] == "completed"
    assert await counted_runs(workers) >= before, "what the killed process had counted is lost"


async def test_a_process_that_dies_again_and_again_is_replaced_ever_later(workers: Served) -> None:
    assert workers.process.stdout is not None
    pauses = []
    for _ in range(3):
        await until(lambda: len(children(workers)) == 2)
        os.kill(children(workers)[-1], signal.SIGKILL)
        while (found := re.search(r"ended by signal 9; another starts in (\S+) s", workers.process.stdout.readline())) is None:
            pass
        pauses.append(float(found[1]))
    # The first may have lived for long, on a slow machine; the others die as soon as they are there.
    assert pauses in ([0.5, 1.0, 2.0], [0.0, 0.5, 1.0])


@on_each_database
async def test_requests_that_are_sent_again_are_answered_once_whoever_is_killed(workers: Served, tmp_path: Path) -> None:
    """Processes are killed again and again while clients ask, each with a key of its own, until they have their answer."""
    answered: dict[str, str] = {}

    async def ask(key: str) -> None:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(PATIENCE)) as session:
            while key not in answered:
                body, headers = {"model": "m", "input": f"mark {key}."}, {"idempotency-key": key}
                with suppress(aiohttp.ClientError, TimeoutError):
                    async with session.post(f"{workers.url}/responses", json=body, headers=headers) as answer:
                        told = await answer.json()
                        if answer.status == 200:
                            assert told["status"] == "completed", told
                            answered[key] = told["id"]
                await anyio.sleep(0.05)

    with anyio.fail_after(3 * PATIENCE):
        async with anyio.create_task_group() as tasks:
            for key in KEYS:
                tasks.start_soon(ask, key)
            for place in (0, 1, 0):
                begun = len(marks(tmp_path))
                await until(lambda begun=begun: len(marks(tmp_path)) > begun or len(answered) == 16)  # type: ignore[misc]
                await until(lambda: len(children(workers)) == 2)
                os.kill(children(workers)[place], signal.SIGKILL)
    async with aiohttp.ClientSession() as session, session.get(f"{workers.url}/responses?limit=100") as answer:
        listed = await answer.json()
    assert sorted([run["id"] for run in listed["data"]]) == sorted(answered.values()), "a run for each key, and no other"
    assert {run["status"] for run in listed["data"]} == {"completed"}
    # A process may die between the record of a call and the call itself, which is then not made at all.
    assert max(Counter(marks(tmp_path)).values()) == 1, "no call is made twice"


async def counted_runs(served: Served) -> int:
    """The runs of all processes, as a scraper is told by whichever it asks."""
    async with aiohttp.ClientSession() as session, session.get(served.url.removesuffix("/v1") + "/metrics") as answer:
        text = await answer.text()
    return sum([int(found) for found in re.findall(r"^mainspring_runs_total\{.*\} (\d+)$", text, re.MULTILINE)])


async def test_whichever_process_is_asked_tells_the_metrics_of_all(workers: Served) -> None:
    async with both(workers) as clients:
        for client in clients:
            await client.post("/responses", model="m", input="Hello")
        told = []
        for client in clients:
            with anyio.fail_after(PATIENCE):
                count = 0
                while count < 4:  # each has connected by a request, and made another
                    async with client.session.get(workers.url.removesuffix("/v1") + "/metrics") as answer:
                        text = await answer.text()
                    found = re.search(r'mainspring_runs_total\{[^}]*status="completed"[^}]*\} (\d+)', text)
                    count = int(found[1]) if found else 0
                told.append(count)
    assert told == [4, 4]


async def test_a_stop_lets_runs_end_and_leaves_no_process(workers: Served, tmp_path: Path) -> None:
    pids = children(workers)
    listener = find_listener(pids)
    async with both(workers) as (one, _):
        run = await one.post("/responses", model="m", input="stamp", background=True)
        await marked(tmp_path, "begun")
        workers.process.send_signal(signal.SIGTERM)
        await until(lambda: not any(listener & list_sockets(pid) for pid in pids if is_running(pid)))
        (tmp_path / "go").touch()
        assert await anyio.to_thread.run_sync(workers.process.wait, PATIENCE) == 0
    assert marks(tmp_path) == ["begun", "done"]
    assert not [pid for pid in pids if is_running(pid)]
    shown = run_command(
        [sys.executable, "-m", "mainspring", "show", run["id"], "--database", database_in(tmp_path, "served.db")], cwd=tmp_path
    )
    assert "completed" in shown.stdout


async def test_without_their_supervisor_the_processes_stop(workers: Served) -> None:
    pids = children(workers)
    workers.kill()
    await until(lambda: not [pid for pid in pids if is_running(pid)])


def is_running(pid: int) -> bool:
    """A process that has ended waits in a container whose first process reaps nobody."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


async def test_sighup_replaces_the_processes_one_by_one_with_new_settings(tmp_path: Path) -> None:
    settings = tmp_path / "mainspring.toml"
    settings.write_text("drain_seconds = 1\n")
    with serving_workers(tmp_path) as served:
        before, answered = children(served), 0
        settings.write_text("drain_seconds = 1\nrequires_action = true\n[[nothing]]\n")
        served.process.send_signal(signal.SIGHUP)
        assert served.process.stdout is not None
        while "the others stay as they are" not in (line := served.process.stdout.readline()):
            assert line
        assert children(served) == before, "wrong settings replace nothing"
        settings.write_text("drain_seconds = 1\napi_key = 'new'\n")
        served.process.send_signal(signal.SIGHUP)
        with anyio.fail_after(2 * PATIENCE):
            while set(children(served)) & set(before) or len(children(served)) != 2:
                async with aiohttp.ClientSession() as session:
                    body = {"model": "m", "input": "Hello"}
                    async with session.post(f"{served.url}/responses", json=body) as answer:
                        assert answer.status in (200, 401)
                        answered += 1
        async with aiohttp.ClientSession() as session, session.get(f"{served.url}/responses") as answer:
            assert answer.status == 401
    assert answered


async def test_a_new_process_that_dies_while_an_old_one_lets_its_runs_end_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    with serving_workers(tmp_path) as served:
        first, second = children(served)
        listener = find_listener([first, second])
        async with connecting(served, first) as client:
            await client.post("/responses", model="m", input="stamp", background=True)
            await marked(tmp_path, "begun")
            served.process.send_signal(signal.SIGHUP)
            await until(lambda: not listener & list_sockets(first))
            [new] = set(children(served)) - {first, second}
            os.kill(new, signal.SIGKILL)
            await until(lambda: len(set(children(served)) - {first, second, new}) == 1)
            [newer] = set(children(served)) - {first, second, new}
            async with connecting(served, newer):
                assert {first, second} < set(children(served)), "one leaves at a time"
            (tmp_path / "go").touch()
            await until(lambda: len(children(served)) == 2 and not {first, second} & set(children(served)))
        assert served.process.poll() is None


def find_listener(pids: list[int]) -> set[str]:
    """The socket that they share."""
    return set.intersection(*map(list_sockets, pids))


def list_sockets(pid: int) -> set[str]:
    found = set[str]()
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # it was closed meanwhile
            found.add(os.readlink(each))
    return {name for name in found if name.startswith("socket:")}


async def test_auto_is_a_process_for_each_core(tmp_path: Path) -> None:
    with serving(tmp_path, SCRIPT, "--workers", "auto") as served:
        try:
            assert len(children(served)) == count_cores()
        finally:
            for pid in children(served):
                os.kill(pid, signal.SIGKILL)


def test_cores_are_those_that_a_process_is_bound_to() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
    code += "from mainspring.app.serve_command import count_cores; print(count_cores())"
    assert run_command([sys.executable, "-c", code]).stdout == "1\n"


async def test_settings_that_are_wrong_are_told_once_and_end_the_start(tmp_path: Path) -> None:
    (tmp_path / "script.json").write_text(json.dumps({"turns": SCRIPT}))
    command = [sys.executable, "-m", "mainspring", "serve", "--port", "0", "--model", "scripted:script.json", "--workers", "2"]
    ended = run_command([*command, "--tool", "nowhere", "--database", database_in(tmp_path, "served.db")], cwd=tmp_path)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("nowhere") == 1
    for count, told in [("some", "some is neither a number nor `auto`"), ("-3", "it must be at least 1, not `-3`")]:
        ended = run_command([*command, "--workers", count], cwd=tmp_path)
        assert ended.returncode == 2
        assert "workers" in ended.stderr
        assert told in ended.stderr
