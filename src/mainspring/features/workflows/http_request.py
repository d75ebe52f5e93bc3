"""The tool `http_request` for steps of workflows. Models are not offered it.

It connects as `web_fetch` does: only to checked addresses, public ones or those of hosts that the operator has allowed.
Redirects are not followed; the step sees them.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from mainspring.core.items import Effect, Json, Purpose
from mainspring.late_module import LateModule
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.contract import ToolContext, ToolResult

# Brings along an HTTP client.
if TYPE_CHECKING:
    from mainspring.features.workflows import request_sender
else:
    request_sender = LateModule("mainspring.features.workflows.request_sender")

SECONDS = 60.0
_READS: tuple[Effect, ...] = ("read", "network")
_WRITES: tuple[Effect, ...] = ("write", "network")


class HttpRequestTool:
    """Sends one request. `guard` allows hosts that are not public; `flaw` returns why a URL is not allowed."""

    name = "http_request"
    description = "Sends an HTTP request and returns status, headers and body."
    parameters_schema: Json = {  # noqa: RUF012 (read only, as all of these)
        "type": "object",
        "properties": {
            "operation": {"enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"]},
            "url": {"type": "string"},
            "headers": {"type": "object", "additionalProperties": {"type": "string"}},
            "body": {},
        },
        "required": ["operation", "url"],
        "additionalProperties": False,
    }
    effects: tuple[Effect, ...] = _WRITES
    operation_effects: dict[str, tuple[Effect, ...]] = {"GET": _READS, "HEAD": _READS}  # noqa: RUF012
    purposes: dict[str, Purpose] = {"url": "url"}  # noqa: RUF012
    timeout = SECONDS + 5

    def __init__(self, guard: AddressGuard | None = None, *, flaw: Callable[[str], Awaitable[str | None]] | None = None) -> None:
        self._guard = guard or AddressGuard()
        self._flaw = flaw

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        return await request_sender.send_request(params, self._guard, self._flaw, SECONDS)
