"""A log as a trace: `build_trace` reads it once and tells a collector what its events mean.

No clock is read: a log gives the same trace whenever it is read, and a run under way gives the trace of what it has done so
far. Of the deltas only the first of a turn matters. `TraceObserver` counts and exports the trace of every run that ends.
"""

from collections.abc import Iterable, Sequence
from logging import getLogger
from typing import Any, Final

from msgspec.structs import replace

from mainspring.core.delegation import child_id, is_delegation
from mainspring.core.errors import Malformed
from mainspring.core.events import (
    DELTAS,
    Annotated,
    CallJudged,
    Compacted,
    ErrorInfo,
    ItemDone,
    ItemStarted,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    RunResumed,
    RunStarted,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
)
from mainspring.core.items import FunctionCall, Json, Message, Usage, text_of
from mainspring.core.log import Log
from mainspring.core.spec import RunSpec
from mainspring.engine.engine import Engine
from mainspring.features.traces.collector import TraceCollector
from mainspring.features.traces.failures import KINDS, Code, classify_denial, classify_end, classify_status
from mainspring.features.traces.metrics import Metrics
from mainspring.features.traces.otel import Exporter
from mainspring.features.traces.trace_record import (
    ActionStatus,
    FailureRecord,
    TraceAction,
    TraceContext,
    TraceInput,
    TraceMetadata,
    TraceOutcome,
    TraceOutput,
    TraceRecord,
    TraceStep,
    to_milliseconds,
)
from mainspring.ports import OWNED, EndedRun, RunObserver

log = getLogger(__name__)

_PLAIN: Final = frozenset({RunStarted, ItemStarted, Annotated, RunEnded})
_OF_CALLS: Final = frozenset({ItemDone, CallJudged, ToolStarted, ToolEnded})
_UNKNOWN: Final = FunctionCall("", "unknown")
_REUSED: Final = "not run again: the result of the same call before was given back"


def build_trace(records: Sequence[Recorded], waiting: Iterable[FunctionCall] = ()) -> TraceRecord:
    """The trace of a run, as far as its log goes. `waiting` are the calls that it has taken over from the run before it.

    Pure. Raises `Malformed` for a log that does not begin with the start of a run.
    """
    first = records[0]
    if not isinstance(first.event, RunStarted):
        raise Malformed(f"a log begins with run_started as event 0, not with {first.event!r:.80}")
    reader = _Reader(first.event.spec, first.at, waiting)
    for record in records:
        kind = type(record.event)
        if kind in DELTAS:
            reader.first_token(record.at)
        elif kind in _TOLD:
            reader.read(record)
    return reader.trace()


def outline_trace(records: Sequence[Recorded]) -> TraceRecord | None:
    """Of the trace of a run, what metrics count; None for a run with failures, or with more than turns and calls that were
    performed, which is to be built.

    Where nobody exports, that is all that most runs need, for a tenth of the work.
    """
    steps: list[TraceStep] = []
    calls = _CallOutlines()
    began = first = None
    for record in records:
        event, kind = record.event, type(record.event)
        if kind in DELTAS:
            first = first or record.at
        elif kind is TurnStarted:
            began, first = record.at, None
        elif kind in _OF_CALLS:
            if not calls.read(record):
                return None
        elif type(event) is TurnEnded and event.error is None and began is not None:
            steps.append(
                TraceStep(
                    step_id="", status="completed", started_at=began, first_token_at=first, model_at=record.at, usage=event.usage
                )
            )
        elif kind not in _PLAIN:
            return None
    start, end, at = records[0].event, records[-1].event, records[0].at
    if not isinstance(start, RunStarted) or not isinstance(end, RunEnded) or start.spec.step_call is not None:
        return None
    if classify_end(end.reason, end.error) is not None or not calls.are_done:
        return None
    if calls.done:
        # Metrics do not ask whose they are.
        steps[-1] = replace(steps[-1], actions=calls.list_actions(start.spec))
    return TraceRecord(
        trace_id="",
        run_id=start.spec.id,
        started_at=at,
        duration_ms=to_milliseconds(at, records[-1].at),
        context=TraceContext(model=start.spec.model, preset=start.spec.preset),
        execution=tuple(steps),
        outcome=TraceOutcome(status=classify_status(end.reason), run_status=end.status, reason=end.reason),
    )


