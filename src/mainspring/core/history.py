"""What came before a run, and how its input joins on: every output directly behind its calls, in call order."""

from collections import deque
from collections.abc import Iterable
from typing import Final, Literal

from msgspec import Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.chain import Chain
from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    ServerTool,
    Unknown,
    parse_arguments,
)

ASKED: Final = "approval_request"
"""The kind of the documents that say that a run waits for a person."""
UNKNOWN_APPROVAL: Final = "approval_not_found"
Origin = Literal["input", "model", "tool", "engine"]


class Entry(Struct, frozen=True, array_like=True):
    """An item of the transcript, who brought it, and in which turn (0 before the first). The model never sees hidden ones."""

    item: Item
    origin: Origin
    turn: int = 0
    hidden: bool = False


class History(Struct, frozen=True, weakref=True):
    """The conversation before a run: all of it, and the calls in it that still wait for an answer. `size` is about its bytes."""

    entries: Chain[Entry] = Chain()
    waiting: tuple[FunctionCall, ...] = ()
    size: int = 0


def history_of(entries: list[Entry], size: int = 0) -> History:
    """History out of stored entries, oldest first, without what the model never saw."""
    entries = [entry for entry in entries if not entry.hidden]
    waiting: dict[str, FunctionCall] = {}
    for entry in entries:
        if isinstance(entry.item, FunctionCall) and entry.item.status == "completed":
            waiting[entry.item.call_id] = entry.item
        elif isinstance(entry.item, FunctionCallOutput):
            waiting.pop(entry.item.call_id, None)
        elif isinstance(entry.item, ApprovalRequest) and (call := waiting.get(str(entry.item.call_id))) is not None:
            waiting[call.call_id] = replace(call, approval=entry.item.id)
    return History(Chain(entries), tuple(waiting.values()), size)


def approval_id(call: FunctionCall) -> str:
    """The id of the request by which a person is asked about this call, or was asked last."""
    return call.approval if isinstance(call.approval, str) else f"mcpr_{call.id.removeprefix('fc_') or call.call_id}"


def next_approval_id(call: FunctionCall) -> str:
    """The id of the next request about this call: each is answered once."""
    return f"{approval_id(call)}_next" if isinstance(call.approval, str) else approval_id(call)


def call_behind(request_id: str, name: str, arguments: str, server: ServerTool | UnsetType) -> FunctionCall:
    """The call that an approval request is about, for a client that has kept only the request: `approval_id` of it is that id."""
    suffix = request_id.removeprefix("mcpr_")
    return FunctionCall(f"call_{suffix}", name, arguments, id=f"fc_{suffix}", server=server)


def list_answers(given: Iterable[Item]) -> tuple[ApprovalResponse, ...]:
    """The answers among these items that are to be acted on. One whose call stands among them with its output has been."""
    given = tuple(given)
    answers = tuple([item for item in given if isinstance(item, ApprovalResponse)])
    if not answers:
        return ()
    unanswered = {id(call) for call in pair_outputs(given).unanswered}
    made = [item for item in given if isinstance(item, FunctionCall) and item.status == "completed"]
    settled = {approval_id(call) for call in made if id(call) not in unanswered}
    return tuple([said for said in answers if said.approval_request_id not in settled])


def list_label(item: Item) -> str | None:
    """The server that this item lists the tools of, None if it is no such list."""
    if not isinstance(item, Unknown) or item.data.get("type") != "mcp_list_tools":
        return None
    return str(item.data.get("server_label"))


def replace_lost_history(given: tuple[Item, ...]) -> History:
    """A stand-in for a history that is gone, so that what continued it can still be read: only the calls it must have held."""
    orphans = pair_outputs(given).orphans
    brought = {approval_id(item) for item in given if isinstance(item, FunctionCall)}
    approved = [said.approval_request_id for said in list_answers(given) if said.approval_request_id not in brought]
    waiting = [FunctionCall(output.call_id, "unknown", id=derive_id("fc", output.call_id)) for output in orphans]
    waiting += [FunctionCall(id, "unknown", id=id.replace("mcpr_", "fc_", 1)) for id in approved]
    return History(waiting=tuple(waiting))


class Paired(Struct, frozen=True):
    """Items with every output directly behind its calls, in call order; what has no counterpart is set aside."""

    items: tuple[Item, ...]
    unanswered: tuple[FunctionCall, ...]
    orphans: tuple[FunctionCallOutput, ...]


