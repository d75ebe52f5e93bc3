"""The command as a process: its arguments, its one-line errors, its exit code.

Whatever goes wrong becomes one line on standard error that names the next step; with `MAINSPRING_DEBUG=1` the traceback and the
log come with it. The exit codes are described in the help of `mainspring`.
"""

import os
import sys
import threading
import traceback
from typing import NoReturn

import typer

from mainspring.cli.commands import app
from mainspring.cli.plain import accept_any_text, is_debug, say, silence
from mainspring.errors import CallerError, MainspringError

FAILURE = 1
USAGE = 2
GRACE = 0.2


def run_process() -> NoReturn:
    """Runs the command of `sys.argv` and ends the process."""
    accept_any_text()
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; what went wrong has been said when this returns."""
    try:
        code: object = typer.main.get_command(app).main(arguments, prog_name="mainspring", standalone_mode=False)
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "mainspring"
        message = error.format_message()
        return _told(error, f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{command} --help`", USAGE)
    except MainspringError as error:
        return _told(error, error.message, USAGE if isinstance(error, CallerError) else FAILURE)
    except Exception as error:
        advice = "set MAINSPRING_DEBUG=1 to see where, and report it"
        return _told(error, f"internal error: {type(error).__name__}: {error}; {advice}", FAILURE)
    return code if isinstance(code, int) else 0


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


def _told(error: Exception, message: str, code: int) -> int:
    if is_debug():
        traceback.print_exception(error)
    say(message)
    return code
