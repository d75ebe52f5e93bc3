"""Traces as they come about: a collector is told what happens, with the moment it happened, and keeps it by trace."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import NotFound
from mainspring.features.traces.failures import KINDS, Category, Code, Severity, TraceStatus, resolution
from mainspring.features.traces.trace_record import (
    FailureRecord,
    TraceAction,
    TraceOutcome,
    TraceRecord,
    TraceStep,
    milliseconds,
    trace_id_of,
)


class _Step(Struct):
    step: TraceStep
    actions: dict[str, TraceAction]


class _Trace(Struct):
    record: TraceRecord
    steps: dict[str, _Step]
    failures: list[FailureRecord]


class TraceCollector:
    """Traces under way, by id. A trace that is complete is handed out and forgotten. Raises `NotFound` for an id it has not."""

    def __init__(self) -> None:
        self._traces: dict[str, _Trace] = {}

    def start_trace(self, task_id: str, session_id: str, *, run_id: str, at: float, **facts: Any) -> TraceRecord:
        """A trace that is `running`; `facts` are further fields of `TraceRecord`."""
        trace_id = trace_id_of(run_id, at)
        record = TraceRecord(trace_id=trace_id, run_id=run_id, task_id=task_id, session_id=session_id, started_at=at, **facts)
        self._traces[trace_id] = _Trace(record, {}, [])
        return record

    def add_step(self, trace_id: str, step_id: str, *, at: float, **facts: Any) -> TraceStep:
        """A step that begins now; `facts` are further fields of `TraceStep`."""
        step = TraceStep(step_id=step_id, started_at=at, **facts)
        self._trace(trace_id).steps[step_id] = _Step(step, {})
        return step

    def update_step(self, trace_id: str, step_id: str, **facts: Any) -> None:
        """What has become known of a step. With `completed_at` it goes no further than that, unless an action does."""
        held = self._trace(trace_id).steps[step_id]
        if "completed_at" in facts:
            facts["duration_ms"] = milliseconds(held.step.started_at, facts["completed_at"])
        held.step = replace(held.step, **facts)

    def add_action(self, trace_id: str, step_id: str, action_id: str, tool: str, *, at: float, **facts: Any) -> TraceAction:
        """An action of a step, or what has become known of it. A step that is missing is added."""
        steps = self._trace(trace_id).steps
        if step_id not in steps:
            self.add_step(trace_id, step_id, at=at)
        actions = steps[step_id].actions
        known = actions.get(action_id)
        if (ended := facts.get("completed_at")) is not None:
            began = facts.get("started_at", None if known is None else known.started_at)
            facts["duration_ms"] = milliseconds(ended if began is None else began, ended)
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
        """A failure, unresolved as long as the run has not got over it."""
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
            resolution=resolution(category, repetitions, "running"),
        )
        failures.append(failure)
        return failure

    def complete_trace(
        self, trace_id: str, status: TraceStatus, *, at: float, failure: FailureRecord | None = None, **facts: Any
    ) -> TraceRecord:
        """The trace at its end; `facts` are further fields of `TraceOutcome`. Steps that are open are closed.

        `failure` is what ended it. What a completed run got over on the way is resolved, and is no failure of the run.
        """
        held = self._trace(trace_id)
        for step_id, open_ in held.steps.items():
            if open_.step.completed_at is None:
                self.update_step(trace_id, step_id, completed_at=at, status="completed")
        if failure is not None:
            told = {"failure_code": failure.code, "failure_category": failure.category, "failure_message": failure.message}
            facts = {**facts, **told}
        outcome = TraceOutcome(status=status, **facts)
        duration = milliseconds(held.record.started_at, at)
        held.record = replace(held.record, completed_at=at, duration_ms=duration, outcome=outcome)
        held.failures = [_settle(known, status) for known in held.failures]
        del self._traces[trace_id]
        return _whole(held)

    def trace(self, trace_id: str) -> TraceRecord:
        """A trace as it stands."""
        return _whole(self._trace(trace_id))

    def learn(self, trace_id: str, **facts: Any) -> None:
        """What has become known of a trace."""
        held = self._trace(trace_id)
        held.record = replace(held.record, **facts)

    def _trace(self, trace_id: str) -> _Trace:
        if (found := self._traces.get(trace_id)) is None:
            raise NotFound(f"no trace `{trace_id}` is under way; it was never started, or is complete")
        return found


def _settle(failure: FailureRecord, status: TraceStatus) -> FailureRecord:
    return replace(failure, resolution=resolution(failure.category, failure.resolution.retry_count, status))


def _whole(held: _Trace) -> TraceRecord:
    steps = []
    for open_ in held.steps.values():
        actions = tuple(open_.actions.values())
        ends = [action.completed_at for action in actions if action.completed_at is not None]
        step = replace(open_.step, actions=actions)
        if ends and step.completed_at is not None and max(ends) > step.completed_at:
            step = replace(step, completed_at=max(ends), duration_ms=milliseconds(step.started_at, max(ends)))
        steps.append(step)
    return replace(held.record, execution=tuple(steps), failures=tuple(held.failures))
