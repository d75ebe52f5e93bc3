"""Whoever dies, nothing is left: not when the engine is killed, nor when its supervisor is."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from msgspec import Struct
from tests.sandbox.traces import ancestors, everything, owner, processes_of

from mainspring.core.errors import SandboxError
from mainspring.core.sandbox import OutputChunk, ProgramExit
from mainspring.tools.sandbox.probe import Mode, open_sandbox

ENGINE = Path(__file__).with_name("engine.py")
ROOT = ENGINE.parents[2]


def has_ended(pid: int) -> bool:
    """Waits for the end of a process that is not ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    ready, _, _ = select.select([handle], [], [], 30)
    os.close(handle)
    return bool(ready)


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
def test_an_engine_that_is_killed_leaves_no_process_file_or_group(mode: str) -> None:
    uid = 28_000 + os.getpid() % 900
    command = [sys.executable, str(ENGINE), mode, str(uid)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as engine:
        assert engine.stdout is not None
        line = engine.stdout.readline()
        assert line, "the engine did not start"
        told = json.loads(line)
        started = [pid for pid in everything() if told["supervisor"] in ancestors(pid)]
        assert len(started) >= 5, "two that wait, one that runs, its survivor, and one at rest"
        engine.kill()
    assert has_ended(told["supervisor"])
    assert [pid for pid in everything() if pid in started or owner(pid) == uid] == []
    assert [path for path in [told["folder"], *told["groups"]] if Path(path).exists()] == []


class Killed(Struct, frozen=True):
    """What an engine was that was killed with its supervisor: where it kept things, and what it had started."""

    left: tuple[Path, ...]
    started: tuple[int, ...]

    def remains(self) -> list[Path]:
        return [path for path in self.left if path.exists()]


def killed(mode: Mode, uid: int, place: Path) -> Killed:
    place.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]), "TMPDIR": str(place)}
    command = [sys.executable, str(ENGINE), mode, str(uid)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as engine:
        assert engine.stdout is not None
        told = json.loads(engine.stdout.readline())
        started = tuple([pid for pid in everything() if told["supervisor"] in ancestors(pid)])
        os.kill(engine.pid, signal.SIGSTOP)
        os.kill(told["supervisor"], signal.SIGKILL)
        engine.kill()
    assert has_ended(told["supervisor"])
    assert Path(told["folder"]).exists()
    return Killed((Path(told["folder"]), *map(Path, told["groups"])), started)


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_what_an_engine_and_its_supervisor_left_when_both_were_killed_goes_with_the_next_start(mode: Mode) -> None:
    uid = 26_000 + os.getpid() % 900
    # A place of its own: other tests start sandboxes too, which would clear up.
    with TemporaryDirectory() as name:
        dead = await asyncio.to_thread(killed, mode, uid, Path(name))
        async with open_sandbox(mode, folder=Path(name), uid=uid + 1, warm=0) as sandbox:
            assert dead.remains() == []
            assert all(await asyncio.gather(*(asyncio.to_thread(has_ended, pid) for pid in dead.started)))
            async with open_sandbox(mode, folder=Path(name), uid=uid + 2, warm=0):
                assert sandbox._folder.exists(), "what is in use stays"


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_a_supervisor_that_is_killed_takes_its_programs_along_and_is_told_of(mode: Mode) -> None:
    async with open_sandbox(mode, uid=27_000 + os.getpid() % 900, warm=0) as sandbox, sandbox.acquire() as lease:
        output = lease.run("import time\nprint('on', flush=True)\ntime.sleep(600)")
        assert await anext(output) == OutputChunk("stdout", b"on\n")
        running = processes_of(sandbox)
        assert running
        supervisor = sandbox.processes._supervisor
        assert supervisor is not None
        os.kill(supervisor.pid, signal.SIGKILL)
        assert [part async for part in output] == [ProgramExit(None, reason="lost")]
        ended = await asyncio.gather(*(asyncio.to_thread(has_ended, pid) for pid in running))
        assert all(ended)
        assert not (await sandbox.health()).is_ok
        with pytest.raises(SandboxError, match="supervisor process was ended"):
            await anext(lease.run("print(1)"))
        async with sandbox.acquire() as another:
            assert (await another.execute("print(1)")).stdout == "1\n", "another supervisor was started"
        assert (await sandbox.health()).is_ok
        assert (await lease.execute("print(1)")).stdout == "1\n"
        folder = sandbox._folder
    assert not folder.exists()
