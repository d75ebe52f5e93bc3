"""Approvals as forms: what waits for a person is shown by the client, and a yes counts only for the call that was shown.

A form has one field, `answer`, with two choices: `deny`, and `approve` with the digest of the call's arguments. Nothing is
preselected. So a client that accepts a form without a person's choice approves nothing, and neither does one that answers for
another call. A call that a form cannot show whole can only be denied in it. The answer goes into the one record of approvals,
by whatever process it comes in.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json
from mainspring.engine.approvals import SPENT
from mainspring.features.approvals.pending import Approval, Approvals
from mainspring.features.mcp_server.messages import INVALID_PARAMS, RpcError
from mainspring.features.mcp_server.peer import Peer

ELICIT: Final = "elicitation/create"
DENY: Final = "deny"
_MOST_ARGUMENTS = 4_000

Outcome = Literal["answered", "left"]


def may_answer(peer: Peer) -> bool:
    """Whether the person behind this client can be asked, and may say yes."""
    return peer.takes_forms and peer.caller.may("approvals")


def approving(approval: Approval) -> str:
    """The choice that approves this call and no other."""
    return f"approve {approval.digest}"


def list_choices(approval: Approval) -> list[str]:
    """What a form lets a person choose. What is not shown whole, or wants fields of its own, is not approved in one."""
    has_fields = isinstance(approval.elicitation, dict) and "requested_schema" in approval.elicitation
    return [DENY] if has_fields or len(approval.arguments) > _MOST_ARGUMENTS else [DENY, approving(approval)]


def render_form(approval: Approval, revision: str) -> Json:
    """The parameters of `elicitation/create` for a call that waits."""
    arguments, choices = approval.arguments, list_choices(approval)
    if len(arguments) > _MOST_ARGUMENTS:
        arguments = f"{arguments[:_MOST_ARGUMENTS]}... ({len(arguments)} characters in all)"
    if len(choices) == 1:
        arguments += f"\nIt cannot be approved here: do so in the console, or with `mainspring approvals approve {approval.id}`."
    why = f"\nWhy it is asked: {approval.question}" if approval.question else ""
    message = f"May `{approval.tool}` be called with these arguments?\n{arguments}\nDigest: {approval.digest}{why}"
    answer = {"type": "string", "title": "Answer", "enum": choices}
    form: Json = {
        "message": message,
        "requestedSchema": {"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
    }
    return form if revision < "2025-11-25" else {"mode": "form", **form}


def render_requests(waiting: Sequence[Approval], revision: str) -> Json:
    """Questions by the ids of their approvals, as results have them that need input."""
    return {each.id: {"method": ELICIT, "params": render_form(each, revision)} for each in waiting}


async def list_waiting(approvals: Approvals, ids: Sequence[str], tenant: str) -> list[Approval]:
    """Those of these approvals that nobody has answered yet."""
    found = []
    for id in ids:
        try:
            approval = await approvals.get(id, tenant=tenant)
        except NotFound:
            continue
        if approval.state == "pending":
            found.append(approval)
    return found


async def take_answers(approvals: Approvals, waiting: Sequence[Approval], responses: object, peer: Peer) -> bool:
    """Answers what these responses say something of; those to anything else are ignored. Returns whether a person has left a
    form unanswered. Raises `RpcError` if they are no responses."""
    if not isinstance(responses, dict):
        raise RpcError(INVALID_PARAMS, "`inputResponses` must be an object with an answer for each id of `inputRequests`")
    has_left = False
    for approval in waiting:
        if approval.id in responses:
            has_left |= await take_answer(approvals, approval, responses[approval.id], peer) == "left"
    return has_left


async def take_answer(approvals: Approvals, approval: Approval, response: Any, peer: Peer) -> Outcome:
    """Has a response count, unless the person dismissed the form or chose nothing. Raises `RpcError` for what is no response."""
    if not peer.caller.may("approvals"):
        raise RpcError(INVALID_PARAMS, "answering an approval needs a key with the scope `approvals`")
    match response:
        case {"action": "accept", "content": Mapping() as content}:
            chosen = content.get("answer")
        case {"action": "accept"}:
            chosen = None
        case {"action": "decline"}:
            chosen = DENY
        case {"action": "cancel"}:
            return "left"
        case _:
            raise RpcError(INVALID_PARAMS, "an answer has an `action`: `accept` with `content`, `decline` or `cancel`")
    if chosen not in list_choices(approval):
        return "left"
    try:
        await approvals.answer(
            approval.id,
            approve=chosen != DENY,
            digest=approval.digest,
            tenant=peer.caller.tenant,
            by=peer.caller.subject,
        )
    except InvalidRequest as error:
        if error.code != SPENT:  # else somebody was quicker
            raise RpcError(INVALID_PARAMS, error.message, {"code": error.code}) from None
    return "answered"