def pair_outputs(given: Iterable[Item], waiting: Iterable[FunctionCall] = ()) -> Paired:
    """Puts outputs where they belong; `waiting` are calls made before. A backend may use a call id again once it is answered,
    so an output belongs to the first call before it with its id that has none. Clients may send back a call as it was announced,
    `in_progress`: with its output behind it, it has been made."""
    given = tuple(given)
    outputs: dict[str, deque[tuple[int, FunctionCallOutput]]] = {}
    calls: dict[str, int] = {}
    answered: set[int] = set()
    for place, item in enumerate(given):
        if isinstance(item, FunctionCall):
            calls[item.call_id] = place
        elif isinstance(item, FunctionCallOutput):
            outputs.setdefault(item.call_id, deque()).append((place, item))
            answered.add(calls.get(item.call_id, -1))
    pending = [(-1, call) for call in waiting]
    if not pending and not calls and not outputs:
        return Paired(given, (), ())
    items: list[Item] = []
    unanswered: list[FunctionCall] = []
    orphans: list[FunctionCallOutput] = []

    def answer_pending() -> None:
        for made, call in pending:
            found = outputs.get(call.call_id, deque())
            while found and found[0][0] < made:
                orphans.append(found.popleft()[1])
            if found:
                items.append(found.popleft()[1])
            else:
                unanswered.append(call)
        pending.clear()

    for place, item in enumerate(given):
        if place in answered and isinstance(item, FunctionCall) and item.status != "completed":
            item = replace(item, status="completed")
        match item:
            case FunctionCallOutput():
                answer_pending()
                continue
            case FunctionCall(status="completed"):
                pending.append((place, item))
            case Message(role="assistant") | Reasoning() | ApprovalRequest() | ApprovalResponse() | FunctionCall():
                pass
            case _:
                answer_pending()
        items.append(item)
    answer_pending()
    left = [output for found in outputs.values() for _, output in found]
    return Paired(tuple(items), tuple(unanswered), (*orphans, *left))


class Opening(Struct, frozen=True):
    """A run's input, put in order behind its history, and the calls that an approval has freed to run."""

    items: tuple[Item, ...]
    waiting: tuple[FunctionCall, ...]
    approvals: tuple[ApprovalResponse, ...]


def drop_repeated_calls(given: tuple[Item, ...], waiting: Iterable[FunctionCall]) -> tuple[Item, ...]:
    """The input without the calls that the history waits for: some clients send each again with its output. Raises
    `InvalidRequest` for one that is not the call it repeats."""
    known = {call.call_id: call for call in waiting}
    kept: list[Item] = []
    for place, item in enumerate(given):
        # Behind an output, the same id is that of another call.
        call = known.pop(item.call_id, None) if isinstance(item, FunctionCall | FunctionCallOutput) else None
        if call is None or not isinstance(item, FunctionCall):
            kept.append(item)
        elif not _is_same_call(item, call):
            message = (
                f"The function call {item.call_id} is not the one that the previous response made: that calls `{call.name}` "
                "with other arguments or another name. Leave the call out, and send its output alone."
            )
            raise InvalidRequest(message, param=f"input[{place}]")
    return tuple(kept)


def _is_same_call(sent: FunctionCall, made: FunctionCall) -> bool:
    """A call that is sent as it was announced has no arguments yet."""
    if sent.name != made.name or sent.arguments in ("", made.arguments):
        return sent.name == made.name
    try:
        return _is_same_value(parse_arguments(sent.arguments), parse_arguments(made.arguments))
    except ValueError:
        return False


def _is_same_value(one: object, other: object) -> bool:
    """Whether two values are the same in JSON, where 1 is 1.0 and not `true`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_same_value(value, other[name]) for name, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_is_same_value, one, other))
    return isinstance(one, bool) is isinstance(other, bool) and one == other


def opening(history: History, given: tuple[Item, ...]) -> Opening:
    """The input, in order. Raises `InvalidRequest` for an output without a call, a second output, a call nobody answers, a call
    that differs from the one it repeats, and an approval that is unknown or given twice."""
    given = drop_repeated_calls(given, history.waiting)
    found = pair_outputs(given, history.waiting)
    for orphan in found.orphans:
        raise InvalidRequest(f"No tool call found for function call output with call_id {orphan.call_id}.", param="input")
    answers = list_answers(given)
    approvals = {said.approval_request_id: said for said in answers}
    if len(approvals) < len(answers):
        raise InvalidRequest("An approval request is answered twice; send one mcp_approval_response each.", param="input")
    # Whether a person was asked about a call that comes with the input is for the engine to prove, by what it has kept of that.
    wanted = {approval_id(call): call for call in found.unanswered}
    for request_id, call in wanted.items():
        if request_id not in approvals:
            raise InvalidRequest(f"No tool output found for function call {call.call_id}.", param="input")
    for request_id in approvals:
        if request_id not in wanted:
            raise refuse_unknown(request_id)
    return Opening(found.items, found.unanswered, tuple(approvals.values()))


def refuse_unknown(request_id: str) -> InvalidRequest:
    message = (
        f"No approval request {request_id} is waiting here. Send the mcp_approval_request as it was told, together with its "
        "answer, or continue the response that asked with `previous_response_id`."
    )
    return InvalidRequest(message, param="input", code=UNKNOWN_APPROVAL)
