"""Approvals: a call waits for a person, who says yes or no once and in time.

Theory of operation. A run that stops for a person leaves a document for each call it asks about: which run asks, since when, and
until when, about which tool, and digests of its arguments and of what the tool declares. An answer is a document too. It is put
only where none is, so an answer counts once, by whatever door it comes; and it is put before the run that acts on it begins.
If the process dies in between, the same answer can be given again to the run of the same id, of which the store lets one begin.
`use_answers` is the one place where that happens, and where an answer is refused that comes too late, from somebody who may not
give it, or to another call than the one that was asked about. The arguments are not in these documents: they are in the log of
the run that asks, and go with it.

A client that keeps the history itself sends the `mcp_approval_request` back beside its answer. The item needs no signature: its
id has 96 random bits, and everything else about it is compared with the document behind that id. `recall_calls` puts the call
that was asked about before the request, so that from there on it is as if the call had waited in a stored history.
"""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Final, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.elicitation import list_flaws
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.events import Reason
from mainspring.core.history import ASKED, approval_id, call_behind, list_answers, list_label, refuse_unknown
from mainspring.core.items import (
    ApprovalRequest,
    ApprovalResponse,
    FunctionCall,
    Item,
    Json,
    ServerTool,
    ToolDefinition,
    Unknown,
    decode,
    encode,
)
from mainspring.core.run import Call, Run
from mainspring.core.spec import Charter, RunSpec
from mainspring.engine.audit import digest_of
from mainspring.ports import Document, Store

GIVEN: Final = "approval"

EXPIRED: Final = "approval_expired"
SPENT: Final = "approval_already_given"
TOOL_MISSING: Final = "approved_tool_missing"
TOOL_CHANGED: Final = "approved_tool_changed"
CALL_CHANGED: Final = "approved_call_changed"
NOT_ALLOWED: Final = "approval_not_allowed"
BAD_CONTENT: Final = "answer_content_invalid"

# For how long an answer can be given again whose run has not begun.
AGAIN_SECONDS: Final = 3600.0

APPROVE: Final = "approvals"
"""The scope of those who may answer what the operator's rules ask."""

State = Literal["pending", "approved", "refused", "expired"]


class ApprovalQuestion(Struct, frozen=True):
    """That a run asks, and the budget and charters that it is under. After `until` nobody can approve any more; None is never.

    `tool`, `digest` (of the arguments) and `declared` (of what the tool declares) are what a yes is bound to, `conversation` is
    where the call waits, if in one. `is_own` says that the client has asked for the question itself, with the MCP server that it
    brought, or is asked by the server of a call that runs already. Then `elicitation` is what, and `kept` goes to the run that
    goes on with the answer.
    """

    run: str
    at: float
    until: float | None = None
    budget: Json | None = None
    charters: tuple[Charter, ...] = ()
    tool: str = ""
    digest: str = ""
    declared: str = ""
    conversation: str = ""
    is_stored: bool = True
    is_own: bool = False
    elicitation: Json | UnsetType = UNSET
    kept: Json | UnsetType = UNSET


class ApprovalAnswer(Struct, frozen=True):
    """An answer, and the run that acts on it. One that is not `used` waits for the answers to the run's other questions."""

    run: str
    approve: bool
    at: float
    by: str = ""
    reason: str = ""
    used: bool = True
    content: Json | UnsetType | None = UNSET


def list_questions(run: Run) -> tuple[Document, ...]:
    """What a run leaves when it ends: a document for each call that waits for a person."""
    if run.reason is not Reason.APPROVAL_NEEDED:
        return ()
    return tuple([_question(run, call) for call in run.calls if call.verdict == "ask"])


def _question(run: Run, call: Call) -> Document:
    spec, seconds, tool = run.spec, run.spec.limits.approval_seconds, run.spec.tool(call.item.name)
    body = ApprovalQuestion(
        spec.id,
        run.clock,
        None if seconds is None else run.clock + seconds,
        spec.budget,
        spec.charters,
        call.item.name,
        digest_of(call.item.arguments),
        "" if tool is None else digest_declaration(tool),
        "" if spec.conversation is None else spec.conversation.id,
        spec.store,
        call.elicitation is not None or (call.policy == "approval" and tool is not None and _is_brought(tool, spec)),
        UNSET if call.elicitation is None else call.elicitation,
        UNSET if call.elicitation is None or call.kept is None else call.kept,
    )
    return Document(ASKED, approval_id(call.item), encode(body), spec.tenant)


