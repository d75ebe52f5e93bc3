"""Searches files for a text or a regular expression. Runs in a process of its own and imports only the standard library."""

import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from time import monotonic

from mainspring.tools.safe_open import FILE, FoundEntry, open_descriptor, open_folder, walk

LARGEST = 4 << 20
LONGEST = 240
SNIFFED = 8192


def answer(root: str, parts: list[str], pattern: str, regex: bool, glob: str, most: int, seconds: float) -> dict[str, object]:
    """The first `most` lines that match, as path, number and text, of the text files below `parts` of `root`.

    `is_complete` is false if there are more, or if time ran out; `error` says why the question makes no sense.
    """
    try:
        wanted = re.compile(pattern if regex else re.escape(pattern))
    except (re.error, OverflowError, RecursionError) as error:
        return {"error": f"`{pattern}` is no regular expression: {error}; correct it, or search for it as plain text"}
    try:
        return _search(_list_files(root, parts), wanted, glob, most, monotonic() + seconds)
    except OSError as error:
        return {"error": f"`{'/'.join(parts)}` cannot be searched: {error.strerror}"}


def _search(files: Iterable[FoundEntry], wanted: re.Pattern[str], glob: str, most: int, ends: float) -> dict[str, object]:
    matches: list[tuple[str, int, str]] = []
    for file in files:
        if monotonic() > ends:
            return {"matches": matches, "is_complete": False}
        if not file.is_file or file.about.st_size > LARGEST or not _is_named(file, glob):
            continue
        for match in _find_matches(file, wanted):
            if len(matches) == most:
                return {"matches": matches, "is_complete": False}
            matches.append(match)
    return {"matches": matches, "is_complete": True}


def _list_files(root: str, parts: list[str]) -> Iterable[FoundEntry]:
    path = "/".join(parts)
    try:
        with open_folder(root, parts) as folder:
            yield from walk(folder, prefix=f"{path}/" if parts else "")
    except NotADirectoryError:
        with open_folder(root, parts[:-1]) as folder:
            yield FoundEntry(folder, parts[-1], path, os.stat(parts[-1], dir_fd=folder, follow_symlinks=False))


def _is_named(file: FoundEntry, glob: str) -> bool:
    return not glob or fnmatchcase(file.name, glob) or fnmatchcase(file.path, glob)


def _find_matches(file: FoundEntry, wanted: re.Pattern[str]) -> Iterator[tuple[str, int, str]]:
    try:
        with open_descriptor(file.folder, file.name, FILE) as descriptor, open(descriptor, "rb", closefd=False) as content:
            data = content.read(LARGEST)
    except OSError:
        return
    if b"\0" in data[:SNIFFED]:
        return
    for number, line in enumerate(data.decode("utf-8", "replace").split("\n"), 1):
        if found := wanted.search(line):
            start = max(found.start() - LONGEST // 3, 0) if len(line) > LONGEST else 0
            yield file.path, number, line[start : start + LONGEST].strip()
