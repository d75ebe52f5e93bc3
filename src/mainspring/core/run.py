"""A run as its log makes it: `open_run` and `fold` turn events into a `Run`, and nothing else changes one.

Theory of operation. The transcript is what the model sees, in order, and it only grows. A turn's items are drafts until
`TurnEnded` enters them; a turn that failed enters them hidden: they were streamed, so the answer keeps them, but the model is
never shown them. Calls are open until each has its one output; outputs are entered in call order, whatever order they arrive in.
The counters beside the transcript exist so that no step has to read it again.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, assert_never, cast, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.chain import Chain
from mainspring.core.declared_tools import declare_found, show_tools
from mainspring.core.drafts import Draft, item_id, partial, words
from mainspring.core.errors import BadOutput, ContextOverflow, Malformed
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    CallJudged,
    Compacted,
    Delta,
    ErrorInfo,
    Event,
    Finish,
    ItemDone,
    ItemStarted,
    Judgement,
    Nudged,
    Reason,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunResumed,
    RunStarted,
    Status,
    TextDelta,
    ToolEnded,
    ToolProgress,
    ToolStarted,
    ToolWithheld,
    TurnAborted,
    TurnEnded,
    TurnStarted,
    Used,
    continues,
)  # fmt: skip
from mainspring.core.history import Entry, History, approval_id, list_label, next_approval_id, opening
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Json,
    Message,
    Part,
    ServerTool,
    Tool,
    Usage,
    are_arguments_large,
    user,
)
from mainspring.core.memory_quota import measure_items
from mainspring.core.repetition import CallResult, PastCall, Repetition, begin_turn, end_turn, note_result
from mainspring.core.spec import RunSpec
from mainspring.core.tokens import estimate, tokens_of

Changes = dict[str, object]

TRANSITIONS: dict[Status, frozenset[Status]] = {
    "queued": frozenset({"in_progress", "cancelled", "failed"}),
    "in_progress": frozenset({"completed", "incomplete", "failed", "cancelled", "requires_action"}),
    "completed": frozenset(),
    "incomplete": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
    "requires_action": frozenset(),
}

OVERFLOW = ContextOverflow.code
CUT_OFF = "Not executed: the model's turn was cut off before it ended."


class Call(Struct, frozen=True):
    """A call that has no place in the transcript for its output yet. `position` counts the calls of its turn from 0; `policy` is
    the one whose verdict stands, `elicitation` what the call itself asks a person, `kept` what it needs to go on where it was."""

    item: FunctionCall
    position: int
    verdict: Judgement | None = None
    is_started: bool = False
    output: FunctionCallOutput | None = None
    policy: str = ""
    elicitation: Json | None = None
    kept: Json | None = None


class Run(Struct, frozen=True):
    """Where a run stands after its first `seq` events.

    `inherited` entries of the transcript are history; the answer begins at `base`. `unanswered` claims that the model has not
    yet spoken to the end of the transcript; `turns` counts the turns begun and not cut off, `answered` those that ended well,
    `overflows` those that failed because their request was too long. `allowed` are the calls that were allowed, in that order.
    `lost` is what turns without an end must have used, by an estimate. `context` is how many tokens the last turn had, in and
    out, when the transcript had `counted` entries; 0 if that is not known. `delegated` is what other runs have used on behalf of
    its calls: it counts against the limits of this one. `withheld` are tools that may not be called any more, `rungs` what was
    done about a model that goes round in circles, each once, `loaded` the deferred tools that were found by searches in it,
    `returned` the calls that went back to the model, of which the client is not told.
    `sums_up` is false once the model was asked for a summary and gave none: from then on, what is old is left out instead.
    `clock` is the moment of the last event, `idle` the time nobody drove the run.
    """

    spec: RunSpec
    transcript: Chain[Entry]
    inherited: int
    base: int
    started_at: float
    clock: float
    approvals: tuple[ApprovalResponse, ...] = ()
    seq: int = 1
    idle: float = 0.0
    status: Status = "queued"
    reason: Reason | None = None
    error: ErrorInfo | None = None
    turns: int = 0
    in_turn: bool = False
    unanswered: bool = True
    answered: int = 0
    finish: Finish | None = None
    stop_sequence: str | UnsetType = UNSET
    failure: ErrorInfo | None = None
    overflows: int = 0
    overflows_in_row: int = 0
    sums_up: bool = True
    drafts: tuple[Draft, ...] = ()
    calls: tuple[Call, ...] = ()
    usage: Usage = Usage()
    lost: Usage = Usage()
    delegated: Used = Used()
    context: int = 0
    counted: int = 0
    calls_allowed: int = 0
    allowed: Chain[FunctionCall] = Chain()
    tools_used: tuple[str, ...] = ()
    tool_failed: bool = False
    turn_succeeded: bool = False
    errors_in_row: int = 0
    repetition: Repetition = Repetition()
    withheld: tuple[str, ...] = ()
    rungs: tuple[str, ...] = ()
    is_confirming: bool = False
    was_asked: bool = False
    stop: Reason | None = None
    closing: Reason | None = None
    loaded: tuple[str, ...] = ()
    returned: tuple[str, ...] = ()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools that the model may call now."""
        return show_tools(self.spec.tools, (*self.loaded, self.spec.tool_choice.name or ""))

    @property
    def elapsed(self) -> float:
        """Seconds the run has been driven, up to its last event."""
        return self.clock - self.started_at - self.idle

    @property
    def has_ended(self) -> bool:
        return self.reason is not None

    @property
    def open_calls(self) -> tuple[Call, ...]:
        return tuple([call for call in self.calls if call.output is None])

    @property
    def output(self) -> tuple[Item, ...]:
        """The answer: what the model said and the tools returned, in order; a turn under way is in it as far as it got."""
        said = [entry.item for entry in self.transcript[self.base :] if entry.origin in ("model", "tool")]
        if self.returned:
            said = [item for item in said if not _is_returned(item, self.returned)]
        return tuple(said + [partial(draft) for draft in self.drafts])

    @property
    def text(self) -> str:
        """The last thing the model said in words, empty if it said nothing."""
        for entry in reversed(self.transcript[self.base :]):
            if isinstance(entry.item, Message) and entry.origin == "model" and not entry.hidden:
                return entry.item.text
        return ""

    def call(self, call_id: str) -> Call:
        for call in self.calls:
            if call.item.call_id == call_id:
                return call
        raise Malformed(f"run {self.spec.id} has no open call `{call_id}`")

    def approval(self, call: FunctionCall) -> ApprovalResponse | None:
        """What a person said about this call, if somebody did."""
        if self.turns:
            return None  # what was approved was asked before this run; the model has spoken since
        wanted = approval_id(call)
        return next((said for said in self.approvals if said.approval_request_id == wanted), None)

    @property
    def own_entries(self) -> tuple[Entry, ...]:
        """What this run adds to the conversation: its input and everything the model saw or said since."""
        return tuple([entry for entry in self.all_entries if not entry.hidden])

    @property
    def all_entries(self) -> tuple[Entry, ...]:
        """The same, with what clients were shown and the model was not: they may refer to it later."""
        return tuple(self.transcript[self.inherited :])


