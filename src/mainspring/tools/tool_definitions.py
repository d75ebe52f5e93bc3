"""What the operator says of tools, in YAML files: one tool for each document of a file, with the line of every mistake."""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.definitions.folder import Defined, DefinitionFolders, find_definition_files
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parsed_file import ParsedFile
from mainspring.definitions.reader import parse_yaml_documents, read_text
from mainspring.tools.entries import Entry


class ToolEntryFolders(DefinitionFolders[Entry]):
    """The entries of the files `*.yaml` and `*.yml` by the names of their tools. `check` raises `ValueError` for an entry that
    cannot be one of its tool."""

    def __init__(self, folders: Iterable[Path], check: Callable[[Entry], object]) -> None:
        find_files = partial(find_definition_files, suffixes=(".yaml", ".yml"))
        super().__init__("tool", folders, partial(_read, check=check), find_files=find_files)


def file_schema() -> Json:
    """The JSON Schema of each document of a file."""
    return build_schema(Entry, "What is said of a tool of Mainspring")


def _read(file: Path, check: Callable[[Entry], object]) -> list[Defined[Entry]]:
    entries: dict[str, Defined[Entry]] = {}
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


def _convert(parsed: ParsedFile, check: Callable[[Entry], object]) -> Entry | None:
    entry = parsed.convert(Entry)
    if entry is None:
        return None
    try:
        check(entry)
    except ValueError as error:
        parsed.add_problem((), str(error))
    # Where it says nothing else, an entry comes from its file.
    return entry if entry.source is not None else replace(entry, source=str(parsed.file))
