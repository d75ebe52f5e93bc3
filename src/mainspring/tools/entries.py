"""The metadata of a tool: its description, schema, status and origin, as declared by its code or by the operator.

The operator writes entries in YAML files, one tool for each document of a file; every mistake is reported with its line.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct
from msgspec.structs import fields, replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Effect, Json
from mainspring.definitions.folder import Defined, DefinitionFolders, find_definition_files
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parsed_file import ParsedFile
from mainspring.definitions.reader import parse_yaml_documents, read_text
from mainspring.tools.contract import Tool

Status = Literal["active", "deprecated", "blocked"]

_STRICTER = ("active", "deprecated", "blocked")


class ToolEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The metadata of a tool. An omitted field leaves the value to the next source.

    `reason` says why a tool is deprecated or blocked. `source`, `version`, `owner` and `license` say where it comes from.
    """

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9_-]{1,64}$(?!\n)", description="up to 64 letters, digits, `_` and `-`")]
    description: str | None = None
    schema: Json | None = None
    status: Status = "active"
    reason: str | None = None
    source: str | None = None
    version: str | None = None
    owner: str | None = None
    license: str | None = None
    tags: tuple[str, ...] | None = None
    effects: tuple[Effect, ...] | None = None
    repeatable: bool | None = None
    polls: bool | None = None
    timeout: float | None = None
    result_limit: int | None = None


def read_entry(tool: Tool) -> ToolEntry:
    """The entry that the tool's own attributes declare."""
    return ToolEntry(
        name=tool.name,
        description=tool.description,
        schema=getattr(tool, "parameters_schema", None),
        source=getattr(tool, "source", type(tool).__module__),
        effects=tuple(getattr(tool, "effects", ())),
        repeatable=getattr(tool, "repeatable", False),
        polls=getattr(tool, "polls", False),
        timeout=getattr(tool, "timeout", None),
        result_limit=getattr(tool, "result_limit", None),
    )


def merge_entries(upper: ToolEntry | None, lower: ToolEntry | None) -> ToolEntry:
    """The fields of `upper`, and where they are omitted, those of `lower`. Of two statuses the stricter applies."""
    if upper is None or lower is None:
        (only,) = [entry for entry in (upper, lower) if entry is not None]
        return only
    said = {field.name: value for field in fields(ToolEntry) if (value := getattr(upper, field.name)) is not None}
    return replace(lower, **said | {"status": max(upper.status, lower.status, key=_STRICTER.index)})


def describe_entry(entry: ToolEntry) -> Json:
    """The tool in OpenAI's function form; without a schema it takes no arguments."""
    description = entry.description or ""
    if entry.status == "deprecated":
        description = f"Deprecated{f': {entry.reason}' if entry.reason else ''}. {description}".rstrip()
    return {"name": entry.name, "description": description, "parameters": entry.schema or {"type": "object", "properties": {}}}


class ToolEntryFolders(DefinitionFolders[ToolEntry]):
    """The entries of the files `*.yaml` and `*.yml` by the names of their tools. `check` raises `ValueError` for an entry that
    cannot be one of its tool."""

    def __init__(self, folders: Iterable[Path], check: Callable[[ToolEntry], object]) -> None:
        find_files = partial(find_definition_files, suffixes=(".yaml", ".yml"))
        super().__init__("tool", folders, partial(_read, check=check), find_files=find_files, refuses_at_first=True)


def file_schema() -> Json:
    """The JSON Schema of each document of a file."""
    return build_schema(ToolEntry, "What is said of a tool of Mainspring")


def _read(file: Path, check: Callable[[ToolEntry], object]) -> list[Defined[ToolEntry]]:
    entries: dict[str, Defined[ToolEntry]] = {}
    problems: list[str] = []
    for parsed in parse_yaml_documents(file, read_text(file)):
        entry = _convert(parsed, check)
        if entry is not None and entry.name in entries:
            told = f"tool `{entry.name}` is defined twice, first at {file}:{entries[entry.name].line}"
            parsed.add_problem((), told)
        try:
            parsed.raise_problems()
        except InvalidRequest as error:
            problems.append(error.message)
        if entry is not None:
            entries[entry.name] = Defined(entry.name, entry, parsed.root.line)
    if problems:
        raise InvalidRequest("; ".join(problems))
    return list(entries.values())


def _convert(parsed: ParsedFile, check: Callable[[ToolEntry], object]) -> ToolEntry | None:
    entry = parsed.convert(ToolEntry)
    if entry is None:
        return None
    try:
        check(entry)
    except ValueError as error:
        parsed.add_problem((), str(error))
    # Where it says nothing else, an entry comes from its file.
    return entry if entry.source is not None else replace(entry, source=str(parsed.file))
