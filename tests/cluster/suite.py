"""The whole of it: clients work while faults come, then all is well again, and the checker is told all of it."""

import json
import re
import sys
from asyncio import to_thread
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from time import monotonic, time
from typing import Any

import aiohttp
import anyio
import msgspec
from aiohttp import web
from tests.cluster.checker import WORKFLOW_ENDED, check
from tests.cluster.clients import Client, Cluster
from tests.cluster.deployment import FRUGAL_CALLS, Deployment, Kind, deployed, find_faketime
from tests.cluster.faults import Saboteur
from tests.cluster.history import (
    ENDED,
    TICK_SECONDS,
    Arrived,
    Breach,
    Contents,
    Conversed,
    Effect,
    Faulted,
    Fired,
    Indexed,
    Kept,
    Seen,
    StoredRun,
    Streamed,
    Told,
    WorkflowAccepted,
)
from tests.kit.network import TESTS, Network
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE

from mainspring.core.events import Recorded, RunResumed, RunStarted, ToolStarted
from mainspring.core.items import ApprovalResponse
from mainspring.features.workflows.workflows import derive_id
from mainspring.ports import StoredRun as ListedRun
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

CLIENTS = 6
# How many events are refused, and of how many of these nobody learns so.
REFUSED = 0.15
LOST = 0.05
MESSAGES = {"name": "messages", "workflow": "errand", "mapping": {"url": "/url"}}


class Report(msgspec.Struct, frozen=True):
    """What came of it: how many faults of each kind, what clients did, and what is wrong."""

    seed: str
    seconds: float
    faults: dict[str, int]
    deeds: dict[str, int]
    runs: dict[str, int]
    taken_up: int
    streams: int
    effects: int
    breaches: list[Breach]
    tracebacks: list[str]
    """What processes have logged that nobody foresaw: no rule, but the place to look when one is broken."""

    def __str__(self) -> str:
        told = msgspec.to_builtins(self)
        told["breaches"] = [f"{breach.rule}: {breach.about}" for breach in self.breaches]
        return json.dumps({"faults in all": sum(self.faults.values()), **told}, indent=1)


async def run_suite(
    postgres: Postgres | None,
    seed: str,
    most: int,
    seconds: float,
    folder: Path | None = None,
    kind: Kind = "lease",
    other: Path | None = None,
    clients_at_once: int = CLIENTS,
    network: Network | None = None,
    newer: Path | None = None,
) -> Report:
    """Lets so many faults happen, but for no longer than these seconds, and reports. The folder keeps logs and effects. `other`
    has the sources of another version, which takes turns with this one, `newer` those of one that has a migration more."""
    history: list[Seen] = []
    if postgres is not None and not find_faketime():
        print("clocks are not skewed: libfaketime is not installed (apt-get install libfaketime)")
    if folder is not None:
        await anyio.Path(folder).mkdir(parents=True)
    async with AsyncExitStack() as stack:
        receiver = await stack.enter_async_context(receiving(history, seed, "127.0.0.1" if network is None else TESTS))
        made = deployed(postgres, folder, kind=kind, target=receiver.url, network=network)
        deployment = await stack.enter_async_context(made)
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        began = monotonic()
        cluster = Cluster(deployment, history, receiver.url)
        watcher, clients = Client(cluster, session, "watcher", seed), list[Client]()
        _, cluster.webhook = await watcher.ask("POST", "/webhooks", MESSAGES)
        async with anyio.create_task_group() as tasks:
            for number in range(clients_at_once):
                clients.append(Client(cluster, session, f"client{number}", seed))
                tasks.start_soon(clients[-1].work)
            await Saboteur(deployment, history, seed, most, began + seconds, other, newer).work()
            say(f"{sum(isinstance(seen, Faulted) for seen in history)} faults in {monotonic() - began:.0f} s; now all is well")
            deployment.heal()
            cluster.calm_since, cluster.is_over, receiver.is_calm = monotonic(), True, True
        took = monotonic() - began
        say(f"clients are done after {took:.0f} s")
        await end_the_schedule(watcher, history)
        if (
            newer is not None and postgres is not None
        ):  # this process is of the older version, which the new tables are no harm to
            lowered = "UPDATE mainspring_schemas SET version = version - 1 WHERE name = 'runs'"
            await to_thread(postgres.psql, deployment.database, lowered)
        logs = await wait_for_ends(deployment)
        say(f"{len(logs)} runs after {monotonic() - began:.0f} s")
        contents = await collect(deployment, history, logs)
        tracebacks = find_tracebacks(deployment.folder)
    if folder is not None:
        (folder / "history.json").write_bytes(msgspec.json.encode((history, contents)))
    faults = Counter([seen.kind for seen in history if isinstance(seen, Faulted)])
    return Report(
        seed=seed,
        seconds=round(took, 1),
        faults=dict(faults),
        deeds=dict(Counter([deed for client in clients for deed in client.done])),
        runs=dict(Counter([run.status for run in contents.runs.values()])),
        taken_up=sum(isinstance(record.event, RunResumed) for log in logs.values() for record in log),
        streams=sum(isinstance(seen, Streamed) for seen in history),
        effects=len(contents.effects),
        breaches=check(history, contents),
        tracebacks=tracebacks,
    )


