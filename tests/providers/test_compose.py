"""Everything that may stand before a backend: invisible while all is well, and in the right order when it is not."""

from collections.abc import Callable

import anyio
import msgspec
import pytest
from tests.kit.clock import JUMPING
from tests.providers.stand import ANSWER, BEGUN, Puppet, Reader, asks, settle

from mainspring.core.errors import RateLimited, Unavailable
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.ports import ModelInfo, Provider, TokenCounter
from mainspring.providers.breaker import Breaker
from mainspring.providers.compose import BackendOptions, RateLimits, compose
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying
from mainspring.providers.router import Router

ALL = BackendOptions(attempts=3, failures=5, first_seconds=60.0, idle_seconds=60.0, concurrency=8, per_minute=100)
Wrap = Callable[[Provider], Provider]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


@pytest.fixture(
    params=[
        Retrying,
        Breaker,
        lambda provider: RateLimiter(provider, concurrency=1),
        lambda provider: Deadlines(provider, first=60.0),
        lambda provider: Deadlines(provider, idle=60.0),
        lambda provider: compose(provider, ALL),
        lambda provider: Router({"p": provider}, default="p", name="puppet"),
        lambda provider: Router({"p": compose(provider, ALL)}, default="p", name="puppet"),
    ],
    ids=["retry", "breaker", "limits", "first", "idle", "compose", "router", "all"],
)
def wrap(request: pytest.FixtureRequest) -> Wrap:
    chosen: Wrap = request.param
    return chosen


async def test_answer_passes_event_by_event(wrap: Wrap) -> None:
    puppet = Puppet()
    reader = Reader(wrap(puppet))
    for number, event in enumerate(ANSWER, 1):
        await settle()
        puppet.calls[0].say(event)
        await settle()
        assert reader.heard == list(ANSWER[:number])
    puppet.calls[0].end()
    await settle()
    assert reader.is_done
    assert puppet.calls[0].request == reader.request


async def test_closing_the_stream_closes_the_one_behind_it_at_once(wrap: Wrap) -> None:
    puppet = Puppet()
    stream = wrap(puppet).stream(asks())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(anext, stream)
        await settle()
        puppet.calls[0].say(BEGUN)
    assert not puppet.calls[0].is_closed
    await stream.aclose()
    assert puppet.calls[0].is_closed


@pytest.mark.parametrize("is_begun", [False, True])
async def test_cancelling_the_reader_closes_the_stream_behind_it_at_once(wrap: Wrap, is_begun: bool) -> None:
    puppet = Puppet()
    reader = Reader(wrap(puppet))
    await settle()
    if is_begun:
        puppet.calls[0].say(BEGUN)
        await settle()
    await reader.cancel()
    assert reader.task.cancelled()
    assert puppet.calls[0].is_closed


class Counting(Puppet):
    async def count_tokens(self, request: ModelRequest) -> int:
        return 42


async def test_everything_else_is_left_to_the_provider(wrap: Wrap) -> None:
    puppet = Counting()
    wrapped = wrap(puppet)
    assert wrapped.name == "puppet"
    assert [model.owned_by for model in await wrapped.models()] == ["puppet"]
    assert isinstance(wrapped, TokenCounter)
    assert await wrapped.count_tokens(asks()) == 42
    await wrapped.close()
    assert puppet.closed == 1


async def test_tokens_of_a_provider_that_cannot_count_are_estimated_as_always(wrap: Wrap) -> None:
    wrapped = wrap(Puppet())
    assert isinstance(wrapped, TokenCounter)
    assert await wrapped.count_tokens(asks()) == estimate(asks().items)


async def test_wrapped_models_are_those_of_the_provider() -> None:
    assert await compose(Puppet(), ALL).models() == (ModelInfo("m", owned_by="puppet"),)


def test_nothing_stands_before_a_provider_unless_it_is_asked_for() -> None:
    puppet = Puppet()
    assert compose(puppet, BackendOptions()) is puppet
    assert compose(puppet, BackendOptions(models={"m": RateLimits()})) is puppet


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (BackendOptions(attempts=2), Retrying),
        (BackendOptions(failures=5), Breaker),
        (BackendOptions(first_seconds=1.0), Deadlines),
        (BackendOptions(idle_seconds=1.0), Deadlines),
        (BackendOptions(concurrency=1), RateLimiter),
        (BackendOptions(per_minute=1), RateLimiter),
        (BackendOptions(models={"m": RateLimits(concurrency=1)}), RateLimiter),
    ],
)
def test_each_option_has_its_wrapper(options: BackendOptions, kind: type) -> None:
    assert type(compose(Puppet(), options)) is kind


