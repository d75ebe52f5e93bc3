"""Sends the requests of steps, to checked addresses alone."""

from collections.abc import Awaitable, Callable
from typing import Final

import anyio
from msgspec import UNSET
from yarl import URL

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.core.items import InputText, Json, encode
from mainspring.net.client import encode_headers, make_endpoint
from mainspring.net.connection import HttpError
from mainspring.tools.addresses import AddressGuard, check_length
from mainspring.tools.builtin.web_fetch import FetchedPage, decode_page, find_charset
from mainspring.tools.contract import ToolResult
from mainspring.tools.guarded_http import make_guarded_http

MOST_BYTES: Final = 400_000
_HEADERS: Final = {"User-Agent": "Mainspring", "Accept": "*/*", "Accept-Encoding": "identity"}

FindFlaw = Callable[[str], Awaitable[str | None]]


async def send_request(params: Json, guard: AddressGuard, flaw: FindFlaw | None, seconds: float) -> ToolResult:
    """The answer: its status, its headers and its body. What goes wrong is told as the tool's failure."""
    url = str(params["url"])
    try:
        with anyio.fail_after(seconds):
            if flaw is not None and (why := await flaw(url)) is not None:
                return ToolResult.fail(f"`{url:.200}` is not allowed: {why}")
            return await _send(guard, params, url, seconds)
    except TimeoutError:
        return ToolResult.fail(f"`{url:.200}` did not answer within {seconds:g} s")
    except CallerError as error:
        return ToolResult.fail(error.message)
    except (HttpError, ValueError) as error:
        return ToolResult.fail(f"`{url:.200}` cannot be reached: {str(error) or type(error).__name__}; check the URL")


async def _send(guard: AddressGuard, params: Json, url: str, seconds: float) -> ToolResult:
    check_length(url)
    if not url.lower().startswith(("http://", "https://")):
        raise InvalidRequest(f"`{url:.200}` is not a web address; write http:// or https:// and a host")
    data, kind = _body(params.get("body", UNSET))
    headers = encode_headers({**_HEADERS, **kind, **params.get("headers", {})}.items())
    async with make_guarded_http(guard, seconds) as client:
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