_NO_HISTORY = History()


def history_after(run: Run, before: History = _NO_HISTORY) -> History:
    """The history of a run that continues this one, which itself continues the one before."""
    size = before.size + measure_items([entry.item for entry in run.transcript[run.inherited :]])
    return History(run.transcript, tuple([call.item for call in run.open_calls]), size)


def open_run(record: Recorded, history: History) -> Run:
    """The run after its first event. Raises `Malformed` unless that is `RunStarted`, number 0."""
    if not isinstance(record.event, RunStarted) or record.seq != 0:
        raise Malformed(f"a log begins with run_started as event 0, not with {record.event!r:.80}")
    spec = record.event.spec
    start = opening(history, spec.input)
    transcript = history.entries.extend([Entry(item, "input", hidden=_is_cut_call(item)) for item in start.items])
    return Run(
        spec=spec,
        transcript=transcript.extend([*_listed(spec, transcript), *_freed(start.waiting)]),
        inherited=len(history.entries),
        base=len(transcript),
        started_at=record.at,
        clock=record.at,
        # With nothing to do, it has begun once it is here.
        status="in_progress" if spec.goal == "nothing" else "queued",
        approvals=start.approvals,
        calls=tuple([Call(replace(item, approval=approval_id(item)), position) for position, item in enumerate(start.waiting)]),
        allowed=Chain(),
    )


