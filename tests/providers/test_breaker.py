"""The circuit breaker: when it opens, whom it lets through, and what closes it again."""

from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.clock import JUMPING
from tests.providers.stand import ANSWER, BEGUN, Held, Puppet, Reader, settle

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
)
from mainspring.providers.breaker import Breaker


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


class Stage:
    """A breaker before a puppet."""

    def __init__(self, failures: int = 2, cool: float = 30.0) -> None:
        self.puppet = Puppet()
        self.breaker = Breaker(self.puppet, failures=failures, cool=cool)

    async def call(self) -> tuple[Reader, Held | None]:
        """Makes a call; None if it did not reach the provider."""
        before = len(self.puppet.calls)
        reader = Reader(self.breaker)
        await settle()
        return reader, self.puppet.calls[before] if len(self.puppet.calls) > before else None

    async def passed(self) -> Held:
        _, held = await self.call()
        assert held is not None
        return held

    async def refused(self) -> ProviderError:
        reader, held = await self.call()
        assert held is None
        assert reader.error is not None
        return reader.error

    async def fail(self, error: ProviderError | None = None) -> None:
        (await self.passed()).fail(error or Unavailable("down"))
        await settle()

    async def answer(self) -> None:
        held = await self.passed()
        held.say(*ANSWER)
        held.end()
        await settle()


@pytest.mark.parametrize("error", [Unavailable("no route"), BadOutput("garbled")])
async def test_failures_in_a_row_open_it_and_calls_are_refused_at_once(error: ProviderError) -> None:
    stage = Stage(failures=2)
    await stage.fail(error)
    await stage.fail(error)
    refusal = await stage.refused()
    assert isinstance(refusal, Unavailable)
    assert refusal.retry_after == pytest.approx(30.0)
    assert not refusal.was_asked
    assert "2 times in a row" in refusal.message
    assert refusal.message.endswith(error.message)


async def test_answer_in_between_begins_the_count_anew() -> None:
    stage = Stage(failures=2)
    for _ in range(3):
        await stage.fail()
        await stage.answer()
    await stage.fail()
    await stage.passed()


@pytest.mark.parametrize(
    "error",
    [
        RateLimited("busy"),
        Refused("no"),
        Unauthorized("who"),
        ContextOverflow("long"),
        ProviderError("odd"),
        Unavailable("another breaker", was_asked=False),
    ],
)
async def test_error_of_a_backend_that_is_well_does_not_open_it(error: ProviderError) -> None:
    stage = Stage(failures=1)
    for _ in range(3):
        await stage.fail(error)
    await stage.passed()


async def test_failure_within_an_answer_counts() -> None:
    stage = Stage(failures=1)
    held = await stage.passed()
    held.say(BEGUN)
    held.fail(Unavailable("gone"))
    await settle()
    await stage.refused()


async def test_only_one_probe_is_let_through_after_the_time() -> None:
    stage = Stage(failures=1)
    await stage.fail()
    await anyio.sleep(29.9)
    assert "tried again in 1 s" in (await stage.refused()).message
    await anyio.sleep(0.1)
    await stage.passed()
    refusal = await stage.refused()
    assert refusal.retry_after is None


async def test_first_event_of_the_probe_closes_it() -> None:
    stage = Stage(failures=1)
    await stage.fail()
    await anyio.sleep(30)
    probe = await stage.passed()
    probe.say(BEGUN)
    await settle()
    await stage.passed()
    await stage.passed()


async def test_probe_that_fails_opens_it_for_another_while() -> None:
    stage = Stage(failures=3)
    for _ in range(3):
        await stage.fail()
    for times in (3, 4):
        assert f"failed {times} times in a row" in (await stage.refused()).message
        await anyio.sleep(30)
        await stage.fail()
    assert (await stage.refused()).retry_after == pytest.approx(30.0)


async def test_backend_that_breaks_every_answer_is_left_alone_again_at_its_next_failure() -> None:
    stage = Stage(failures=3)
    for _ in range(3):
        await stage.fail()
    await anyio.sleep(30)
    probe = await stage.passed()
    probe.say(BEGUN)
    probe.fail(Unavailable("gone"))
    await settle()
    await stage.refused()


async def test_whole_answer_of_the_probe_forgets_all_failures() -> None:
    stage = Stage(failures=2)
    for _ in range(2):
        await stage.fail()
    await anyio.sleep(30)
    await stage.answer()
    await stage.fail()
    await stage.passed()


async def test_refused_probe_closes_it_as_well() -> None:
    stage = Stage(failures=1)
    await stage.fail()
    await anyio.sleep(30)
    await stage.fail(RateLimited("busy"))
    await stage.passed()
    await stage.passed()


async def test_cancelled_probe_makes_way_for_the_next() -> None:
    stage = Stage(failures=1)
    await stage.fail()
    await anyio.sleep(30)
    for _ in range(3):
        reader, held = await stage.call()
        assert held is not None
        await stage.refused()
        await reader.cancel()
        assert held.is_closed
    await stage.answer()
    await stage.passed()


