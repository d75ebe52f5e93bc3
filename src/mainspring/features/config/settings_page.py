"""The reference page of all settings, from the structs that they are read into, and settings as TOML without their secrets."""

import re
from collections.abc import Iterable, Iterator
from inspect import getdoc
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec import inspect as types

from mainspring.core.redact import redact_text
from mainspring.definitions.json_schema import read_field_docs
from mainspring.definitions.toml import write_toml
from mainspring.storage.location import hide_password

HEAD: Final = """\
# Settings

Settings come from `mainspring.toml`, or the file that `--config` names, then from the environment, then from the command line;
the later ones win. In the environment a setting is `MAINSPRING_` and its name in capitals, as in `MAINSPRING_PORT`; the entries
of a list are separated by spaces. Tables can only be in the file. `mainspring config show` prints the settings in force,
`mainspring config schema` a JSON Schema for editors. `mainspring config docs` writes this page.
"""
HIDDEN: Final = "(hidden)"

_SCALARS: Final[dict[type[types.Type], str]] = {
    types.BoolType: "`true` or `false`",
    types.IntType: "integer",
    types.FloatType: "number",
    types.StrType: "text",
    types.DateTimeType: "date and time",
}
_PAGE = re.compile(r"docs/(?P<name>[a-z-]+\.md)")
_SECRET_OPTION = re.compile(r"--?[\w-]*(?:key|token|secret|pass|auth)[\w-]*", re.IGNORECASE)


def render_page(kind: type[Struct]) -> str:
    """The page in Markdown: the settings of the struct, and a section for every table."""
    tables: dict[type[Struct], list[str]] = {}
    _add_tables(kind, "", tables)
    parts = [HEAD, _render_fields(kind)]
    for table, headers in tables.items():
        about = _PAGE.sub(r"[\g<name>](\g<name>)", " ".join((getdoc(table) or "").split()))
        parts.append(f"## {', '.join([f'`{header}`' for header in headers])}\n\n{about}\n")
        if (wider := _find_wider(table, tables)) is None:
            parts.append(_render_fields(table))
        else:
            more = [f"`{name}`" for name in wider.__struct_fields__ if name not in table.__struct_fields__]
            parts.append(f"It may hold what `{tables[wider][0]}` may, but for {', '.join(more)}.\n")
    return "\n".join(parts)


def _find_wider(table: type[Struct], tables: Iterable[type[Struct]]) -> type[Struct] | None:
    """A table that has all settings of this one, and not many more."""
    wider = [each for each in tables if each is not table and issubclass(each, table)]
    return next((each for each in wider if len(each.__struct_fields__) < 2 * len(table.__struct_fields__)), None)


def _add_tables(kind: type[Struct], prefix: str, tables: dict[type[Struct], list[str]]) -> None:
    """Adds the tables in a table with their headers, if their fields are described."""
    for field in _fields(kind):
        for name, table, is_array in _find_tables(field.type, f"{prefix}{field.encode_name}"):
            if read_field_docs(table):
                is_new = table not in tables and _find_wider(table, tables) is None
                tables.setdefault(table, []).append(f"[[{name}]]" if is_array else f"[{name}]")
                if is_new:
                    _add_tables(table, f"{name}.", tables)


def _find_tables(info: types.Type, name: str, *, is_array: bool = False) -> Iterator[tuple[str, type[Struct], bool]]:
    match info:
        case types.StructType(cls=cls):
            yield name, cls, is_array
        case types.UnionType(types=several):
            for each in several:
                yield from _find_tables(each, name, is_array=is_array)
        case types.DictType(value_type=inner):
            yield from _find_tables(inner, f"{name}.NAME")
        case types.VarTupleType(item_type=inner):
            yield from _find_tables(inner, name, is_array=True)


def _render_fields(kind: type[Struct]) -> str:
    docs = read_field_docs(kind)
    rows = [(f"`{field.encode_name}`", _name_type(field.type), _name_default(field), docs[field.name]) for field in _fields(kind)]
    lines = [("setting", "type", "default", "what it means"), ("---", "---", "---", "---"), *rows]
    return "".join([f"| {' | '.join([cell.replace('|', chr(92) + '|') for cell in line])} |\n" for line in lines])


def _fields(kind: type[Struct]) -> tuple[types.Field, ...]:
    info = types.type_info(kind)
    assert isinstance(info, types.StructType)
    return info.fields


def _name_type(info: types.Type) -> str:
    match info:
        case types.Metadata(type=inner):
            return _name_type(inner)
        case types.LiteralType(values=values):
            return ", ".join([f"`{msgspec.json.encode(value).decode()}`" for value in values])
        case types.VarTupleType(item_type=inner):
            return f"list of {_name_type(inner)}"
        case types.UnionType(types=several):
            return " or ".join([_name_type(each) for each in several if not isinstance(each, types.NoneType)])
        case _:
            return _SCALARS.get(type(info), "table")


def _name_default(field: types.Field) -> str:
    if field.required:
        return "required"
    if field.default is NODEFAULT or field.default in (None, ()) or isinstance(field.default, Struct):
        return ""
    return f"`{msgspec.json.encode(field.default).decode()}`"


def render_settings(settings: Struct) -> str:
    """The settings as TOML, without secrets."""
    return write_toml(hide_secrets("", msgspec.to_builtins(settings)))


def hide_secrets(name: str, value: Any) -> Any:
    """A setting of this name without its secrets. What is empty is left out of tables."""
    match value:
        case dict() if name in ("headers", "env"):
            return dict.fromkeys(value, HIDDEN)
        case dict():
            shown = {key: hide_secrets(key, each) for key, each in value.items()}
            return {key: each for key, each in shown.items() if each not in (None, {})}
        case list() | tuple() if name == "args":
            pairs = pairwise(["", *value])
            return [HIDDEN if _SECRET_OPTION.fullmatch(before) else redact_text(each) for before, each in pairs]
        case list() | tuple():
            return [hide_secrets(name, each) for each in value]
        case str() if name == "key" or name.endswith(("_key", "_secret")):
            return HIDDEN if value else value
        case str():
            return redact_text(value) if (url := hide_password(value)) == value else url
        case _:
            return value