def _listed(spec: RunSpec, transcript: Chain[Entry]) -> list[Entry]:
    """What MCP servers have, but for those whose list is in the conversation already."""
    known = {list_label(entry.item) for entry in transcript} if spec.listed else set()
    return [Entry(item, "tool") for item in spec.listed if list_label(item) not in known]


def _freed(calls: tuple[FunctionCall, ...]) -> list[Entry]:
    """Calls that a person was asked about: the answer shows them once more, with what comes of them; the model knows them."""
    return [Entry(replace(call, approval=approval_id(call)), "model", hidden=True) for call in calls]


def replay(records: Sequence[Recorded], history: History) -> Run:
    """The run that a whole log makes."""
    run = open_run(records[0], history)
    for record in records[1:]:
        run = fold(run, record)
    return run


def replay_quickly(records: Sequence[Recorded], history: History) -> Run:
    """As `replay`, but what is half said when the log ends is one piece, however many deltas said it."""
    run = open_run(records[0], history)
    delta, at = None, 0.0
    said: list[str] = []
    for record in records[1:]:
        if delta is not None and record.seq == run.seq + len(said) and continues(delta, record.event):
            delta, at = cast(Delta, record.event), record.at
            said.append(delta.delta)
            continue
        if delta is not None and said:
            run, said = fold_deltas(run, replace(delta, delta="".join(said)), len(said), at), []
        run = fold(run, record)
        delta = record.event if isinstance(record.event, Delta) else None
    return run if delta is None or not said else fold_deltas(run, replace(delta, delta="".join(said)), len(said), at)


def fold(run: Run, record: Recorded) -> Run:
    """The run one event later. Raises `Malformed` if that event cannot follow; the run given stays as it was."""
    if record.seq != run.seq:
        raise Malformed(f"run {run.spec.id} expects event {run.seq}, not {record.seq}")
    if run.reason is not None:
        raise Malformed(f"run {run.spec.id} has ended; {type(record.event).__name__} cannot follow")
    changes = _CHANGES[type(record.event)](run, record.event, record.at)
    changes["seq"] = record.seq + 1
    changes["clock"] = record.at
    return replace(run, **changes)


def fold_deltas(run: Run, delta: Delta, count: int, at: float) -> Run:
    """The run `count` events later, which were deltas that say together what this one says. Raises as `fold` does."""
    return replace(run, drafts=_with_piece(run, delta), seq=run.seq + count, clock=at)


def _tool_progressed(run: Run, event: ToolProgress) -> Changes:
    call = run.call(event.call_id)
    return {} if isinstance(event.kept, UnsetType) else {"calls": _swapped(run.calls, call, replace(call, kept=event.kept))}


def _tool_ended(run: Run, event: ToolEnded) -> Changes:
    loaded = _read_loaded(event)
    result = CallResult(event.output, event.is_error, event.outcome in ("ok", "error", "reused") and not loaded)
    answered = _answered(run, run.call(event.call_id), result, loaded)
    if event.outcome == "reused":
        answered["rungs"] = _climb(run, "reused")
    return answered if event.used is None else answered | {"delegated": run.delegated + event.used}