async def test_probe_that_ends_without_a_word_makes_way_for_the_next() -> None:
    stage = Stage(failures=1)
    await stage.fail()
    await anyio.sleep(30)
    (await stage.passed()).end()
    await settle()
    await stage.passed()
    await stage.refused()


@pytest.mark.parametrize("error", [None, Unavailable("another breaker", was_asked=False)])
async def test_probe_that_shows_nothing_leaves_it_as_open_as_before(error: ProviderError | None) -> None:
    stage = Stage(failures=2)
    for _ in range(2):
        await stage.fail()
    await anyio.sleep(30)
    probe = await stage.passed()
    probe.orders.put_nowait(error)
    await settle()
    await stage.fail()
    assert (await stage.refused()).retry_after == pytest.approx(30.0)


async def test_old_answer_that_ends_after_it_has_closed_does_not_count_as_a_new_one() -> None:
    stage = Stage(failures=2)
    old = await stage.passed()
    for _ in range(2):
        await stage.fail()
    await anyio.sleep(30)
    probe = await stage.passed()
    probe.say(BEGUN)
    old.end()
    await settle()
    await stage.fail()
    await stage.refused()


@pytest.mark.parametrize("fate", [lambda held: held.say(*ANSWER), lambda held: held.fail(Unavailable("late"))])
async def test_calls_from_before_it_opened_decide_nothing(fate: Callable[[Held], None]) -> None:
    stage = Stage(failures=1)
    early = await stage.passed()
    await stage.fail()
    await anyio.sleep(20)
    fate(early)
    early.end()
    await settle()
    assert (await stage.refused()).retry_after == pytest.approx(10.0)
    await anyio.sleep(10)
    await stage.passed()


def test_at_least_one_failure_is_needed_to_open_it() -> None:
    with pytest.raises(ValueError, match="at least 1, not 0"):
        Breaker(Puppet(), failures=0)


COOL = 10.0
KINDS = ["call"] * 4 + ["fail"] * 3 + ["wait"] * 2 + ["say", "end", "refuse", "cancel"]
STEPS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 5)), min_size=10, max_size=60)


class Model:
    """What a breaker is, with nothing but the calls in it: `counting` are those whose fate matters in its present state."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.failed = 0
        self.opened_at: float | None = None
        self.probe: Held | None = None
        self.counting: list[Held] = []

    def admits(self, now: float) -> bool:
        return self.opened_at is None or (self.probe is None and now >= self.opened_at + COOL)

    def admit(self, held: Held) -> None:
        self.counting.append(held)
        if self.opened_at is not None:
            self.probe = held

    def learn(self, kind: str, held: Held, now: float) -> None:
        if held not in self.counting:
            return
        is_probe = held is self.probe
        if kind == "fail":
            self.failed += 1
            if self.failed >= self.failures:
                self.opened_at, self.probe, self.counting = now, None, []
        elif kind == "cancel":
            self.probe = None if is_probe else self.probe
        else:
            if is_probe:
                self.opened_at, self.probe, self.counting = None, None, [held]
                self.failed = self.failures - 1
            if kind != "say":
                self.failed = 0


async def tell(kind: str, reader: Reader, held: Held) -> None:
    if kind == "cancel":
        await reader.cancel()
    elif kind in ("fail", "refuse"):
        held.fail(Unavailable("down") if kind == "fail" else Refused("no"))
    else:
        held.say(BEGUN)
        if kind == "end":
            held.end()
    await settle()
    assert held.is_closed == (kind != "say")


@given(failures=st.integers(1, 3), steps=STEPS)
async def test_there_is_never_more_than_one_probe_and_a_refused_call_reaches_nobody(
    failures: int, steps: list[tuple[str, int]]
) -> None:
    stage, model = Stage(failures, COOL), Model(failures)
    calls: list[tuple[Reader, Held]] = []
    for kind, number in steps:
        if kind == "wait":
            await anyio.sleep(2.0 * number)
        elif kind == "call":
            reader, held = await stage.call()
            assert (held is not None) == model.admits(anyio.current_time())
            if held is not None:
                model.admit(held)
                calls.append((reader, held))
            else:
                assert isinstance(reader.error, Unavailable)
                assert not reader.error.was_asked
        elif calls:
            reader, held = calls[number % len(calls)]
            await tell(kind, reader, held)
            model.learn(kind, held, anyio.current_time())
            if held.is_closed:
                calls.remove((reader, held))
    for reader, _ in calls:
        await reader.cancel()


async def test_a_tenant_whose_requests_fail_does_not_take_the_backend_from_others() -> None:
    stage = Stage(failures=2)
    for _ in range(2):
        Reader(stage.breaker, tenant="acme")
        await settle()
        stage.puppet.calls[-1].fail(Unavailable("it crashed on this prompt"))
        await settle()
    refused = Reader(stage.breaker, tenant="acme")
    await settle()
    assert isinstance(refused.error, Unavailable)
    assert len(stage.puppet.calls) == 2
    other = Reader(stage.breaker, tenant="globex")
    await settle()
    stage.puppet.calls[-1].say(*ANSWER)
    stage.puppet.calls[-1].end()
    await settle()
    assert other.is_done
    assert other.error is None
    assert list(other.heard) == list(ANSWER)
