"""The toolbox: performs calls, and turns whatever happens into exactly one output per call.

Each call runs in a task of its own, so that a tool which raises anything, `SystemExit` included, or ignores its cancellation
can harm nobody: what does not stop within `GRACE` seconds after it should is left behind, and its late result is dropped.
"""

import asyncio
from collections.abc import Sequence
from logging import getLogger
from time import perf_counter

from anyio import CancelScope
from msgspec import Struct

from mainspring.engine.journal import Journal
from mainspring.engine.redact import presentable, shortened, without_secrets
from mainspring.errors import DelegateToClient
from mainspring.events import CallJudged, Event, ToolEnded, ToolProgress, ToolStarted
from mainspring.items import FunctionCall, Part, ToolDefinition, parsed_arguments
from mainspring.ports import CallContext, ToolCall, ToolExecutor, ToolResult

log = getLogger(__name__)

GRACE = 1.0
PROGRESS_CHARS = 2_000


class Running(Struct):
    """A call under way."""

    call: FunctionCall
    task: "asyncio.Task[ToolResult | DelegateToClient]"
    began: float
    seconds: float | None


class Toolbox:
    """Finds the executor of a tool and runs it: `perform` records a start and an end for every call it is given."""

    def __init__(self, executors: Sequence[ToolExecutor]) -> None:
        self._executors = tuple(executors)
        self._left_behind: set[asyncio.Task[ToolResult | DelegateToClient]] = set()

    async def perform(self, journal: Journal, calls: Sequence[FunctionCall]) -> None:
        """Runs the calls at once. Their start is durable before any of them runs; each end is recorded as it comes.

        On cancel the calls are stopped and have no end in the journal; whoever cancelled answers them.
        """
        for call in calls:
            journal.record(ToolStarted(call.call_id))
        await journal.flush()
        running = {started.task: started for started in [self._start(journal, call) for call in calls]}
        try:
            while running:
                done, _ = await asyncio.wait(running, timeout=_next_timeout(running), return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in done]:
                    self._end(journal, running.pop(task))
                for late in [late for late in running.values() if _is_late(late)]:
                    await self._stop([late.task])
                    del running[late.task]
                    note = f"The tool `{late.call.name}` was stopped: it took longer than {late.seconds:g} s."
                    journal.record(ToolEnded(late.call.call_id, note, is_error=True, seconds=perf_counter() - late.began))
        finally:
            if running:
                with CancelScope(shield=True):
                    await self._stop(list(running))

    def _start(self, journal: Journal, call: FunctionCall) -> Running:
        run = journal.run
        tool = run.spec.tool(call.name)
        assert tool is not None, "the gate lets only known tools pass"
        seconds = tool.timeout if tool.timeout is not None else run.spec.limits.tool_seconds
        loop = asyncio.get_running_loop()

        def note(text: str) -> None:
            if any(open_call.item is call for open_call in journal.run.open_calls):
                journal.record(ToolProgress(call.call_id, shortened(without_secrets(text), PROGRESS_CHARS)))

        def progress(text: str) -> None:
            loop.call_soon_threadsafe(note, text)

        context = CallContext(run.spec.id, tool, progress)
        return Running(call, loop.create_task(self._outcome(call, tool, context)), perf_counter(), seconds)

    async def _outcome(self, call: FunctionCall, tool: ToolDefinition, context: CallContext) -> ToolResult | DelegateToClient:
        """Whatever the tool does, as one result. Only our own cancel passes through."""
        try:
            executor = next(executor for executor in self._executors if executor.can_execute(tool))
            asked = ToolCall(call.call_id, call.name, call.arguments, parsed_arguments(call.arguments))
            result = await executor.execute(asked, context)
            return result if _is_sound(result, call) else _failed(call, f"returned {type(result).__name__} instead of a result")
        except DelegateToClient as delegation:
            return delegation
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return _failed(call, "cancelled itself")
        except Exception as error:
            log.debug("tool %s failed", call.name, exc_info=True)
            return _failed(call, f"failed: {_named(error)}")
        except BaseException as error:
            log.warning("tool %s tried to end the process with %s", call.name, type(error).__name__)
            return _failed(call, f"failed: {_named(error)}")

    def _end(self, journal: Journal, ended: Running) -> None:
        result = _failed(ended.call, "was cancelled") if ended.task.cancelled() else ended.task.result()
        event: Event
        if isinstance(result, DelegateToClient):
            event = CallJudged(ended.call.call_id, "client", "executor", result.message)
        else:
            output = presentable(result.output, journal.run.spec.limits.tool_output_chars)
            event = ToolEnded(ended.call.call_id, output, result.is_error, perf_counter() - ended.began)
        journal.record(event)

    async def _stop(self, tasks: "list[asyncio.Task[ToolResult | DelegateToClient]]") -> None:
        for task in tasks:
            task.cancel()
        _, deaf = await asyncio.wait(tasks, timeout=GRACE)
        for task in deaf:
            log.warning("a tool ignores its cancellation and was left behind")
            self._left_behind.add(task)
            task.add_done_callback(self._left_behind.discard)


def _next_timeout(running: "dict[asyncio.Task[ToolResult | DelegateToClient], Running]") -> float | None:
    ends = [call.began + call.seconds for call in running.values() if call.seconds is not None]
    return max(min(ends) - perf_counter(), 0.0) if ends else None


def _is_late(call: Running) -> bool:
    return call.seconds is not None and perf_counter() - call.began >= call.seconds


def _is_sound(result: object, call: FunctionCall) -> bool:
    if not isinstance(result, ToolResult) or result.call_id != call.call_id:
        return False
    output: object = result.output
    return isinstance(output, str) or (isinstance(output, tuple) and all(isinstance(part, Part) for part in output))


def _failed(call: FunctionCall, what: str) -> ToolResult:
    return ToolResult(call.call_id, f"The tool `{call.name}` {what}", is_error=True)


def _named(error: BaseException) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
