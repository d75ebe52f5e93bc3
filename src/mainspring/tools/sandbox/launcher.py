"""The launcher of a program that the engine talks to itself, such as an MCP server: drops privileges, then becomes the program.

A program of its own, given an order as JSON and the number of a pipe. It prepares a process of the engine as the supervisor
prepares its own. A program in a namespace replaces the launcher, and everything it started ends with it. A program without one
gets a reaper, which ends the whole tree when the program ends or the other end of the pipe is closed, also by the engine's death.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import supervisor  # type: ignore[import-not-found]


def main() -> NoReturn:
    order, pipe = json.loads(sys.argv[1]), int(sys.argv[2])
    try:
        start(order, pipe)
    except BaseException as error:  # Nothing may run on in what was to become the program.
        os.write(2, f"cannot start {order['argv'][0]}: {error}\n".encode())
    os._exit(supervisor.FAILED)


def start(order: "dict[str, Any]", pipe: int) -> None:
    if order["namespace"]:
        see_as(order["namespace"])
    if order["views"]:
        show(order["views"])
    if order["extra"]:
        os.close(pipe)
        give(bytes.fromhex(order["extra"]), order["file"])
    else:
        # Not ignored: that would pass on to the program, which is asked in this way to end.
        signal.signal(signal.SIGTERM, lambda number, frame: None)
        supervisor.run_with_reaper(order, pipe)
        supervisor.check_result(supervisor.libc.prctl(supervisor.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if order["launch"]:
        supervisor.prepare(order["launch"])
    os.execve(order["argv"][0], order["argv"], {**os.environ, **order["env"]})


def see_as(namespace: str) -> None:
    """Sees the files as the supervisor does, who has made folders visible that the sandbox's user could not reach."""
    file = os.open(namespace, os.O_RDONLY)
    if supervisor.libc.setns(file, supervisor.CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(file)


def show(views: "list[list[str]]") -> None:
    """Makes more of them visible, to this program alone."""
    supervisor.check_result(supervisor.libc.unshare(supervisor.CLONE_NEWNS), "unshare")
    supervisor.mount("none", "/", supervisor.MS_REC | supervisor.MS_PRIVATE)
    for source, target in views:
        supervisor.mount(source, target, supervisor.MS_BIND | supervisor.MS_REC)


def give(data: bytes, number: int) -> None:
    """Makes the data readable as the file with this number."""
    file = os.memfd_create("extra", 0)
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    if file != number:
        os.dup2(file, number)
        os.close(file)


if __name__ == "__main__":
    main()
