"""Work that is to be finished within some time."""

import asyncio

import pytest

from mainspring.engine.guard import TimedOut, finish_within

pytestmark = pytest.mark.anyio


async def test_work_that_never_waits_is_given_no_timer() -> None:
    timers: list[object] = []
    loop = asyncio.get_running_loop()
    call_at = loop.call_at
    loop.call_at = lambda *args, **options: timers.append(args) or call_at(*args, **options)  # type: ignore[method-assign,func-returns-value]

    async def answer() -> str:
        return "done"

    async def wait() -> str:
        await asyncio.sleep(0)
        return "done later"

    try:
        assert await finish_within(60, answer()) == "done"
        assert timers == []
        assert await finish_within(60, wait()) == "done later"
        assert len(timers) == 1
    finally:
        del loop.call_at


async def test_work_that_waits_too_long_is_stopped_and_may_put_away_what_it_has() -> None:
    told: list[str] = []

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            told.append("put away")

    with pytest.raises(TimedOut):
        await finish_within(0.001, hang())
    assert told == ["put away"]


async def test_errors_of_the_work_are_its_own_and_it_may_outlive_what_it_waits_for() -> None:
    gate = asyncio.get_running_loop().create_future()

    async def insist() -> str:
        try:
            await gate
        except ValueError:
            await asyncio.sleep(0)
        return "went on"

    async def fail() -> None:
        await asyncio.sleep(0)
        raise TimeoutError("its own")

    task = asyncio.ensure_future(finish_within(60, insist()))
    await asyncio.sleep(0)
    gate.set_exception(ValueError("gone"))
    assert await task == "went on"
    with pytest.raises(TimeoutError, match="its own"):
        await finish_within(60, fail())


async def test_a_cancel_reaches_the_work() -> None:
    told: list[str] = []

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise

    task = asyncio.ensure_future(finish_within(60, wait()))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cancelled"]