def _resumed(run: Run, at: float) -> Changes:
    calls = tuple([replace(call, is_started=False) if _may_repeat(run, call) else call for call in run.calls])
    return {"idle": run.idle + at - run.clock, "calls": calls}


def _refuse_start(run: Run) -> Changes:
    raise Malformed(f"run {run.spec.id} has started already")


def _item_started(run: Run, item: Item) -> Changes:
    new = item_id(item)
    if not run.in_turn:
        raise Malformed(f"item `{new}` begins outside a turn")
    if not new or any(draft.id == new for draft in run.drafts):
        raise Malformed(f"item id `{new}` is empty or used twice in a turn")
    if isinstance(item, FunctionCall) and any(_is_call(draft.item, item.call_id) for draft in run.drafts):
        raise Malformed(f"call id `{item.call_id}` is used twice in a turn")
    return {"drafts": (*run.drafts, Draft(item, new))}


def _with_piece(run: Run, piece: Delta | Annotated) -> tuple[Draft, ...]:
    drafts = run.drafts
    if drafts and (last := drafts[-1]).id == piece.item_id and not last.is_done:
        return (*drafts[:-1], Draft(last.item, last.id, last.pieces.extend((piece,))))
    draft = _open_draft(run, piece.item_id)
    return _replaced(drafts, draft, Draft(draft.item, draft.id, draft.pieces.extend((piece,))))


def _with_item(run: Run, item: Item) -> tuple[Draft, ...]:
    draft = _open_draft(run, item_id(item))
    streamed = [piece for piece in draft.pieces if not isinstance(piece, Annotated)]
    if type(item) is not type(draft.item):
        raise Malformed(f"item `{draft.id}` began as {type(draft.item).__name__} and ended as {type(item).__name__}")
    if isinstance(item, FunctionCall) and not _is_call(draft.item, item.call_id):
        raise Malformed(f"item `{draft.id}` ended as another call, `{item.call_id}`")
    if streamed and "".join(words(item)) != "".join(words(partial(draft))):
        raise Malformed(f"item `{draft.id}` does not say what its deltas said")
    return _replaced(run.drafts, draft, Draft(item, draft.id, is_done=True))


def _open_draft(run: Run, wanted: str) -> Draft:
    for draft in run.drafts:
        if draft.id == wanted and not draft.is_done:
            return draft
    raise Malformed(f"no item `{wanted}` is being said")


def _replaced(drafts: tuple[Draft, ...], old: Draft, new: Draft) -> tuple[Draft, ...]:
    return tuple([new if draft is old else draft for draft in drafts])


def _turn_started(run: Run) -> Changes:
    if run.in_turn or run.calls:
        raise Malformed("a turn cannot begin before the last one and its calls are answered")
    return {
        "status": "in_progress",
        "in_turn": True,
        "turns": run.turns + 1,
        "finish": None,
        "failure": None,
        "turn_succeeded": False,
    }


def _turn_ended(run: Run, event: TurnEnded) -> Changes:
    if event.finish == "error":
        raise Malformed("a turn that ended in an error must say which")
    if not run.in_turn:
        raise Malformed("a turn ended that never began")
    items = [partial(draft) for draft in run.drafts]
    made = [item for item in items if isinstance(item, FunctionCall) and item.status == "completed"]
    entries = [Entry(item, "model", run.turns, hidden=_is_cut_call(item)) for item in items]
    changes: Changes = {
        "in_turn": False,
        "unanswered": False,
        "answered": run.answered + 1,
        "finish": event.finish,
        "stop_sequence": event.stop_sequence,
        "overflows_in_row": 0,
        "drafts": (),
        "transcript": run.transcript.extend(entries),
        "calls": tuple([Call(item, position) for position, item in enumerate(made)]),
        "usage": run.usage + (event.usage or Usage()),
        "context": 0 if event.usage is None else event.usage.total_tokens,
        "counted": len(run.transcript) + len(entries),
    }
    changes |= {"is_confirming": False} if made else {"errors_in_row": 0}
    if run.spec.limits.max_repeats is not None:
        calls = [PastCall(call.call_id, call.name, canonical(call.arguments)) for call in made if not _polls(run, call)]
        changes["repetition"] = begin_turn(run.repetition, calls, run.spec.limits)
    return changes


