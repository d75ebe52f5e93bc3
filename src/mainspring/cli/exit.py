"""How a command ends: its one-line errors and its exit code.

Whatever goes wrong becomes one line on standard error that names the next step; with `MAINSPRING_DEBUG=1` the traceback and the
log come with it. The exit codes are described in the help of `mainspring`.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from typing import NoReturn

from mainspring.cli.plain import is_debug, say, silence
from mainspring.core.errors import CallerError, MainspringError

FAILURE = 1
USAGE = 2
GRACE = 0.2


def answered(work: Callable[[], object]) -> int:
    """Does the work of a command and returns its exit code. A mistake in the command line itself is the caller's to tell."""
    try:
        code = work()
    except MainspringError as error:
        return told(error, error.message, USAGE if isinstance(error, CallerError) else FAILURE)
    except Exception as error:
        if hasattr(error, "format_message"):
            raise
        advice = "set MAINSPRING_DEBUG=1 to see where, and report it"
        return told(error, f"internal error: {type(error).__name__}: {error}; {advice}", FAILURE)
    return code if isinstance(code, int) else 0


def told(error: Exception, message: str, code: int) -> int:
    if is_debug():
        traceback.print_exception(error)
    say(message)
    return code


def leave(code: int) -> NoReturn:
    """Ends the process, even if a tool that was given up still runs in its thread."""
    try:
        sys.stdout.flush()
    except OSError:
        silence()
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in others:
        thread.join(GRACE / len(others))
    if any(thread.is_alive() for thread in others):
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)
