"""The command as a process: its arguments, its one-line errors, its exit code."""

import sys
from typing import NoReturn

import typer

from mainspring.app.commands import app
from mainspring.cli.exit import USAGE, answered, leave, told
from mainspring.cli.plain import accept_any_text


def run_process() -> NoReturn:
    """Runs the command of `sys.argv` and ends the process."""
    accept_any_text()
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; what went wrong has been said when this returns."""
    try:
        return answered(lambda: typer.main.get_command(app).main(arguments, prog_name="mainspring", standalone_mode=False))
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        command = context.command_path if context is not None else "mainspring"
        message = error.format_message()
        return told(error, f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{command} --help`", USAGE)
