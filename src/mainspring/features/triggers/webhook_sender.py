"""Sends an event to the endpoint of a webhook, at a checked address alone."""

from collections.abc import Awaitable, Callable, Mapping

import anyio
from yarl import URL

from mainspring.core.errors import CallerError
from mainspring.core.redact import redact_text
from mainspring.net.client import encode_headers, make_endpoint
from mainspring.net.connection import HttpError
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.guarded_http import make_guarded_http


async def post_event(
    url: str,
    headers: Mapping[str, str],
    body: bytes,
    guard: AddressGuard,
    flaw: Callable[[str], Awaitable[str | None]] | None,
    seconds: float,
) -> str:
    """Sends it once. Returns why it was not taken, empty if it was."""
    try:
        if flaw is not None and (why := await flaw(url)) is not None:
            return f"the address is not allowed: {why}"
        with anyio.fail_after(seconds):
            async with make_guarded_http(guard, seconds) as client:
                sent = encode_headers(headers.items())
                answer = await client.request("POST", make_endpoint(URL(url)), sent, body, is_repeatable=False)
                return "" if answer.status // 100 == 2 else f"it answered with HTTP {answer.status}"
    except TimeoutError:
        return f"it did not answer within {seconds:g} s"
    except CallerError as error:
        return error.message
    except (HttpError, ValueError) as error:
        return f"it cannot be reached: {redact_text(str(error)) or type(error).__name__}"
