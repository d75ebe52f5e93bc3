"""Edits a text by an exact replacement or a unified diff. Applied completely, or refused with the hunk that does not match.

Models count lines badly and quote them well. So a hunk is applied at its line number if its lines match there, else at the one
place after the previous hunk where they match; the counts in its heading are ignored.
"""

import re

from msgspec import Struct

from mainspring.core.errors import InvalidRequest

_HEADING = re.compile(r"@@ -(?P<line>\d+)(?:,\d+)? \+\d+(?:,\d+)? @@.*")


class Hunk(Struct, frozen=True):
    """`line` is where the old lines are said to begin, counted from 1; without any, the line behind which the new ones go.

    `ends_bare` says whether the last new line goes without a newline, if the file ends there; None leaves that as it is.
    """

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]
    ends_bare: bool | None = None

    @property
    def start(self) -> int:
        """The index of the first line it replaces, or before which it inserts."""
        return self.line - 1 if self.old else self.line


def replace_once(text: str, old: str, new: str) -> str:
    """The text with `old`, which must stand in it exactly once, replaced. Raises `InvalidRequest`."""
    if not old:
        raise InvalidRequest("`old` is empty; quote the text to replace")
    match text.count(old):
        case 1:
            return text.replace(old, new)
        case 0:
            raise InvalidRequest("`old` is not in the file; quote it exactly, spaces and line ends included")
        case count:
            raise InvalidRequest(f"`old` is in the file {count} times; quote more of what surrounds it")


def apply_diff(text: str, diff: str) -> str:
    """The text with every hunk of the diff applied. Raises `InvalidRequest` that names the hunk that does not fit."""
    hunks = parse_hunks(diff)
    is_bare = bool(text) and not text.endswith("\n")
    lines = text.split("\n") if text else []
    if not is_bare and lines:
        lines.pop()
    shift = done = 0
    for number, hunk in enumerate(hunks, 1):
        place = _find_place(lines, hunk, done, shift, f"hunk {number} of {len(hunks)} (line {hunk.line})")
        lines[place : place + len(hunk.old)] = hunk.new
        shift = place - hunk.start + len(hunk.new) - len(hunk.old)
        done = place + len(hunk.new)
        if hunk.ends_bare is not None and done == len(lines):
            is_bare = hunk.ends_bare
    return "\n".join(lines) + ("" if is_bare or not lines else "\n")


def parse_hunks(diff: str) -> tuple[Hunk, ...]:
    """The hunks of a diff of one file. Raises `InvalidRequest`."""
    lines = diff.split("\n")
    starts = [number for number, line in enumerate(lines) if line.startswith("@@")]
    if not starts:
        raise InvalidRequest("`diff` has no hunk; a hunk begins with a line such as `@@ -12,3 +12,4 @@`")
    return tuple([_parse_hunk(lines[start:end]) for start, end in zip(starts, [*starts[1:], len(lines)], strict=True)])


def _parse_hunk(lines: list[str]) -> Hunk:
    heading = _HEADING.fullmatch(lines[0].rstrip("\r"))
    if heading is None:
        raise InvalidRequest(f"`{lines[0]}` heads no hunk; write it like `@@ -12,3 +12,4 @@`")
    body = lines[1:]
    # What ends the diff is no line of the file.
    while body and body[-1] == "":
        body.pop()
    old: list[str] = []
    new: list[str] = []
    ends_bare: bool | None = None
    for number, line in enumerate(body):
        match line[:1]:
            case "-" if line.startswith("--- ") and number + 1 < len(body) and body[number + 1].startswith("+++ "):
                raise InvalidRequest("`diff` changes more than one file; send one patch for each")
            case "-":
                old.append(line[1:])
            case "+":
                new.append(line[1:])
                ends_bare = False
            case " " | "":
                old.append(line[1:])
                new.append(line[1:])
                ends_bare = None
            case "\\":
                ends_bare = body[number - 1][:1] != "-" if number else None
            case _:
                raise InvalidRequest(f"`{line}` is no line of a hunk; begin each with a space, `-` or `+`")
    return Hunk(int(heading["line"]), tuple(old), tuple(new), ends_bare)


def _find_place(lines: list[str], hunk: Hunk, done: int, shift: int, label: str) -> int:
    """Where the hunk's old lines stand; only lines behind `done` count."""
    said, size = hunk.start + shift, len(hunk.old)
    if done <= said <= len(lines) and tuple(lines[said : said + size]) == hunk.old:
        return said
    if not hunk.old:
        raise InvalidRequest(f"{label} adds behind a line that is not there; nothing was changed")
    places = [place for place in range(done, len(lines) - size + 1) if tuple(lines[place : place + size]) == hunk.old]
    if len(places) != 1:
        found = f"stand in {len(places)} places" if places else "are not in the file as it is quoted"
        raise InvalidRequest(f"{label} does not fit: its lines {found}; nothing was changed. Read the file and correct the diff")
    return places[0]
