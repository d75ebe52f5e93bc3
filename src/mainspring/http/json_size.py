"""How many values a JSON body has, told without parsing it, so that one that would take long to parse is refused before.

A text of megabytes is parsed in no time; a million small values take seconds, and a hundred times their size in memory. Values
are counted by what separates them outside of strings, a piece at a time, with pauses for others between the pieces.
"""

from typing import Final

from anyio.lowlevel import checkpoint

from mainspring.http.faults import Fault

MOST_VALUES: Final = 65_536
# A body this small cannot have too many.
SMALL_BYTES: Final = 65_536
PIECE_BYTES: Final = 1024 * 1024


async def check_value_count(body: bytes) -> None:
    """Raises `Fault` 413 for a body of more than `MOST_VALUES` values."""
    if len(body) <= SMALL_BYTES:
        return
    values, start, is_inside = 0, 0, False
    while start < len(body):
        end = _find_piece_end(body, start)
        piece = body[start:end].replace(b"\\\\", b"").replace(b'\\"', b"")
        quotes = piece.count(b'"')
        # A value has two strings at most, its key and itself.
        if values + quotes // 4 <= MOST_VALUES:
            outside = b" ".join(piece.split(b'"')[is_inside::2])
            values += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
        else:
            values += quotes // 4
        if values > MOST_VALUES:
            message = f"the body has more than {MOST_VALUES} values, whatever they are; send fewer, or longer ones"
            raise Fault(413, "too_many_values", message, param="body")
        is_inside ^= quotes % 2 == 1
        start = end
        await checkpoint()


def _find_piece_end(body: bytes, start: int) -> int:
    """Where a piece ends without tearing an escaped character in two."""
    end = min(start + PIECE_BYTES, len(body))
    slashes = end - start - len(body[start:end].rstrip(b"\\"))
    return min(end + slashes % 2, len(body))