async def test_every_try_stands_in_line_and_holds_no_place_in_between() -> None:
    puppet = Puppet()
    provider = compose(puppet, BackendOptions(attempts=2, concurrency=1))
    first, second = Reader(provider, "a"), Reader(provider, "b")
    await settle()
    puppet.calls[0].fail(Unavailable("down", retry_after=10.0))
    await settle()
    assert [call.request.tenant for call in puppet.calls] == ["a", "b"]
    await anyio.sleep(20)
    assert len(puppet.calls) == 2
    puppet.calls[1].end()
    await settle()
    assert [call.request.tenant for call in puppet.calls] == ["a", "b", "a"]
    assert (first.is_done, second.is_done) == (False, True)


async def test_every_try_counts_for_the_minute() -> None:
    puppet = Puppet()
    Reader(compose(puppet, BackendOptions(attempts=3, per_minute=1)))
    for number in range(3):
        await settle()
        assert len(puppet.calls) == number + 1
        puppet.calls[number].fail(Unavailable("down", retry_after=0.0))
        await anyio.sleep(59)
        assert len(puppet.calls) == number + 1
        await anyio.sleep(2)


async def test_failures_of_every_try_open_the_breaker_and_its_refusal_is_not_tried_again() -> None:
    puppet = Puppet()
    reader = Reader(compose(puppet, BackendOptions(attempts=5, failures=2)))
    for number in range(2):
        await anyio.sleep(5)
        puppet.calls[number].fail(Unavailable("down"))
    await anyio.sleep(5)
    assert isinstance(reader.error, Unavailable)
    assert not reader.error.was_asked
    assert len(puppet.calls) == 2


async def test_probe_is_one_request() -> None:
    puppet = Puppet()
    provider = compose(puppet, BackendOptions(attempts=5, failures=1, cool_seconds=10.0))
    Reader(provider)
    await settle()
    puppet.calls[0].fail(Unavailable("down"))
    await anyio.sleep(11)
    probe = Reader(provider)
    await settle()
    puppet.calls[1].fail(Unavailable("still down"))
    await anyio.sleep(5)
    assert probe.error is not None
    assert len(puppet.calls) == 2


async def test_call_that_waited_in_line_while_the_breaker_opened_does_not_reach_the_backend() -> None:
    puppet = Puppet()
    provider = compose(puppet, BackendOptions(failures=1, concurrency=1))
    Reader(provider)
    await settle()
    waiting = Reader(provider)
    await settle()
    puppet.calls[0].fail(Unavailable("down"))
    await settle()
    assert isinstance(waiting.error, Unavailable)
    assert len(puppet.calls) == 1


async def test_time_in_line_is_not_the_backends() -> None:
    puppet = Puppet()
    provider = compose(puppet, BackendOptions(concurrency=1, first_seconds=10.0))
    Reader(provider)
    await settle()
    puppet.calls[0].say(BEGUN)
    waiting = Reader(provider)
    await anyio.sleep(100)
    assert not waiting.is_done
    puppet.calls[0].end()
    await anyio.sleep(9)
    assert not waiting.is_done
    await anyio.sleep(2)
    assert isinstance(waiting.error, Unavailable)


async def test_refusal_of_the_line_is_not_tried_again() -> None:
    provider = compose(Puppet(), BackendOptions(attempts=3, concurrency=1, wait_seconds=10.0))
    Reader(provider)
    await settle()
    waiting = Reader(provider)
    await anyio.sleep(10.5)
    assert isinstance(waiting.error, RateLimited)


async def test_model_has_limits_of_its_own_and_those_of_all() -> None:
    puppet = Puppet()
    provider = compose(puppet, BackendOptions(concurrency=3, models={"large": RateLimits(concurrency=1)}))
    for model in ("large", "large", "small", "small", "small"):
        Reader(provider, model=model)
    await settle()
    assert [call.request.model for call in puppet.calls] == ["large", "small", "small"]


def test_options_are_read_from_a_file_and_checked() -> None:
    told = {"attempts": 3, "idle_seconds": 60, "models": {"gpt": {"per_minute": 10}}}
    assert msgspec.convert(told, BackendOptions) == BackendOptions(
        attempts=3, idle_seconds=60.0, models={"gpt": RateLimits(per_minute=10)}
    )
    for wrong in ({"attempts": 0}, {"concurrency": 0}, {"idle_seconds": 0}, {"models": {"gpt": {"per_minute": 0}}}):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(wrong, BackendOptions)