class _CallOutlines:
    """What metrics count of calls that were allowed and came back with a result."""

    def __init__(self) -> None:
        self._tools: dict[str, str] = {}
        self._verdicts: dict[str, CallJudged] = {}
        self._begun: dict[str, float] = {}
        self.done: list[tuple[CallJudged, float, float]] = []

    def read(self, record: Recorded) -> bool:
        """Returns False for what is no part of such a call."""
        event = record.event
        if type(event) is ItemDone:
            if type(event.item) is FunctionCall:
                self._tools[event.item.call_id] = event.item.name
        elif type(event) is CallJudged and event.verdict == "allow":
            self._verdicts[event.call_id] = event
        elif type(event) is ToolStarted:
            self._begun[event.call_id] = record.at
        elif type(event) is ToolEnded and not event.is_error and event.outcome == "ok" and event.call_id in self._begun:
            self.done.append((self._verdicts.pop(event.call_id), self._begun.pop(event.call_id), record.at))
        else:
            return False
        return True

    @property
    def are_done(self) -> bool:
        """No call was left without its result."""
        return not self._verdicts and len(self.done) == len(self._tools)

    def list_actions(self, spec: RunSpec) -> tuple[TraceAction, ...]:
        return tuple([self._outline(spec, *each) for each in self.done])

    def _outline(self, spec: RunSpec, judged: CallJudged, began: float, ended: float) -> TraceAction:
        name = self._tools[judged.call_id]
        tool = spec.tool(name)
        return TraceAction(
            action_id="",
            tool=name,
            kind=None if tool is None else tool.kind,
            status="success",
            verdict="allow",
            policy=judged.policy,
            started_at=began,
            completed_at=ended,
        )


