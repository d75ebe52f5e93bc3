"""Work that hostile input can make endless, done in a process of its own.

A regular expression and a broken page can each keep Python busy for hours, and a thread that is busy so stops every other thread
and cannot be ended. So such work goes to a bare interpreter, a question in and an answer out, that is killed when its time is up.
The modules that work there import the standard library alone.
"""

import subprocess
import sys
from pathlib import Path

import anyio
import msgspec

from mainspring.core.items import Json

_PACKAGES = str(Path(__file__).parents[3])
_CODE = """
import json, resource, sys
sys.path.append(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
from importlib import import_module
json.dump(import_module(sys.argv[2]).answer(**json.load(sys.stdin.buffer)), sys.stdout)
"""


async def run_in_subprocess(module: str, question: Json, seconds: float) -> Json | None:
    """What the module's function `answer` gives for the question; None if it takes longer than this, or dies of it.

    On cancel the process is killed.
    """
    # Should we die ourselves, the limit on its processor time ends the process.
    command = [sys.executable, "-I", "-S", "-c", _CODE, _PACKAGES, module, str(int(seconds) + 5)]
    with anyio.move_on_after(seconds):
        done = await anyio.run_process(
            command, input=msgspec.json.encode(question), stderr=subprocess.DEVNULL, check=False, cwd="/"
        )
        return msgspec.json.decode(done.stdout, type=Json) if done.returncode == 0 else None
    return None
