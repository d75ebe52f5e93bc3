"""The command as a process: its arguments, its one-line errors, its exit code."""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer
from msgspec import Struct
from typer._click.core import Context
from typer._click.exceptions import BadParameter, MissingParameter, NoSuchOption, UsageError
from typer._click.types import ParamType
from typer._click.types import _NumberRangeBase as NumberRange
from typer._completion_classes import completion_init
from typer._types import TyperChoice
from typer.core import TyperArgument, TyperGroup, TyperOption

import mainspring
from mainspring.app.product_parts import PARTS, find_installed_parts
from mainspring.cli.context import PRODUCT, Assembly, EngineOptions, Product
from mainspring.cli.exit import USAGE, leave, report, run_reporting_errors
from mainspring.cli.lazy import LazyGroup
from mainspring.cli.output import accept_any_text
from mainspring.late_module import LateModule

if TYPE_CHECKING:
    from mainspring.app import assembly, settings
    from mainspring.definitions import parsed_file
else:
    assembly = LateModule("mainspring.app.assembly")
    settings = LateModule("mainspring.app.settings")
    parsed_file = LateModule("mainspring.definitions.parsed_file")

HELP = """
An agent engine you host yourself: any model, your tools, every step recorded.

**See it work**, without a key or a network:

    mainspring demo

**Ask a model**: one whose key is in the environment, one of a server on this machine, or else a small one of our own:

    mainspring run "Why is the sky blue?"
    mainspring models
    mainspring run "Why is the sky blue?" --model anthropic/claude-sonnet-5-5

**Give it tools**: Python functions, here all of `mytools.py` that are marked with `@tool`:

    mainspring run "Tidy up notes.txt" --tool mytools

Runs **are kept**. Look at them, and go on from one:

    mainspring run "Plan a trip"
    mainspring runs
    mainspring run "Cheaper!" --previous last
"""
EPILOG = """
Exit codes: 0 the run is completed, or requires action; 1 it failed, is incomplete or cancelled, or something else went wrong;
2 the command or its options are not right; 130, 143 it was stopped by Ctrl-C or SIGTERM; 141 nobody read the output any more.
MAINSPRING_DEBUG=1 shows tracebacks and the log.
"""

# What options were called before; scripts have them. `serve` has an --api-key of its own.
FORMER_OPTIONS: Final = {"--api-key": "--backend-key", "--max-iterations": "--max-turns"}

app = typer.Typer(
    name="mainspring",
    cls=LazyGroup,
    help=HELP,
    epilog=EPILOG,
    add_completion=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False
) -> None:
    if version:
        print(f"mainspring {mainspring.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


def run_process() -> NoReturn:
    """Runs the command of `sys.argv` and ends the process."""
    accept_any_text()
    leave(run_command(sys.argv[1:]))


def run_command(arguments: list[str]) -> int:
    """Runs one command and returns its exit code; what went wrong has been said when this returns."""
    PRODUCT.set(Product(PARTS, find_installed_parts, lambda: settings.find_settings_type(), _load_settings, _build_engine))
    if "_MAINSPRING_COMPLETE" in os.environ:  # a shell asks how to go on, see `mainspring completion`
        completion_init()
    group, given = typer.main.get_group(app), [*_rename_options(arguments)]
    try:
        return run_reporting_errors(
            lambda: group.main(given, prog_name="mainspring", standalone_mode=False), but=typer.TyperException
        )
    except typer.TyperException as error:
        context = error.ctx if isinstance(error, UsageError) else None
        command = context.command_path if context is not None else "mainspring"
        message = _tell_mistake(error, context)
        return report(error, f"{message}{'' if message.endswith(('.', '?')) else '.'} See `{command} --help`", USAGE)


def _rename_options(arguments: list[str]) -> Iterator[str]:
    """The arguments with options by their names of today."""
    for place, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        is_former = name in FORMER_OPTIONS and "--" not in arguments[:place] and "serve" not in arguments[:1]
        yield f"{FORMER_OPTIONS[name]}{equals}{value}" if is_former else argument


def _tell_mistake(error: typer.TyperException, context: Context | None) -> str:
    """What is wrong with a command line, with what may have been meant, or what there is."""
    message = re.sub(r"^Invalid value for '?(.*?)'?: ", r"`\1`: ", error.format_message())
    if (named := re.fullmatch(r"Option '(--\S+)' requires an argument\.?", message)) is not None:
        return f"`{named[1]}` needs a value behind it"
    if context is None:
        return message
    if isinstance(error, NoSuchOption):
        option = error.option_name
        options = [each for parameter in context.command.get_params(context) for each in parameter.opts if each.startswith("--")]
        name, known = option.lstrip("-"), [each.lstrip("-") for each in options]  # with the dashes all would be alike
        of_letter = [each for each in known if each.startswith(name)] if len(name) == 1 else []
        meant = f"did you mean `{of_letter[0]}`?" if of_letter else parsed_file.hint(name, known)
        return f"there is no option `{option}`; {re.sub(r'`(?=[a-z])', '`--', meant)}"
    if (extra := re.fullmatch(r"Got unexpected extra argument\(s\) \((.*)\)", message, re.DOTALL)) is not None:
        return f"`{extra[1]}` is more than it takes; write quotes around what has blanks in it"
    if isinstance(context.command, TyperGroup) and message.startswith(("Missing command", "No such command")):
        known = context.command.list_commands(context)
        name = (re.findall(r"^No such command '(.*?)'", message) or [""])[0]
        if not name:
            return f"say which command: {', '.join(known)}"
        options = [each for parameter in context.command.get_params(context) for each in parameter.opts]
        meant = f"did you mean `--{name}`?" if f"--{name}" in options else parsed_file.hint(name, known)
        return f"there is no command `{name}`; {meant}"
    if isinstance(error, BadParameter) and isinstance(error.param, TyperArgument | TyperOption):
        return _tell_parameter(error.param, error)
    return message


def _tell_parameter(parameter: TyperArgument | TyperOption, error: BadParameter) -> str:
    """What is wrong with the value of an option or an argument, or that it is missing, with what it takes."""
    is_option = isinstance(parameter, TyperOption)
    name = max(parameter.opts, key=len) if is_option else parameter.metavar or (parameter.name or "").upper()
    choices, told = parameter.type.choices if isinstance(parameter.type, TyperChoice) else (), error.message
    if isinstance(error, MissingParameter):
        asked = f"; {parsed_file.hint('', [*choices])}" if choices else f". {parameter.help or ''}".rstrip(". ")
        return f"`{name}` is missing{asked}"
    if choices and (chosen := re.match(r"'(.*)' is not one of ", told)) is not None:
        return f"`{name}` cannot be `{chosen[1]}`; {parsed_file.hint(chosen[1], [*choices])}"
    if (number := re.match(r"(.*) is not (?:a valid (?:int|float)|in the range)", told)) is not None:
        return f"`{name}` cannot be `{number[1].strip(chr(39))}`; it takes {_describe_number(parameter.type)}"
    return f"`{name}`: {told}"


def _describe_number(kind: ParamType) -> str:
    what = "a whole number" if kind.name.startswith("int") else "a number"
    match (kind.min, kind.max) if isinstance(kind, NumberRange) else (None, None):
        case None, None:
            return what
        case least, None:
            return f"{what} of at least {least}"
        case None, most:
            return f"{what} of at most {most}"
        case least, most:
            return f"{what} from {least} to {most}"


def _load_settings(given: Mapping[str, object], config: Path | None) -> Struct:
    return settings.load(given, file=config)


def _build_engine(options: EngineOptions) -> Assembly:
    return assembly.assemble(options)
