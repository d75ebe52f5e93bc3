"""When a schedule is due: by a cron expression in a time zone, or every so often.

A cron expression has five fields, as Debian's cron reads them. Where clocks are set forward, what was due at a time that does not
exist is due at the end of the gap; where they are set back, what is due at a fixed time is due once, and what is due every so
many minutes goes on through both hours.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from functools import lru_cache
from math import ceil
from typing import TYPE_CHECKING, Annotated, Final
from zoneinfo import ZoneInfo

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.late_module import LateModule

# Only who has a schedule pays for it.
if TYPE_CHECKING:
    import cronsim

    from mainspring.features.triggers import cron_times
else:
    cronsim = LateModule("cronsim")
    cron_times = LateModule("mainspring.features.triggers.cron_times")

# How many seconds are looked at first when missed times are listed. It is doubled until there are enough.
FIRST_SPAN: Final = 7_200.0

# The longest interval: what is due behind the year 9999 cannot be shown.
LONGEST_DAYS: Final = 3_650

_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_EVERY: Final = re.compile(r"([1-9]\d{0,6})([smhd])")

Cron = Annotated[str, Meta(max_length=100, description="five fields: minute, hour, day, month, weekday")]
Every = Annotated[str, Meta(max_length=10, description="a number and s, m, h or d, as in 15m")]
ZoneName = Annotated[str, Meta(max_length=64, description="a time zone, as in Europe/Berlin")]


class Timing(Struct, frozen=True):
    """Either of `cron` and `every` is given. Times of `every` are counted from `anchor`."""

    cron: str = ""
    every: str = ""
    timezone: str = "UTC"
    anchor: float = 0.0


def check_timing(timing: Timing) -> None:
    """Raises `InvalidRequest` for what is never due, and for what cannot be understood."""
    if bool(timing.cron) == bool(timing.every):
        raise InvalidRequest("a schedule has either `cron` or `every`; give one of them", param="cron")
    find_zone(timing.timezone)
    if timing.every:
        _read_every(timing.every)
    elif find_next(timing, 0.0) is None:
        raise InvalidRequest(f"`{timing.cron}` is never due; check its day and month", param="cron")


def find_zone(name: str) -> ZoneInfo:
    """Raises `InvalidRequest` for what is no time zone."""
    try:
        return _load_zone(name)
    except (KeyError, ValueError, OSError):
        told = f"there is no time zone `{name[:64]}`; write one as in Europe/Berlin, or UTC"
        raise InvalidRequest(told, param="timezone") from None


def find_next(timing: Timing, after: float) -> float | None:
    """The first time behind `after`, None if there is none in fifty years. Raises as `check_timing` does."""
    return next(_iterate(timing, after), None)


def list_due(timing: Timing, first: float, until: float, most: int) -> list[float]:
    """The last `most` times from `first` to `until`, both included."""
    span = FIRST_SPAN
    while True:
        start = max(first, until - span)
        found: list[float] = []
        for due in _iterate(timing, start - 0.001):
            if due > until:
                break
            found.append(due)
        if start == first or len(found) >= most:
            return found[-most:]
        span *= 2


def _iterate(timing: Timing, after: float) -> Iterator[float]:
    if timing.every:
        seconds = _read_every(timing.every)
        count = max(ceil((after - timing.anchor) / seconds), 1)
        while True:
            if (due := timing.anchor + count * seconds) > after:
                yield due
            count += 1
    if len(timing.cron.split()) != 5:
        raise InvalidRequest(f"`{timing.cron[:100]}` has no five fields; write minute, hour, day, month, weekday", param="cron")
    try:
        times = cron_times.CronTimes(timing.cron, datetime.fromtimestamp(after, find_zone(timing.timezone)))
    except cronsim.CronSimError as error:
        told = f"`{timing.cron[:100]}` is no cron expression: {str(error).lower()}; write it as in `0 7 * * MON-FRI`"
        raise InvalidRequest(told, param="cron") from None
    for moment in times:
        # In the second of two equal hours, times of the first are found again.
        if (due := moment.timestamp()) > after:
            yield due


def _read_every(text: str) -> float:
    if (found := _EVERY.fullmatch(text)) is None:
        raise InvalidRequest(f"`{text[:20]}` is no interval; write a number and s, m, h or d, as in 15m", param="every")
    if (seconds := float(int(found[1]) * _UNITS[found[2]])) > LONGEST_DAYS * _UNITS["d"]:
        raise InvalidRequest(f"`{text}` is too long; an interval has at most {LONGEST_DAYS}d", param="every")
    return seconds


@lru_cache(maxsize=64)
def _load_zone(name: str) -> ZoneInfo:
    return ZoneInfo(name)
