"""What people see: text in lines that fit, with colours if standard output is a terminal, and plain elsewhere.

Text that others wrote is shown without control characters, and only so much of it.
"""

import re

import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.control import Control
from rich.segment import ControlType, Segment, Segments
from rich.style import Style

from mainspring.cli.output import LINE, UNSPACED, break_line, clean
from mainspring.core.items import parse_arguments

WIDEST = 100
LONGEST_LINE = 240

_IN_ASCII = str.maketrans({"»": ">", "┊": "|", "→": ">", "✓": "+", "✗": "x", "…": "...", "─": "-", "·": "-", "█": "#", "░": "."})
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TOKENS = re.compile(rf"\n|[^\S\n]+|[{UNSPACED}]|[^\s{UNSPACED}]+")


class ConsoleWriter:
    """Raises `BrokenPipeError` when nobody reads standard output any more. Use as `with` to write all at once."""

    def __init__(self) -> None:
        self._console = _Console(highlight=False, soft_wrap=True)
        self._is_ascii = not self._console.encoding.lower().startswith("utf")
        self._is_line_open = False
        self._frame = 0
        self.is_terminal = self._console.is_terminal and not self._console.is_dumb_terminal
        self.width = min(self._console.width - 1, WIDEST) if self.is_terminal else WIDEST

    def __enter__(self) -> None:
        self._console.__enter__()
        if LINE.holds == "status":
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))

    def __exit__(self, *_: object) -> None:
        self._console.__exit__(None, None, None)
        if self.is_terminal:
            LINE.holds = "words" if self._is_line_open else "nothing"

    def put(self, text: str, style: str = "") -> None:
        # As segments, not as markup, and neither wrapped nor cropped: what is written is what is shown.
        if text:
            shown = text.translate(_IN_ASCII) if self._is_ascii else text
            self._console.print(Segments([Segment(shown, Style.parse(style))]), end="")
            self._is_line_open = not shown.endswith("\n")

    def line(self, text: str, style: str = "", indent: int = 2) -> None:
        """A line, on a terminal broken between words; what follows stands behind the indent."""
        self.put((break_line(text, self.width, indent) if self.is_terminal else text) + "\n", style)

    def block(self, mark: str, text: str, style: str, lines: int) -> None:
        """The first lines of a text, behind a mark of two columns."""
        self.put(mark, f"bold {style}")
        self.text(text, style, lines)

    def text(self, text: str, style: str, lines: int, note: str = "") -> None:
        """The first lines of a text, the gutter of the first being written already, and a note at their end."""
        flow = self.flow("  ", column=2)
        self.put(flow.add(first_lines(text, lines, LONGEST_LINE)) + flow.rest(), style)
        self.put(f"  {note}" if note else "", "dim")
        self.put("\n")

    def flow(self, gutter: str, column: int = 0) -> "TextFlow":
        return TextFlow(gutter, self.width if self.is_terminal else None, column)

    def status(self, text: str) -> None:
        """A moving sign of life on the last line of a terminal, which is empty; it is gone with the next thing written."""
        if self.is_terminal:
            with self:
                self._frame = (self._frame + 1) % len(_FRAMES)
                self.put(f"{_FRAMES[self._frame]} {truncate(text, self.width - 2)}", "dim")
            LINE.holds, self._is_line_open = "status", False


class _Console(Console):
    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def truncate(text: str, most: int) -> str:
    """The beginning of a text, with a sign if there is more."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def fit_line(text: str, most: int) -> str:
    """The beginning of a text that others wrote, on a single line of at most so many characters."""
    return truncate(" ".join(clean(text).split()), most)


def first_lines(text: str, lines: int, columns: int) -> str:
    """The first lines of a text that others wrote, each cut at so many columns, with a note of how many are missing."""
    given = clean(text).strip("\n").split("\n")
    shown = given if len(given) <= lines else given[: lines - 1]
    kept = [truncate(line, columns) for line in shown]
    return "\n".join(kept if shown is given else [*kept, f"… {len(given) - len(shown)} more lines"])


def format_call(name: str, arguments: str, most: int) -> str:
    """A call in the form `add(a=1, b="x")`, the values as JSON; arguments that are no JSON object stay as they are."""
    try:
        inside = ", ".join([f"{key}={msgspec.json.encode(value).decode()}" for key, value in parse_arguments(arguments).items()])
    except (ValueError, RecursionError):
        inside = arguments
    return f"{fit_line(name, 64)}({fit_line(inside, max(most - len(name) - 2, 12))})"


def format_count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"


class TextFlow:
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
                written += [self._flush(), "\n"]
                self._column, self._space = 0, ""
            elif token.isspace():
                written.append(self._flush())
                self._space += token if self._width is None else token.expandtabs(4)
            elif len(token) == 1 and re.match(f"[{UNSPACED}]", token):
                written.append(self._flush())
                self._word = token
                written.append(self._flush())
            else:
                self._word += token
        if self._width is None:
            written.append(self._flush())
        return "".join(written)

    def rest(self) -> str:
        """The word that was held back."""
        return self._flush()

    def end(self) -> str:
        """What is left to write, and the end of the line if one is open."""
        return self._flush() + ("\n" if self._column else "")

    def _flush(self) -> str:
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