def find_tracebacks(folder: Path) -> list[str]:
    """The last lines of each."""
    found: list[str] = []
    for log in sorted(folder.glob("*.log")):
        for told in log.read_text(errors="replace").split("Traceback (most recent call last):")[1:]:
            lines = re.match(r"(?:\n[ ].*)*\n.*", told)
            found.append(f"{log.name}: {(lines[0] if lines else told)[-500:]}")
    return found


class Receiver:
    """Where steps of workflows send their requests, and where events are sent: all is written down when it comes. Of the events
    some are refused, and of some the answer is lost, until `is_calm`."""

    def __init__(self, history: list[Seen], seed: str) -> None:
        self._history, self._random = history, Random(f"{seed} receiver")
        self.is_calm = False
        self.url = ""

    async def receive(self, request: web.Request) -> web.Response:
        told = await request.json()
        self._history.append(Arrived(monotonic(), told["run"], told["step"]))
        await anyio.sleep(0.2)
        return web.json_response({})

    async def receive_event(self, request: web.Request) -> web.Response:
        event = await request.json()
        assert request.headers["webhook-id"] == event["id"]
        luck = 1.0 if self.is_calm else self._random.random()
        self._history.append(Told(monotonic(), event["id"], event["type"], event["data"]["id"], is_taken=luck > REFUSED))
        if luck < LOST and request.transport is not None:
            request.transport.abort()
        return web.Response(status=503 if luck < REFUSED else 200)


@asynccontextmanager
async def receiving(history: list[Seen], seed: str, host: str) -> AsyncIterator[Receiver]:
    app, receiver = web.Application(), Receiver(history, seed)
    app.router.add_post("/", receiver.receive)
    app.router.add_post("/events", receiver.receive_event)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0)
        await site.start()
        receiver.url = f"http://{host}:{runner.addresses[0][1]}/"
        yield receiver
    finally:
        await runner.cleanup()


async def end_the_schedule(watcher: Client, history: list[Seen]) -> None:
    """Waits until it has made up for what was due, has it start nothing more, and sees what it did: what it says of the last due
    times, and the runs that belong to all of them, by their ids."""
    told: dict[str, Any] = {}
    with anyio.move_on_after(PATIENCE):
        while (told.get("next_at") or 0.0) < time() - TICK_SECONDS:
            _, told = await watcher.ask("GET", "/schedules/tick")
            await anyio.sleep(0.2)
    _, told = await watcher.ask("POST", "/schedules/tick/pause")
    fired = [Fired(monotonic(), each["due"], each["outcome"], each.get("run_id", "")) for each in told["recent"]]
    for number in range(1, round((fired[-1].due - told["created_at"]) / TICK_SECONDS) + 1):
        due = told["created_at"] + number * TICK_SECONDS
        run = derive_id("", "errand", f"{told['id']} {due:.3f}")
        fired.append(Fired(monotonic(), due, "started", run))
        history.append(WorkflowAccepted(monotonic(), run, f"due at {due:.3f}"))
    history += fired


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def wait_for_ends(deployment: Deployment) -> dict[str, Sequence[Recorded]]:
    """The logs of all runs, once they have ended, or have had all the time that there is."""
    until = monotonic() + 2 * PATIENCE
    async with open_store(parse_location(deployment.database)) as store:
        while True:
            while monotonic() < until and await store.list_unfinished():  # noqa: ASYNC110
                await anyio.sleep(0.2)
            runs: list[ListedRun] = []
            while (page := await store.list(limit=100, after=runs[-1].id if runs else None)).runs:
                runs += page.runs
            # Between two of its steps a workflow has none that goes on, and the next one may have begun since.
            if monotonic() > until or all(run.status != "in_progress" for run in runs):
                return {run.id: await store.events(run.id) for run in runs}


