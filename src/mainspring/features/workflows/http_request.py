"""The tool `http_request` for steps of workflows. Models are not offered it.

It connects as `web_fetch` does: only to checked addresses, public ones or those of hosts that the operator has allowed.
Redirects are not followed; the step sees them.
"""

from collections.abc import Awaitable, Callable

import anyio
from msgspec import UNSET

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.core.items import Effect, InputText, Json, Purpose, encode
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.contract import ToolContext, ToolResult

MOST_BYTES = 400_000
SECONDS = 60.0
_HEADERS = {"User-Agent": "Mainspring", "Accept": "*/*", "Accept-Encoding": "identity"}
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
        # The client is heavy; only those who send requests pay for it.
        from mainspring.net.connection import HttpError

        url = str(params["url"])
        try:
            with anyio.fail_after(SECONDS):
                return await self._send(params, url)
        except TimeoutError:
            return ToolResult.fail(f"`{url:.200}` did not answer within {SECONDS:g} s")
        except CallerError as error:
            return ToolResult.fail(error.message)
        except (HttpError, ValueError) as error:
            return ToolResult.fail(f"`{url:.200}` cannot be reached: {str(error) or type(error).__name__}; check the URL")

    async def _send(self, params: Json, url: str) -> ToolResult:
        from yarl import URL

        from mainspring.net.client import encode_headers, make_endpoint
        from mainspring.tools.builtin.web_fetch import FetchedPage, decode_page, find_charset
        from mainspring.tools.guarded_http import make_guarded_http

        if self._flaw is not None and (why := await self._flaw(url)) is not None:
            raise InvalidRequest(f"`{url:.200}` is not allowed: {why}")
        if not url.lower().startswith(("http://", "https://")):
            raise InvalidRequest(f"`{url:.200}` is not a web address; write http:// or https:// and a host")
        data, kind = _body(params.get("body", UNSET))
        headers = encode_headers({**_HEADERS, **kind, **params.get("headers", {})}.items())
        async with make_guarded_http(self._guard, SECONDS) as client:
            response = await client.request(params["operation"], make_endpoint(URL(url)), headers, data)
            content = bytearray()
            while piece := await response.read():
                content += piece
                if len(content) > MOST_BYTES:
                    raise InvalidRequest(f"`{url:.200}` answers with more than {MOST_BYTES:,} bytes, too much for a step")
            received = [(name.lower(), value) for name, value in response.headers.items()]
            lines = "\n".join([f"{name}: {value}" for name, value in received])
            page = FetchedPage(url, response.status, "", "", find_charset(response), bytes(content), is_cut=False)
            facts: Json = {"status": response.status, "headers": dict(received)}
            return ToolResult(True, (InputText(str(response.status)), InputText(lines), InputText(decode_page(page))), data=facts)


def _body(body: object) -> tuple[bytes | None, dict[str, str]]:
    """The encoded body and its content type: text as it is, all else as JSON."""
    if body is UNSET or body is None:
        return None, {}
    if isinstance(body, str):
        return body.encode(), {"Content-Type": "text/plain; charset=utf-8"}
    return encode(body), {"Content-Type": "application/json"}