class _Reader:
    """Tells a collector what the events of one run mean."""

    def __init__(self, spec: RunSpec, at: float, waiting: Iterable[FunctionCall]) -> None:
        self._collector = TraceCollector()
        self._spec = spec
        self._calls = {call.call_id: call for call in waiting}
        conversation = spec.conversation.id if spec.conversation is not None else ""
        self._id = self._collector.start_trace(
            spec.metadata.get("task_id", ""),
            conversation or spec.scope or spec.id,
            run_id=spec.id,
            at=at,
            tenant_id=spec.tenant,
            context=TraceContext(agent_id=spec.agent, role=spec.role or spec.preset, model=spec.model, preset=spec.preset),
            input=TraceInput(prompt=_prompt(spec), parameters=_parameters(spec)),
        ).trace_id
        self._metadata = TraceMetadata(
            tags=spec.metadata, parent=spec.within or None, continues=spec.parent, traceparent=spec.traceparent
        )
        self._last: FailureRecord | None = None
        self._number = 0
        self._step = "step-0"
        if self._calls:
            self._collector.add_step(self._id, self._step, at=at, kind="opening")
        self._actions: dict[str, TraceAction] = {}
        self._has_token = True
        self._clock = at
        self._nudge = ""
        self._withheld: tuple[str, ...] = ()
        self._text = self._said = ""
        self._made = 0
        self._usage = Usage()
        self._resumed = 0
        self._done: TraceRecord | None = None

    def first_token(self, at: float) -> None:
        if not self._has_token:
            self._has_token = True
            self._collector.update_step(self._id, self._step, first_token_at=at)

    def trace(self) -> TraceRecord:
        if self._done is not None:
            return self._done
        self._learn()
        return self._collector.trace(self._id)

    def read(self, record: Recorded) -> None:
        at = record.at
        match record.event:
            case TurnStarted():
                self._read_turn_start(at)
            case ItemDone(item):
                self._read_item(item)
            case TurnEnded():
                self._read_turn_end(record.event, at)
            case TurnAborted():
                self._end_step(at, "aborted", model_at=at)
            case CallJudged():
                self._read_verdict(record.event, at)
            case ToolStarted(call_id):
                self._act(call_id, at, started_at=at, status="running")
            case ToolProgress(call_id, text):
                self._act(call_id, at, progress=text)
            case ToolEnded():
                self._read_tool_end(record.event, at)
            case Nudged(kind):
                self._nudge = kind
            case ToolWithheld(name):
                self._withheld = (*self._withheld, name)
                self._collector.update_step(self._id, self._step, withheld=self._withheld)
            case Compacted():
                self._read_summary(record.event, at)
            case RunResumed():
                self._resumed += 1
            case RunEnded():
                self._read_run_end(record.event, at)
        self._clock = at

    def _read_turn_start(self, at: float) -> None:
        self._number += 1
        self._step = f"step-{self._number}"
        self._has_token, self._said, self._made = False, "", 0
        self._actions, self._withheld = {}, ()
        kind = "step" if self._spec.step_call is not None else "turn"
        self._collector.add_step(self._id, self._step, at=at, kind=kind, nudge=self._nudge)
        self._nudge = ""

    def _read_item(self, item: object) -> None:
        if isinstance(item, Message):
            self._said = item.text
        elif isinstance(item, FunctionCall):
            self._calls[item.call_id] = item
            self._made += 1

    def _read_turn_end(self, event: TurnEnded, at: float) -> None:
        self._usage += event.usage or Usage()
        if event.adaptations:
            self._collector.update_step(self._id, self._step, adaptations=event.adaptations)
        if event.error is None:
            finish = "tool_call" if self._made and event.finish == "stop" else event.finish
            self._text = self._said or self._text
            self._end_step(at, "completed", model_at=at, finish=finish, usage=event.usage)
            return
        self._end_step(at, "failed", model_at=at, finish="error", error=event.error.code, usage=event.usage)
        self._fail_turn(event.error, at)

    def _end_step(self, at: float, status: str, **facts: Any) -> None:
        self._collector.update_step(self._id, self._step, completed_at=at, status=status, **facts)

    def _read_summary(self, event: Compacted, at: float) -> None:
        """The log does not record when a summary starts; it starts when the event before it ends."""
        self._usage += event.usage or Usage()
        self._number += 1
        self._step = f"step-{self._number}"
        self._collector.add_step(self._id, self._step, at=self._clock, kind="compaction")
        error = "" if event.error is None else event.error.code
        self._end_step(at, "failed" if error else "completed", model_at=at, usage=event.usage, error=error)
        if event.error is not None:
            self._fail_turn(event.error, at)

    def _read_verdict(self, event: CallJudged, at: float) -> None:
        facts: dict[str, object] = {"verdict": event.verdict, "policy": event.policy, "reason": event.reason, "judged_at": at}
        match event.verdict:
            case "deny":
                facts |= {"status": "skipped", "completed_at": at, "output": event.reason}
                self._fail(classify_denial(event.policy, ends_run=event.stop is not None), event.reason, at, event.call_id)
            case "client" | "ask":
                facts |= {"status": "skipped", "started_at": None}
            case _:
                pass
        self._act(event.call_id, at, **facts)

    def _read_tool_end(self, event: ToolEnded, at: float) -> None:
        known = self._actions.get(event.call_id) or self._act(event.call_id, at)
        text = text_of(event.output)
        status: ActionStatus = "failure" if event.is_error else "success"
        if known.started_at is None:
            status = "skipped"
        elif event.is_error and _is_late(self._spec, known, event.seconds):
            status = "timeout"
        if status in ("failure", "timeout"):
            self._fail("TL02", text, at, event.call_id)
        facts = {"reason": _REUSED} if event.outcome == "reused" else {}
        self._act(event.call_id, at, status=status, completed_at=at, output=text, **facts)

    def _act(self, call_id: str, at: float, **facts: Any) -> TraceAction:
        if (known := self._actions.get(call_id)) is None:
            call = self._calls.get(call_id, _UNKNOWN)
            tool = self._spec.tool(call.name)
            name, facts = call.name, {"kind": None if tool is None else tool.kind, "input": call.arguments, **facts}
        else:
            name = known.tool
        action = self._actions[call_id] = self._collector.add_action(self._id, self._step, call_id, name, at=at, **facts)
        return action

    def _fail(self, code: Code, message: str, at: float, call_id: str = "") -> FailureRecord:
        kind = KINDS[code]
        self._last = self._collector.record_failure(
            self._id, message, kind.category, kind.severity, at=at, code=code, step_id=self._step, action_id=call_id
        )
        return self._last

    def _fail_turn(self, error: ErrorInfo, at: float) -> None:
        self._fail(classify_end(Reason.PROVIDER_ERROR, error) or "TL08", error.message, at)

    def _read_run_end(self, event: RunEnded, at: float) -> None:
        failure = None
        if (code := classify_end(event.reason, event.error)) is not None:
            message = event.error.message if event.error is not None else f"the run ended: {event.reason.value}"
            failure, last = self._last, self._last
            if last is None or (last.code, last.message) != (code, message):
                failure = self._fail(code, message, at)
        self._learn()
        self._done = self._collector.complete_trace(
            self._id, classify_status(event.reason), at=at, failure=failure, run_status=event.status, reason=event.reason
        )

    def _learn(self) -> None:
        metadata = replace(self._metadata, resumed=self._resumed)
        self._collector.learn(self._id, usage=self._usage, output=TraceOutput(result=self._text), metadata=metadata)


