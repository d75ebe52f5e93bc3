"""Limits on a backend: how many at once and per minute, and a line that is fair between tenants."""

import asyncio

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.clock import JUMPING
from tests.providers.stand import ANSWER, BEGUN, Held, Puppet, Reader, settle

from mainspring.core.errors import RateLimited, Unavailable
from mainspring.providers.rate_limits import RateLimiter


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


def served(puppet: Puppet) -> str:
    return "".join([call.request.tenant for call in puppet.calls])


async def test_calls_beyond_the_limit_wait_until_a_place_is_free() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=2)
    readers = [Reader(limited) for _ in range(3)]
    await settle()
    assert len(puppet.calls) == 2
    puppet.calls[0].say(*ANSWER)
    await settle()
    assert len(puppet.calls) == 2
    puppet.calls[0].end()
    await settle()
    assert len(puppet.calls) == 3
    assert [reader.is_done for reader in readers] == [True, False, False]


async def test_place_is_free_again_when_a_call_fails_or_is_cancelled() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1)
    readers = [Reader(limited) for _ in range(3)]
    await settle()
    puppet.calls[0].fail(Unavailable("down"))
    await settle()
    assert len(puppet.calls) == 2
    puppet.calls[1].say(BEGUN)
    await readers[1].cancel()
    assert puppet.calls[1].is_closed
    await settle()
    assert len(puppet.calls) == 3


async def test_tenants_take_turns_however_many_are_waiting() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1)
    readers = [Reader(limited, tenant) for tenant in "aaaabbc"]
    for number in range(7):
        await settle()
        puppet.calls[number].end()
    await settle()
    assert served(puppet) == "aabcaba"
    assert all(reader.is_done for reader in readers)


async def test_one_who_is_cancelled_leaves_the_line() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1, line=1)
    Reader(limited, "a")
    await settle()
    waiting = Reader(limited, "b")
    await settle()
    await waiting.cancel()
    last = Reader(limited, "b")
    await settle()
    assert not last.is_done
    puppet.calls[0].end()
    await settle()
    assert len(puppet.calls) == 2


@pytest.mark.parametrize("is_given", [True, False])
async def test_place_of_one_who_is_cancelled_at_that_moment_goes_on_to_the_next(is_given: bool) -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1)
    first = Reader(limited)
    await settle()
    second, third = Reader(limited), Reader(limited)
    await settle()
    first.task.cancel()
    if is_given:
        # The second is cancelled between the end of the first and its own waking up.
        asyncio.get_running_loop().call_soon(second.task.cancel)
    else:
        second.task.cancel()
    await settle()
    assert second.is_done
    assert not third.is_done
    assert len(puppet.calls) == 2


async def test_tenant_whose_line_is_full_is_refused_and_others_are_not() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1, line=2)
    for _ in range(3):
        Reader(limited, "a")
    await settle()
    refused, other = Reader(limited, "a"), Reader(limited, "b")
    await settle()
    assert isinstance(refused.error, RateLimited)
    assert not refused.error.was_asked
    assert refused.error.message == (
        "provider `puppet` is busy: 2 requests of this tenant are waiting for it already; try again later, or raise its limits"
    )
    assert not other.is_done


async def test_patience_ends() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1, patience=10.0)
    Reader(limited)
    await settle()
    waiting = Reader(limited)
    await anyio.sleep(9.9)
    assert not waiting.is_done
    await anyio.sleep(0.2)
    assert isinstance(waiting.error, RateLimited)
    assert "no place became free in 10 s" in waiting.error.message
    puppet.calls[0].end()
    await settle()
    assert len(puppet.calls) == 1


async def test_no_more_than_so_many_begin_within_a_minute() -> None:
    puppet, begun = Puppet(), []
    limited = RateLimiter(puppet, per_minute=2)
    for _ in range(5):
        Reader(limited)
    for _ in range(5):
        await settle()
        begun.append((round(anyio.current_time()), len(puppet.calls)))
        await anyio.sleep(30)
    assert begun == [(0, 2), (30, 2), (60, 4), (90, 4), (120, 5)]


