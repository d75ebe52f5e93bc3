"""Definitions that people write as YAML or JSON files, read with the line of every value.

What the YAML library finds becomes plain values here: text, numbers, truth values, lists and mappings, nothing else, each key
once, and no more of them than `MOST_NODES`, whatever aliases multiply them, nor deeper than `MOST_DEPTH`. The library is
imported when it is needed: it takes longer to import than most commands. A file that is JSON is read as JSON, which YAML
understands otherwise in places: `1e5`, a surrogate pair, U+007F.
"""

import re
from collections.abc import Iterator
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node, ParsedFile, Problem

SUFFIXES: Final = (".yaml", ".yml", ".json")
MOST_BYTES: Final = 1024 * 1024
MOST_NODES: Final = 100_000
MOST_DEPTH: Final = 100
MOST_NUMBER_CHARS: Final = 64

T = TypeVar("T")

_TAG = "tag:yaml.org,2002:"
_JSON_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|[{}\[\]]|[^\s{}\[\],:"]+')
_TYPED = frozenset({f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")})


def read_file(file: Path, kind: type[T]) -> T:
    """The value of a file. Raises `InvalidRequest` with every mistake, each by file and line."""
    return parse_yaml(file, read_text(file)).finish(kind)


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


def _parse(file: Path, text: str, first_line: int, as_text: bool) -> Iterator[ParsedFile]:
    if file.suffix == ".json" and not as_text and (parsed := _parse_json(file, text)) is not None:
        yield parsed
        return

    import yaml

    # The library counts this place in bytes.
    if (found := yaml.reader.Reader.NON_PRINTABLE.search(text)) is not None:
        line = text.count("\n", 0, found.start()) + first_line
        raise InvalidRequest(f"{file}:{line}: this is not YAML: it has a character that YAML does not allow; take it out")
    # JSON may be indented by tabs, which YAML does not allow, and has none inside of strings.
    kind = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
    loader = kind(text.replace("\t", " ") if file.suffix == ".json" else text)
    try:
        loader.get_event()
        while not loader.check_event(yaml.StreamEndEvent):
            yield _Builder(file, loader, first_line, as_text).build_document()
    except yaml.MarkedYAMLError as error:
        line = first_line + (error.problem_mark.line if error.problem_mark is not None else 0)
        raise InvalidRequest(f"{file}:{line}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file}:{first_line}: this is not YAML: {' '.join(str(error).split())[:200]}") from error
    finally:
        loader.dispose()


def _parse_json(file: Path, text: str) -> ParsedFile | None:
    """The document of a text that is JSON. None if it is not: comments and the like make it YAML."""
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return None
    problems: list[Problem] = []
    tokens, position, line, count = _JSON_TOKEN.finditer(text), 0, 1, 0

    def take() -> str:
        nonlocal position, line
        token = next(tokens)
        line, position = line + text.count("\n", position, token.start()), token.start()
        return token[0]

    def build(token: str, depth: int) -> Node:
        nonlocal count
        begin, count = line, count + 1
        _check_size(file, line, depth, count)
        if token == "[":
            nodes: list[Node] = []
            while (element := take()) != "]":
                nodes.append(build(element, depth + 1))
            return Node(nodes, begin)
        if token != "{":
            return Node(msgspec.json.decode(token), begin)
        own: dict[str, Node] = {}
        while (key := take()) != "}":
            name, at = msgspec.json.decode(key, type=str), line
            if name in own:
                problems.append(Problem(at, f"`{name}` is there twice; keep one"))
            own[name] = Node(build(take(), depth + 1).value, at)
        return Node(own, begin)

    return ParsedFile(file, build(take(), 0), problems)


def _check_size(file: Path, line: int, depth: int, count: int) -> None:
    if depth > MOST_DEPTH:
        raise InvalidRequest(f"{file}:{line}: it is nested too deeply; make it flatter")
    if count > MOST_NODES:
        raise InvalidRequest(f"{file}:{line}: the file stands for more than {MOST_NODES} values; make it smaller")


class _Builder:
    """Makes nodes out of the events of the YAML library. Its own nodes are made by C code that overflows the stack when they are
    nested too deeply."""

    def __init__(self, file: Path, loader: Any, first_line: int, as_text: bool) -> None:
        self.problems: list[Problem] = []
        self._file, self._loader, self._first_line, self._as_text = file, loader, first_line, as_text
        self._count = 0
        self._anchors: dict[str, _Anchor] = {}

    def build_document(self) -> ParsedFile:
        self._loader.get_event()
        root = self._build(0)
        self._loader.get_event()
        return ParsedFile(self._file, root, self.problems)

    def _build(self, depth: int) -> Node:
        event = self._loader.get_event()
        line, before = self._line(event), self._count
        self._count += 1
        _check_size(self._file, line, depth, self._count)
        match event.__class__.__name__:
            case "AliasEvent":
                if (anchor := self._anchors.get(event.anchor)) is None:
                    raise self._refuse(
                        line, f"the alias `*{event.anchor[:80]}` stands for nothing; write `&{event.anchor[:80]}` above"
                    )
                self._count += anchor.count - 1
                node = Node(anchor.value, line)
            case "SequenceStartEvent":
                node = Node(self._build_sequence(depth), line)
            case "MappingStartEvent":
                node = Node(self._build_mapping(depth), line)
            case _:
                node = Node(self._build_scalar(event, line), line)
        _check_size(self._file, line, depth, self._count)
        if event.anchor is not None:
            self._anchors[event.anchor] = _Anchor(node.value, self._count - before)
        return node

    def _build_sequence(self, depth: int) -> list[Node]:
        nodes: list[Node] = []
        while self._loader.peek_event().__class__.__name__ != "SequenceEndEvent":
            nodes.append(self._build(depth + 1))
        self._loader.get_event()
        return nodes

    def _build_mapping(self, depth: int) -> dict[str, Node]:
        own: dict[str, Node] = {}
        merged: dict[str, Node] = {}
        while (key := self._loader.get_event()).__class__.__name__ != "MappingEndEvent":
            line = self._line(key)
            if key.__class__.__name__ != "ScalarEvent":
                raise self._refuse(line, "keys must be text")
            value = self._build(depth + 1).value
            if key.value == "<<" and key.implicit[0]:
                # What is merged in gives way to the mapping's own keys, and the later of several to the earlier.
                for part in [each.value for each in value] if isinstance(value, list) else [value]:
                    if not isinstance(part, dict):
                        raise self._refuse(line, "`<<` merges mappings only")
                    merged = part | merged
                continue
            if key.value in own:
                self.problems.append(Problem(line, f"`{key.value}` is there twice; keep one"))
            own[key.value] = Node(value, line)
        return {**merged, **own}

    def _build_scalar(self, event: Any, line: int) -> object:
        if self._as_text:
            return str(event.value).strip()

        import yaml

        tag = self._loader.resolve(yaml.ScalarNode, event.value, event.implicit) if event.tag in (None, "!") else event.tag
        if tag.startswith("!"):
            raise self._refuse(line, f"the tag `{tag[:80]}` is not known; write plain values")
        if tag not in _TYPED:
            return str(event.value)  # times and the like stay the text that they are
        if len(event.value) > MOST_NUMBER_CHARS:
            raise self._refuse(line, f"a number of more than {MOST_NUMBER_CHARS} characters; write it shorter, or quote it")
        try:
            value = self._loader.construct_object(yaml.ScalarNode(tag, event.value))
            if isinstance(value, float) and not isfinite(value):
                raise ValueError("a number must be finite")
            return value
        except (yaml.YAMLError, ValueError, KeyError) as error:
            raise self._refuse(line, f"`{event.value[:80]}` is no value: {error}") from error

    def _line(self, event: Any) -> int:
        return int(event.start_mark.line) + self._first_line

    def _refuse(self, line: int, message: str) -> InvalidRequest:
        return InvalidRequest(f"{self._file}:{line}: {message}")


class _Anchor(Struct, frozen=True):
    """What an alias stands for; `count` is how many values that is."""

    value: object
    count: int