def digest_declaration(tool: ToolDefinition) -> str:
    """A digest of what a tool takes and does: who approves a call of it approves no other."""
    told = (tool.kind, tool.parameters, tool.effects, tool.operations, tool.purposes, _server(tool))
    return sha256(msgspec.json.encode(told, order="deterministic")).hexdigest()


def _server(tool: ToolDefinition) -> ServerTool | None:
    return tool.server if tool.kind == "mcp" and isinstance(tool.server, ServerTool) else None


def _is_brought(tool: ToolDefinition, spec: RunSpec) -> bool:
    """Whether the tool is of an MCP server that the request named: those are the ones that its client is told of."""
    server = _server(tool)
    return server is not None and server.label in [list_label(item) for item in spec.listed]


def continuing_id(run_id: str) -> str:
    """The id of the run that acts on the answers to what this one asks."""
    return f"resp_{sha256(f'continues {run_id}'.encode()).hexdigest()[:24]}"


def state_of(question: ApprovalQuestion, answer: ApprovalAnswer | None, now: float) -> State:
    is_late = question.until is not None and now >= question.until
    if answer is not None and (answer.used or not is_late):
        return "approved" if answer.approve else "refused"
    return "expired" if is_late else "pending"


async def find_answering(store: Store, id: str, tenant: str, now: float) -> str | None:
    """The run that acts on the answer to this question; empty if a person may still give one, None if nobody can any more."""
    asked, given = await store.get(ASKED, id, tenant=tenant), await store.get(GIVEN, id, tenant=tenant)
    if asked is None:
        return None
    answer = None if given is None else decode(given.body, ApprovalAnswer)
    if answer is not None and answer.used:
        return answer.run or None
    return None if state_of(decode(asked.body, ApprovalQuestion), answer, now) == "expired" else ""


async def find_question(store: Store, items: Iterable[Item], tenant: str) -> ApprovalQuestion | None:
    """The question that these items answer, None if they answer none. All of a run's are alike but for the call; of those of
    several runs it is the first, under the charters of all."""
    found: list[ApprovalQuestion] = []
    for said in list_answers(items):
        document = await store.get(ASKED, said.approval_request_id, tenant=tenant)
        found += [] if document is None else [decode(document.body, ApprovalQuestion)]
    if not found:
        return None
    return replace(found[0], charters=tuple(dict.fromkeys([each for question in found for each in question.charters])))


async def recall_calls(store: Store, spec: RunSpec, waiting: Sequence[FunctionCall]) -> RunSpec:
    """The order with the call in front of each approval request that its input answers, if nothing else has that call. Raises
    `InvalidRequest` for a request that nobody made, or that says something else than it did."""
    answered = {said.approval_request_id for said in list_answers(spec.input)}
    known = {approval_id(call) for call in (*waiting, *[item for item in spec.input if isinstance(item, FunctionCall)])}
    if answered <= known:
        return spec
    items: list[Item] = []
    for item in spec.input:
        if isinstance(item, ApprovalRequest) and item.id in answered - known:
            known.add(item.id)
            items.append(await _recall_call(store, spec, item))
        items.append(item)
    return replace(spec, input=tuple(items))


async def _recall_call(store: Store, spec: RunSpec, request: ApprovalRequest) -> FunctionCall:
    question = await _find_asked(store, spec, request.id)
    if question is None:
        raise refuse_unknown(request.id)
    tool = spec.tool(question.tool)
    whose = ServerTool(request.server_label, request.name) if tool is None else tool.server
    shown = whose if isinstance(whose, ServerTool) else ServerTool("", question.tool)
    call = call_behind(request.id, question.tool, request.arguments, whose)
    if (shown.label, shown.name) != (request.server_label, request.name):
        raise _refuse_changed(call, request.id)
    return call if tool is None else replace(call, form=tool.form)


