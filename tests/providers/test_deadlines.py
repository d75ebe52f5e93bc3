"""Time limits within an answer: who is stopped, who is not, and what becomes of those who wait."""

import asyncio
from collections.abc import AsyncGenerator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kit.clock import JUMPING
from tests.providers.stand import ANSWER, BEGUN, Puppet, Reader, asks, settle

from mainspring.core.errors import Refused, Unavailable
from mainspring.core.events import ModelEvent, TextDelta
from mainspring.core.model_request import ModelRequest
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.scripted import Scripted, Turn

WORD = TextDelta("msg_1", "tick")
HALF = Turn(events=(BEGUN,), stall=True)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, object]]:
    return JUMPING


async def test_model_that_does_not_begin_in_time_is_given_up() -> None:
    puppet = Puppet()
    reader = Reader(Deadlines(puppet, first=10.0, idle=1.0))
    await anyio.sleep(9.9)
    assert not reader.is_done
    await anyio.sleep(0.2)
    assert puppet.calls[0].is_closed
    assert isinstance(reader.error, Unavailable)
    assert reader.error.message == (
        "provider `puppet` said nothing for 10 s; is the model loaded? raise the limit for the first event if it is slow"
    )


async def test_model_that_falls_silent_is_given_up() -> None:
    puppet = Puppet()
    reader = Reader(Deadlines(puppet, first=1.0, idle=10.0))
    await settle()
    puppet.calls[0].say(BEGUN, WORD)
    await anyio.sleep(9.9)
    assert not reader.is_done
    await anyio.sleep(0.2)
    assert puppet.calls[0].is_closed
    assert isinstance(reader.error, Unavailable)
    assert reader.error.message == "provider `puppet` fell silent for 10 s within its answer; try again"
    assert reader.heard == [BEGUN, WORD]


@given(gaps=st.lists(st.floats(0.0, 9.9) | st.floats(10.1, 20.0), min_size=1, max_size=8))
async def test_answer_is_broken_off_at_its_first_gap_that_is_too_long(gaps: list[float]) -> None:
    puppet = Puppet()
    reader = Reader(Deadlines(puppet, idle=10.0))
    await settle()
    puppet.calls[0].say(BEGUN)
    await settle()
    good = next((number for number, gap in enumerate(gaps) if gap > 10.0), len(gaps))
    for gap in gaps:
        await anyio.sleep(gap)
        await settle()
        puppet.calls[0].say(WORD)
        await settle()
    assert reader.heard == [BEGUN] + [WORD] * good
    assert (reader.error is None) == (good == len(gaps))
    await reader.cancel()


@pytest.mark.parametrize("limits", [{"first": 5.0}, {"idle": 5.0}, {"first": 5.0, "idle": 5.0}])
async def test_answer_in_time_passes_as_it_is(limits: dict[str, float]) -> None:
    puppet = Puppet()
    reader = Reader(Deadlines(puppet, **limits))
    await settle()
    for event in ANSWER:
        await anyio.sleep(4)
        puppet.calls[0].say(event)
    puppet.calls[0].end()
    await settle()
    assert reader.is_done
    assert reader.error is None
    assert reader.heard == list(ANSWER)


async def test_each_limit_is_only_its_own() -> None:
    puppet = Puppet()
    patient, waiting = Reader(Deadlines(puppet, idle=5.0)), Reader(Deadlines(puppet, first=5.0))
    await settle()
    puppet.calls[1].say(BEGUN)
    await anyio.sleep(1000)
    assert not patient.is_done
    assert not waiting.is_done


async def test_reader_who_takes_its_time_is_not_held_against_the_model() -> None:
    puppet = Puppet()
    stream = Deadlines(puppet, first=5.0, idle=5.0).stream(asks())
    heard = []
    for event in ANSWER:
        pending = asyncio.ensure_future(anext(stream))
        await settle()
        puppet.calls[0].say(event)
        heard.append(await pending)
        await anyio.sleep(13)
    assert heard == list(ANSWER)
    await stream.aclose()


async def test_time_counts_from_when_the_reader_asks() -> None:
    puppet = Puppet()
    stream = Deadlines(puppet, idle=10.0).stream(asks())
    pending = asyncio.ensure_future(anext(stream))
    await settle()
    puppet.calls[0].say(BEGUN, WORD)
    assert await pending == BEGUN
    assert await anext(stream) == WORD
    await anyio.sleep(14)
    begun = anyio.current_time()
    with pytest.raises(Unavailable):
        await anext(stream)
    assert anyio.current_time() - begun == pytest.approx(10.0)


async def test_failure_of_the_model_passes_as_it_is() -> None:
    puppet = Puppet()
    readers = [Reader(Deadlines(puppet, first=5.0, idle=5.0)) for _ in range(2)]
    await settle()
    puppet.calls[1].say(BEGUN)
    for call in puppet.calls:
        call.fail(Refused("no"))
    await settle()
    assert [type(reader.error) for reader in readers] == [Refused, Refused]


async def test_one_who_was_given_up_on_can_go_on_with_other_things() -> None:
    stream = Deadlines(Scripted(HALF), idle=5.0).stream(asks())
    assert await anext(stream) == BEGUN
    with pytest.raises(Unavailable):
        await anext(stream)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await anyio.sleep(10)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@pytest.mark.parametrize("seconds", [1.0, 5.0])
async def test_cancel_from_outside_stays_a_cancel(seconds: float) -> None:
    """Even one that comes at the very moment at which the model is given up."""
    stream = Deadlines(Scripted(HALF), idle=5.0).stream(asks())
    assert await anext(stream) == BEGUN
    with anyio.move_on_after(seconds) as scope:
        try:
            await anext(stream)
        except Unavailable:
            assert seconds == 5.0
            await anyio.sleep(1)
    assert scope.cancelled_caught
    await anyio.sleep(10)


async def test_task_that_is_cancelled_at_the_moment_the_model_is_given_up_is_cancelled() -> None:
    puppet = Puppet()
    reader = Reader(Deadlines(puppet, idle=5.0))
    await settle()
    puppet.calls[0].say(BEGUN)
    await settle()
    asyncio.get_running_loop().call_later(5.0, reader.task.cancel)
    await anyio.sleep(6)
    assert reader.task.cancelled()
    assert puppet.calls[0].is_closed


class Lingering(Puppet):
    """Takes its time to put its things away."""

    is_tidy = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        try:
            async for event in super().stream(request):
                yield event
        finally:
            await anyio.sleep(10)
            self.is_tidy = True


async def test_model_that_puts_its_things_away_after_a_cancel_is_left_in_peace() -> None:
    lingering = Lingering()
    reader = Reader(Deadlines(lingering, idle=5.0))
    await settle()
    lingering.calls[0].say(BEGUN)
    await settle()
    await reader.cancel()
    assert reader.task.cancelled()
    assert lingering.is_tidy


async def test_only_the_task_that_waits_is_touched() -> None:
    """Each event is asked for by another task, and those before have long gone on with other things."""
    puppet = Puppet()
    stream = Deadlines(puppet, idle=5.0).stream(asks())
    tasks = []

    async def read_one() -> object:
        event = await anext(stream)
        await anyio.sleep(100)
        return event

    for number in range(3):
        tasks.append(asyncio.ensure_future(read_one()))
        await settle()
        if number < 2:
            puppet.calls[0].say(WORD)
            await settle()
    await asyncio.wait(tasks)
    assert [task.result() for task in tasks[:2]] == [WORD, WORD]
    assert isinstance(tasks[2].exception(), Unavailable)
