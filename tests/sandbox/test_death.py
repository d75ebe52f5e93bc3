"""Whoever dies, nothing is left: not when the engine is killed, nor when its warden is."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.sandbox.traces import ancestors, everything, owner, processes_of

from mainspring.errors import SandboxError
from mainspring.tools.sandbox.port import Chunk, Exit
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
        started = [pid for pid in everything() if told["warden"] in ancestors(pid)]
        assert len(started) >= 5, "two that wait, one that runs, its survivor, and one at rest"
        engine.kill()
    assert has_ended(told["warden"])
    assert [pid for pid in everything() if pid in started or owner(pid) == uid] == []
    assert [path for path in [told["folder"], *told["groups"]] if Path(path).exists()] == []


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_a_warden_that_is_killed_takes_its_programs_along_and_is_told_of(mode: Mode) -> None:
    async with open_sandbox(mode, uid=27_000 + os.getpid() % 900, warm=0) as sandbox, sandbox.acquire() as lease:
        output = lease.run("import time\nprint('on', flush=True)\ntime.sleep(600)")
        assert await anext(output) == Chunk("stdout", b"on\n")
        running = processes_of(sandbox)
        assert running
        warden = sandbox._processes._warden
        assert warden is not None
        os.kill(warden.pid, signal.SIGKILL)
        assert [part async for part in output] == [Exit(None, reason="lost")]
        ended = await asyncio.gather(*(asyncio.to_thread(has_ended, pid) for pid in running))
        assert all(ended)
        assert not (await sandbox.health()).is_ok
        with pytest.raises(SandboxError, match="warden process was ended"):
            await anext(lease.run("print(1)"))
        folder = sandbox._folder
    assert not folder.exists()
