"""How a command ends: its one-line errors and its exit code.

Whatever goes wrong becomes one line on standard error that names the next step; with `MAINSPRING_DEBUG=1` the traceback and the
log come with it. The exit codes are described in the help of `mainspring`.
"""

import errno
import os
import sys
import threading
import traceback
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final, NoReturn

from mainspring.cli.output import is_debug, say, silence
from mainspring.core.errors import CallerError, MainspringError
from mainspring.late_module import LateModule

if TYPE_CHECKING:
    import asyncio
    import logging
else:
    asyncio = LateModule("asyncio")
    logging = LateModule("logging")

FAILURE: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
GRACE: Final = 0.2
NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def run_reporting_errors(work: Callable[[], object], but: type[Exception] | tuple[()] = ()) -> int:
    """Does the work of a command, awaiting it if it is a coroutine, and returns its exit code.

    Errors of the kind `but` are raised to the caller.
    """
    try:
        result = work()
        code = run_async(result) if isinstance(result, Coroutine) else result
    except but:
        raise
    except Exception as raised:
        error = _unwrap(raised)
        if isinstance(error, BrokenPipeError):
            silence()
            return BROKEN_PIPE
        if isinstance(error, MainspringError):
            return report(error, error.message, USAGE if isinstance(error, CallerError) else FAILURE)
        if isinstance(error, OSError) and error.errno in NO_ROOM:
            silence()  # what is left would be told once more
            return report(error, f"what is written cannot be kept: {error.strerror}; make room, or write elsewhere", FAILURE)
        if isinstance(error, OSError) and error.filename is not None:  # of the user's, not of ours
            told = f"`{os.fsdecode(error.filename)}` cannot be used: {error.strerror}"
            return report(error, f"{told}; check that it is there, and that you may read and write it", FAILURE)
        advice = "set MAINSPRING_DEBUG=1 to see where, and report it"
        return report(error, f"internal error: {type(error).__name__}: {error}; {advice}", FAILURE)
    return code if isinstance(code, int) else 0


def run_async(work: Coroutine[object, object, object]) -> object:
    """Awaits the work of a command. The log is for servers: it stays silent here, unless one debugs."""
    if is_debug():
        logging.basicConfig(level=logging.INFO)
        logging.getLogger("mainspring").setLevel(logging.DEBUG)
    else:
        logging.getLogger().addHandler(logging.NullHandler())  # without one Python writes warnings itself
    return asyncio.run(work)


def _unwrap(error: Exception) -> Exception:
    """The error itself where task groups have wrapped it alone."""
    while isinstance(error, ExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


def report(error: Exception, message: str, code: int) -> int:
    if is_debug():
        traceback.print_exception(error)
    say(message)
    return code


def leave(code: int) -> NoReturn:
    """Ends the process, even if an abandoned tool still runs in its thread. Threads of object storage, which are not Python's,
    abort a process whose interpreter is ending when they answer."""
    try:
        sys.stdout.flush()
    except OSError as error:
        silence()
        if error.errno in NO_ROOM:
            say(f"the output was not written: {error.strerror}; make room, or write elsewhere")
            code = code or FAILURE
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in others:
        thread.join(GRACE / len(others))
    if any(thread.is_alive() for thread in others) or "obstore" in sys.modules:
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