def _turn_lost(run: Run) -> Changes:
    """A turn that failed or was cut off: what it said stays in the answer, unseen by the model; its calls never run."""
    if not run.in_turn:
        raise Malformed("a turn was cut off that never began")
    items = [partial(draft) for draft in run.drafts]
    entries = [Entry(item, "model", run.turns, hidden=True) for item in items]
    for item in items:
        if isinstance(item, FunctionCall) and item.status == "completed":
            entries.append(Entry(_output(item, CUT_OFF, is_error=True), "tool", run.turns, hidden=True))
    return {"in_turn": False, "drafts": (), "transcript": run.transcript.extend(entries)}


def _lost(run: Run) -> Usage:
    """What was lost so far and with the turn under way: all it was told, and what it had said."""
    asked = estimate([entry.item for entry in run.transcript if not entry.hidden], run.spec.instructions, run.tools)
    return run.lost + Usage(asked, tokens_of([partial(draft) for draft in run.drafts]), is_estimated=True)


def _failed(run: Run, error: ErrorInfo, usage: Usage | None) -> Changes:
    changes: Changes = {
        "failure": error, "errors_in_row": run.errors_in_row + 1, "usage": run.usage + (usage or Usage()),
    }  # fmt: skip
    if usage is None:
        changes["lost"] = _lost(run)
    if error.code == OVERFLOW:
        changes |= {"overflows": run.overflows + 1, "overflows_in_row": run.overflows_in_row + 1}
    return changes


def _compacted(run: Run, event: Compacted) -> Changes:
    if run.in_turn or run.calls:
        raise Malformed("a transcript cannot be compacted within a turn or before its calls are answered")
    if event.item is None:
        if event.error is None:
            raise Malformed("a compaction without an item must say what went wrong")
        is_needed = run.spec.goal == "compaction" or run.spec.window.truncation == "disabled"
        if event.error.code == BadOutput.code and not is_needed:
            used = {"lost": _lost(run)} if event.usage is None else {"usage": run.usage + event.usage}
            return {"status": "in_progress", "sums_up": False, **used}
        return {"status": "in_progress"} | _failed(run, event.error, event.usage)
    return {
        "status": "in_progress",
        "failure": None,
        "transcript": run.transcript.extend([Entry(event.item, "tool", run.turns)]),
        "usage": run.usage + (event.usage or Usage()),
        "context": 0,
    }


def _call_judged(run: Run, event: CallJudged) -> Changes:
    call = run.call(event.call_id)
    is_handed_over = call.is_started and event.verdict in ("client", "ask")
    if call.output is not None or (call.verdict is not None and not is_handed_over):
        raise Malformed(f"call `{event.call_id}` has been judged already")
    judged = replace(call, verdict=event.verdict, is_started=False, policy=event.policy)
    changes: Changes = {"status": "in_progress", "calls": _swapped(run.calls, call, judged), "stop": run.stop or event.stop}
    match event.verdict:
        case "allow":
            changes |= {"calls_allowed": run.calls_allowed + 1, "allowed": run.allowed.extend([call.item])}
        case "ask":
            asking = _ask_person(judged, event)
            changes["calls"] = _swapped(run.calls, call, asking)
            changes["transcript"] = run.transcript.extend([Entry(_make_request(asking), "tool", run.turns)])
        case "deny":
            denied = CallResult(event.reason, is_error=True, is_reusable=False)
            changes |= _answered(replace(run, calls=changes["calls"]), judged, denied)
            if event.is_returned is True:
                changes["returned"] = (*run.returned, event.call_id)
        case "client":
            pass
        case _:
            assert_never(event.verdict)
    return changes


