"""JSON of others: how many values it has, told without parsing it, and how deep it may be.

A text of megabytes is parsed in no time; a million small values take seconds, and a hundred times their size in memory. Values
are counted by what separates them outside of strings, a piece at a time. What is nested as deeply as can be parsed at all cannot
be written again within something else, so there is room to spare.
"""

from collections.abc import Iterator
from typing import Any, Final

import msgspec

# A text this small cannot have many.
SMALL_BYTES: Final = 65_536
PIECE_BYTES: Final = 1024 * 1024
SPARE_DEPTH: Final = 200


def parse_json(text: bytes | str) -> Any:
    """The value. Raises `ValueError` if it is no JSON, or is nested too deeply to be kept within other values."""
    try:
        value = msgspec.json.decode(text)
        check_depth(text.encode() if isinstance(text, str) else text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return value


def check_depth(text: bytes) -> None:
    """Raises `RecursionError` if a value that can just be parsed is nested too deeply to be written again within others."""
    # Few brackets cannot be deep, and a large file that has none is not copied to find out.
    if text.count(b"[") + text.count(b"{") > SPARE_DEPTH:
        msgspec.json.decode(b"".join((b"[" * SPARE_DEPTH, text, b"]" * SPARE_DEPTH)), type=msgspec.Raw)


def count_values(text: bytes, most: int) -> Iterator[int]:
    """The number of values so far, after each piece of the text. It is exact up to `most`, and more than that behind it."""
    values, start, is_inside = 0, 0, False
    while len(text) > SMALL_BYTES and start < len(text):
        end = _find_piece_end(text, start)
        piece = text[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        # A value has two strings at most, its key and itself.
        if values + quotes // 4 <= most:
            outside = b" ".join(piece.split(b'"')[is_inside::2])
            values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        else:
            values += quotes // 4
        is_inside ^= quotes % 2 == 1
        start = end
        yield values


def _find_piece_end(text: bytes, start: int) -> int:
    """Where a piece ends without tearing an escaped character in two."""
    end = min(start + PIECE_BYTES, len(text))
    slashes = end - start - len(text[start:end].rstrip(b"\\"))
    return min(end + slashes % 2, len(text))
