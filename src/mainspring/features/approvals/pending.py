"""Approvals: listed, shown, and answered without the client that started the run.

Answering continues the run that asked: same model, tools, instructions and limits, with the answers as input. The id of the
continuing run follows from that of the paused one, so the store lets it start once, however often and from wherever it is
started. A run that asks about several calls continues when the last of them is answered.
"""

import time
from collections.abc import AsyncIterator, Collection, Mapping
from typing import Final

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest, NotFound, PreviousNotFound, Superseded
from mainspring.core.events import CallJudged, Reason, RunStarted
from mainspring.core.history import ASKED
from mainspring.core.items import ApprovalRequest, ApprovalResponse, Json, ServerTool, Tool, ToolDefinition, decode
from mainspring.core.redact import redact_arguments, redact_text
from mainspring.core.spec import Caller, Conversation, RunSpec
from mainspring.engine.approvals import (
    GIVEN,
    ApprovalAnswer,
    ApprovalQuestion,
    State,
    continuing_id,
    is_open_for,
    make_answer,
    refuse_expired,
    refuse_spent,
    state_of,
    withdraw,
)
from mainspring.engine.audit import digest_of
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
from mainspring.engine.journal import Clock
from mainspring.ports import PAGE_BYTES, Document, OrderContext, OrderStep

BATCH: Final = 100
ELSEWHERE: Final = "answer_by_response"


class Approval(Struct, frozen=True):
    """A call that waits, or has waited, for a person. `arguments` are without secrets, `digest` is that of all of them.

    `response_id` is the run that asks, `policy` and `question` say which rule wants it, and why. `continued_by` is the run that
    acts on the answer, once there is one. `elicitation` is what the call's MCP server wants to know, if it is that which asks.
    """

    id: str
    response_id: str
    tool: str
    server_label: str
    arguments: str
    digest: str
    policy: str
    question: str
    asked_at: float
    expires_at: float | None
    state: State
    continued_by: str | None = None
    elicitation: Json | UnsetType = UNSET
    object: str = "approval"


class ApprovalDeadlineStep(OrderStep):
    """Bounds how long the calls of a run wait for a person, by the operator's limit or the order's own if that is shorter."""

    name = "approval deadline"
    runs_in_place = True

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        seconds = min(order.limits.approval_seconds or self._seconds, self._seconds)
        return replace(order, limits=replace(order.limits, approval_seconds=seconds))


class ApprovalPage(Struct, frozen=True):
    approvals: tuple[Approval, ...]
    has_more: bool = False


class AnsweredApproval(Struct, frozen=True):
    """The approval as it stands now, and the run that goes on; none if other calls of the paused run still wait."""

    approval: Approval
    handle: Handle | None = None


class _Paused(Struct, frozen=True):
    """A run that asks: its order, its questions, the verdicts behind them by call, and what else it waits for."""

    spec: RunSpec
    requests: tuple[ApprovalRequest, ...]
    verdicts: Mapping[object, CallJudged]
    others: tuple[str, ...]


async def cancel_with_questions(engine: Engine, run_id: str, reason: str) -> None:
    """Cancels a run, what it asks, and the runs that continue it after an answer. Raises `NotFound`."""
    run = await engine.cancel(run_id)
    while run.reason is Reason.APPROVAL_NEEDED:
        await withdraw(engine.store, run, reason, time.time())
        try:
            run = await engine.cancel(continuing_id(run.spec.id))
        except NotFound:
            return


