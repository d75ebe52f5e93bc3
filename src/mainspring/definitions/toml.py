"""TOML files: read with the line of every value, and written.

The standard library parses the text but tells no lines. `_LineFinder` walks over the text a second time, when it is known to be
TOML, and only looks for where keys and elements begin.
"""

import re
import tomllib
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Final

import msgspec

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node, ParsedFile, Place, Problem

MOST_KEYS: Final = 20
# The library takes time in the square of a key's length.
_DEEP_KEY: Final = re.compile(rf"^[ \t[]*(?:[\w\"'-]{{1,100}}[ \t]*\.[ \t]*){{{MOST_KEYS}}}", re.MULTILINE)
_ERROR_LINE: Final = re.compile(r"\(at line (\d+)")
_BARE_TEXT: Final = re.compile(r"[ \t]*[\w.-]+[ \t]*=[ \t]*[A-Za-z/][^\"'=]*")
_BLANK: Final = re.compile(r"(?:\s|#[^\n]*)*")
_KEY: Final = re.compile(r"""[A-Za-z0-9_-]+|"(?:\\.|[^"\\])*"|'[^']*'""")
_BARE_KEY: Final = re.compile(r"[A-Za-z0-9_-]+")
_DOT: Final = re.compile(r"[ \t]*\.[ \t]*")
_SCALAR: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""["]{0,2}'  # up to two quotes may stand before the closing ones
    r"|'''.*?'''[']{0,2}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'"
    r"|[^\n,\]}#]+",
    re.DOTALL,
)


def parse_toml(file: Path, text: str) -> ParsedFile:
    """Raises `InvalidRequest` by file and line if the text is not TOML."""
    if (deep := _DEEP_KEY.search(text)) is not None:
        line = text.count("\n", 0, deep.start()) + 1
        raise InvalidRequest(f"{file}:{line}: a key of more than {MOST_KEYS} parts; make it shorter")
    try:
        table = tomllib.loads(text)
        lines = _LineFinder(text).find()
    except tomllib.TOMLDecodeError as error:
        found = _ERROR_LINE.search(str(error))
        line = int(found[1]) if found is not None else text.count("\n") + 1
        bare = found is not None and _BARE_TEXT.fullmatch(text.splitlines()[line - 1]) is not None
        raise InvalidRequest(
            f"{file}:{line}: this is not TOML: {error}{'; text needs quotes around it' if bare else ''}"
        ) from None
    except ValueError as error:  # a number of thousands of digits
        raise InvalidRequest(f"{file}:1: this is not TOML: {error}") from None
    except RecursionError:
        raise InvalidRequest(f"{file}:1: it is nested too deeply; make it flatter") from None
    problems: list[Problem] = []
    return ParsedFile(file, _build(table, (), 1, lines, problems), problems)


def write_toml(table: Mapping[str, object]) -> str:
    """The table as TOML. What is None is left out; TOML has no word for it."""
    return "\n".join(_write_table(table, ())).strip("\n") + "\n"


def _write_table(table: Mapping[str, object], place: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, dict)}
    others = {key: value for key, value in table.items() if value is not None and key not in inner}
    if place and (others or not inner):
        yield f"\n[{'.'.join([_write_key(key) for key in place])}]"
    yield from [f"{_write_key(key)} = {_write_value(value)}" for key, value in others.items()]
    for key, value in inner.items():
        yield from _write_table(value, (*place, key))


def _write_key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else _write_value(key)


def _write_value(value: object) -> str:
    match value:
        case dict():
            pairs = [f"{_write_key(key)} = {_write_value(each)}" for key, each in value.items() if each is not None]
            return f"{{ {', '.join(pairs)} }}"
        case list() | tuple():
            return f"[{', '.join([_write_value(each) for each in value])}]"
        case _:  # text, numbers and truth values are written as in JSON
            return msgspec.json.encode(value).decode()


def _build(value: object, place: Place, outer: int, lines: dict[Place, int], problems: list[Problem]) -> Node:
    line = lines.get(place, outer)
    match value:
        case dict():
            return Node({key: _build(each, (*place, key), line, lines, problems) for key, each in value.items()}, line)
        case list():
            return Node([_build(each, (*place, index), line, lines, problems) for index, each in enumerate(value)], line)
        case float() if not isfinite(value):
            problems.append(Problem(line, f"`{place[-1]}`: a number must be finite"))
    return Node(value, line)


class _LineFinder:
    """Finds the line of every key and element of a text that is known to be TOML."""

    def __init__(self, text: str) -> None:
        self._text, self._position = text, 0
        self._breaks = [match.start() for match in re.finditer("\n", text)]
        self._lines: dict[Place, int] = {}
        self._last: dict[Place, int] = {}
        """The index of the last table of each array of tables."""

    def find(self) -> dict[Place, int]:
        table: Place = ()
        while not self._skip_to_end():
            if self._take("[["):
                table = self._read_keys((), is_array=True)
                self._take("]]")
            elif self._take("["):
                table = self._read_keys(())
                self._take("]")
            else:
                self._read_pair(table)
        return self._lines

    def _read_pair(self, table: Place) -> None:
        place = self._read_keys(table)
        self._take("=")
        self._read_value(place)

    def _read_keys(self, place: Place, *, is_array: bool = False) -> Place:
        """The place that a dotted key leads to. A key of an array of tables means its last table."""
        while True:
            self._skip_to_end()
            key = self._match(_KEY)
            place = (*place, tomllib.loads(f"key = {key}")["key"] if key[0] in "\"'" else key)
            self._mark(place)
            is_last = not self._match(_DOT)
            if is_last and is_array:
                self._last[place] = self._last.get(place, -1) + 1
            if place in self._last:
                place = (*place, self._last[place])
                self._mark(place)
            if is_last:
                return place

    def _read_value(self, place: Place) -> None:
        self._skip_to_end()
        if self._take("["):
            index = 0
            while not self._take("]"):
                self._mark((*place, index))
                self._read_value((*place, index))
                self._take(",")
                index += 1
        elif self._take("{"):
            while not self._take("}"):
                self._read_pair(place)
                self._take(",")
        else:
            self._match(_SCALAR)

    def _mark(self, place: Place) -> None:
        self._lines.setdefault(place, bisect_right(self._breaks, self._position - 1) + 1)

    def _skip_to_end(self) -> bool:
        """Skips blanks and comments; whether that is the end."""
        self._match(_BLANK)
        return self._position == len(self._text)

    def _take(self, sign: str) -> bool:
        self._match(_BLANK)
        is_there = self._text.startswith(sign, self._position)
        self._position += len(sign) * is_there
        return is_there

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self._text, self._position)
        if found is None:
            return ""
        self._position = found.end()
        return found[0]