_TOLD: Final = frozenset(
    {
        TurnStarted,
        ItemDone,
        TurnEnded,
        TurnAborted,
        CallJudged,
        ToolStarted,
        ToolProgress,
        ToolEnded,
        Nudged,
        ToolWithheld,
        Compacted,
        RunResumed,
        RunEnded,
    }
)


def _is_late(spec: RunSpec, action: TraceAction, seconds: float) -> bool:
    tool = spec.tool(action.tool)
    most = spec.limits.tool_seconds if tool is None else spec.tool_seconds(tool)
    return most is not None and seconds >= most


def _prompt(spec: RunSpec) -> str:
    """The last input message of the run."""
    return next((item.text for item in reversed(spec.input) if isinstance(item, Message) and item.text), "")


def _parameters(spec: RunSpec) -> Json:
    """The sampling parameters and limits that are set."""
    sampling = spec.sampling
    said = {"temperature": sampling.temperature, "top_p": sampling.top_p, "max_turn_tokens": sampling.max_turn_tokens}
    limits = {"max_turns": spec.limits.max_turns, "max_tool_calls": spec.limits.max_tool_calls}
    return {name: value for name, value in (said | limits).items() if value is not None}


class TraceObserver(RunObserver):
    """Counts and exports every run that ends here."""

    name = "traces"

    def __init__(self, metrics: Metrics, exporter: Exporter | None = None) -> None:
        self._metrics, self._exporter = metrics, exporter

    def run_ended(self, ended: EndedRun) -> None:
        run = ended.run
        log.info("run %s of tenant `%s` is %s, %d tokens", run.spec.id, run.spec.tenant, run.status, run.usage.total_tokens)
        records = list(ended.log.skim() if isinstance(ended.log, Log) else ended.log)
        trace = outline_trace(records) if self._exporter is None and not ended.waiting else None
        trace = trace or build_trace(records, ended.waiting)
        self._metrics.add(trace, ended.run.spec.tenant.partition(OWNED)[0])
        if self._exporter is not None:
            self._exporter.add(trace)


async def read_trace(engine: Engine, run_id: str) -> TraceRecord:
    """The trace of a run so far. Raises `NotFound`."""
    handle = await engine.attach(run_id)
    trace = build_trace(handle.log, handle.waiting)
    delegated = [action for action in trace.actions if action.started_at is not None and is_delegation(action.tool)]
    children = tuple([child_id(run_id, action.action_id) for action in delegated])
    return replace(trace, metadata=replace(trace.metadata, children=children)) if children else trace
