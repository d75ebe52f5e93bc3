"""Is a write-ahead log whole? SQLite reads one up to its first frame that is not, and drops what follows without a word.

A log that is cut off in its last transaction is what a crash leaves, and nothing is lost that anybody was told is kept. But a bad
frame with a whole transaction behind it, or a header that is none, means that something else has written there. Frames of an
earlier use of the file have other salts than its header, and do not count. The form is that of https://sqlite.org/fileformat2.html.
"""

import struct
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Final

_HEADER: Final = struct.Struct(">8I")
_FRAME: Final = struct.Struct(">6I")
_MAGIC: Final = (0x377F0682, 0x377F0683)
_LOOK_SECONDS: Final = 0.05
_WORD: Final = 0xFFFFFFFF
# A log is emptied at about 4 MB; to check one that readers have kept from that would hold up the start.
_MOST_BYTES: Final = 64 * 1024 * 1024


def find_damage(path: Path) -> str | None:
    """What is wrong with the log of the database, None if nothing is, or it has none. Raises `OSError`.

    Another process may be writing to it meanwhile. What it leaves for a moment is no damage, so that is looked at twice.
    """
    log = path.with_name(path.name + "-wal")
    with suppress(FileNotFoundError):  # whoever closes the database last removes it
        while _HEADER.size < log.stat().st_size <= _MOST_BYTES:
            written = log.stat().st_mtime_ns
            if (found := _check(log.read_bytes())) is None:
                return None
            sleep(_LOOK_SECONDS)
            if log.stat().st_mtime_ns == written and _check(log.read_bytes()) == found:
                return found
    return None


def _check(content: bytes) -> str | None:
    magic, _, page, _, *salts, first, second = _HEADER.unpack_from(content)
    if not any(content[: _HEADER.size]):
        return None  # its space was set aside, and nothing was written yet
    order = ">" if magic & 1 else "<"
    sums = _add(content[: _HEADER.size - 8], order, (0, 0))
    if magic not in _MAGIC or sums != (first, second):
        return "its header is not one"
    return _check_frames(memoryview(content)[_HEADER.size :], page, (salts[0], salts[1]), order, sums)


def _check_frames(frames: memoryview, page: int, salts: tuple[int, int], order: str, sums: tuple[int, int]) -> str | None:
    """Goes through the frames up to the first bad one, and looks for a transaction that ends behind it."""
    size = _FRAME.size + page
    bad: int | None = None
    for number in range(len(frames) // size):
        frame = frames[number * size : (number + 1) * size]
        _, commits, *found, first, second = _FRAME.unpack_from(frame)
        if bad is None:
            sums = _add(frame[_FRAME.size :], order, _add(frame[:8], order, sums))
            if tuple(found) != salts or sums != (first, second):
                bad = number
        elif tuple(found) == salts and commits:
            return f"frame {bad + 1} is damaged, and what was written after it cannot be read"
    return None


def _add(data: "bytes | memoryview", order: str, sums: tuple[int, int]) -> tuple[int, int]:
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
