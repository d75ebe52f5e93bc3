"""Runs work that hostile input can make endless in a process of its own.

A regular expression or a broken page can keep Python busy for hours, and such a thread blocks all others and cannot be stopped.
So the work runs in a bare interpreter, which is killed on timeout. The modules that run there import only the standard library.
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
    """The result of the module's function `answer`; None on timeout or crash.

    On cancel the process is killed.
    """
    # If the engine dies, the CPU limit ends the process.
    command = [sys.executable, "-I", "-S", "-c", _CODE, _PACKAGES, module, str(int(seconds) + 5)]
    with anyio.move_on_after(seconds):
        done = await anyio.run_process(
            command, input=msgspec.json.encode(question), stderr=subprocess.DEVNULL, check=False, cwd="/"
        )
        return msgspec.json.decode(done.stdout, type=Json) if done.returncode == 0 else None
    return None