async def add_kept(store: Store, spec: RunSpec) -> RunSpec:
    """The order whose answers say what the calls need to go on where they were. What a client says of that is dropped."""

    async def complete(item: Item) -> Item:
        if not isinstance(item, ApprovalResponse):
            return item
        question = await _find_asked(store, spec, item.approval_request_id)
        return replace(item, kept=UNSET if question is None else question.kept)

    return replace(spec, input=tuple([await complete(item) for item in spec.input]))


async def use_answers(
    store: Store, spec: RunSpec, waiting: Sequence[FunctionCall], answers: Sequence[ApprovalResponse], now: float
) -> None:
    """Uses these answers to `waiting` calls up for a run that is about to begin. Raises `InvalidRequest`, and then the run must
    not."""
    await check(store, spec, waiting, answers, now)
    used = [make_answer(said, spec.id, spec.tenant, now, by=spec.caller.subject) for said in answers]
    if await store.put(used, if_absent=True):
        return
    for document in used:
        if not await _is_kept(store, document.id, spec, now):
            raise refuse_spent(document.id)
    await store.put(used)


async def withdraw(store: Store, run: Run, reason: str, now: float) -> None:
    """Refuses what an ended run still asks, so that no run can go on with a yes. What an answer has been used for stays."""
    for question in list_questions(run):
        refused = Document(GIVEN, question.id, encode(ApprovalAnswer("", approve=False, at=now, reason=reason)), run.spec.tenant)
        if await store.put([refused], if_absent=True):
            continue
        kept = await store.get(GIVEN, question.id, tenant=run.spec.tenant)
        if kept is not None and not decode(kept.body, ApprovalAnswer).used:
            await store.put([refused])


async def spend_answers(store: Store, spec: RunSpec) -> None:
    """Has the answers that a run has used count though it is to be deleted: no other may act on them."""
    for said in list_answers(spec.input):
        found = await store.get(GIVEN, said.approval_request_id, tenant=spec.tenant)
        if found is not None and (answer := decode(found.body, ApprovalAnswer)).run == spec.id:
            await store.put([replace(found, body=encode(replace(answer, run="", used=True)))])


async def check(
    store: Store, spec: RunSpec, waiting: Sequence[FunctionCall], answers: Sequence[ApprovalResponse], now: float
) -> None:
    """Raises `InvalidRequest` unless each answer is to a waiting call as it was asked about, is in time, and may be given."""
    calls = {approval_id(call): call for call in waiting}
    for said in answers:
        question = await _find_asked(store, spec, said.approval_request_id)
        call = calls.get(said.approval_request_id)
        if question is None or call is None:
            raise refuse_unknown(said.approval_request_id)
        if said.approve and question.until is not None and now >= question.until:
            raise refuse_expired(said.approval_request_id)
        if (call.name, digest_of(call.arguments)) != (question.tool, question.digest):
            raise _refuse_changed(call, said.approval_request_id)
        check_content(said, question)
        if said.approve:
            _check_tool(spec, call, question)
        if not (question.is_own or _may_answer(spec) or await _is_kept(store, said.approval_request_id, spec, now)):
            raise _refuse_forbidden(said)


def check_content(said: ApprovalResponse, question: ApprovalQuestion) -> None:
    """Raises `InvalidRequest` unless the answer has the fields that were asked for, and none that were not."""
    asked = {} if isinstance(question.elicitation, UnsetType) else question.elicitation
    wanted = asked.get("requested_schema")
    if not isinstance(wanted, dict) or not said.approve:
        if said.content:
            message = f"`{said.approval_request_id}` asks for no content; leave `content` out"
            raise InvalidRequest(message, param="content", code=BAD_CONTENT)
        return
    if found := list_flaws(wanted, said.content or {}):
        message = f"the answer to `{said.approval_request_id}` is not what is asked for: {'; '.join(found[:5])}"
        raise InvalidRequest(message, param="content", code=BAD_CONTENT)


