"""Faults, in an order that follows from a seed: for each process, and for the database, one after the other."""

import os
import signal
from asyncio import to_thread
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from time import monotonic

import anyio
from msgspec import Struct
from tests.cluster.deployment import SERVERS, WORKERS, Deployment, Member, find_faketime
from tests.cluster.history import Faulted, Froze, Seen
from tests.kit.link import Link
from tests.kit.network import Cable

from mainspring.engine.presence import LEASE_SECONDS

DATABASE = "database"
TEMPORAL = "temporal"
ALL = "all"
# How often each is chosen, and how many seconds it takes at least and at most.
MEMBER_FAULTS: dict[str, tuple[int, float, float]] = {
    "kill": (5, 0.0, 2.0),
    "half-open": (3, 1.0, LEASE_SECONDS + 4),
    "skew": (3, 0.0, 0.0),
    "partition": (4, 1.0, LEASE_SECONDS + 4),
    "restart": (2, 0.0, 0.0),
    "delay": (2, 1.0, 4.0),
    "freeze": (4, LEASE_SECONDS + 0.5, LEASE_SECONDS + 3),
    "reset": (3, 0.0, 0.0),
    "cut": (4, 0.0, 6.0),
    "pause": (2, 0.2, LEASE_SECONDS - 1),
    "outage": (1, 35.0, 45.0),  # longer than anybody waits for the database
    "kill one": (6, 0.0, 2.0),  # of several processes at one address
    "freeze one": (4, LEASE_SECONDS + 0.5, LEASE_SECONDS + 3),
    "reload": (2, 0.0, 0.0),  # by SIGHUP
}
# Those that need no link to a database, and those of a server with several processes.
PROCESS_FAULTS = ("kill", "restart", "freeze", "pause")
SEVERAL_FAULTS = ("kill one", "freeze one", "reload", "kill", "restart")
MEMBERS = (*WORKERS, *SERVERS)


class Fault(Struct, frozen=True):
    kind: str
    seconds: float = 0.0
    amount: float = 0.0


def list_faults(member: Member) -> list[str]:
    """Those that a process can have."""
    if member.has_several:
        return list(SEVERAL_FAULTS)
    if member.link is None:
        return list(PROCESS_FAULTS)
    can_be_skewed = member.is_distant and find_faketime()
    return [
        kind
        for kind in MEMBER_FAULTS
        if kind in PROCESS_FAULTS or (kind not in SEVERAL_FAULTS and (kind != "skew" or can_be_skewed))
    ]


def plan(seed: str, member: Member) -> Iterator[Fault]:
    """The faults of a process, without end. The first ones are each kind once; each process begins with another."""
    random = Random(f"{seed} {member.name}")
    known = list_faults(member)
    short = [kind for kind in known if kind != "outage"]
    place = 2 * MEMBERS.index(member.name) % len(short)
    kinds = [*short[place:], *short[:place]]
    while True:
        kind = kinds.pop(0) if kinds else random.choices(known, [MEMBER_FAULTS[each][0] for each in known])[0]
        _, least, most = MEMBER_FAULTS[kind]
        amount = {"skew": random.choice([-1, 1]) * random.randrange(60, 900), "delay": random.uniform(0.02, 0.3)}.get(kind, 0.0)
        yield Fault(kind, random.uniform(least, most), amount)


def plan_rest(seed: str, deployment: Deployment) -> Iterator[Fault]:
    """Of what all share, and of all of them: `stop` is how an operator restarts the database, `crash` is a power cut. `forget` is
    the end of a Temporal server that keeps nothing. A rolling restart is of all processes, one by one."""
    random = Random(f"{seed} {DATABASE}")
    kinds = ["rolling restart", *([] if deployment.postgres is None else ["stop", "crash"] * 2)]
    kinds += [] if deployment.temporal is None else ["forget"] * 2
    while True:
        yield Fault(random.choice(kinds), random.uniform(0.0, 3.0))


