"""Refuses a JSON body that would take long to parse, before it is parsed."""

from typing import Final

from anyio.lowlevel import checkpoint

from mainspring.core.json_values import count_values
from mainspring.http.faults import Fault

MOST_VALUES: Final = 65_536


async def check_value_count(body: bytes) -> None:
    """Raises `Fault` 413 for a body of more than `MOST_VALUES` values. Pauses for others between pieces of the body."""
    for values in count_values(body, MOST_VALUES):
        if values > MOST_VALUES:
            message = f"the body has more than {MOST_VALUES} values, whatever they are; send fewer, or longer ones"
            raise Fault(413, "too_many_values", message, param="body")
        await checkpoint()
