"""What a program of somebody else's is started by: it gives up all that the program shall not have, and becomes it.

A program of its own, given an order as JSON and the number of a pipe. It does for a process that the engine starts what the
warden does for its own. A program with a namespace is replaced by nothing else and ends with all it started. One without gets a
keeper, which ends the whole tree when the program ends, or when the other end of the pipe is closed, be it by the engine's death.
"""

import ctypes
import json
import os
import signal
import sys
from typing import Any, NoReturn

sys.path.append(os.path.dirname(os.path.abspath(__file__)))

import warden  # type: ignore[import-not-found]


def main() -> NoReturn:
    order, pipe = json.loads(sys.argv[1]), int(sys.argv[2])
    try:
        start(order, pipe)
    except BaseException as error:  # Nothing may run on in what was to become the program.
        os.write(2, f"cannot start {order['argv'][0]}: {error}\n".encode())
    os._exit(warden.FAILED)


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
        warden.keep(order, pipe)
        warden.checked(warden.libc.prctl(warden.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if order["launch"]:
        warden.prepare(order["launch"])
    os.execve(order["argv"][0], order["argv"], {**os.environ, **order["env"]})


def see_as(namespace: str) -> None:
    """Sees the files as the warden does, who has made folders visible that the sandbox's user could not reach."""
    file = os.open(namespace, os.O_RDONLY)
    if warden.libc.setns(file, warden.CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(file)


def show(views: "list[list[str]]") -> None:
    """Makes more of them visible, to this program alone."""
    warden.checked(warden.libc.unshare(warden.CLONE_NEWNS), "unshare")
    warden.mount("none", "/", warden.MS_REC | warden.MS_PRIVATE)
    for source, target in views:
        warden.mount(source, target, warden.MS_BIND | warden.MS_REC)


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
