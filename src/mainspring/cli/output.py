"""What a command writes: messages on standard error, lines of JSON or a table on standard output, all without colours."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from io import TextIOWrapper
from shlex import quote
from textwrap import wrap
from typing import TYPE_CHECKING, Final, Literal, TextIO, TypeVar
from unicodedata import combining, east_asian_width

from mainspring.late_module import LateModule

if TYPE_CHECKING:
    from mainspring.core import items
else:
    items = LateModule("mainspring.core.items")

T = TypeVar("T")

PREFIX: Final = "mainspring: "
MOST_COLUMNS: Final = 79
LEAST_ROOM: Final = 24

# Everything a terminal could take as a command: C0 and C1, but for newline and tab. Without its ESC a sequence is inert.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
# What no terminal shows, or shows elsewhere than it stands: format and direction marks, tags, fillers, variation selectors.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
# Words with the blanks behind them; scripts that are written without blanks may break after each character.
UNSPACED = r"\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\uff00-\uff60"
_BREAKABLE = re.compile(rf"[{UNSPACED}]\s*|[^\s{UNSPACED}]+\s*|\s+")
# What stands in backticks, and a command behind a colon, is to be typed, and is not torn apart.
_WORDS = re.compile(r"(?<=: )(?:mainspring|\S+/run) [^;\n]+;?|[^\s`]*`[^`\n]*`[^\s`]*|\S+")


_COMMANDS = re.compile(r"(?<![\w./-])(?<!-m )mainspring(?= [a-z])")
PROGRAM: Final = "MAINSPRING_PROGRAM"
"""The variable with what is typed for `mainspring`, where that is not on the PATH."""


class TerminalLine:
    """What the line of the terminal holds that the next message would run into: nothing, words that are being written, or a
    moving sign of life."""

    _BEFORE: Final = {"nothing": "", "words": "\n", "status": "\r\x1b[2K"}

    def __init__(self) -> None:
        self.holds: Literal["nothing", "words", "status"] = "nothing"

    def leave(self) -> str:
        """What to write first, so that a message has a line of its own."""
        before, self.holds = self._BEFORE[self.holds], "nothing"
        return before


LINE: Final = TerminalLine()


def clean(text: str) -> str:
    """Strips control characters, but for newlines and tabs."""
    return _CONTROLS.sub("", text)


def name_program(text: str) -> str:
    """The text with its commands as they are typed here: whoever begins with `./run` may have no `mainspring`."""
    program = os.environ.get(PROGRAM)
    return _COMMANDS.sub(lambda _: quote(program), text) if program else text


def spell_out(text: str) -> str:
    """The text with everything in it visible, so that a person can judge it: what a terminal would take as a command, would not
    show or would move stands there as an escape. Newlines and tabs stay."""
    return _UNSEEN.sub(_spell, _CONTROLS.sub(_spell, text))


def _spell(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def say(message: str) -> None:
    """Writes a message to standard error. On a terminal it has lines of its own, which break between words."""
    with suppress(OSError):
        print(fit_message(PREFIX + name_program(clean(message)), sys.stderr, len(PREFIX)), file=sys.stderr, flush=True)


def fit_message(text: str, stream: TextIO, indent: int = 0) -> str:
    """The text as a terminal shows it best, what does not fit on a line standing behind the indent. Elsewhere it is as it is."""
    if not stream.isatty():
        return text
    room = measure_room(stream)
    return LINE.leave() + "\n".join([break_line(line, room, indent) for line in text.split("\n")])


def break_line(line: str, room: int, indent: int) -> str:
    """The line broken between words where it has no room; what follows stands behind the indent, or behind its own margin."""
    if measure_cells(line) <= room or room - indent < LEAST_ROOM:
        return line
    margin = " " * (len(line) - len(line.lstrip()))
    lines, end = [margin], len(margin)
    for found in _WORDS.finditer(line):
        blanks, word, end = " " * (found.start() - end), found[0], found.end()
        is_first = lines[-1].isspace() or not lines[-1]
        if is_first or measure_cells(lines[-1]) + len(blanks) + measure_cells(word) <= room:
            lines[-1] += word if is_first else f"{blanks}{word}"
        else:
            lines.append(" " * max(indent, len(margin)) + word)
    return "\n".join(lines)


def measure_room(stream: TextIO) -> int:
    """How many columns of a terminal may be written to; the last stays empty. Elsewhere there is no bound."""
    if not stream.isatty():
        return sys.maxsize
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told) - 1
    with suppress(OSError):
        return (os.get_terminal_size(stream.fileno()).columns or MOST_COLUMNS + 1) - 1
    return MOST_COLUMNS


def say_more(limit: int) -> None:
    """Tells that a list was cut at its limit."""
    say(f"there are more; see them with --limit {limit * 5}")


def write_lines(values: Sequence[object]) -> None:
    """Writes each value as a line of JSON, all in one write."""
    sys.stdout.buffer.write(b"".join([items.encode(value) + b"\n" for value in values]))
    sys.stdout.buffer.flush()


def write_table(rows: Sequence[tuple[str, ...]], *, none: str = "") -> None:
    """Writes the rows in columns, each row on one line. On a terminal, columns that it has no room for stand in lines below, and
    the last one goes on in the next lines. Where there is only the header, `none` says what to do about that."""
    if len(rows) == 1 and none:
        say(none)
        return
    shown = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    widths = [max([measure_cells(row[column]) for row in shown]) for column in range(len(rows[0]))]
    room = measure_room(sys.stdout)
    lines = split_columns(widths, room)
    for row in shown:
        for margin, columns in lines:
            *first, last = columns
            before = margin + "".join([f"{pad(row[column], widths[column])}  " for column in first])
            if row[last] or first:
                print(fold_cell(before, row[last], room))


def split_columns(widths: Sequence[int], room: int) -> list[tuple[str, list[int]]]:
    """The columns that go together on a line, and what stands before them."""
    lines: list[tuple[str, list[int]]] = [("", [])]
    used = 0
    for column, width in enumerate(widths):
        needed = min(width, LEAST_ROOM) if column == len(widths) - 1 else width
        if lines[-1][1] and used + needed > room:
            lines.append(("  ", []))
            used = 2
        lines[-1][1].append(column)
        used += width + 2
    return lines


def fold_cell(before: str, text: str, room: int) -> str:
    """The last cell of a line, broken between words where it does not fit behind what is before it."""
    width = measure_cells(before)
    left = room - width
    if measure_cells(text) <= left or left < LEAST_ROOM:
        return (before + text).rstrip()
    return before + f"\n{'':{width}}".join(_wrap(text, left))


def _wrap(text: str, room: int) -> list[str]:
    if text.isascii():
        return wrap(text, room, break_on_hyphens=False)
    lines = [""]
    for word in _BREAKABLE.findall(text):
        if measure_cells(lines[-1]) + measure_cells(word.rstrip()) > room and lines[-1]:
            lines.append("")
        lines[-1] += word if lines[-1] else word.lstrip()
    return [line.rstrip() for line in lines]


def measure_cells(text: str) -> int:
    """How many columns of a terminal the text takes: letters of East Asian scripts take two, marks upon letters none."""
    if text.isascii():
        return len(text)
    return sum([0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text])


def pad(text: str, width: int) -> str:
    return text + " " * (width - measure_cells(text))


def write_text(text: str, indent: int = 0) -> None:
    """Writes text, also of others, on a terminal broken between words; what follows in a line stands behind the indent."""
    print(fit_message(clean(text), sys.stdout, indent))


def write_list(
    values: Sequence[T], titles: tuple[str, ...], cells: Callable[[T], tuple[str, ...]], *, as_json: bool, none: str = ""
) -> None:
    """Writes values as lines of JSON, or as the rows of a table; `none` as `write_table` has it."""
    if as_json:
        write_lines(values)
    else:
        write_table([titles, *[cells(value) for value in values]], none=none)


def report_problems(problems: Sequence[str]) -> int:
    """Writes each problem to standard error. Returns the exit code, 1 if there are any."""
    for problem in problems:
        say(problem)
    return 1 if problems else 0


def format_moment(at: float | None, form: str = "%Y-%m-%d %H:%M") -> str:
    """A moment in local time; None is never."""
    return "never" if at is None else datetime.fromtimestamp(at).strftime(form)


def is_debug() -> bool:
    return os.environ.get("MAINSPRING_DEBUG", "") not in ("", "0")


def accept_any_text() -> None:
    """Replaces characters that the encoding of standard output or error lacks by question marks, instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def silence() -> None:
    """Points standard output at the null device, so that nothing is left to be flushed when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
