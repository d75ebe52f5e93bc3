"""Whose things a request is about: those of its own tenant, or of one that an operator chooses."""

from typing import Final

from starlette.requests import Request

from mainspring.http.auth import get_caller
from mainspring.http.endpoints import Parameter
from mainspring.http.faults import Fault

TENANT: Final = Parameter("tenant")


def choose_tenant(request: Request) -> str | None:
    """The tenant of the query, for operators; None is every one. Others have their own. Raises `Fault` 403."""
    caller, wanted = get_caller(request), request.query_params.get("tenant")
    if caller.is_operator:
        return wanted
    if wanted not in (None, caller.tenant):
        message = "this API key is for one tenant; a key of the default tenant with the scope `admin` is for all"
        raise Fault(403, "insufficient_scope", message, param="tenant")
    return caller.tenant
