"""The rate: two sliding windows per tenant and subject."""

from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.policies.world import Outcome, tried

from mainspring.core.events import CallJudged
from mainspring.core.spec import Caller
from mainspring.features.governance.limit_policies import RatePolicy

NOTES = ("notes", "{}")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def calls(rate: RatePolicy, count: int, *, tenant: str = "", subject: str = "ada") -> Outcome:
    return await tried([rate], *[NOTES] * count, tenant=tenant, caller=Caller(subject), max_errors_in_row=None, max_repeats=None)


def verdicts(judged: list[CallJudged]) -> list[str]:
    return [each.verdict for each in judged]


async def test_burst_is_ten_in_a_second_unless_said_otherwise() -> None:
    clock = Clock()
    rate = RatePolicy(clock=clock)
    outcome = await calls(rate, 12)
    assert verdicts(outcome.judged) == ["allow"] * 10 + ["deny"] * 2
    assert "10 calls in 1 s" in outcome.judged[-1].reason
    assert "try again in 1.0 s" in outcome.judged[-1].reason
    clock.now += 1.0
    assert verdicts((await calls(rate, 1)).judged) == ["allow"]


async def test_minute_is_sixty_unless_said_otherwise_and_the_window_slides() -> None:
    clock = Clock()
    rate = RatePolicy(clock=clock)
    for _ in range(6):
        assert verdicts((await calls(rate, 10)).judged) == ["allow"] * 10
        clock.now += 5.0
    refused = (await calls(rate, 1)).only
    assert (refused.verdict, refused.policy) == ("deny", "rate")
    assert "60 calls in 60 s is used up; try again in 30.0 s" in refused.reason
    clock.now += 30.0
    assert verdicts((await calls(rate, 11)).judged) == ["allow"] * 10 + ["deny"]


@pytest.mark.requirement("D71")
async def test_each_subject_of_each_tenant_has_its_own_rate() -> None:
    rate = RatePolicy(burst=1, clock=Clock())
    for tenant, subject in (("a", "x"), ("a", "y"), ("b", "x"), ("", "a")):
        assert verdicts((await calls(rate, 2, tenant=tenant, subject=subject)).judged) == ["allow", "deny"]


async def test_refused_call_is_not_counted() -> None:
    clock = Clock()
    rate = RatePolicy(per_minute=2, clock=clock)
    for _ in range(3):
        await calls(rate, 2)
        clock.now += 20.0
    assert verdicts((await calls(rate, 3)).judged) == ["allow", "allow", "deny"]


async def test_callers_that_are_silent_for_a_minute_are_forgotten() -> None:
    clock = Clock()
    rate = RatePolicy(clock=clock)
    for number in range(5):
        await calls(rate, 1, subject=str(number))
    clock.now += 60.0
    await calls(rate, 1, subject="last")
    assert list(rate._callers) == [("", "last")]


@pytest.mark.parametrize(("per_minute", "burst"), [(0, 1), (1, 0), (-1, 1)])
def test_rate_of_nothing_is_refused(per_minute: int, burst: int) -> None:
    with pytest.raises(ValueError, match="above 0"):
        RatePolicy(per_minute, burst)


@given(
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 20)), max_size=60),
    per_minute=st.integers(1, 6),
    burst=st.integers(1, 4),
)
def test_no_window_ever_holds_more_than_its_limit_and_no_call_is_refused_in_vain(
    steps: list[tuple[str, float]], per_minute: int, burst: int
) -> None:
    clock, kept = Clock(), defaultdict[str, list[float]](list)
    rate = RatePolicy(per_minute, burst, clock=clock)
    for subject, pause in steps:
        clock.now += pause
        past = kept[subject]
        fits = all(sum(moment > clock.now - seconds for moment in past) < n for n, seconds in ((per_minute, 60.0), (burst, 1.0)))
        allowed = rate.refusal(("", subject)) is None
        assert allowed == fits
        if allowed:
            past.append(clock.now)
    assert len(rate._callers) <= 2
