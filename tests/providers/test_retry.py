"""Trying again: what is, what is not, and how long is waited in between."""

from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.clock import JUMPING
from tests.providers.stand import BEGUN, Puppet, Reader, asks, heard, said, settle

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    EmptyAnswer,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.core.events import TurnEnded
from mainspring.core.items import Usage
from mainspring.core.model_request import ModelRequest
from mainspring.providers.retry import Retrying
from mainspring.providers.script import Turn
from mainspring.providers.scripted import Scripted, fail, say

Asked = Callable[[ModelRequest], None]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


class Clock:
    """Writes down when the provider is asked."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, request: ModelRequest) -> None:
        self.times.append(anyio.current_time())

    @property
    def pauses(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in zip(self.times, self.times[1:], strict=False)]


def failing(clock: Asked, *errors: ProviderError) -> list[Turn]:
    return [fail(error, expect=clock) for error in errors]


@pytest.mark.parametrize("error", [Unavailable("down"), RateLimited("busy"), BadOutput("garbled")])
async def test_failure_that_may_pass_is_tried_again(error: ProviderError) -> None:
    with Scripted(fail(error), fail(error), say("noon")) as script:
        assert await said(Retrying(script, attempts=3)) == "noon"


def used_up(error: ProviderError, tokens: int) -> ProviderError:
    error.usage = Usage(tokens, 1)
    return error


async def test_what_failed_attempts_have_used_is_charged_with_the_last() -> None:
    empty, garbled = used_up(EmptyAnswer("nothing"), 10), used_up(BadOutput("garbled"), 20)
    with Scripted(fail(empty), fail(garbled), say("noon")) as script:
        *_, end = await heard(Retrying(script, attempts=3))
    assert isinstance(end, TurnEnded)
    with Scripted(say("noon")) as script:
        *_, alone = await heard(Retrying(script, attempts=3))
    assert isinstance(alone, TurnEnded)
    assert end.usage is not None
    assert alone.usage is not None
    assert end.usage.total_tokens == alone.usage.total_tokens + 11 + 21


async def test_a_failure_of_all_attempts_is_charged_what_they_have_used() -> None:
    nonsense = used_up(BadOutput("garbled"), 10**30)
    failures = (fail(used_up(EmptyAnswer("nothing"), 10)), fail(nonsense), fail(BadOutput("garbled")))
    with Scripted(*failures) as script, pytest.raises(BadOutput) as failed:
        await heard(Retrying(script, attempts=3))
    assert failed.value.usage is not None
    assert failed.value.usage.total_tokens == 11


@pytest.mark.requirement("D73")
@pytest.mark.parametrize("error", [Refused("no"), Unauthorized("who"), ContextOverflow("long"), ProviderError("odd")])
async def test_failure_that_will_not_pass_is_raised_at_once(error: ProviderError) -> None:
    with Scripted(fail(error)) as script:
        with pytest.raises(type(error), match=error.message):
            await said(Retrying(script))
        assert anyio.current_time() == pytest.approx(0.0)


async def test_last_failure_is_raised_when_no_try_is_left() -> None:
    with Scripted(fail(Unavailable("one")), fail(Unavailable("two"))) as script, pytest.raises(Unavailable, match="two"):
        await said(Retrying(script, attempts=2))


async def test_pauses_double_up_to_their_cap() -> None:
    clock = Clock()
    with Scripted(*failing(clock, *[Unavailable("down")] * 5), say("noon", expect=clock)) as script:
        assert await said(Retrying(script, attempts=6, base=0.5, cap=3.0, random=lambda: 1.0)) == "noon"
    assert clock.pauses == [0.5, 1.0, 2.0, 3.0, 3.0]


@given(
    draws=st.lists(st.floats(0, 1, exclude_max=True), min_size=4, max_size=4),
    base=st.floats(0.1, 2.0),
    cap=st.floats(0.1, 10.0),
)
async def test_pause_is_a_random_part_of_its_bound(draws: list[float], base: float, cap: float) -> None:
    clock, drawn = Clock(), iter(draws)
    with Scripted(*failing(clock, *[Unavailable("down")] * 4), say("noon", expect=clock)) as script:
        await said(Retrying(script, attempts=5, base=base, cap=cap, random=lambda: next(drawn)))
    bounds = [min(cap, base * 2**tries) for tries in range(4)]
    assert clock.pauses == pytest.approx([draw * bound for draw, bound in zip(draws, bounds, strict=True)], abs=1e-5)


@pytest.mark.requirement("D73")
@pytest.mark.parametrize("error", [RateLimited("busy", retry_after=7.0), Unavailable("down", retry_after=7.0)])
async def test_backend_that_says_when_to_come_back_is_not_asked_earlier(error: ProviderError) -> None:
    clock = Clock()
    with Scripted(*failing(clock, error), say("noon", expect=clock)) as script:
        await said(Retrying(script, base=0.5, random=lambda: 0.5))
    assert clock.pauses == [7.25]


async def test_backend_that_wants_too_much_time_is_not_asked_again() -> None:
    with Scripted(fail(RateLimited("busy", retry_after=60.1))) as script, pytest.raises(RateLimited):
        await said(Retrying(script, longest=60.0))


async def test_time_as_long_as_the_bound_is_waited() -> None:
    clock = Clock()
    with Scripted(*failing(clock, RateLimited("busy", retry_after=60.0)), say("noon", expect=clock)) as script:
        await said(Retrying(script, longest=60.0, random=lambda: 0.0))
    assert clock.pauses == [60.0]


async def test_turn_that_was_heard_in_part_is_never_asked_again() -> None:
    puppet = Puppet()
    reader = Reader(Retrying(puppet))
    await settle()
    puppet.calls[0].say(BEGUN)
    puppet.calls[0].fail(Unavailable("gone", retry_after=0.0))
    await anyio.sleep(100)
    assert reader.heard == [BEGUN]
    assert reader.error is not None
    assert len(puppet.calls) == 1


async def test_every_try_asks_the_same() -> None:
    with Scripted(fail(Unavailable("down")), say("noon")) as script:
        await heard(Retrying(script), asks(tenant="a"))
    assert script.requests == [asks(tenant="a")] * 2


async def test_what_our_own_limits_refuse_is_not_tried_again() -> None:
    with Scripted(fail(RateLimited("the line is full", was_asked=False))) as script, pytest.raises(RateLimited):
        await said(Retrying(script))


async def test_stream_that_failed_is_closed_before_the_pause_and_a_cancel_ends_the_waiting() -> None:
    puppet = Puppet()
    reader = Reader(Retrying(puppet, random=lambda: 1.0))
    await settle()
    puppet.calls[0].fail(Unavailable("down"))
    await settle()
    assert puppet.calls[0].is_closed
    assert not reader.is_done
    await reader.cancel()
    await anyio.sleep(100)
    assert len(puppet.calls) == 1


def test_at_least_one_try_is_needed() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Retrying(Puppet(), attempts=0)
