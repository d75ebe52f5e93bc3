"""`/v1/approvals`: what waits for a person, and the answer to it."""

from typing import Annotated, get_args

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.core.response import Response
from mainspring.engine.approvals import EXPIRED, SPENT, State
from mainspring.features.approvals.pending import AnsweredApproval, Approval, Approvals
from mainspring.http.auth import get_caller
from mainspring.http.bodies import Name, parse_body, read_json_body
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint, Parameter
from mainspring.http.faults import Fault, json_response
from mainspring.http.queries import CURSOR, Page, make_page, read_choice, read_cursor
from mainspring.http.run_replies import choose_dialect, raise_failure, wait_for_end
from mainspring.http.tenants import TENANT, choose_tenant
from mainspring.http.wire import Dialect, render_response

_STATES: dict[str, State] = {state: state for state in get_args(State)}
_PATH = "/v1/approvals/{approval_id}"
_QUERY = (*CURSOR, Parameter("state", {"enum": list(_STATES)}), TENANT)
_ERRORS = (409, 410, *MODEL_ERRORS)
_STATUSES = {SPENT: 409, EXPIRED: 410}


class AnswerApproval(Struct, forbid_unknown_fields=True):
    """The body of `POST /v1/approvals/{approval_id}`. With a `digest`, only the call that has it is answered. `content` are the
    fields of the form, if an MCP server has sent one."""

    approve: bool
    reason: Annotated[str, Meta(max_length=4096)] | None = None
    digest: Name | None = None
    content: Json | None = None
    background: bool | None = None


class ApprovalRoutes:
    """Every endpoint under `/v1/approvals`."""

    def __init__(self, approvals: Approvals, dialect: Dialect) -> None:
        self._approvals, self._dialect = approvals, dialect

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", "/v1/approvals", self.list, "approvals", Page, query=_QUERY),
            Endpoint("GET", _PATH, self.retrieve, "approvals", Approval, query=(TENANT,)),
            Endpoint(
                "POST",
                _PATH,
                self.answer,
                "approvals",
                Response,
                AnswerApproval,
                query=(TENANT,),
                errors=_ERRORS,
                accepted=Approval,
            ),
        )

    async def list(self, request: Request) -> HttpResponse:
        """Lists the calls that wait, or have waited, for a person's approval, newest first."""
        cursor = read_cursor(request)
        found = await self._approvals.list(
            tenant=_tenant(request),
            state=read_choice(request, "state", _STATES),
            limit=cursor.limit,
            after=cursor.after,
            newest_first=cursor.newest_first,
        )
        ids = [approval.id for approval in found.approvals]
        return json_response(make_page(found.approvals, ids, has_more=found.has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves one call that waits, or has waited, for a person's approval."""
        return json_response(await self._approvals.get(_id(request), tenant=_tenant(request)))

    async def answer(self, request: Request) -> HttpResponse:
        """Approves or refuses a call. Returns the continued response, or the approval (202) while other calls of it wait."""
        body = parse_body(await read_json_body(request), AnswerApproval)
        answered = await self._answer(request, body)
        if (handle := answered.handle) is None:
            return json_response(answered.approval, 202)
        if body.background is False:
            await wait_for_end(handle, request)
            raise_failure(handle.run)
        return json_response(render_response(handle.response, choose_dialect(request, self._dialect)))

    async def _answer(self, request: Request, body: AnswerApproval) -> AnsweredApproval:
        caller = get_caller(request)
        try:
            return await self._approvals.answer(
                _id(request),
                approve=body.approve,
                reason=body.reason,
                digest=body.digest,
                content=body.content,
                tenant=_tenant(request),
                by=caller.subject,
                background=body.background is not False,
            )
        except InvalidRequest as error:
            if (status := _STATUSES.get(error.code)) is None:
                raise
            raise Fault(status, error.code, error.message, param="approval_id") from None


def _tenant(request: Request) -> str:
    """Whose approvals these are: an operator may name a tenant, and else has the default one."""
    return choose_tenant(request) or ""


def _id(request: Request) -> str:
    return str(request.path_params["approval_id"])
