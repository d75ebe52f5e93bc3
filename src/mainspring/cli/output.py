"""What a command writes: messages on standard error, lines of JSON or a table on standard output, all without colours."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from textwrap import wrap
from typing import Final, TypeVar

from mainspring.core.items import encode

T = TypeVar("T")

MOST_COLUMNS: Final = 79
LEAST_ROOM: Final = 24

# Everything a terminal could take as a command: C0 and C1, but for newline and tab. Without its ESC a sequence is inert.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Strips control characters, but for newlines and tabs."""
    return _CONTROLS.sub("", text)


def say(message: str) -> None:
    """Writes a message to standard error."""
    with suppress(OSError):
        print("mainspring:", clean(message), file=sys.stderr, flush=True)


def say_more(limit: int) -> None:
    """Tells that a list was cut at its limit."""
    say(f"there are more; see them with --limit {limit * 5}")


def write_lines(values: Sequence[object]) -> None:
    """Writes each value as a line of JSON, all in one write."""
    sys.stdout.buffer.write(b"".join([encode(value) + b"\n" for value in values]))
    sys.stdout.buffer.flush()


def write_table(rows: Sequence[tuple[str, ...]], *, none: str = "") -> None:
    """Writes the rows in columns, each row on one line; on a terminal, the last column goes on in the next ones. Where there is
    only the header, `none` says what to do about that."""
    if len(rows) == 1 and none:
        say(none)
        return
    widths = [max([len(row[column]) for row in rows]) for column in range(len(rows[0]))]
    for row in rows:
        line = "  ".join([f"{text:{width}}" for text, width in zip(row, widths, strict=True)])
        print(fold_line(clean(line).replace("\n", " ").rstrip(), sum(widths[:-1]) + 2 * (len(widths) - 1)))


def fold_line(line: str, indent: int) -> str:
    """A line as a terminal has room for it: what does not fit stands below, behind the indent. Elsewhere it is as it is."""
    if len(line) <= MOST_COLUMNS or not sys.stdout.isatty():
        return line
    columns = os.get_terminal_size(sys.stdout.fileno()).columns or MOST_COLUMNS
    room = columns - 1 - indent
    if room < LEAST_ROOM:
        return line
    return line[:indent] + f"\n{'':{indent}}".join(wrap(line[indent:], room, break_on_hyphens=False))


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
        if (reconfigure := getattr(stream, "reconfigure", None)) is not None:
            reconfigure(errors="replace")


def silence() -> None:
    """Points standard output at the null device, so that nothing is left to be flushed when the process ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