class Saboteur:
    """Does what the plans say, until there have been so many faults, or the time is up."""

    def __init__(
        self,
        deployment: Deployment,
        history: list[Seen],
        seed: str,
        most: int,
        until: float,
        other: Path | None = None,
        newer: Path | None = None,
    ) -> None:
        self._deployment, self._history, self._seed = deployment, history, seed
        self._most, self._until = most, until
        # The sources of another version, to which a rolling restart goes, and from which the next one comes back.
        self._next: Path | None = other
        self._now: Path | None = None
        # Those of a version with other tables, to which all are brought when half of the faults are over, and none goes back.
        self._newer = newer
        # A process is one fault's at a time: a rolling restart waits for the others.
        self._turns = {name: anyio.Lock() for name in deployment.members}
        self.count = 0

    @property
    def is_done(self) -> bool:
        return self.count >= self._most or monotonic() > self._until

    async def work(self) -> None:
        async with anyio.create_task_group() as tasks:
            for member in self._deployment.members.values():
                tasks.start_soon(self._hurt, member)
            tasks.start_soon(self._hurt_all)

    async def _pause(self, seconds: float) -> None:
        """Waits so long, unless there have been enough faults."""
        until = monotonic() + seconds
        while monotonic() < until and not self.is_done:  # noqa: ASYNC110
            await anyio.sleep(min(0.1, seconds))

    def _begin(self, fault: Fault, name: str) -> None:
        self.count += 1
        self._history.append(Faulted(monotonic(), fault.kind, name, fault.seconds))

    async def _hurt(self, member: Member) -> None:
        random = Random(f"{self._seed} {member.name} pauses")
        for fault in plan(self._seed, member):
            await self._pause(random.uniform(0.5, 4.0))
            async with self._turns[member.name]:
                if self.is_done:
                    return
                self._begin(fault, member.name)
                await hurt(member, fault, self._history)

    async def _hurt_all(self) -> None:
        random = Random(f"{self._seed} {DATABASE} pauses")
        for fault in plan_rest(self._seed, self._deployment):
            await self._pause(random.uniform(4.0, 20.0))
            if self.is_done:
                return
            if self._newer is not None and self.count > self._most / 2:
                self._begin(Fault("upgrade"), ALL)
                await self._upgrade(self._newer)
                self._newer = None
                continue
            self._begin(fault, ALL if fault.kind == "rolling restart" else TEMPORAL if fault.kind == "forget" else DATABASE)
            if fault.kind == "rolling restart":
                await self._replace_all()
            elif (postgres := self._deployment.postgres) is not None and fault.kind != "forget":
                await to_thread(postgres.stop, "INT" if fault.kind == "stop" else "QUIT")
                await anyio.sleep(fault.seconds)
                await to_thread(postgres.start)
            elif (temporal := self._deployment.temporal) is not None:
                await to_thread(temporal.stop)
                await anyio.sleep(fault.seconds)
                await to_thread(temporal.start)

    async def _upgrade(self, newer: Path) -> None:
        """Whoever is started from now on is of that version, since one of this version would refuse its tables."""
        await to_thread(self._deployment.upgrade, newer)
        self._next = self._now = newer
        for member in self._deployment.members.values():
            member.sources = newer
        await self._replace_all()

    async def _replace_all(self) -> None:
        """Restarts one process after the other, with the other version if there is one."""
        self._next, self._now = self._now, self._next
        for member in self._deployment.members.values():
            async with self._turns[member.name]:
                member.sources = self._now
                await restart(member)


async def hurt(member: Member, fault: Fault, history: list[Seen]) -> None:
    """Does it, and undoes it when its time is up."""
    match fault.kind:
        case "kill":
            await member.kill()
            await anyio.sleep(fault.seconds)
            await member.start()
        case "restart":
            await restart(member)
        case "freeze" | "pause":
            await freeze(member.pid, fault.seconds, history)
        case "kill one":
            member.signal_child(-1, signal.SIGKILL)
            await anyio.sleep(fault.seconds)
        case "freeze one":
            if member.children:
                await freeze(member.children[0], fault.seconds, history)
        case "reload":
            member.send_signal(signal.SIGHUP)
        case _:
            assert member.link is not None
            await hurt_link(member, member.link, fault)


async def freeze(pid: int, seconds: float, history: list[Seen]) -> None:
    """Stops a process for a time, unless it is gone."""
    begun = monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        await anyio.sleep(seconds)
        history.append(Froze(begun, pid, monotonic()))
        os.kill(pid, signal.SIGCONT)


async def hurt_link(member: Member, link: Link | Cable, fault: Fault) -> None:
    match fault.kind:
        case "cut":
            link.is_refusing = True
            link.cut()
            await anyio.sleep(fault.seconds)
            link.is_refusing = False
        case "reset":
            link.cut()
        case "partition" | "outage" | "half-open":
            link.hold("answers", *(() if fault.kind == "half-open" else ("questions",)))
            await anyio.sleep(fault.seconds)
            link.release()
        case "delay":
            link.delay = fault.amount
            await anyio.sleep(fault.seconds)
            link.delay = 0.0
        case "skew":
            member.skew(int(fault.amount))
        case _:
            raise AssertionError(fault)


async def restart(member: Member) -> None:
    await member.stop()
    await member.start()