def _ask_person(call: Call, event: CallJudged) -> Call:
    elicitation = None if isinstance(event.elicitation, UnsetType) else event.elicitation
    kept = call.kept if isinstance(event.kept, UnsetType) else event.kept
    return replace(call, item=replace(call.item, approval=next_approval_id(call.item)), elicitation=elicitation, kept=kept)


def _make_request(call: Call) -> ApprovalRequest:
    item = call.item
    whose = item.server if isinstance(item.server, ServerTool) else ServerTool("", item.name)
    request = ApprovalRequest(approval_id(item), whose.name, item.arguments, whose.label, item.call_id)
    return request if call.elicitation is None else replace(request, elicitation=call.elicitation)


def _tool_started(run: Run, call: Call) -> Changes:
    if call.verdict != "allow" or call.is_started or call.output is not None:
        raise Malformed(f"call `{call.item.call_id}` may not start: it is {call.verdict or 'not judged'}")
    used = run.tools_used if call.item.name in run.tools_used else (*run.tools_used, call.item.name)
    return {"calls": _swapped(run.calls, call, replace(call, is_started=True)), "tools_used": used}


def _read_loaded(event: ToolEnded) -> tuple[str, ...]:
    match event.data:
        case {"loaded": [*names]}:
            return tuple([str(name) for name in names])
        case _:
            return ()


def _answered(run: Run, call: Call, result: CallResult, loaded: tuple[str, ...] = ()) -> Changes:
    """The call has its output. Outputs enter the transcript once every call before theirs has one."""
    if call.output is not None:
        raise Malformed(f"call `{call.item.call_id}` has been answered already")
    is_error, is_withheld = result.is_error, call.item.name in run.withheld
    answer = _output(call.item, result.output, is_error)
    if call.item.form == "server_tool_search":
        answer = replace(answer, tools=declare_found(run.spec.tools, loaded))
    calls = list(_swapped(run.calls, call, replace(call, output=answer)))
    entries = []
    while calls and (ready := calls[0].output) is not None:
        entries.append(Entry(ready, "tool", run.turns))
        calls.pop(0)
    changes: Changes = {
        "calls": tuple(calls),
        "transcript": run.transcript.extend(entries),
        "tool_failed": run.tool_failed or is_error,
        "turn_succeeded": run.turn_succeeded or not is_error,
    }
    if call.item.form == "server_tool_search":
        changes["loaded"] = (*run.loaded, *loaded)
    repetition = note_result(run.repetition, call.item.call_id, None if is_withheld else result)
    if not calls:
        changes["unanswered"] = True
        # A tool that is withheld has not failed.
        errors = run.errors_in_row if is_withheld else run.errors_in_row + 1
        changes["errors_in_row"] = 0 if changes["turn_succeeded"] else errors
        repetition = end_turn(repetition, run.spec.limits)
    return changes | {"repetition": repetition}


def add_prompt(run: Run, text: str) -> Run:
    """The run with this said to the model."""
    transcript = run.transcript.extend([Entry(user(text), "engine", run.turns)])
    return replace(run, transcript=transcript, unanswered=True, failure=None)


def _nudged(run: Run, kind: str, text: str, reason: Reason | None) -> Changes:
    changes: Changes = {"transcript": add_prompt(run, text).transcript, "unanswered": True, "failure": None}
    match kind:
        case "confirm":
            changes |= {"is_confirming": True, "was_asked": True}
        case "repeat":
            changes |= {"repetition": replace(run.repetition, is_warned=True), "rungs": _climb(run, "nudged")}
        case _:
            changes["closing"] = reason
    return changes


def _climb(run: Run, rung: str) -> tuple[str, ...]:
    return run.rungs if rung in run.rungs else (*run.rungs, rung)


