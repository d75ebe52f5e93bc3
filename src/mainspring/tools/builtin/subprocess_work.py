"""Runs work that hostile input can make endless in a process of its own.

A regular expression or a broken page can keep Python busy for hours, and such a thread blocks all others and cannot be stopped.
So the work runs in a bare interpreter, which is killed on timeout. The modules that run there import only the standard library.
"""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import msgspec

from mainspring.core.items import Json
from mainspring.tools.work_turns import take_turn

_PACKAGES = str(Path(__file__).parents[3])
_CODE = """
import json, resource, sys
sys.path.append(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[3]), int(sys.argv[3])))
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
from importlib import import_module
json.dump(import_module(sys.argv[2]).answer(**json.load(sys.stdin.buffer)), sys.stdout)
"""


async def run_in_subprocess(module: str, question: Json | Callable[[], Json], seconds: float, tenant: str = "") -> Json | None:
    """The result of the module's function `answer`; None on timeout or crash. A question that is large is made when its turn
    comes. `seconds` are for the work, not for the wait.

    On cancel the process is killed.
    """
    # If the engine dies, the CPU limit ends the process.
    command = [sys.executable, "-I", "-S", "-c", _CODE, _PACKAGES, module, str(int(seconds) + 5)]
    async with take_turn(tenant):
        asked = msgspec.json.encode(question() if callable(question) else question)
        with anyio.move_on_after(seconds):
            done = await anyio.run_process(command, input=asked, stderr=subprocess.DEVNULL, check=False, cwd="/")
            return msgspec.json.decode(done.stdout, type=Json) if done.returncode == 0 else None
    return None
