"""A trace as a terminal shows it: a line per turn and per call, each with a bar at its place in time."""

from datetime import datetime
from typing import Final

from mainspring.cli.console import ConsoleWriter, fit_line, format_count, format_duration, truncate
from mainspring.core.items import Usage
from mainspring.features.traces.failures import CATEGORIES, KINDS
from mainspring.features.traces.trace_record import FailureRecord, TraceAction, TraceRecord, TraceStep

Cells = tuple[str, str, str, str, str, str, str]
TITLES: Final[Cells] = ("run", "status", "started", "took", "turns", "calls", "tokens")

LABEL, TOKENS, TOOK = 22, 12, 8
NARROWEST: Final = 10
_COLOURS = {
    "completed": "green", "success": "green", "failed": "red", "failure": "red", "timeout": "red", "escalated": "yellow",
    "cancelled": "yellow", "aborted": "yellow", "skipped": "yellow", "running": "cyan",
}  # fmt: skip
_MARKS = {"success": "✓", "failure": "✗", "timeout": "✗", "skipped": "-", "running": "…"}
_VERDICTS = {"deny": "denied by", "client": "handed to the client by", "ask": "a person is asked, says"}


def make_cells(trace: TraceRecord) -> Cells:
    """A trace on one line."""
    started = datetime.fromtimestamp(trace.started_at).strftime("%b %d %H:%M")
    took = "-" if trace.duration_ms is None else format_duration(trace.duration_ms / 1000)
    counts = str(len(trace.turns)), str(len(trace.calls))
    return trace.run_id, trace.outcome.run_status, started, took, *counts, _format_tokens(trace.usage)


def draw_waterfall(trace: TraceRecord) -> None:
    """Draws a trace on standard output, in colours if that is a terminal."""
    writer = ConsoleWriter()
    axis = Axis(trace, writer.width - LABEL - TOKENS - TOOK - 3)
    with writer:
        _draw_head(writer, trace, axis)
        number = 0
        for step in trace.execution:
            number += step.kind == "turn"
            _draw_step(writer, step, axis, number)
        for failure in trace.failures:
            _draw_failure(writer, failure)


class Axis:
    """The time of a run on so many columns. A run in progress ends at the last known moment."""

    def __init__(self, trace: TraceRecord, columns: int) -> None:
        moments = [moment for step in trace.execution for moment in _moments(step)]
        self.start = trace.started_at
        self.end = trace.completed_at or max(moments, default=trace.started_at)
        self.columns = max(columns, NARROWEST)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    def column(self, moment: float) -> int:
        share = (moment - self.start) / self.seconds if self.seconds > 0 else 0.0
        return min(max(int(share * self.columns), 0), self.columns - 1)

    def bar(self, start: float, end: float | None, waits_until: float | None = None) -> str:
        """A bar from one moment to another, at least one column long. Waiting time is lighter."""
        first, last = self.column(start), self.column(self.end if end is None else end)
        waits = first if waits_until is None else min(self.column(waits_until), last)
        return " " * first + "░" * (waits - first) + "█" * (last - waits + 1)


def _draw_head(writer: ConsoleWriter, trace: TraceRecord, axis: Axis) -> None:
    outcome = trace.outcome
    writer.put(f"{trace.run_id}  ", "bold")
    writer.put(outcome.run_status, _COLOURS[outcome.status])
    writer.put(f" ({outcome.reason.value})\n" if outcome.reason is not None else " (it has not ended)\n")
    denied = sum(action.verdict == "deny" for action in trace.actions)
    calls = [format_count(len(trace.calls), "call"), *([f"{denied} denied"] if denied else [])]
    facts = [format_count(len(trace.turns), "turn"), *calls, f"{_format_tokens(trace.usage)} tokens"]
    who = [trace.context.agent_id, fit_line(trace.context.model, 40)]
    resumed = [f"resumed {format_count(trace.metadata.resumed, 'time')}"] if trace.metadata.resumed else []
    told = " · ".join([*[name for name in who if name], *facts, format_duration(axis.seconds), *resumed])
    writer.line(told, "dim")
    for name, runs in (("called by", (trace.metadata.parent,)), ("calls", trace.metadata.children)):
        writer.put("".join([f"{name} {run}\n" for run in runs if run]), "dim")
    writer.put("\n")
    end = format_duration(axis.seconds)
    writer.put(f"{'':{LABEL}} {'tokens':>{TOKENS}} {'took':>{TOOK}} 0{end:>{axis.columns - 1}}\n", "dim")


