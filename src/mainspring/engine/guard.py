"""Other people's code: a tool, a policy, a provider. It may do anything, and only its own call fails.

Each call runs in a task of its own. Whatever it raises, `SystemExit` and a stray `CancelledError` included, comes back as a
value; when its time is up or the run ends it is cancelled; and what does not stop within `GRACE` seconds after that is left
behind, so that nobody ever waits for it again. Code of ours that has promised to stop when it is cancelled needs no task
(`run_in_place`).
"""

import asyncio
from collections.abc import Coroutine, Generator
from logging import getLogger
from types import coroutine
from typing import Any, Generic, Protocol, TypeVar, cast

from anyio import CancelScope
from msgspec import Struct

from mainspring.net.late_timers import call_late
from mainspring.ports import InPlace

log = getLogger(__name__)

GRACE = 1.0

T = TypeVar("T")


class Misbehaved(Exception):
    """Foreign code raised what no code should: the process's end, or a cancel that nobody asked for."""


class TimedOut(Exception):
    """Foreign code took longer than it may."""


class CodeOutcome(Struct, Generic[T]):
    """What became of a call: a value, or the error it raised."""

    value: T | None = None
    error: BaseException | None = None


class Runner(Protocol):
    """A way to run somebody's code: `Guard.run`, or `Guard.run_in_place` for code that needs no guard."""

    async def __call__(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T: ...


class _Limit:
    """Cancels the task that makes it in so many seconds, unless it has ended before."""

    __slots__ = ("_has_passed", "_task", "_timer", "_wanted")

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._wanted = task, task.cancelling()
        self._has_passed = False
        self._timer = call_late(asyncio.get_running_loop(), seconds, self._pass)

    def _pass(self) -> None:
        self._has_passed = True
        self._task.cancel()

    def end(self) -> bool:
        """Takes it away. Returns whether the task is cancelled by it, and by nobody else."""
        self._timer.cancel()
        has_passed, self._has_passed = self._has_passed, False
        return has_passed and self._task.uncancel() <= self._wanted


class Guard:
    """Runs foreign code. Keeps what was left behind, so that it is not collected before it ends."""

    def __init__(self) -> None:
        self._left_behind: set[asyncio.Task[Any]] = set()

    def find_runner(self, code: object) -> Runner:
        """How this code is to be run."""
        return self.run_in_place if isinstance(code, InPlace) and code.runs_in_place else self.run

    async def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """The result of `work`. Raises its `Exception`, `Misbehaved` for anything else, and `TimedOut`."""
        task = start(work)
        try:
            done, _ = await asyncio.wait([task], timeout=seconds)
        except asyncio.CancelledError:
            with CancelScope(shield=True):
                await self.stop([task])
            raise
        if not done:
            await self.stop([task])
            raise TimedOut
        return result_of(task)

    async def run_in_place(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """The same for code of ours: it runs in the task that asks, and stops when that is cancelled."""
        limit = None if seconds is None else _Limit(seconds)
        try:
            return await work
        except asyncio.CancelledError as error:
            if limit is not None and limit.end():
                raise TimedOut from None
            if is_cancelled():
                raise
            raise Misbehaved("it was cancelled") from error
        finally:
            if limit is not None:
                limit.end()

    async def stop(self, tasks: "list[asyncio.Task[Any]]") -> "set[asyncio.Task[Any]]":
        """Cancels the tasks and waits for their end, but not for long. Returns those that go on."""
        for task in tasks:
            task.cancel()
        _, deaf = await asyncio.wait(tasks, timeout=GRACE)
        for task in deaf:
            log.warning("%s ignores its cancellation and was left behind", task.get_coro())
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)
        return deaf


def start(work: Coroutine[Any, Any, T]) -> "asyncio.Task[CodeOutcome[T]]":
    return asyncio.get_running_loop().create_task(_outcome(work))


def result_of(task: "asyncio.Task[CodeOutcome[T]]") -> T:
    """The result of a task that is done; raises as `Guard.run` does."""
    outcome = CodeOutcome[T](error=Misbehaved("it was cancelled")) if task.cancelled() else task.result()
    if outcome.error is None:
        return outcome.value  # type: ignore[return-value]
    if isinstance(outcome.error, Exception):
        raise outcome.error
    raise Misbehaved(describe_error(outcome.error)) from outcome.error


async def _outcome(work: Coroutine[Any, Any, T]) -> CodeOutcome[T]:
    try:
        return CodeOutcome(await work)
    except asyncio.CancelledError as error:
        if is_cancelled():
            raise
        return CodeOutcome(error=error)
    except BaseException as error:
        return CodeOutcome(error=error)


async def finish_within(seconds: float, work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. Raises `TimedOut` if it takes longer. For work that hardly ever waits: only then it has a timer."""
    try:
        first = work.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    try:
        async with asyncio.timeout(seconds) as limit:
            return await _go_on(work, first)
    except TimeoutError:
        if limit.expired():
            raise TimedOut from None
        raise


@coroutine
def _go_on(work: Coroutine[Any, Any, T], waits_for: object) -> Generator[Any, Any, T]:
    """Awaits work that has begun and waits for this."""
    while True:
        try:
            yield waits_for
        except BaseException as error:
            try:
                waits_for = work.throw(error)
            except StopIteration as done:
                return cast(T, done.value)
        else:
            return cast(T, (yield from work))


def is_cancelled() -> bool:
    """Whether somebody wants the task that asks to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def describe_error(error: BaseException) -> str:
    """An error in words, whatever its `__str__` does."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
