"""Traces as they come about: a collector is told what happens, with the moment it happened, and keeps it by trace."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import NotFound
from mainspring.features.traces.failures import KINDS, Category, Code, Severity, TraceStatus, choose_resolution
from mainspring.features.traces.trace_record import (
    FailureRecord,
    TraceAction,
    TraceOutcome,
    TraceRecord,
    TraceStep,
    make_trace_id,
    to_milliseconds,
)


class _Step(Struct):
    step: TraceStep
    actions: dict[str, TraceAction]


class _Trace(Struct):
    record: TraceRecord
    steps: dict[str, _Step]
    failures: list[FailureRecord]


class TraceCollector:
    """Traces in progress, by id. A complete trace is returned and forgotten. Raises `NotFound` for an unknown id."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}

    def start_trace(self, task_id: str, session_id: str, *, run_id: str, at: float, **facts: Any) -> TraceRecord:
        """Starts a trace; `facts` are further fields of `TraceRecord`."""
        trace_id = make_trace_id(run_id, at)
        record = TraceRecord(trace_id=trace_id, run_id=run_id, task_id=task_id, session_id=session_id, started_at=at, **facts)
        self._traces[trace_id] = _Trace(record, {}, [])
        return record

    def add_step(self, trace_id: str, step_id: str, *, at: float, **facts: Any) -> TraceStep:
        """Starts a step; `facts` are further fields of `TraceStep`."""
        step = TraceStep(step_id=step_id, started_at=at, **facts)
        self._trace(trace_id).steps[step_id] = _Step(step, {})
        return step

    def update_step(self, trace_id: str, step_id: str, **facts: Any) -> None:
        """Updates a step. With `completed_at` it ends then, unless one of its actions ends later."""
        held = self._trace(trace_id).steps[step_id]
        if "completed_at" in facts:
            facts["duration_ms"] = to_milliseconds(held.step.started_at, facts["completed_at"])
        held.step = replace(held.step, **facts)

    def add_action(self, trace_id: str, step_id: str, action_id: str, tool: str, *, at: float, **facts: Any) -> TraceAction:
        """Adds or updates an action of a step. A missing step is added."""
        steps = self._trace(trace_id).steps
        if step_id not in steps:
            self.add_step(trace_id, step_id, at=at)
        actions = steps[step_id].actions
        known = actions.get(action_id)
        if (ended := facts.get("completed_at")) is not None:
            began = facts.get("started_at", None if known is None else known.started_at)
            facts["duration_ms"] = to_milliseconds(ended if began is None else began, ended)
        action = TraceAction(action_id=action_id, tool=tool, **facts) if known is None else replace(known, **facts)
        actions[action_id] = action
        return action

    def record_failure(
        self,
        trace_id: str,
        message: str,
        category: Category,
        severity: Severity,
        *,
        at: float,
        code: Code = "TL08",
        step_id: str = "",
        action_id: str = "",
    ) -> FailureRecord:
        """Records a failure, unresolved until the run recovers."""
        failures = self._trace(trace_id).failures
        repetitions = sum([known.code == code for known in failures])
        failure = FailureRecord(
            code=code,
            name=KINDS[code].name,
            category=category,
            severity=severity,
            message=message,
            at=at,
            step_id=step_id,
            action_id=action_id,
            resolution=choose_resolution(category, repetitions, "running"),
        )
        failures.append(failure)
        return failure

    def complete_trace(
        self, trace_id: str, status: TraceStatus, *, at: float, failure: FailureRecord | None = None, **facts: Any
    ) -> TraceRecord:
        """Ends a trace and its open steps; `facts` are further fields of `TraceOutcome`.

        `failure` is what ended it. Failures that a completed run recovered from are resolved, and not failures of the run.
        """
        held = self._trace(trace_id)
        for step_id, open_ in held.steps.items():
            if open_.step.completed_at is None:
                self.update_step(trace_id, step_id, completed_at=at, status="completed")
        if failure is not None:
            told = {"failure_code": failure.code, "failure_category": failure.category, "failure_message": failure.message}
            facts = {**facts, **told}
        outcome = TraceOutcome(status=status, **facts)
        duration = to_milliseconds(held.record.started_at, at)
        held.record = replace(held.record, completed_at=at, duration_ms=duration, outcome=outcome)
        held.failures = [_settle(known, status) for known in held.failures]
        del self._traces[trace_id]
        return _whole(held)

    def trace(self, trace_id: str) -> TraceRecord:
        return _whole(self._trace(trace_id))

    def learn(self, trace_id: str, **facts: Any) -> None:
        """Updates fields of a trace."""
        held = self._trace(trace_id)
        held.record = replace(held.record, **facts)

    def _trace(self, trace_id: str) -> _Trace:
        if (found := self._traces.get(trace_id)) is None:
            raise NotFound(f"there is no trace `{trace_id}` in progress; it was never started, or is complete")
        return found


def _settle(failure: FailureRecord, status: TraceStatus) -> FailureRecord:
    return replace(failure, resolution=choose_resolution(failure.category, failure.resolution.retry_count, status))


def _whole(held: _Trace) -> TraceRecord:
    steps = []
    for open_ in held.steps.values():
        actions = tuple(open_.actions.values())
        ends = [action.completed_at for action in actions if action.completed_at is not None]
        step = replace(open_.step, actions=actions)
        if ends and step.completed_at is not None and max(ends) > step.completed_at:
            step = replace(step, completed_at=max(ends), duration_ms=to_milliseconds(step.started_at, max(ends)))
        steps.append(step)
    return replace(held.record, execution=tuple(steps), failures=tuple(held.failures))
