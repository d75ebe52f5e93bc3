"""Following a run of the engine that a step has, or may have, begun before: the same run is never begun twice."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final

from anyio import move_on_after, sleep

from mainspring.core.errors import NotFound
from mainspring.core.events import Reason
from mainspring.engine.approvals import continuing_id, list_questions
from mainspring.engine.engine import Engine, Handle

LOOK_SECONDS: Final = 0.5

Waiting = Callable[[tuple[str, ...]], Awaitable[None]]
"""Is told which approvals a run waits for, and with none that it goes on."""


def derive_run_id(workflow_run: str, step: str, attempt: int) -> str:
    """The id of the run that does the work of a step: the same whoever carries the workflow out, and however often."""
    return f"resp_{sha256(f'{workflow_run} {step} {attempt}'.encode()).hexdigest()[:24]}"


async def follow_run(engine: Engine, run_id: str, start: Callable[[], Awaitable[Handle]], waiting: Waiting) -> Handle:
    """The run, at its end: begun by `start` if it is not there yet, else followed, and taken up if nobody drives it any more.

    One that asks a person ends only to go on as another; `waiting` is told, and that one is waited for, as long as the answer may
    take. Raises what `start` and `Handle.wait` raise, and `NotFound` if the run that asks is deleted.
    """
    try:
        handle = await _follow(engine, await engine.attach(run_id))
    except NotFound:
        handle = await start()
        await handle.wait()
    while (run := handle.run).reason is Reason.APPROVAL_NEEDED:
        await waiting(tuple([question.id for question in list_questions(run)]))
        with move_on_after(run.spec.limits.approval_seconds) as limit:
            handle = await _continuing(engine, run.spec.id)
        if limit.cancelled_caught:
            break
        await waiting(())
        handle = await _follow(engine, handle)
    return handle


async def _continuing(engine: Engine, run_id: str) -> Handle:
    """The run that goes on with a person's answer, once there is one. Raises `NotFound` if there is nothing left to answer."""
    while True:
        with suppress(NotFound):
            return await engine.attach(continuing_id(run_id))
        await engine.store.load(run_id)
        await sleep(LOOK_SECONDS)


async def _follow(engine: Engine, handle: Handle) -> Handle:
    while not handle.is_live and not handle.run.has_ended:
        if not await engine.is_driven(handle.id):
            handle = await engine.resume(handle.id)
            break
        await sleep(LOOK_SECONDS)
        handle = await engine.attach(handle.id)
    if not handle.run.has_ended:
        await handle.wait()
    return handle