class Approvals:
    """The approvals of an engine's store. `labels` are the MCP servers that its runs have without being given them."""

    def __init__(self, engine: Engine, labels: Collection[str] = (), clock: Clock = time.time) -> None:
        self._engine = engine
        self._store = engine.store
        self._labels = frozenset(labels)
        self._clock = clock

    async def list(
        self,
        *,
        tenant: str = "",
        state: State | None = None,
        limit: int = 20,
        after: str | None = None,
        newest_first: bool = True,
    ) -> ApprovalPage:
        """Those of a tenant, in the order they were asked; `after` is the id of the last one seen. Raises `NotFound` for it."""
        number = None if after is None else (await self._find_question(after, tenant, "after")).number
        found: list[Approval] = []
        size = 0
        async for document in self._documents(tenant, number, newest_first):
            if (approval := await self._read_approval(document, state)) is None:
                continue
            if len(found) == limit or size > PAGE_BYTES:
                return ApprovalPage(tuple(found), has_more=True)
            found.append(approval)
            size += len(approval.arguments)
        return ApprovalPage(tuple(found))

    async def get(self, id: str, *, tenant: str = "") -> Approval:
        """Raises `NotFound`, also for one of another tenant, and for one whose run has been deleted."""
        approval = await self._read_approval(await self._find_question(id, tenant))
        if approval is None:
            raise _not_found(id)
        return approval

    async def answer(
        self,
        id: str,
        *,
        approve: bool,
        reason: str | None = None,
        content: Json | None = None,
        digest: str | None = None,
        tenant: str = "",
        by: str = "",
        background: bool = True,
    ) -> AnsweredApproval:
        """Says yes or no, and continues the run if nothing else is open. `digest` must be that of the call, if it is given.

        Raises `NotFound`, and `InvalidRequest` if the call was answered before (`SPENT`), can be approved no more (`EXPIRED`),
        is another one than was meant, or has to be answered through the Responses API.
        """
        approval = await self.get(id, tenant=tenant)
        if digest is not None and digest != approval.digest:
            message = f"the arguments of `{id}` have the digest {approval.digest}, not {digest[:80]}; look at the call again"
            raise InvalidRequest(message, param="digest", code="digest_mismatch")
        if approve and approval.state == "expired":
            raise refuse_expired(id)
        paused = await self._read_paused(approval.response_id)
        order, said = self._continuation(paused, by, background), ApprovalResponse(id, approve, reason, content=content)
        await self._check(order, paused, said)
        fresh = await self._keep(said, order)
        answers = await self._answers(paused, order)
        if len(answers) < len(paused.requests):
            if not fresh:
                raise refuse_spent(id)
            return AnsweredApproval(await self.get(id, tenant=tenant))
        try:
            handle = await self._engine.start(replace(order, input=answers))
        except (InvalidRequest, Superseded) as error:
            # The run that goes on has an id that follows from this one's: somebody was quicker.
            raise refuse_spent(id) if error.param == "id" or isinstance(error, Superseded) else error from None
        return AnsweredApproval(await self.get(id, tenant=tenant), handle)

    async def _check(self, order: RunSpec, paused: _Paused, said: ApprovalResponse) -> None:
        """Raises `InvalidRequest` before the answer is kept if the run that goes on could not act on it."""
        known = await self._find_answer(said.approval_request_id, order.tenant)
        if known is not None and known.used and not await is_open_for(self._store, known, order.id, self._clock()):
            raise refuse_spent(said.approval_request_id)
        joining = [tool for tool in paused.spec.tools if _server(tool) is not None]
        try:
            # Who asks for this has been let in here, whatever the scopes are that the run goes on with.
            await self._engine.check_answer(replace(order, tools=(*order.tools, *joining), caller=Caller()), said)
        except PreviousNotFound:
            raise _not_found(said.approval_request_id) from None

    async def _documents(self, tenant: str, number: int | None, newest_first: bool) -> AsyncIterator[Document]:
        while documents := await self._store.documents(
            ASKED, tenant=tenant, after=number, limit=BATCH, newest_first=newest_first
        ):
            for document in documents:
                yield document
            number = documents[-1].number

    async def _find_question(self, id: str, tenant: str, param: str = "approval_id") -> Document:
        if (found := await self._store.get(ASKED, id, tenant=tenant)) is None:
            raise _not_found(id, param)
        return found

    async def _find_answer(self, id: str, tenant: str) -> ApprovalAnswer | None:
        found = await self._store.get(GIVEN, id, tenant=tenant)
        return None if found is None else decode(found.body, ApprovalAnswer)

    async def _read_approval(self, document: Document, wanted: State | None = None) -> Approval | None:
        """What the document stands for; None if that is in another state, or its run is gone."""
        question, answer = decode(document.body, ApprovalQuestion), await self._find_answer(document.id, document.tenant)
        state = state_of(question, answer, self._clock())
        if wanted not in (None, state):
            return None
        try:
            paused = await self._read_paused(question.run)
        except NotFound:
            return None
        request = next((request for request in paused.requests if request.id == document.id), None)
        if request is None:
            return None
        verdict = paused.verdicts[request.call_id]
        return Approval(
            id=request.id,
            response_id=question.run,
            tool=request.name,
            server_label=request.server_label,
            arguments=redact_arguments(request.arguments),
            digest=digest_of(request.arguments),
            policy=verdict.policy,
            question=redact_text(verdict.reason),
            asked_at=question.at,
            expires_at=question.until,
            state=state,
            continued_by=(answer.run or None) if answer is not None and answer.used else None,
            elicitation=question.elicitation,
        )

    async def _read_paused(self, run_id: str) -> _Paused:
        log = await self._store.events(run_id)
        told = (await self._store.load(run_id)).response
        first = log[0].event
        assert isinstance(first, RunStarted)
        if told is None:
            raise _not_found(run_id)
        judged = [record.event for record in log if isinstance(record.event, CallJudged)]
        waiting = told.required_input or ()
        return _Paused(
            first.spec,
            tuple([item for item in told.output if isinstance(item, ApprovalRequest)]),
            {event.call_id: event for event in judged if event.verdict == "ask"},
            tuple([str(stub.get("name")) for stub in waiting if stub["type"] != "mcp_approval_response"]),
        )

    def _continuation(self, paused: _Paused, by: str, background: bool) -> RunSpec:
        """The order for the run that goes on, but for its input. Raises `InvalidRequest` if only the client can give it."""
        spec = paused.spec
        if paused.others:
            names = ", ".join([f"`{name}`" for name in paused.others])
            raise _clients_own(spec.id, f"also waits for its client's output of {names}")
        if strangers := sorted(_labels(spec) - self._labels):
            names = ", ".join([f"`{label}`" for label in strangers])
            raise _clients_own(spec.id, f"uses the MCP servers {names}, which the request brought, with credentials")
        conversation = None if spec.conversation is None else Conversation(spec.conversation.id)
        choice = spec.tool_choice
        return replace(
            spec,
            id=continuing_id(spec.id),
            # The tools of MCP servers join again, as the servers have them now; our own are there as they are now.
            tools=tuple([now for tool in spec.tools if _server(tool) is None and (now := self._present(tool)) is not None]),
            # A call was required, and made.
            tool_choice=replace(choice, mode="auto", name=None) if choice.mode == "required" else choice,
            parent=spec.id if conversation is None else None,
            conversation=conversation,
            background=background,
            caller=Caller(by or spec.caller.subject, spec.caller.scopes),
            # Whoever approves lends nobody their own sign-ins.
            on_behalf_of=spec.user,
            listed=(),
        )

    def _present(self, tool: Tool) -> Tool | None:
        """The tool as this engine has it now, None if it has it no more. What the client brought is as the client brought it."""
        if not isinstance(tool, ToolDefinition) or tool.kind == "function":
            return tool
        known = next((known for known in self._engine.definitions if known.name == tool.name), None)
        if known is None:
            return tool if self._engine.can_perform(tool) else None
        return replace(known, form=tool.form, server=tool.server, asks=tool.asks or known.asks)

    async def _keep(self, said: ApprovalResponse, order: RunSpec) -> bool:
        """Keeps the answer for the run that goes on, and says whether it is a new one. Raises if there is another."""
        reason = said.reason or ""
        document = make_answer(said, order.id, order.tenant, self._clock(), by=order.caller.subject, reason=reason, used=False)
        if await self._store.put([document], if_absent=True):
            return True
        known = await self._find_answer(said.approval_request_id, order.tenant)
        # Whoever gave the same answer may have died before the run began.
        if (
            known is None
            or known.approve is not said.approve
            or not await is_open_for(self._store, known, order.id, self._clock())
        ):
            raise refuse_spent(said.approval_request_id)
        return False

    async def _answers(self, paused: _Paused, order: RunSpec) -> tuple[ApprovalResponse, ...]:
        answers = []
        for request in paused.requests:
            known = await self._find_answer(request.id, order.tenant)
            if known is not None and known.run == order.id:
                answers.append(ApprovalResponse(request.id, known.approve, known.reason or None, content=known.content))
        return tuple(answers)


def _server(tool: Tool) -> ServerTool | None:
    """The MCP server that the tool is of. A container is none, though its tool names it in the same way."""
    if isinstance(tool, ToolDefinition) and tool.kind != "mcp":
        return None
    return tool.server if isinstance(tool, ToolDefinition) and isinstance(tool.server, ServerTool) else None


def _labels(spec: RunSpec) -> set[str]:
    return {server.label for tool in spec.tools if (server := _server(tool)) is not None}


def _not_found(id: str, param: str = "approval_id") -> NotFound:
    return NotFound(f"Approval with id '{id}' not found.", param=param)


def _clients_own(run_id: str, why: str) -> InvalidRequest:
    message = f"response `{run_id}` {why}; answer with an mcp_approval_response in POST /v1/responses, with its `tools`"
    return InvalidRequest(message, param="approval_id", code=ELSEWHERE)