async def collect(deployment: Deployment, history: Sequence[Seen], logs: dict[str, Sequence[Recorded]]) -> Contents:
    runs: dict[str, StoredRun] = {}
    workflows: dict[str, str] = {}
    files: dict[str, dict[str, str]] = {}
    conversations: dict[str, tuple[str, ...]] = {}
    found: dict[str, tuple[str, ...]] = {}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2 * PATIENCE)) as session:

        async def get(server: str, path: str, key: str) -> bytes:
            url, headers = deployment.members[server].url, {"authorization": f"Bearer {key}"}
            async with session.get(url + path, headers=headers) as answer:
                return await answer.read()

        for id, log in logs.items():
            first = log[0].event
            assert isinstance(first, RunStarted)
            spec = first.spec
            key = deployment.frugal_key if spec.tenant else deployment.key
            told = json.loads(await get("server1", f"/responses/{id}", key))
            is_over = told["status"] in ENDED
            streams = {
                server.name: await get(server.name, f"/responses/{id}?stream=true", key)
                for server in (deployment.servers if is_over else ())
            }
            started = frozenset([record.event.call_id for record in log if isinstance(record.event, ToolStarted)])
            continues = any(isinstance(item, ApprovalResponse) for item in spec.input)
            parent, is_told = spec.parent if continues else "", not (spec.tenant or spec.within or spec.step_call)
            runs[id] = StoredRun(told["status"], streams, started, parent or "", is_told)
        spent = json.loads(await get("server1", "/budgets/default", deployment.frugal_key))
        for run in {seen.run for seen in history if isinstance(seen, WorkflowAccepted)}:
            workflows[run] = await wait_for_workflow(lambda path: get("server1", path, deployment.key), run)
        for container in {seen.container for seen in history if isinstance(seen, Kept)}:
            path, files[container] = f"/containers/{container}/files", {}
            for listed in await read_pages(lambda path: get("server2", path, deployment.key), path):
                data = await get("server3", f"{path}/{listed['id']}/content", deployment.key)
                files[container][listed["path"]] = sha256(data).hexdigest()
        for id in {seen.conversation for seen in history if isinstance(seen, Conversed)}:
            items = json.loads(await get("server2", f"/conversations/{id}/items?limit=100&order=asc", deployment.key))["data"]
            said = [item["content"] for item in items if item["type"] == "message" and item["role"] == "user"]
            conversations[id] = tuple([part["text"] for parts in said for part in parts])
        for seen in [seen for seen in history if isinstance(seen, Indexed)]:
            sent, headers = {"query": seen.word, "max_num_results": 50}, {"authorization": f"Bearer {deployment.key}"}
            url = f"{deployment.members['server3'].url}/vector_stores/{seen.store}/search"
            async with session.post(url, json=sent, headers=headers) as answer:
                found[seen.word] = tuple([each["file_id"] for each in (await answer.json())["data"]])
        pending = f"/webhook_endpoints/{deployment.endpoint}/deliveries?state=pending"
        with anyio.move_on_after(2 * PATIENCE):
            while json.loads(await get("server1", pending, deployment.key))["data"]:  # noqa: ASYNC110
                await anyio.sleep(0.2)
    lines = (deployment.folder / "effects").read_text().splitlines()
    return Contents(
        runs=runs,
        effects=tuple([msgspec.json.decode(line, type=Effect) for line in lines]),
        allowances={"frugal": FRUGAL_CALLS},
        spent={"frugal": sum([int(line["used"] + line["held"]) for line in spent["lines"] if line["measure"] == "calls"])},
        audit=await to_thread(verify, deployment),
        workflows=workflows,
        files=files,
        conversations=conversations,
        found=found,
    )


Get = Callable[[str], Awaitable[bytes]]


async def wait_for_workflow(get: Get, run: str) -> str:
    """How it has ended, once it has, or has had all the time that there is."""
    until = monotonic() + PATIENCE
    while (status := json.loads(await get(f"/workflows/errand/runs/{run}")).get("status")) not in WORKFLOW_ENDED:
        if monotonic() > until:
            break
        await anyio.sleep(0.2)
    return str(status)


async def read_pages(get: Get, path: str) -> list[dict[str, Any]]:
    """All that is listed there."""
    found: list[dict[str, Any]] = []
    while True:
        after = f"&after={found[-1]['id']}" if found else ""
        page = json.loads(await get(f"{path}?limit=100{after}"))
        found += page["data"]
        if not page["has_more"]:
            return found


def verify(deployment: Deployment) -> str:
    """What is wrong with the audit."""
    try:
        deployment.command("audit", "verify")
    except AssertionError as error:
        return str(error)
    return ""
