"""The options that several commands share, each defined once, and what reads their values."""

import re
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Final, TypeAlias, TypeVar, get_type_hints

import msgspec
from msgspec import Struct
from msgspec.structs import fields
from typer import Argument, BadParameter, Option

from mainspring.cli.context import load_settings
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.storage.location import Location, parse_location

R = TypeVar("R")

_UNITS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_duration(text: str) -> float:
    """The seconds that a time such as `30d` is."""
    if (found := re.fullmatch(r"([1-9]\d{0,5})([mhdw])", text)) is None:
        raise BadParameter(f"`{text}` is not a duration; write a number and m, h, d or w, as in 30d", param_hint="TIME")
    return float(int(found[1]) * _UNITS[found[2]])


class DatabaseSettings(Struct, frozen=True):
    database: str


def read_database_setting(config: Path | None = None) -> str:
    return load_settings(DatabaseSettings, config).database


def choose_database(database: Location | None, config: Path | None) -> Location:
    """The database that an option names, else that of the settings."""
    return database if database is not None else parse_location(read_database_setting(config))


def name_database(database: Location) -> str:
    """` --database FILE`, quoted for a shell, for a command that is to be given; nothing if the settings name this one."""
    is_set = str(database) == str(parse_location(read_database_setting()))
    return "" if is_set else f" --database {shlex.quote(str(database))}"


# Where things are.
Config: TypeAlias = Annotated[
    Path | None, Option(metavar="FILE", help="Settings file. Default: mainspring.toml, if there is one.")
]
Database: TypeAlias = Annotated[
    Location,
    Option(
        parser=parse_location,
        default_factory=read_database_setting,
        metavar="FILE",
        help="Database file or URL. Default: the one of the settings, `mainspring.db`.",
        show_default=False,
    ),
]
DatabaseOfSettings: TypeAlias = Annotated[
    Location | None,
    Option("--database", parser=parse_location, metavar="FILE", help="Database file or URL. Default: the one of the settings."),
]
NoStore: TypeAlias = Annotated[bool, Option("--no-store", help="Keep the run in memory only.")]
Tenant: TypeAlias = Annotated[str, Option(metavar="NAME", help="Tenant. Default: the default tenant.", show_default=False)]
AllTenants: TypeAlias = Annotated[bool, Option("--all-tenants", help="Of every tenant, with a column that says whose.")]
EveryTenant: TypeAlias = Annotated[bool, Option("--all-tenants", help="Of every tenant, as without --tenant.")]
OneTenant: TypeAlias = Annotated[str | None, Option("--tenant", metavar="NAME", help="Only of this tenant. Default: all.")]
RunId: TypeAlias = Annotated[str, Argument(metavar="RUN_ID", help="Run: its id, the beginning of it, or `last`.")]

# What is printed.
AsJson: TypeAlias = Annotated[bool, Option("--json", help="Print JSON, one object per line.")]
EventsAsJson: TypeAlias = Annotated[bool, Option("--json", help="Print each event as a line of JSON, as it is recorded.")]
Limit: TypeAlias = Annotated[int, Option(min=1, metavar="N", help="Print at most N.")]

# Who answers, with which tools.
Model: TypeAlias = Annotated[
    str | None,
    Option(metavar="NAME", help="`PROVIDER/NAME`, `local`, or `scripted:FILE` for a script. Default: that of the settings."),
]
ModelOfRun: TypeAlias = Annotated[
    str | None, Option("--model", metavar="NAME", help="As for `run`. Default: the model of the run.")
]
BaseUrl: TypeAlias = Annotated[str | None, Option(metavar="URL", help="OpenAI-compatible backend; it is asked for every model.")]
BackendKey: TypeAlias = Annotated[
    str | None,
    Option(
        "--backend-key",
        metavar="KEY",
        help="API key of the backend. Better export OPENAI_API_KEY or the like: others can see options.",
    ),
]
Tools: TypeAlias = Annotated[
    list[str] | None,
    Option("--tool", metavar="MODULE:FUNCTION", help="Python function, or MODULE for every `@tool` in it. Repeatable."),
]
Builtins: TypeAlias = Annotated[
    list[str] | None,
    Option(
        "--builtin",
        metavar="NAME",
        help="`shell`, `code_interpreter` or `browser`, in a sandbox; `file_ops`, `web_fetch`. Repeatable.",
    ),
]
AgentFolders: TypeAlias = Annotated[
    list[Path] | None, Option("--agents", metavar="DIR", help="Folder of agents. Repeatable. Default: those of the settings.")
]

# What a definition takes.
InputPairs: TypeAlias = Annotated[list[str] | None, Option("--input", metavar="NAME=VALUE", help="Input. Repeatable.")]
InputObject: TypeAlias = Annotated[
    str | None, Option("--inputs", metavar="JSON", help="All inputs as one object; `-` reads it from standard input.")
]
Expires: TypeAlias = Annotated[
    float | None, Option(parser=parse_duration, metavar="TIME", help="Lifetime, as in 30d, 12h, 45m, 2w. Default: never expires.")
]


class Continuation(Struct, frozen=True):
    """The options of a command that goes on with a run."""

    model: ModelOfRun = None
    base_url: BaseUrl = None
    backend_key: BackendKey = None
    tool: Tools = None
    database: DatabaseOfSettings = None
    config: Config = None

    def choose_database(self) -> Location:
        return choose_database(self.database, self.config)


def expand_groups(command: Callable[..., R]) -> Callable[..., R]:
    """The command with the fields of a struct as options of their own, in place of each parameter that is such a struct."""
    kinds = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Struct)}
    shown: list[Parameter] = []
    for parameter in signature(command).parameters.values():
        if (group := groups.get(parameter.name)) is None:
            shown.append(parameter.replace(annotation=kinds[parameter.name]))
        else:
            hints = get_type_hints(group, include_extras=True)
            shown += [
                parameter.replace(name=each.name, annotation=hints[each.name], default=each.default) for each in fields(group)
            ]

    @wraps(command)
    def call(**given: object) -> R:
        made = {name: group(**{field: given.pop(field) for field in group.__struct_fields__}) for name, group in groups.items()}
        return command(**given, **made)

    call.__dict__["__signature__"] = signature(command).replace(parameters=shown)
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return call


def read_inputs(pairs: Sequence[str] | None, whole: str | None) -> Json:
    """The inputs of `--inputs` and `--input`, the latter as text. Raises `InvalidRequest`."""
    text = sys.stdin.read() if whole == "-" else whole or "{}"
    try:
        inputs = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"--inputs must be a JSON object: {error}", param="inputs") from None
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise InvalidRequest(f"`{pair[:80]}` is not an input; write --input NAME=VALUE", param="input")
        inputs[name] = value
    return inputs


def as_texts(given: Sequence[object] | None) -> tuple[str, ...] | None:
    """A repeatable option as a setting; None if it was not given."""
    return tuple([str(each) for each in given]) if given else None
