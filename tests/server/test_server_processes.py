"""The supervisor of several processes, with processes that only it knows: what it does with one that does not stop."""

import signal
import sys
from pathlib import Path

import pytest
from tests.kit.processes import STDOUT, start
from tests.kit.waiting import PATIENCE

SUPERVISOR = """
import sys
from mainspring.app import server_processes

server_processes.SPARE_SECONDS = 0.2
sys.executable = sys.argv[1]
sys.exit(server_processes.ServerProcesses(0, "", 0, 1, 0.0).run())
"""
# A process that is ready at once. The first one does not hear that it is to stop, as one that hangs in a library.
HANGING = """#!/bin/sh
exec {python} -c '
import os, signal, sys
from pathlib import Path

if not Path("first").exists():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("first").touch()
os.write(int(sys.argv[-1].split(",")[1]), str(os.getpid()).encode())
signal.pause()
' "$@"
"""


@pytest.mark.requirement("M8")
def test_a_process_that_does_not_leave_for_its_successor_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "hanging"
    program.write_text(HANGING.format(python=sys.executable))
    program.chmod(0o755)
    with start([sys.executable, "-c", SUPERVISOR, str(program)], stderr=STDOUT, cwd=tmp_path) as supervisor:
        assert supervisor.stdout is not None
        first = int(supervisor.stdout.readline())
        supervisor.send_signal(signal.SIGHUP)
        assert f"{first} has not stopped within 0.2 s" in supervisor.stdout.readline()
        supervisor.send_signal(signal.SIGTERM)
        supervisor.wait(PATIENCE)
