"""Approvals as forms: what waits for a person is shown by the client, and a yes counts only for the call that was shown.

A form that asks for an approval has one field, `answer`, with two choices: `deny`, and `approve` with the digest of the call's
arguments. Nothing is preselected. So a client that accepts a form without a person's choice approves nothing, and neither does
one that answers for another call. A call that a form cannot show whole can only be denied in it.

What the MCP server of a call asks is passed on as it asks it: a form with its fields, or a link. That is the business of whoever
made the call, and needs no scope. Either answer goes into the one record of approvals, by whatever process it comes in.
"""

from collections.abc import Sequence
from typing import Any, Final, Literal

from msgspec import Struct, UnsetType

from mainspring.core.elicitation import describe_question
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import Json
from mainspring.engine.approvals import SPENT
from mainspring.features.approvals.pending import Approval, Approvals
from mainspring.features.mcp_server.client_messages import INVALID_PARAMS, RpcError
from mainspring.features.mcp_server.peer import Peer

ELICIT: Final = "elicitation/create"
DENY: Final = "deny"
_MOST_ARGUMENTS = 4_000
_WITH_MODES = "2025-11-25"

Outcome = Literal["answered", "left"]


class _Said(Struct, frozen=True):
    """What a person has said to a question. `content` is what a form was filled in with."""

    approve: bool
    content: Json | None = None


def can_ask(approval: Approval, peer: Peer) -> bool:
    """Whether the person behind this client can be shown the question, and may say yes."""
    match approval.elicitation:
        case UnsetType():
            return peer.takes_forms and peer.caller.may("approvals")
        case {"mode": "url"}:
            return peer.takes_links and peer.revision >= _WITH_MODES
        case {"requested_schema": {"properties": dict(fields)}}:
            return peer.takes_forms and (peer.revision >= _WITH_MODES or not any(_is_newer(each) for each in fields.values()))
        case _:
            return False


def _is_newer(field: Json) -> bool:
    """Whether clients of protocols before 2025-11-25 cannot draw the field."""
    return field.get("type") == "array" or "oneOf" in field or "anyOf" in field


def approving(approval: Approval) -> str:
    """The choice that approves this call and no other."""
    return f"approve {approval.digest}"


def list_choices(approval: Approval) -> list[str]:
    """What a form lets a person choose. A call that it does not show whole is not approved in it."""
    return [DENY] if len(approval.arguments) > _MOST_ARGUMENTS else [DENY, approving(approval)]


def render_form(approval: Approval, revision: str) -> Json:
    """The parameters of `elicitation/create` for a call that waits."""
    match approval.elicitation:
        case UnsetType():
            form = _render_approval(approval)
        case asked:
            message = f"{describe_question(asked)}\n(It works on a call of `{approval.tool}`.)"
            if asked["mode"] == "url":
                named = {"elicitationId": approval.id} if revision == _WITH_MODES else {}
                return {"mode": "url", "message": message, "url": asked["url"], **named}
            form = {"message": message, "requestedSchema": asked["requested_schema"]}
    return form if revision < _WITH_MODES else {"mode": "form", **form}


def _render_approval(approval: Approval) -> Json:
    arguments, choices = approval.arguments, list_choices(approval)
    if len(choices) == 1:
        arguments = f"{arguments[:_MOST_ARGUMENTS]}... ({len(arguments)} characters in all)"
        arguments += f"\nIt cannot be approved here: do so in the console, or with `mainspring approvals approve {approval.id}`."
    why = f"\nWhy it is asked: {approval.question}" if approval.question else ""
    message = f"May `{approval.tool}` be called with these arguments?\n{arguments}\nDigest: {approval.digest}{why}"
    answer = {"type": "string", "title": "Answer", "enum": choices}
    return {
        "message": message,
        "requestedSchema": {"type": "object", "properties": {"answer": answer}, "required": ["answer"]},
    }


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
    """Has a response count, unless the person dismissed the form or chose nothing. Raises `RpcError` for what is no response, or
    none to this question."""
    if isinstance(approval.elicitation, UnsetType) and not peer.caller.may("approvals"):
        raise RpcError(INVALID_PARAMS, "answering an approval needs a key with the scope `approvals`")
    if (said := _read_response(approval, response)) is None:
        return "left"
    try:
        await approvals.answer(
            approval.id,
            approve=said.approve,
            content=said.content,
            digest=approval.digest,
            tenant=peer.caller.tenant,
            by=peer.caller.subject,
        )
    except InvalidRequest as error:
        if error.code != SPENT:  # else somebody was quicker
            raise RpcError(INVALID_PARAMS, error.message, {"code": error.code}) from None
    return "answered"


def _read_response(approval: Approval, response: Any) -> _Said | None:
    match response:
        case {"action": "accept", "content": dict(content)}:
            pass
        case {"action": "accept"}:
            content = {}
        case {"action": "decline"}:
            return _Said(approve=False)
        case {"action": "cancel"}:
            return None
        case _:
            raise RpcError(INVALID_PARAMS, "an answer has an `action`: `accept` with `content`, `decline` or `cancel`")
    if not isinstance(approval.elicitation, UnsetType):
        return _Said(approve=True, content=content or None)
    chosen = content.get("answer")
    return _Said(approve=chosen != DENY) if chosen in list_choices(approval) else None