async def test_limits_of_one_model_leave_others_alone() -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, concurrency=1, model="large")
    for model in ("large", "large", "small", "small"):
        Reader(limited, model=model)
    await settle()
    assert [call.request.model for call in puppet.calls] == ["large", "small", "small"]


@pytest.mark.parametrize("wrong", [{"concurrency": 0}, {"per_minute": 0}, {"line": 0}])
def test_limit_that_lets_nothing_through_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(wrong))}` is at least 1, not 0"):
        RateLimiter(Puppet(), **wrong)  # type: ignore[arg-type]


class Observer:
    """Watches a limited puppet from the outside and knows what a fair line must never do.

    `served` is, for each tenant who waits, who was served since it began to wait or was served itself.
    """

    def __init__(self, concurrency: int) -> None:
        self.puppet = Puppet()
        self.limited = RateLimiter(self.puppet, concurrency=concurrency)
        self.concurrency = concurrency
        self.waiting: list[Reader] = []
        self.running: list[Held] = []
        self.served: dict[str, set[str]] = {}

    async def step(self, kind: str, number: int) -> None:
        seen = len(self.puppet.calls)
        if kind == "enter":
            reader = Reader(self.limited, "abcd"[number % 4])
            self.waiting.append(reader)
            self.served.setdefault(reader.request.tenant, set())
        elif kind == "end":
            # Several places may become free before anybody takes one.
            for _ in range(min(len(self.running), 1 + number % 3)):
                self.running.pop(number % len(self.running)).end()
        elif self.waiting:
            reader = self.waiting.pop(number % len(self.waiting))
            await reader.cancel()
            self.left(reader.request.tenant)
        await settle()
        for held in self.puppet.calls[seen:]:
            self.admitted(held)
        assert len(self.running) <= self.concurrency
        assert not self.waiting or len(self.running) == self.concurrency, "somebody waits for a free place"

    def admitted(self, held: Held) -> None:
        tenant = held.request.tenant
        reader = next(reader for reader in self.waiting if reader.request.tenant == tenant)
        assert reader.request is held.request, "not the first of its line"
        for other, served in self.served.items():
            if other != tenant:
                assert tenant not in served, f"`{tenant}` is served twice while `{other}` waits"
                served.add(tenant)
        self.waiting.remove(reader)
        self.running.append(held)
        self.served[tenant] = set()
        self.left(tenant)

    def left(self, tenant: str) -> None:
        if all(reader.request.tenant != tenant for reader in self.waiting):
            del self.served[tenant]


STEPS = st.tuples(st.sampled_from(["enter", "enter", "end", "cancel"]), st.integers(0, 11))


@given(concurrency=st.integers(1, 3), steps=st.lists(STEPS, max_size=60))
async def test_line_is_fair_and_no_place_is_lost_or_given_twice(concurrency: int, steps: list[tuple[str, int]]) -> None:
    observer = Observer(concurrency)
    for kind, number in steps:
        await observer.step(kind, number)
    while observer.running:
        await observer.step("end", 0)
    assert not observer.waiting


@given(per_minute=st.integers(1, 4), delays=st.lists(st.floats(0, 90), max_size=12))
async def test_no_minute_has_more_beginnings_than_it_may(per_minute: int, delays: list[float]) -> None:
    puppet = Puppet()
    limited = RateLimiter(puppet, per_minute=per_minute, patience=10_000.0)
    for delay in delays:
        await anyio.sleep(delay)
        Reader(limited)
    await anyio.sleep(61.0 * len(delays))
    begun = [call.begun_at for call in puppet.calls]
    assert len(begun) == len(delays)
    assert all(later - earlier >= 59.999 for earlier, later in zip(begun, begun[per_minute:], strict=False))
    for call in puppet.calls:
        call.end()
    await settle()
