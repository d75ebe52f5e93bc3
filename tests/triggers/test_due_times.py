"""When a schedule is due, also where clocks are set forward and back."""

from datetime import datetime
from itertools import islice
from zoneinfo import ZoneInfo

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.features.triggers.due_times import Timing, check_timing, find_next, list_due

BERLIN = "Europe/Berlin"


def at(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def due(timing: Timing, after: str, count: int) -> list[str]:
    found, last = list[str](), at(after)
    for _ in islice(iter(int, 1), count):
        last = find_next(timing, last) or 0.0
        found.append(datetime.fromtimestamp(last, ZoneInfo(timing.timezone)).isoformat())
    return found


def test_weekdays_by_name_in_the_zone_of_the_schedule() -> None:
    found = due(Timing("0 7 * * MON-FRI", timezone=BERLIN), "2026-11-13T12:00:00+01:00", 2)
    assert found == ["2026-11-16T07:00:00+01:00", "2026-11-17T07:00:00+01:00"]


def test_a_time_that_is_skipped_is_due_at_the_end_of_the_gap() -> None:
    found = due(Timing("30 2 * * *", timezone=BERLIN), "2026-03-28T12:00:00+01:00", 2)
    assert found == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]


def test_a_time_that_comes_twice_is_due_once_and_every_half_hour_goes_on_through_both() -> None:
    fixed = due(Timing("30 2 * * *", timezone=BERLIN), "2026-10-24T12:00:00+02:00", 2)
    assert fixed == ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]
    often = due(Timing("*/30 * * * *", timezone=BERLIN), "2026-10-25T02:10:00+02:00", 3)
    assert often == ["2026-10-25T02:30:00+02:00", "2026-10-25T02:00:00+01:00", "2026-10-25T02:30:00+01:00"]


def test_no_time_of_the_first_hour_is_found_again_in_the_second() -> None:
    timing = Timing("15,45 2 * * *", timezone=BERLIN)
    assert due(timing, "2026-10-25T02:20:00+01:00", 1) == ["2026-10-26T02:15:00+01:00"]


def test_no_time_is_left_out_where_clocks_are_set_by_half_an_hour() -> None:
    timing = Timing("*/20 3 * * *", timezone="Australia/Lord_Howe")
    forward = due(timing, "2026-10-04T00:10:00+10:30", 3)
    assert forward == [f"2026-10-04T03:{minute}:00+11:00" for minute in ("00", "20", "40")]
    back = due(timing, "2026-04-05T00:10:00+11:00", 3)
    assert back == [f"2026-04-05T03:{minute}:00+10:30" for minute in ("00", "20", "40")]


def test_a_minute_of_every_hour_comes_twice_where_clocks_are_set_back_by_half_an_hour() -> None:
    timing = Timing("36 * * * *", timezone="Australia/Lord_Howe")
    back = due(timing, "2026-04-05T01:10:00+11:00", 3)
    assert back == ["2026-04-05T01:36:00+11:00", "2026-04-05T01:36:00+10:30", "2026-04-05T02:36:00+10:30"]
    forward = due(timing, "2026-10-04T01:40:00+10:30", 2)
    assert forward == ["2026-10-04T02:36:00+11:00", "2026-10-04T03:36:00+11:00"]


def test_intervals_are_counted_from_their_anchor() -> None:
    timing = Timing(every="15m", anchor=1000.0)
    assert [find_next(timing, after) for after in (0.0, 1000.0, 1900.0, 1900.5)] == [1900.0, 1900.0, 2800.0, 2800.0]


@pytest.mark.parametrize("timing", [Timing("*/5 * * * *", timezone=BERLIN), Timing(every="7m", anchor=3.0)])
def test_the_last_missed_times_are_those_that_counting_finds(timing: Timing) -> None:
    first, until = find_next(timing, at("2026-10-24T22:00:00+00:00")), at("2026-10-25T05:01:00+00:00")
    assert first is not None
    counted = [first]
    while (following := find_next(timing, counted[-1])) is not None and following <= until:
        counted.append(following)
    assert list_due(timing, first, until, 1000) == counted
    assert list_due(timing, first, until, 5) == counted[-5:]


@pytest.mark.parametrize(
    ("timing", "param"),
    [
        (Timing(), "cron"),
        (Timing("* * * * *", "5m"), "cron"),
        (Timing("* * * *"), "cron"),
        (Timing("0 * * * * *"), "cron"),
        (Timing("61 * * * *"), "cron"),
        (Timing("0 0 30 2 *"), "cron"),
        (Timing(every="5"), "every"),
        (Timing(every="0m"), "every"),
        (Timing(every="9999999d"), "every"),
        (Timing("0 0 * * *", timezone="Mars/Olympus"), "timezone"),
        (Timing("0 0 * * *", timezone="../etc/passwd"), "timezone"),
    ],
)
def test_what_cannot_be_a_time_is_refused_by_name(timing: Timing, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_timing(timing)
    assert caught.value.param == param
