"""Whose things a request is about: those of its own tenant, or of one that an operator chooses."""

from typing import Final

from starlette.requests import Request

from mainspring.core.errors import NotFound
from mainspring.engine.engine import Engine
from mainspring.engine.handle import Handle
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


async def find_run(request: Request, engine: Engine) -> Handle:
    """The run that the path names. One of another tenant does not exist, but for operators. Raises `NotFound`."""
    run_id, caller = str(request.path_params["run_id"]), get_caller(request)
    missing = NotFound(f"there is no run `{run_id}`; list them with GET /v1/runs", param="run_id")
    try:
        handle = await engine.attach(run_id)
    except NotFound:
        raise missing from None
    if handle.run.spec.tenant != caller.tenant and not caller.is_operator:
        raise missing
    return handle


def require_operator(request: Request) -> None:
    """Raises `Fault` 403 for what is not for a tenant to see or decide, unless an operator asks."""
    if not get_caller(request).is_operator:
        message = "this is for operators; a key of the default tenant with the scope `admin` is needed here"
        raise Fault(403, "insufficient_scope", message)
