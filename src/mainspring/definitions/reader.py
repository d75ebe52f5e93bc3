"""Definitions that people write as YAML or JSON files, read with the line of every value.

The nodes that the YAML library makes become plain values here: text, numbers, truth values, lists and mappings, nothing else,
each key once, and no more of them than `MOST_NODES`, whatever aliases multiply them. The YAML library is imported when it is
needed: it takes longer to import than most commands.
"""

from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Protocol, cast

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node, ParsedFile, Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
MOST_BYTES: Final = 1024 * 1024
MOST_NODES: Final = 100_000

_TAG = "tag:yaml.org,2002:"
_TYPED = frozenset({f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")})


class _Mark(Protocol):
    line: int


class _YamlNode(Protocol):
    """A node as the YAML library makes it; `value` is text, nodes, or pairs of nodes, as `id` says."""

    id: str
    tag: str
    value: Any
    start_mark: _Mark


def parse_yaml(file: Path, text: str, *, first_line: int = 1, as_text: bool = False) -> ParsedFile:
    """The one document of a text. Raises `InvalidRequest` by file and line if it cannot be read.

    `first_line` is where the text begins in the file. With `as_text`, every scalar is the text that is written.
    """
    documents = _parse(file, text, first_line, as_text)
    first = next(documents, None) or ParsedFile(file, Node(None, first_line))
    if (second := next(documents, None)) is not None:
        raise InvalidRequest(f"{file}:{second.root.line}: a second document begins here; write one in each file")
    return first


def parse_yaml_documents(file: Path, text: str) -> list[ParsedFile]:
    """Every document of a text. Raises as `parse_yaml` does."""
    return list(_parse(file, text, 1, False))


def read_text(file: Path) -> str:
    """The text of a definition. Raises `InvalidRequest` with the file if it cannot be had."""
    try:
        if not S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise InvalidRequest(f"{file}: it is no file; take it out of this folder, or rename it")
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidRequest(f"{file}: it cannot be read: {error.strerror}") from error
    if len(data) > MOST_BYTES:
        raise InvalidRequest(f"{file}:1: the file has more than {MOST_BYTES} bytes; make it smaller")
    return decode_text(file, data)


def decode_text(file: Path, data: bytes) -> str:
    """Raises `InvalidRequest` with the line that is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{file}:{line}: this is not UTF-8; save it as such") from None


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that may be definitions, by name. Raises `InvalidRequest` if there is no such folder."""
    try:
        return sorted([file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")])
    except OSError as error:
        raise InvalidRequest(f"the folder `{folder}` cannot be read: {error.strerror}; check its name") from error


def _parse(file: Path, text: str, first_line: int, as_text: bool) -> Iterator[ParsedFile]:
    # JSON may be indented by tabs, which YAML does not allow, and has none inside of strings.
    for root in _compose(file, text.replace("\t", " ") if file.suffix == ".json" else text, first_line):
        builder = _Builder(file, first_line, as_text)
        try:
            node = builder.build(root, root)
        except RecursionError:
            raise _nested_too_deeply(file, first_line) from None
        yield ParsedFile(file, node, builder.problems)


def _compose(file: Path, text: str, first_line: int) -> Iterator[_YamlNode]:
    import yaml

    # The C library counts this place in bytes.
    if (found := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + first_line
        raise InvalidRequest(f"{file}:{line}: this is not YAML: it has a character that YAML does not allow; take it out")
    try:
        yield from cast(Iterator[_YamlNode], yaml.compose_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except yaml.MarkedYAMLError as error:
        line = first_line + (error.problem_mark.line if error.problem_mark is not None else 0)
        raise InvalidRequest(f"{file}:{line}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file}:{first_line}: this is not YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError:
        raise _nested_too_deeply(file, first_line) from None


def _nested_too_deeply(file: Path, line: int) -> InvalidRequest:
    return InvalidRequest(f"{file}:{line}: it is nested too deeply; make it flatter")


class _Builder:
    """Makes our nodes out of those of the YAML library."""

    def __init__(self, file: Path, first_line: int, as_text: bool) -> None:
        self.problems: list[Problem] = []
        self._file, self._first_line, self._as_text = file, first_line, as_text
        self._left = MOST_NODES

    def build(self, node: _YamlNode, at: _YamlNode) -> Node:
        """The node, with the line of `at`."""
        self._left -= 1
        line = self._line(node)
        if self._left < 0:
            raise InvalidRequest(f"{self._file}:{line}: the file stands for more than {MOST_NODES} values; make it smaller")
        match node.id:
            case "sequence":
                return Node([self.build(each, each) for each in node.value], self._line(at))
            case "mapping":
                return Node(self._build_mapping(node), self._line(at))
            case _:
                return Node(self._build_scalar(node, line), self._line(at))

    def _build_mapping(self, node: _YamlNode) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        for key, each in node.value:
            if key.id != "scalar":
                raise InvalidRequest(f"{self._file}:{self._line(node)}: keys must be text")
            if key.tag == f"{_TAG}merge":
                # What is merged in gives way to the mapping's own keys, and the later of several to the earlier.
                for part in each.value if each.id == "sequence" else [each]:
                    if part.id != "mapping":
                        raise InvalidRequest(f"{self._file}:{self._line(part)}: `<<` merges mappings only")
                    merged = self._build_mapping(part) | merged
                continue
            name = str(key.value)
            if name in own:
                self.problems.append(Problem(self._line(key), f"`{name}` is there twice; keep one"))
            own[name] = self.build(each, key)
        return {**merged, **own}

    def _build_scalar(self, node: _YamlNode, line: int) -> object:
        if self._as_text:
            return str(node.value).strip()
        if node.tag.startswith("!"):
            raise InvalidRequest(f"{self._file}:{line}: the tag `{node.tag[:80]}` is not known; write plain values")
        if node.tag not in _TYPED:
            return str(node.value)  # times and the like stay the text that they are

        from yaml import YAMLError
        from yaml.constructor import SafeConstructor

        try:
            value = SafeConstructor().construct_object(cast(Any, node))
            if isinstance(value, float) and not isfinite(value):
                raise ValueError("a number must be finite")
            return value
        except (YAMLError, ValueError) as error:
            raise InvalidRequest(f"{self._file}:{line}: `{str(node.value)[:80]}` is no value: {error}") from error

    def _line(self, node: _YamlNode) -> int:
        return int(node.start_mark.line) + self._first_line
