"""Three servers, two workers and a PostgreSQL, each process with a link of its own to the database, and all can be hurt.

There are four kinds of it. With `lease`, workers find their runs in the database; with `temporal`, by a real Temporal server.
With `file`, all processes are on one machine and work on one SQLite file, and the third server has two processes of its own.
With `network`, workers find their runs as with `lease`, and each process has a network namespace of its own.

Two servers are gateways, one drives runs itself. `server2` and `worker2` are on another machine as far as the product can tell:
they have another host name where namespaces are permitted, so nobody sees by their pid that they are gone. They have a clock that
can be set where libfaketime is there.

The links are proxies of our own, which work everywhere, or the router of `tests.kit.network`, which needs root: it loses packets,
so that TCP has to find out, and the end of a connection does not get through either.
"""

import glob
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from asyncio import to_thread
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlsplit

import anyio
from tests.cluster.history import TICK_SECONDS
from tests.kit.link import Link, linked_port
from tests.kit.network import DATABASE, TESTS, Cable, Network
from tests.kit.postgres import Postgres
from tests.kit.processes import DEVNULL, Process, run, start
from tests.kit.temporal import Temporal, running_temporal
from tests.kit.waiting import PATIENCE

from mainspring.core.ids import random_id
from mainspring.features.triggers.outbox import EventType, Outbox
from mainspring.features.triggers.webhook_endpoints import Endpoints
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

Kind = Literal["lease", "temporal", "file", "network"]
SERVERS = ("server1", "server2", "server3")
WORKERS = ("worker1", "worker2")
DISTANT = ("server2", "worker2")
# The one with several processes, where they work on a file.
SEVERAL = "server3"
# One that nobody looks at when it has died.
ZOMBIE = "zombie"
FRUGAL_CALLS = 30
TOOLS = '''
import asyncio
import json
import os
import time

from mainspring import tool
from mainspring.ports import CallContext


def leave(context: CallContext, phase: str) -> None:
    line = dict(at=time.monotonic(), run=context.run_id, call=context.call_id, tool=context.tool.name, tenant=context.tenant)
    line |= dict(phase=phase, pid=os.getpid())
    file = os.open("effects", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps(line).encode() + b"\\n")
    os.close(file)


async def work(context: CallContext, seconds: float) -> str:
    leave(context, "begun")
    await asyncio.sleep(seconds)
    leave(context, "done")
    return "done"


@tool
async def count(context: CallContext, seconds: float = 0.3) -> str:
    """Has an effect, and a while later another."""
    return await work(context, seconds)


@tool(repeatable=True)
async def look(context: CallContext, seconds: float = 0.1) -> str:
    """May be called again."""
    return await work(context, seconds)


@tool
async def wipe(context: CallContext) -> str:
    """Has an effect once a person agrees."""
    return await work(context, 0.2)
'''
LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
SCRIPT = [
    {"when": "work", "calls": [{"name": "count", "arguments": {"seconds": 0.3}}, {"name": "look", "arguments": {}}]},
    {"when": "work", "think": "And again.", "calls": [{"name": "count", "arguments": {"seconds": 0.1}}]},
    {"when": "work", "say": LONG, "pause": 0.02},
    # Longer than a lease: whoever has lost it must stop this, or it has an effect when nobody expects one any more.
    {"when": "wait", "calls": [{"name": "count", "arguments": {"seconds": 7.0}}]},
    {"when": "wait", "say": "Waited."},
    {"when": "hold", "calls": [{"name": "count", "arguments": {"seconds": 600}}]},
    {"when": "hold", "say": "Held."},
    {"when": "tell", "say": LONG, "pause": 0.05},
    {"when": "wipe", "calls": [{"name": "wipe", "arguments": {}}]},
    {"when": "wipe", "say": "Wiped."},
    {
        "when": "spend",
        "calls": [{"name": "count", "arguments": {"seconds": 0.05}}, {"name": "count", "arguments": {"seconds": 0.1}}],
    },
    {"when": "spend", "calls": [{"name": "count", "arguments": {"seconds": 0.05}}]},
    {"when": "spend", "say": "Spent."},
    {"when": "", "say": "Hello!", "pause": 0.01},
]
# Two requests that each may arrive once.
FLOW = """
name: errand
inputs: {url: {}}
steps:
  - id: first
    action: http-request
    method: POST
    url: "{{ inputs.url }}"
    body: {run: "{{ workflow.run_id }}", step: first}
  - {id: between, action: transform, value: "{{ steps.first.output.status }}", depends_on: [first]}
  - id: second
    action: http-request
    method: POST
    url: "{{ inputs.url }}"
    body: {run: "{{ workflow.run_id }}", step: second}
    depends_on: [between]
"""
SCHEDULE = f"""
name: tick
workflow: errand
every: {TICK_SECONDS:g}s
missed: all
overlap: allow
"""
SETTINGS = f"""
tools = ["counting"]
schedules = ["schedules"]
builtins = ["code_interpreter"]
workflows = ["flows"]
files = "kept"
allow_hosts = ["127.0.0.1", "{TESTS}"]
drain_seconds = 2.0

[governance]
rules = {{ wipe = "ask" }}

[budget]
per = "tenant"
share = 0.2

[budget.limits]
max_iterations = "unlimited"
max_duration_minutes = "unlimited"
max_tool_calls = "unlimited"
max_tokens = "unlimited"
max_cost = "unlimited"

[budget.tenants.frugal.limits]
max_tool_calls = {FRUGAL_CALLS}
"""


