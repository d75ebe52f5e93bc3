"""The toolbox: performs calls, and turns whatever happens into exactly one output per call."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from logging import getLogger
from time import perf_counter
from typing import Any

from anyio import CancelScope
from msgspec import Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.errors import AskPerson, DelegateToClient, ToolTimeout
from mainspring.core.events import CallJudged, CallOutcome, Event, ToolEnded, ToolProgress, ToolStarted, Used
from mainspring.core.history import next_approval_id
from mainspring.core.items import FunctionCall, Json, Part, ToolDefinition, flaw, parse_arguments
from mainspring.core.redact import make_presentable, redact_data, redact_text, shorten
from mainspring.engine.guard import CodeOutcome, Guard, Misbehaved, describe_error, result_of, start
from mainspring.engine.journal import Journal
from mainspring.ports import CallContext, Runs, ToolCall, ToolExecutor, ToolResult

log = getLogger(__name__)

PROGRESS_CHARS = 2_000
# Each is kept for good, so a call that never stops telling is not heard to the end.
MOST_PROGRESS = 1_000
MOST_PROGRESS_CHARS = 500_000
ELICITATION = "elicitation"
"""The policy that a call names which asks a person something itself."""
GOES_ON = "It was told to stop and has not, so it may go on and have its effect yet. Check what it did before trying again."


class Running(Struct):
    """A call under way."""

    call: FunctionCall
    task: "asyncio.Task[CodeOutcome[ToolResult]]"
    began: float
    seconds: float | None


class _Told(Struct):
    """How much a call has told of its progress."""

    notes: int = 0
    chars: int = 0

    @property
    def is_enough(self) -> bool:
        return self.notes >= MOST_PROGRESS or self.chars >= MOST_PROGRESS_CHARS

    def count(self, text: str) -> str:
        """The text, or if it is the last one, that it is."""
        self.notes, self.chars = self.notes + 1, self.chars + len(text)
        return "[it tells more than is shown]" if self.is_enough else text


class Toolbox:
    """Finds the executor of a tool and runs it: `perform` records a start and an end for every call it is given.

    `confirm` is awaited before a call of a stored run begins: the engine must still be the one that drives it.
    """

    def __init__(
        self, executors: Sequence[ToolExecutor], guard: Guard, runs: Runs, confirm: Callable[[], Awaitable[None]]
    ) -> None:
        self._confirm = confirm
        self._executors = tuple(executors)
        self._guard = guard
        self._runs = runs

    async def perform(self, journal: Journal, calls: Sequence[FunctionCall]) -> None:
        """Runs the calls at once. Their start is durable before any of them runs; each end is recorded as it comes.

        On cancel the calls are stopped and have no end in the journal; whoever cancelled answers them. Only one that does not
        stop is answered here, with that, unless it may be repeated.
        """
        for call in calls:
            journal.record(ToolStarted(call.call_id))
        await journal.flush()
        if journal.is_stored:
            await self._confirm()
            if journal.failure is not None:  # it was another's run
                raise journal.failure
        running = {started.task: started for started in [self._start(journal, call) for call in calls]}
        try:
            while running:
                done, _ = await asyncio.wait(running, timeout=_next_timeout(running), return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task in done]:
                    journal.record(_end(running.pop(task)))
                overdue = [late for late in running.values() if _is_late(late)]
                going_on = await self._guard.stop([late.task for late in overdue]) if overdue else ()
                for late in overdue:
                    del running[late.task]
                    note = f"The tool `{late.call.name}` was stopped: it took longer than {late.seconds:g} s."
                    if late.task in going_on:
                        note = f"The tool `{late.call.name}` took longer than {late.seconds:g} s. {GOES_ON}"
                    seconds = perf_counter() - late.began
                    journal.record(ToolEnded(late.call.call_id, note, is_error=True, seconds=seconds, recorded="timeout"))
        finally:
            if running:
                with CancelScope(shield=True):
                    self._tell_going_on(journal, [running[task] for task in await self._guard.stop(list(running))])

    def _tell_going_on(self, journal: Journal, calls: Sequence[Running]) -> None:
        for going in calls:
            tool = journal.run.spec.tool(going.call.name)
            if journal.failure is None and not (tool is not None and tool.repeatable):
                note, seconds = f"Interrupted: {GOES_ON}", perf_counter() - going.began
                journal.record(ToolEnded(going.call.call_id, note, is_error=True, seconds=seconds, recorded="interrupted"))

    def _start(self, journal: Journal, call: FunctionCall) -> Running:
        run = journal.run
        tool = run.spec.tool(call.name)
        assert tool is not None, "the gate lets only known tools pass"
        loop = asyncio.get_running_loop()

        def note(text: str) -> None:
            if any(open_call.item is call for open_call in journal.run.open_calls) and journal.failure is None:
                journal.record(ToolProgress(call.call_id, text))

        told = _Told()

        def progress(text: str) -> None:
            if not told.is_enough:
                shown = told.count(redact_text(shorten(str(text), PROGRESS_CHARS)))
                loop.call_soon_threadsafe(note, shown)

        async def keep(text: str, kept: Json) -> None:
            journal.record(ToolProgress(call.call_id, text, kept))
            await journal.flush()

        conversation = run.spec.conversation
        scope = run.spec.scope or (run.spec.id if conversation is None else conversation.id)
        said, known = run.approval(call), run.call(call.call_id)
        kept = known.kept
        if said is not None and kept is None and not isinstance(said.kept, UnsetType):
            kept = said.kept
        context = CallContext(
            *(run.spec.id, tool, progress, run.spec.tenant, scope, self._runs, call.call_id, run.spec.user),
            keep=keep,
            kept=kept,
            answer=said,
            question=next_approval_id(known.item),
        )
        work = self._execute(call, tool, context, run.spec.limits.tool_output_chars)
        return Running(call, start(work), perf_counter(), run.spec.tool_seconds(tool))

    async def _execute(self, call: FunctionCall, tool: ToolDefinition, context: CallContext, max_chars: int | None) -> ToolResult:
        """The tool's result, fit to be kept. May raise anything: this runs under guard."""
        executor = next(executor for executor in self._executors if executor.can_execute(tool))
        asked = ToolCall(call.call_id, call.name, call.arguments, parse_arguments(call.arguments))
        result = await executor.execute(asked, context)
        if not _is_result(result, call):
            return _make_failure(call, f"returned {type(result).__name__} instead of a result")
        return replace(result, output=make_presentable(result.output, max_chars), data=redact_data(result.data))