def _draw_step(writer: ConsoleWriter, step: TraceStep, axis: Axis, number: int) -> None:
    if step.kind in ("turn", "compaction"):
        label = f"turn {number}" if step.kind == "turn" else "summary"
        label += f", {step.status}" if step.status in ("failed", "aborted") else f", {step.nudge}" if step.nudge else ""
        used = _format_tokens(step.usage) if step.usage is not None else ""
        bar = axis.bar(step.started_at, step.model_at, step.first_token_at)
        _draw_row(writer, label, used, _format_time(step.started_at, step.model_at), bar, _COLOURS[step.status], "blue")
    for adaptation in step.adaptations:
        writer.put(f"    {fit_line(str(adaptation), writer.width - 4)}\n", "dim")
    for action in step.actions:
        _draw_action(writer, action, axis)
    if step.withheld:
        writer.put(f"    {fit_line('withheld from now on: ' + ', '.join(step.withheld), writer.width - 4)}\n", "dim")


def _draw_action(writer: ConsoleWriter, action: TraceAction, axis: Axis) -> None:
    start = action.started_at or action.judged_at or axis.start
    end = action.completed_at if action.status != "skipped" else start
    label, colour = f"  {_MARKS[action.status]} {fit_line(action.tool, LABEL - 4)}", _COLOURS[action.status]
    bar = axis.bar(start, end)
    _draw_row(writer, label, "", _format_time(action.started_at, action.completed_at), bar, colour, colour)
    if action.verdict in _VERDICTS:
        why = f": {action.reason}" if action.reason else ""
        writer.put(f"    {fit_line(f'{_VERDICTS[action.verdict]} {action.policy}{why}', writer.width - 4)}\n", "dim")
    elif action.verdict is None and action.reason:
        writer.put(f"    {fit_line(action.reason, writer.width - 4)}\n", "dim")


def _draw_row(writer: ConsoleWriter, label: str, used: str, took: str, bar: str, label_colour: str, colour: str) -> None:
    writer.put(f"{truncate(label, LABEL):{LABEL}} ", label_colour)
    writer.put(f"{used:>{TOKENS}} {took:>{TOOK}} ", "dim")
    writer.put(f"{bar}\n", colour)


def _draw_failure(writer: ConsoleWriter, failure: FailureRecord) -> None:
    what = f"{failure.code} {failure.name}: {KINDS[failure.code].meaning}"
    kind = f"{CATEGORIES[failure.category]} ({failure.category}), {failure.severity}, {failure.resolution.status}"
    told = f"{what}; {kind}"
    writer.put("\n")
    writer.line(told, "red" if failure.resolution.status == "pending" else "yellow")
    writer.put(f"  {fit_line(failure.message, writer.width - 2)}\n", "dim")


def _moments(step: TraceStep) -> list[float]:
    given = [step.started_at, step.model_at, step.completed_at]
    given += [moment for action in step.actions for moment in (action.started_at, action.completed_at)]
    return [moment for moment in given if moment is not None]


def _format_tokens(usage: Usage) -> str:
    return f"{usage.input_tokens:,}+{usage.output_tokens:,}"


def _format_time(start: float | None, end: float | None) -> str:
    return "" if start is None or end is None else format_duration(end - start)
