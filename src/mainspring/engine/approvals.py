"""Approvals: a call waits for a person, who says yes or no once and in time.

Theory of operation. A run that stops for a person leaves a document for each call it asks about: which run asks, since when, and
until when. An answer is a document too. It is put only where none is, so an answer counts once, by whatever door it comes; and it
is put before the run that acts on it begins. `take` is the one place where that happens, and where an answer that comes too late
is refused. What was asked is not in these documents: it is in the log of the run that asks, and goes with it.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from msgspec import Struct

from mainspring.errors import InvalidRequest
from mainspring.events import Reason
from mainspring.items import ApprovalResponse, FunctionCall, Item, Json, Unknown, decode, encode
from mainspring.loop.history import approval_id
from mainspring.loop.run import Run
from mainspring.ports import Document, Store
from mainspring.spec import RunSpec

ASKED: Final = "approval_request"
GIVEN: Final = "approval"

EXPIRED: Final = "approval_expired"
SPENT: Final = "approval_already_given"
TOOL_MISSING: Final = "approved_tool_missing"

State = Literal["pending", "approved", "refused", "expired"]


class Asked(Struct, frozen=True):
    """That a run asks, and the budget that it is under. After `until` nobody can approve any more; None is never."""

    run: str
    at: float
    until: float | None = None
    budget: Json | None = None


class Given(Struct, frozen=True):
    """An answer, and the run that acts on it. One that is not `used` waits for the answers to the run's other questions."""

    run: str
    approve: bool
    at: float
    by: str = ""
    reason: str = ""
    used: bool = True


def asked(run: Run) -> tuple[Document, ...]:
    """What a run leaves when it ends: a document for each call that waits for a person."""
    if run.reason is not Reason.APPROVAL_NEEDED:
        return ()
    seconds = run.spec.limits.approval_seconds
    body = encode(Asked(run.spec.id, run.clock, None if seconds is None else run.clock + seconds, run.spec.budget))
    return tuple([Document(ASKED, approval_id(call.item), body, run.spec.tenant) for call in run.calls if call.verdict == "ask"])


def state_of(question: Asked, answer: Given | None, now: float) -> State:
    is_late = question.until is not None and now >= question.until
    if answer is not None and (answer.used or not is_late):
        return "approved" if answer.approve else "refused"
    return "expired" if is_late else "pending"


async def asked_by(store: Store, items: Iterable[Item], tenant: str) -> Asked | None:
    """The question that these items answer, None if they answer none. All of a run's are alike but for the call."""
    for item in items:
        if isinstance(item, ApprovalResponse):
            found = await store.get(ASKED, item.approval_request_id, tenant=tenant)
            if found is not None:
                return decode(found.body, Asked)
    return None


async def take(store: Store, spec: RunSpec, answers: Sequence[ApprovalResponse], now: float) -> None:
    """Uses these answers up for a run that is about to begin. Raises `InvalidRequest`, and then the run must not."""
    for said in answers:
        await _check(store, spec, said, now)
    used = [given_by(said, spec.id, spec.tenant, now, by=spec.caller.subject) for said in answers]
    if await store.put(used, if_absent=True):
        return
    for document in used:
        if not await _is_for(store, document, spec.id):
            raise spent(document.id)
    await store.put(used)


def given_by(
    said: ApprovalResponse, run: str, tenant: str, now: float, *, by: str, reason: str = "", used: bool = True
) -> Document:
    """The answer as it is kept for a run. Once it is used, the reason is in that run's log, and only there."""
    return Document(GIVEN, said.approval_request_id, encode(Given(run, said.approve, now, by, reason, used)), tenant)


def check_tool(spec: RunSpec, call: FunctionCall, answers: Sequence[ApprovalResponse]) -> None:
    """Raises `InvalidRequest` if the call is approved and the run to come lacks its tool: the approval would be wasted."""
    is_approved = any(said.approve and said.approval_request_id == approval_id(call) for said in answers)
    if is_approved and spec.tool(call.name) is None:
        told = [item.data.get("error") for item in spec.listed if isinstance(item, Unknown)]
        why = "".join([f"; an MCP server failed: {error}" for error in told if error])
        message = (
            f"`{call.name}` was approved, and is none of the tools that this request has{why}. The approval is not used up: send "
            "it again with the tool, or refuse the call"
        )
        raise InvalidRequest(message, param="tools", code=TOOL_MISSING)


def spent(id: str) -> InvalidRequest:
    return InvalidRequest(
        f"This approval has been given already, or refused; an answer to `{id}` counts once.", param="input", code=SPENT
    )


def expired(id: str) -> InvalidRequest:
    message = f"The approval request `{id}` has expired, so it can only be refused; have the call made again to be asked anew."
    return InvalidRequest(message, param="input", code=EXPIRED)


async def _check(store: Store, spec: RunSpec, said: ApprovalResponse, now: float) -> None:
    found = await store.get(ASKED, said.approval_request_id, tenant=spec.tenant)
    question = None if found is None else decode(found.body, Asked)
    if question is None or spec.parent not in (None, question.run):
        raise InvalidRequest(f"No approval request {said.approval_request_id} is waiting here.", param="input")
    if said.approve and question.until is not None and now >= question.until:
        raise expired(said.approval_request_id)


async def _is_for(store: Store, document: Document, run: str) -> bool:
    """Whether the answer that is there was kept for this run, which has not begun."""
    found = await store.get(GIVEN, document.id, tenant=document.tenant)
    if found is None:
        return False
    answer = decode(found.body, Given)
    return answer.run == run and not answer.used