def _end(ended: Running) -> Event:
    """The event that a call's outcome makes."""
    call, seconds = ended.call, perf_counter() - ended.began
    try:
        result = result_of(ended.task)
    except DelegateToClient as delegation:
        return CallJudged(call.call_id, "client", "executor", delegation.message)
    except AskPerson as asking:
        question = redact_text(shorten(asking.message, PROGRESS_CHARS))
        return CallJudged(call.call_id, "ask", ELICITATION, question, elicitation=asking.elicitation, kept=asking.kept)
    except Misbehaved as error:
        log.warning("tool %s tried to end more than itself: %s", call.name, error)
        result = _make_failure(call, f"failed: {error}")
    except Exception as error:
        log.debug("tool %s failed", call.name, exc_info=True)
        told = make_presentable(f"The tool `{call.name}` failed: {describe_error(error)}", 4_000)
        result = ToolResult(call.call_id, told, is_error=True, is_late=isinstance(error, ToolTimeout))
    outcome: CallOutcome = "ok" if not result.is_error else "timeout" if result.is_late else "error"
    return ToolEnded(call.call_id, result.output, result.is_error, seconds, result.used, outcome, result.data)


def _next_timeout(running: "dict[asyncio.Task[CodeOutcome[ToolResult]], Running]") -> float | None:
    ends = [call.began + call.seconds for call in running.values() if call.seconds is not None]
    return max(min(ends) - perf_counter(), 0.0) if ends else None


def _is_late(call: Running) -> bool:
    return call.seconds is not None and perf_counter() - call.began >= call.seconds


def _is_result(result: object, call: FunctionCall) -> bool:
    if not isinstance(result, ToolResult) or result.call_id != call.call_id or not isinstance(result.is_error, bool):
        return False
    if result.data is not None and flaw(result.data, dict[str, Any]) is not None:
        return False
    if result.used is not None and flaw(result.used, Used) is not None:
        return False
    output: object = result.output
    return isinstance(output, str) or (isinstance(output, tuple) and flaw(output, tuple[Part, ...]) is None)


def _make_failure(call: FunctionCall, what: str) -> ToolResult:
    return ToolResult(call.call_id, f"The tool `{call.name}` {what}", is_error=True)
