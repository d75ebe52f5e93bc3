"""Tool entries as YAML files: one entry for each document of a file, with the line of whatever is wrong in it."""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import yaml
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.tools.entries import Entry
from mainspring.tools.functions import NAME

_PLACE = re.compile(r" - at `\$(?P<path>.*)`$")
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*?)`")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")


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
            for read in _entries(file):
                if (earlier := found.setdefault(read.entry.name, read)) is not read:
                    problems.append(f"{read.place}: tool `{read.entry.name}` is defined twice, first at {earlier.place}")
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
            problems.append(f"{file}:{line}: this is not YAML: {error.problem or error.context}")
        except (OSError, UnicodeDecodeError, yaml.YAMLError, InvalidRequest) as error:
            problems.append(error.message if isinstance(error, InvalidRequest) else f"{file}: it cannot be read: {error}")
    if problems:
        raise InvalidRequest("the tool definitions are not right: " + "; ".join(problems))
    return tuple([read.entry for read in found.values()])


def _entries(file: Path) -> Iterator[_Found]:
    loader = yaml.SafeLoader(file.read_text())
    try:
        while loader.check_node() and (node := loader.get_node()) is not None:
            place = f"{file}:{node.start_mark.line + 1}"
            entry = _entry(file, node, loader.construct_document(node))
            # Where it says nothing else, an entry comes from its file.
            yield _Found(entry if entry.source is not None else replace(entry, source=str(file)), place)
    finally:
        loader.dispose()


def _entry(file: Path, node: yaml.Node, value: object) -> Entry:
    try:
        entry = msgspec.convert(value, Entry)
    except msgspec.ValidationError as error:
        told = str(error)
        unknown = _UNKNOWN.search(told)
        path = _PLACE.search(told)
        line = _line(node, f"{path['path'] if path else ''}{'.' + unknown['key'] if unknown else ''}")
        known = f"; known: {', '.join(Entry.__struct_fields__)}" if unknown else ""
        raise InvalidRequest(f"{file}:{line}: {told}{known}") from error
    if not NAME.fullmatch(entry.name):
        line = _line(node, ".name")
        raise InvalidRequest(f"{file}:{line}: `{entry.name}` cannot name a tool; use up to 64 letters, digits, `_` and `-`")
    return entry


def _line(node: yaml.Node, path: str) -> int:
    """The line of the value that a path such as `.effects[1]` leads to, or as far as it leads."""
    line = node.start_mark.line
    for step in _STEP.finditer(path):
        if isinstance(node, yaml.MappingNode):
            pairs = {key.value: (key, value) for key, value in node.value}
            if step["key"] not in pairs:
                break
            key, node = pairs[step["key"]]
            line = key.start_mark.line
        elif isinstance(node, yaml.SequenceNode) and step["index"] is not None:
            node = node.value[int(step["index"])]
            line = node.start_mark.line
    return line + 1
