"""The whole of it: clients work while faults come, then all is well again, and the checker is told all of it."""

import json
import sys
from asyncio import to_thread
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from time import monotonic

import aiohttp
import anyio
import msgspec
from tests.cluster.checker import check
from tests.cluster.clients import Client, Cluster
from tests.cluster.deployment import FRUGAL_CALLS, Deployment, deployed, find_faketime
from tests.cluster.faults import Saboteur
from tests.cluster.history import ENDED, Breach, Contents, Effect, Faulted, Seen, StoredRun, Streamed
from tests.kit.postgres import Postgres
from tests.kit.waiting import PATIENCE

from mainspring.core.events import Recorded, RunResumed, RunStarted, ToolStarted
from mainspring.core.items import ApprovalResponse
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

CLIENTS = 6


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

    def __str__(self) -> str:
        told = msgspec.to_builtins(self)
        told["breaches"] = [f"{breach.rule}: {breach.about}" for breach in self.breaches]
        return json.dumps({"faults in all": sum(self.faults.values()), **told}, indent=1)


async def run_suite(postgres: Postgres, seed: str, most: int, seconds: float, folder: Path | None = None) -> Report:
    """Lets so many faults happen, but for no longer than these seconds, and reports. The folder keeps logs and effects."""
    history: list[Seen] = []
    if not find_faketime():
        print("clocks are not skewed: libfaketime is not installed (apt-get install libfaketime)")
    if folder is not None:
        await anyio.Path(folder).mkdir(parents=True)
    async with deployed(postgres, folder) as deployment:
        began = monotonic()
        cluster = Cluster(deployment, history)
        clients: list[Client] = []
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session, anyio.create_task_group() as tasks:
            for number in range(CLIENTS):
                clients.append(Client(cluster, session, f"client{number}", seed))
                tasks.start_soon(clients[-1].work)
            await Saboteur(deployment, history, seed, most, began + seconds).work()
            say(f"{sum(isinstance(seen, Faulted) for seen in history)} faults in {monotonic() - began:.0f} s; now all is well")
            deployment.heal()
            cluster.calm_since, cluster.is_over = monotonic(), True
        took = monotonic() - began
        say(f"clients are done after {took:.0f} s")
        logs = await wait_for_ends(deployment)
        say(f"{len(logs)} runs after {monotonic() - began:.0f} s")
        contents = await collect(deployment, logs)
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
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


async def wait_for_ends(deployment: Deployment) -> dict[str, Sequence[Recorded]]:
    """The logs of all runs, once they have ended, or have had all the time that there is."""
    until = monotonic() + 2 * PATIENCE
    async with open_store(parse_location(deployment.database)) as store:
        while monotonic() < until:
            listed = await to_thread(
                deployment.postgres.psql, deployment.database, "SELECT count(*) FROM mainspring_runs WHERE status = 'in_progress'"
            )
            if not int(listed):
                break
            await anyio.sleep(0.2)
        ids = await to_thread(deployment.postgres.psql, deployment.database, "SELECT id FROM mainspring_runs")
        return {id: await store.events(id) for id in ids.split()}


async def collect(deployment: Deployment, logs: dict[str, Sequence[Recorded]]) -> Contents:
    runs: dict[str, StoredRun] = {}
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
            runs[id] = StoredRun(told["status"], streams, started, (spec.parent or "") if continues else "")
        spent = json.loads(await get("server1", "/budgets/default", deployment.frugal_key))
    lines = (deployment.folder / "effects").read_text().splitlines()
    return Contents(
        runs=runs,
        effects=tuple([msgspec.json.decode(line, type=Effect) for line in lines]),
        allowances={"frugal": FRUGAL_CALLS},
        spent={"frugal": sum([int(line["used"] + line["held"]) for line in spent["lines"] if line["measure"] == "calls"])},
        audit=await to_thread(verify, deployment),
    )


def verify(deployment: Deployment) -> str:
    """What is wrong with the audit."""
    try:
        deployment.command("audit", "verify")
    except AssertionError as error:
        return str(error)
    return ""