def _run_ended(run: Run, status: Status, reason: Reason, error: ErrorInfo | None) -> Changes:
    if status not in TRANSITIONS[run.status] or status == "in_progress":
        raise Malformed(f"a run cannot go from {run.status} to {status}")
    if run.in_turn:
        raise Malformed("a run cannot end within a turn")
    if status != "requires_action" and run.open_calls:
        raise Malformed(f"a run cannot end {status} with unanswered calls")
    held = [Entry(call.output, "tool", run.turns) for call in run.calls if call.output is not None]
    return {
        "status": status, "reason": reason, "error": error, "transcript": run.transcript.extend(held), "calls": run.open_calls,
    }  # fmt: skip


def _may_repeat(run: Run, call: Call) -> bool:
    tool = run.spec.tool(call.item.name)
    return call.output is None and (call.kept is not None or (tool is not None and tool.repeatable))


def _polls(run: Run, call: FunctionCall) -> bool:
    tool = run.spec.tool(call.name)
    return tool is not None and tool.polls


def _swapped(calls: tuple[Call, ...], old: Call, new: Call) -> tuple[Call, ...]:
    return tuple([new if call is old else call for call in calls])


def _output(call: FunctionCall, output: str | tuple[Part, ...], is_error: bool) -> FunctionCallOutput:
    plain = FunctionCallOutput(call.call_id, output, id=derive_id("fco", call.id or call.call_id), form=call.form)
    return replace(plain, is_error=True) if is_error else plain


def _is_call(item: Item, call_id: str) -> bool:
    return isinstance(item, FunctionCall) and item.call_id == call_id


def _is_returned(item: Item, returned: tuple[str, ...]) -> bool:
    return isinstance(item, FunctionCall | FunctionCallOutput) and item.call_id in returned


def _is_cut_call(item: Item) -> bool:
    return isinstance(item, FunctionCall) and item.status != "completed"


def canonical(arguments: str) -> str:
    """Arguments in a form that is equal for equal meaning: keys in order, no spaces."""
    if are_arguments_large(arguments):
        return arguments
    try:
        return msgspec.json.encode(msgspec.json.decode(arguments or "{}"), order="deterministic").decode()
    except (msgspec.DecodeError, RecursionError):
        return arguments


# What each event changes. To ask for one type after another takes longer than most changes do.
_CHANGES: Final[dict[type, Callable[[Run, Any, float], Changes]]] = {
    RunStarted: lambda run, event, at: _refuse_start(run),
    RunResumed: lambda run, event, at: _resumed(run, at),
    RunEnded: lambda run, event, at: _run_ended(run, event.status, event.reason, event.error),
    TurnStarted: lambda run, event, at: _turn_started(run),
    TurnAborted: lambda run, event, at: _turn_lost(run) | {"turns": run.turns - 1, "lost": _lost(run)},
    TurnEnded: lambda run, event, at: (
        _turn_ended(run, event) if event.error is None else _turn_lost(run) | _failed(run, event.error, event.usage)
    ),
    ItemStarted: lambda run, event, at: _item_started(run, event.item),
    ItemDone: lambda run, event, at: {"drafts": _with_item(run, event.item)},
    CallJudged: lambda run, event, at: _call_judged(run, event),
    ToolStarted: lambda run, event, at: _tool_started(run, run.call(event.call_id)),
    ToolProgress: lambda run, event, at: _tool_progressed(run, event),
    ToolEnded: lambda run, event, at: _tool_ended(run, event),
    ToolWithheld: lambda run, event, at: {"withheld": (*run.withheld, event.name), "rungs": _climb(run, "withheld")},
    Nudged: lambda run, event, at: _nudged(run, event.kind, event.text, event.reason),
    Compacted: lambda run, event, at: _compacted(run, event),
    **dict.fromkeys(
        (TextDelta, RefusalDelta, ReasoningDelta, ArgumentsDelta, Annotated),
        lambda run, event, at: {"drafts": _with_piece(run, event)},
    ),
}
assert {*_CHANGES} == {*get_args(Event)}
