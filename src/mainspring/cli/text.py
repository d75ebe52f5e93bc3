"""What may be shown of text that others wrote: no control characters, not too much of it, and laid out in lines."""

import re

import msgspec
from rich.cells import cell_len

from mainspring.cli.output import clean
from mainspring.core.items import parse_arguments

# Scripts that are written without spaces may break after each character.
_UNSPACED = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"
_TOKENS = re.compile(rf"\n|[^\S\n]+|[{_UNSPACED}]|[^\s{_UNSPACED}]+")


def cut(text: str, most: int) -> str:
    """The beginning of a text, with a sign if there is more."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def on_one_line(text: str, most: int) -> str:
    """The beginning of a text that others wrote, on a single line of at most so many characters."""
    return cut(" ".join(clean(text).split()), most)


def beginning(text: str, lines: int, columns: int) -> str:
    """The first lines of a text that others wrote, each cut at so many columns, with a note of how many are missing."""
    given = clean(text).strip("\n").split("\n")
    shown = given if len(given) <= lines else given[: lines - 1]
    kept = [cut(line, columns) for line in shown]
    return "\n".join(kept if shown is given else [*kept, f"… {len(given) - len(shown)} more lines"])


def call_line(name: str, arguments: str, most: int) -> str:
    """A call in the form `add(a=1, b="x")`, the values as JSON; arguments that are no JSON object stay as they are."""
    try:
        inside = ", ".join([f"{key}={msgspec.json.encode(value).decode()}" for key, value in parse_arguments(arguments).items()])
    except (ValueError, RecursionError):
        inside = arguments
    return f"{on_one_line(name, 64)}({on_one_line(inside, max(most - len(name) - 2, 12))})"


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class Flow:
    """Lays out text that arrives in pieces: every line behind a gutter, broken between words if there is a width.

    With a width, the word at the end of a piece is held back until it is known to be whole. Without one nothing is held back.
    `column` says how much of the first line is written already; if any, the gutter is.
    """

    def __init__(self, gutter: str, width: int | None, column: int = 0) -> None:
        self._gutter, self._width, self._column = gutter, width, column
        self._space = self._word = ""

    def add(self, piece: str) -> str:
        """What to write now."""
        written = []
        for token in _TOKENS.findall(piece):
            if token == "\n":
                written += [self._flushed(), "\n"]
                self._column, self._space = 0, ""
            elif token.isspace():
                written.append(self._flushed())
                self._space += token if self._width is None else token.expandtabs(4)
            elif len(token) == 1 and re.match(f"[{_UNSPACED}]", token):
                written.append(self._flushed())
                self._word = token
                written.append(self._flushed())
            else:
                self._word += token
        if self._width is None:
            written.append(self._flushed())
        return "".join(written)

    def rest(self) -> str:
        """The word that was held back."""
        return self._flushed()

    def end(self) -> str:
        """What is left to write, and the end of the line if one is open."""
        return self._flushed() + ("\n" if self._column else "")

    def _flushed(self) -> str:
        if not self._word:
            return ""
        word, space = self._word, self._space
        self._word = self._space = ""
        needed = cell_len(space) + cell_len(word)
        if not self._column:
            self._column = cell_len(self._gutter) + needed
            return self._gutter + space + word
        if self._width is not None and self._column + needed > self._width:
            self._column = cell_len(self._gutter) + cell_len(word)
            return f"\n{self._gutter}{word}"
        self._column += needed
        return space + word