@cache
def find_faketime() -> str:
    """The library that gives a process another clock: Debian's, or one that was unpacked to where the variable says."""
    found = glob.glob("/usr/lib/*/faketime/libfaketimeMT.so.1")
    return os.environ.get("MAINSPRING_FAKETIME") or next(iter(found), "")


@cache
def can_be_distant() -> bool:
    """Whether a process may have a host name of its own."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    command = ["unshare", "--uts", "sh", "-c", "hostname elsewhere"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


class Member:
    """A process of the deployment, and its link to the database. It can be killed, frozen, cut off, and started again."""

    def __init__(self, name: str, folder: Path, link: Link | Cable | None, database: str) -> None:
        self.name, self.link = name, link
        self._folder, self._database = folder, database
        # Where the sources of another version are, if that is to be started next.
        self.sources: Path | None = None
        self._process: Process | subprocess.Popen[bytes] | None = None
        self.url = ""
        self.starts = 0

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> Path:
        return self._folder / f"{self.name}.{self.starts}.log"

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def is_distant(self) -> bool:
        return self.name in DISTANT and self.link is not None

    @property
    def has_several(self) -> bool:
        return self.name == SEVERAL and self.link is None

    @property
    def children(self) -> list[int]:
        """Its processes, where it only looks after them."""
        with suppress(OSError):
            return [int(pid) for pid in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]
        return []

    async def start(self) -> None:
        """Starts it, and waits until it is ready. While the database is away it may end with a message: then again."""
        with anyio.fail_after(4 * PATIENCE):
            while not await self._try():  # noqa: ASYNC110
                await anyio.sleep(0.2)

    async def _try(self) -> bool:
        self.starts += 1
        serves = self.name in SERVERS
        arguments = ["serve", "--port", "0"] if serves else ["worker"]
        if serves and self.name != "server3":
            arguments += ["--role", "gateway"]
        if self.has_several:
            arguments += ["--workers", "2"]
        if serves and isinstance(self.link, Cable):
            arguments += ["--host", self.link.address]
        command = [sys.executable, "-m", "mainspring", *arguments, "--model", "scripted:script.json"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", "MAINSPRING_DATABASE": self._database}
        if self.sources is not None:
            environment["PYTHONPATH"] = str(self.sources)
        is_apart = self.name == ZOMBIE or self.sources is not None or isinstance(self.link, Cable)
        with self.log.open("wb") as log:
            if is_apart or (self.is_distant and (can_be_distant() or find_faketime())):
                self._process = self._start_apart(command, environment, log.fileno())
            else:
                self._process = start(
                    command, cwd=self._folder, env=environment, stdout=log.fileno(), stderr=log.fileno(), stdin=DEVNULL
                )
        ready = " listens at " if serves else " waits for runs "
        while ready not in (said := self.log.read_text(errors="replace")):
            if not self.is_running:
                await self.kill()
                return False
            await anyio.sleep(0.02)
        self.url = next(line for line in said.splitlines() if ready in line).rpartition(" ")[2]
        return True

    def _start_apart(self, command: Sequence[str], environment: dict[str, str], log: int) -> "subprocess.Popen[bytes]":
        if find_faketime() and self.is_distant:
            self.clock.touch()
            environment |= {
                "LD_PRELOAD": find_faketime(),
                "FAKETIME_TIMESTAMP_FILE": str(self.clock),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
                "DONT_FAKE_MONOTONIC": "1",
            }
            if not self.clock.read_text():
                self.skew(0)
        if can_be_distant() and self.is_distant:
            apart = f'hostname {self.name}; exec "$@"'
            command = ["unshare", "--uts", "sh", "-c", apart, "sh", *command]
        if isinstance(self.link, Cable):
            command = [*self.link.end.enter, *command]
        if shutil.which("setpriv"):
            command = ["setpriv", "--pdeathsig", "KILL", *command]
        return subprocess.Popen(command, cwd=self._folder, env=environment, stdin=DEVNULL, stdout=log, stderr=log)

    @property
    def clock(self) -> Path:
        return self._folder / f"{self.name}.clock"

    def skew(self, seconds: int) -> None:
        """Its clock is so much ahead, within a second or so. Clocks that only measure how long something takes are as ever."""
        self.clock.write_text(f"{seconds:+d}\n")

    def send_signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def signal_child(self, place: int, number: int) -> None:
        """One of its processes, if there is one at the moment."""
        with suppress(ProcessLookupError, IndexError):
            os.kill(self.children[place], number)

    async def kill(self) -> None:
        """No goodbye."""
        children = self.children
        self.send_signal(signal.SIGKILL)
        for child in children:  # without whoever looks after them they would stop by themselves
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        await self.wait()

    async def stop(self) -> int:
        """A polite stop; returns the exit code."""
        self.send_signal(signal.SIGTERM)
        return await self.wait()

    async def wait(self) -> int:
        """Waits for its end; returns the exit code."""
        assert self._process is not None
        return await to_thread(self._process.wait, 2 * PATIENCE)


class Deployment:
    """`postgres` is None where the database is a file, and `temporal` where nothing needs it."""

    def __init__(
        self, folder: Path, database: str, members: dict[str, Member], postgres: Postgres | None, temporal: Temporal | None
    ) -> None:
        self.folder, self.database, self.members = folder, database, members
        self.postgres, self.temporal = postgres, temporal
        self.key = self.frugal_key = ""
        # That of webhooks out, to which all events are sent.
        self.endpoint = ""

    @property
    def servers(self) -> list[Member]:
        return [self.members[name] for name in SERVERS]

    def command(self, *arguments: str) -> str:
        """What a command of ours says, past all links. Raises `AssertionError` with it if it fails."""
        done = run([sys.executable, "-m", "mainspring", *arguments, "--database", self.database], cwd=self.folder)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def upgrade(self, sources: Path) -> None:
        """Makes the tables of the version of these sources."""
        command = [sys.executable, "-m", "mainspring", "upgrade", "--database", self.database]
        environment = {**os.environ, "PYTHONPATH": str(sources)}
        subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, check=True, timeout=2 * PATIENCE)

    def heal(self) -> None:
        """Whatever was done to links, clocks and processes is over; what is dead stays so."""
        for member in self.members.values():
            if member.link is not None:
                member.link.is_refusing, member.link.delay = False, 0.0
                member.link.release()
            member.send_signal(signal.SIGCONT)
            if member.is_running:
                for place in range(len(member.children)):
                    member.signal_child(place, signal.SIGCONT)


@asynccontextmanager
async def deployed(
    postgres: Postgres | None,
    folder: Path | None = None,
    names: Sequence[str] = (*SERVERS, *WORKERS),
    later: Sequence[str] = (),
    kind: Kind = "lease",
    target: str = "",
    network: Network | None = None,
) -> AsyncIterator[Deployment]:
    """All of them, ready but for those that the test starts `later`, on an empty database, a file if there is no server. The
    folder keeps their logs; without one they go with it all. With a `target`, a schedule has requests sent there, and events go
    to `/events` below it. With a `network`, each has a namespace of its own there."""
    async with AsyncExitStack() as stack:
        folder = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster")))
        database = str(folder / "runs.db") if postgres is None else await to_thread(postgres.database)
        temporal = stack.enter_context(running_temporal(folder)) if kind == "temporal" else None
        write_files(folder, "" if temporal is None else temporal.address, target)
        members: dict[str, Member] = {}
        for name in names:
            link: Link | Cable | None = None
            url = database
            if network is not None:
                link, url = network.connect(), f"postgresql://postgres@{DATABASE}{urlsplit(database).path}"
            elif postgres is not None:
                link, port = await stack.enter_async_context(linked_port(postgres.socket))
                url = f"postgresql://postgres@127.0.0.1:{port}{urlsplit(database).path}"
            members[name] = Member(name, folder, link, url)
        made = Deployment(folder, database, members, postgres, temporal)
        made.key = await to_thread(made.command, "keys", "create")
        made.frugal_key = await to_thread(made.command, "keys", "create", "--tenant", "frugal")
        if target:
            made.endpoint = await add_endpoint(database, f"{target}events")
        try:
            async with anyio.create_task_group() as tasks:
                for member in members.values():
                    if member.name not in later:
                        tasks.start_soon(member.start)
            yield made
        finally:
            made.heal()
            for member in members.values():
                if member.is_running:
                    await member.kill()


async def add_endpoint(database: str, url: str) -> str:
    """Has all events sent there. Processes know of it when they start, so that none ends a run without."""
    async with open_store(parse_location(database)) as store:
        made = await Endpoints(store, Outbox(store), random_id).create("", url, get_args(EventType))
    return made.id


def write_files(folder: Path, temporal: str, target: str) -> None:
    """What all processes read. `temporal` is where that is, if it is to be used."""
    (folder / "counting.py").write_text(TOOLS)
    (folder / "script.json").write_text(json.dumps({"turns": SCRIPT, "chunk": 4}))
    (folder / "flows").mkdir()
    (folder / "flows" / "errand.yaml").write_text(FLOW)
    (folder / "schedules").mkdir()
    if target:
        (folder / "schedules" / "tick.yaml").write_text(SCHEDULE + f'inputs: {{url: "{target}"}}\n')
    dispatcher = f'\n[temporal]\naddress = "{temporal}"\n' if temporal else ""
    first = 'dispatcher = "temporal"\n' if temporal else ""
    (folder / "mainspring.toml").write_text(first + SETTINGS + dispatcher)