def make_answer(
    said: ApprovalResponse, run: str, tenant: str, now: float, *, by: str, reason: str = "", used: bool = True
) -> Document:
    """The answer as it is kept for a run. Once it is used, the reason is in that run's log, and only there."""
    # What a form was filled in with is in that log as well.
    content = UNSET if used else said.content
    body = ApprovalAnswer(run, said.approve, now, by, reason, used, content)
    return Document(GIVEN, said.approval_request_id, encode(body), tenant)


def _check_tool(spec: RunSpec, call: FunctionCall, question: ApprovalQuestion) -> None:
    """Raises `InvalidRequest` if the run to come lacks the tool, or has another one by its name: the approval would be wasted."""
    tool, kept = spec.tool(call.name), "The approval is not used up"
    if tool is None:
        told = [item.data.get("error") for item in spec.listed if isinstance(item, Unknown)]
        why = "".join([f"; an MCP server failed: {error}" for error in told if error])
        message = (
            f"`{call.name}` was approved, and is none of the tools that this request has{why}. {kept}: send it again with the "
            "tool, or refuse the call"
        )
        raise InvalidRequest(message, param="tools", code=TOOL_MISSING)
    if digest_declaration(tool) != question.declared:
        message = (
            f"`{call.name}` takes or does something else now than when it was asked about. {kept}: bring the tool back, or "
            "refuse the call and have it made again"
        )
        raise InvalidRequest(message, param="tools", code=TOOL_CHANGED)


def _may_answer(spec: RunSpec) -> bool:
    return spec.caller.scopes is None or not {"*", APPROVE}.isdisjoint(spec.caller.scopes)


def _refuse_changed(call: FunctionCall, id: str) -> InvalidRequest:
    message = (
        f"The call of `{call.name}` that waits here is not the one that `{id}` asks about: its tool or its "
        "arguments have been changed since. Have the call made again to be asked anew."
    )
    return InvalidRequest(message, param="input", code=CALL_CHANGED)


def _refuse_forbidden(said: ApprovalResponse) -> InvalidRequest:
    message = (
        f"`{said.approval_request_id}` is asked by a rule of this server, and this API key lacks the scope `{APPROVE}`; have it "
        f"answered with a key that has it: POST /v1/approvals/{said.approval_request_id}"
    )
    return InvalidRequest(message, param="input", code=NOT_ALLOWED)


def refuse_spent(id: str) -> InvalidRequest:
    return InvalidRequest(
        f"This approval has been given already, or refused; an answer to `{id}` counts once.", param="input", code=SPENT
    )


def refuse_expired(id: str) -> InvalidRequest:
    message = f"The approval request `{id}` has expired, so it can only be refused; have the call made again to be asked anew."
    return InvalidRequest(message, param="input", code=EXPIRED)


async def _find_asked(store: Store, spec: RunSpec, id: str) -> ApprovalQuestion | None:
    """The question, if it is the tenant's, was asked where the run goes on, and the run that asks has not been deleted."""
    found = await store.get(ASKED, id, tenant=spec.tenant)
    question = None if found is None else decode(found.body, ApprovalQuestion)
    place = "" if spec.conversation is None else spec.conversation.id
    if question is None or spec.parent not in (None, question.run) or place != question.conversation:
        return None
    if question.is_stored:
        try:
            await store.load(question.run)
        except NotFound:
            return None
    return question


async def _is_kept(store: Store, id: str, spec: RunSpec, now: float) -> bool:
    """Whether the answer that is there was kept for this run, which has not begun."""
    found = await store.get(GIVEN, id, tenant=spec.tenant)
    return found is not None and await is_open_for(store, decode(found.body, ApprovalAnswer), spec.id, now)


async def is_open_for(store: Store, answer: ApprovalAnswer, run_id: str, now: float) -> bool:
    """Whether the run may act on this answer: it was kept for that, and whoever used it may have died before the run began. Of an
    old one that is not known: the run may have been pruned."""
    if answer.run != run_id or not answer.used:
        return answer.run == run_id
    if now > answer.at + AGAIN_SECONDS:
        return False
    try:
        await store.load(run_id)
    except NotFound:
        return True
    return False
