"""What the operator says of tools, in YAML files: one tool for each document of a file, with the line of every mistake."""

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.reader import parse_yaml_documents, read_text
from mainspring.tools.entries import Entry
from mainspring.tools.functions import NAME


class _Found(Struct, frozen=True):
    entry: Entry
    place: str


def read_definitions(folder: Path) -> tuple[Entry, ...]:
    """The entries of the files `*.yaml` and `*.yml`, by file name. Raises `InvalidRequest` with every error in all of them."""
    if not folder.is_dir():
        raise InvalidRequest(f"there is no folder `{folder}` with tool definitions")
    found: dict[str, _Found] = {}
    problems: list[str] = []
    for file in sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")]):
        try:
            for read in _parse_entries(file, read_text(file)):
                if (earlier := found.setdefault(read.entry.name, read)) is not read:
                    problems.append(f"{read.place}: tool `{read.entry.name}` is defined twice, first at {earlier.place}")
        except InvalidRequest as error:
            problems.append(error.message)
    if problems:
        raise InvalidRequest("the tool definitions are not right: " + "; ".join(problems))
    return tuple([read.entry for read in found.values()])


def _parse_entries(file: Path, text: str) -> list[_Found]:
    entries: list[_Found] = []
    problems: list[str] = []
    for parsed in parse_yaml_documents(file, text):
        entry = parsed.convert(Entry)
        if entry is not None and not NAME.fullmatch(entry.name):
            parsed.add_problem(("name",), f"`{entry.name}` cannot name a tool; use up to 64 letters, digits, `_` and `-`")
        try:
            parsed.raise_problems()
        except InvalidRequest as error:
            problems.append(error.message)
        if entry is not None:
            # Where it says nothing else, an entry comes from its file.
            entry = entry if entry.source is not None else replace(entry, source=str(file))
            entries.append(_Found(entry, f"{file}:{parsed.root.line}"))
    if problems:
        raise InvalidRequest("; ".join(problems))
    return entries
