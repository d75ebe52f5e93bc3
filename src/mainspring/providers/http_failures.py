"""What a backend's error means: its HTTP status, or its words within a stream, as one of our errors.

`build_error` is the one place that decides which error a status means.
"""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

import msgspec

from mainspring.core.errors import (
    BadOutput,
    ContextOverflow,
    Misconfigured,
    ModelNotFound,
    ProviderError,
    RateLimited,
    Refused,
    Unauthorized,
    Unavailable,
    UnreadCall,
)
from mainspring.core.redact import redact_text
from mainspring.core.text import shorten_line

COMPLAINT_CHARS = 8_000


class Complaint(NamedTuple):
    """What a backend says went wrong: in words, the codes that came with them, how many seconds to wait if it says so, and what
    its model has written that it could not read."""

    message: str
    codes: tuple[str, ...] = ()
    wait: float | None = None
    written: str = ""


def parse_complaint(data: bytes, redact: Callable[[str], str] = redact_text) -> Complaint:
    """Reads an error in any of the shapes backends use; what has none of them is its own message. All words are redacted, before
    they are shortened: half a secret would not be known for one."""
    text = data.decode(errors="replace").strip()
    try:
        payload = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return Complaint("an HTML page" if text.startswith("<") else shorten_line(redact(text[:COMPLAINT_CHARS])))
    wait = None
    match payload:
        case {"error": dict(error)} | [{"error": dict(error)}, *_]:
            wait = _delay(error.get("details"))
            message, codes = _words(error), [error.get(key) for key in ("status_code", "code", "type", "status")]
        case {"error": str(code), "error_description": str(message)}:
            codes = [code]
        case {"error": str(), "message": str(message)} if message:
            codes = [payload.get("code")]
        case {"error": str(message)} | {"detail": str(message)}:
            codes = []
        case {"errors": [dict(error), *_]}:
            message, codes = _words(error), [error.get("code")]
        case {"base_resp": {"status_msg": str(message), "status_code": int(code)}}:
            codes = [code]
        case {"detail": [*details]}:
            message, codes = "; ".join(filter(None, map(_detail, details))), []
        case dict():
            message, codes = _words(payload), [payload.get("code"), payload.get("type")]
        case _:
            message, codes = "", []
    said = tuple([str(code) for code in codes if isinstance(code, str | int) and code])
    return Complaint(shorten_line(redact((message or text)[:COMPLAINT_CHARS])), tuple(map(redact, said)), wait, _written(payload))


def build_error(
    status: int, said: Complaint, what: str, retry_after: float | None = None, credential: str = "API key"
) -> ProviderError:
    """The error that an HTTP status means. `what` opens the message: who did what. `credential` is what was sent as one."""
    what = f"{what}: {said.message}" if said.message else what
    match status:
        case 429:
            when = "later" if retry_after is None else f"in {retry_after:g} s"
            return RateLimited(f"{what}; try again {when}", retry_after=retry_after)
        case 403 if _NOT_TAKEN.search(said.message):
            return Refused(what)
        case _ if status in (401, 402, 403) or (status == 400 and _BAD_KEY.search(said.message)):
            return Unauthorized(f"{what}; check the {credential}{' and the account' if status == 402 else ''}")
        case _ if _OVERFLOW.search(" ".join((said.message, *said.codes))):
            return ContextOverflow(f"{what}; shorten the conversation or choose a model with a larger context")
        case _ if status in (400, 404) and _NO_MODEL.search(" ".join((said.message, *said.codes))):
            return ModelNotFound(f"{what}; check the model name")
        case 400 if "tool_use_failed" in said.codes and said.written:
            return UnreadCall(f"{what}; try again", said.written)
        case 400 if not {"tool_use_failed", "json_validate_failed"}.isdisjoint(said.codes):
            return BadOutput(f"{what}; try again")
        case 404 if _NO_ROUTE.search(said.message):
            return Refused(what)
        case _ if 300 <= status < 400 or status in (404, 405, 410) or _TLS_WANTED.search(said.message):
            return Misconfigured(f"{what}; check the backend's base URL")
        case 408 | 424 | 425 | 498:
            return Unavailable(f"{what}; try again", retry_after=retry_after)
        case _ if status >= 500:
            return Unavailable(f"{what}; try again, or look at the server's log", retry_after=retry_after)
        case _:
            return Refused(what)


def build_stream_error(said: Complaint, url: str) -> ProviderError:
    """The error that a backend reports in the middle of an answer, where its codes must stand in for the status."""
    statuses = [_STATUS.get(code.lower()) or _number(code) for code in said.codes]
    return build_error(next((status for status in statuses if status), 500), said, f"{url} broke off its answer", said.wait)


def parse_retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from either form of the header, or Azure's in milliseconds. A date counts from the server's own clock
    if it shows one."""
    value = headers.get("Retry-After", "").strip()
    try:
        seconds = float(exact) / 1000 if (exact := headers.get("retry-after-ms")) else float(value)
    except ValueError:
        until = _date(value)
        now = _date(headers.get("Date", "")) or datetime.now(UTC)
        seconds = math.nan if until is None else (until - now).total_seconds()
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _date(value: str) -> datetime | None:
    try:
        parsed = parsedate_to_datetime(value)
    except (ValueError, IndexError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def _written(payload: object) -> str:
    match payload:
        case {"error": {"failed_generation": str(written)}}:
            return written
        case _:
            return ""


def _words(error: Mapping[str, object]) -> str:
    words = [text for key in ("message", "msg", "error", "detail") if isinstance(text := error.get(key), str) and text]
    metadata, details = error.get("metadata"), error.get("details")
    if words and isinstance(details, list) and (told := "; ".join(filter(None, map(_detail, details)))):
        return f"{words[0]} ({told})"
    if words and isinstance(metadata, dict) and isinstance(raw := metadata.get("raw"), str):
        # A gateway says that the provider returned an error; what the provider said is in here.
        return f"{words[0]} ({raw})"
    if words and (filtered := list_filtered(error.get("innererror"))):
        return f"{words[0]} (filtered: {', '.join(filtered)})"
    return words[0] if words else ""


def list_filtered(found: object) -> list[str]:
    """What a content filter of Azure's has stopped, with how bad it was: from the results themselves, or an object with them."""
    match found:
        case {"content_filter_result": dict(results)} | {"content_filter_results": dict(results)} | dict(results):
            stopped = {name: result for name, result in results.items() if isinstance(result, dict) and result.get("filtered")}
            return [f"{name} ({result['severity']})" if "severity" in result else name for name, result in stopped.items()]
        case _:
            return []


def _detail(detail: object) -> str:
    match detail:
        case {"loc": [*place], "msg": str(text)}:
            return ".".join([str(step) for step in place if isinstance(step, str | int)]) + f": {text}"
        case str(text):
            return text
        case _:
            return ""


def _delay(details: object) -> float | None:
    """The seconds of a `google.rpc.RetryInfo` among the details of an error."""
    for detail in details if isinstance(details, list) else ():
        match detail:
            case {"retryDelay": str(delay)} if found := _SECONDS.fullmatch(delay):
                return float(found[1])
    return None


def _number(code: str) -> int | None:
    return int(code) if len(code) == 3 and code[0] in "45" and code.isascii() and code.isdigit() else None


_NO_MODEL = re.compile(
    r"model_?not_?(found|exist)|model not exist|\b(not a valid|invalid|unknown|no|no such) model\b|^model: |DeploymentNotFound"
    r"|model identifier is invalid|with on-demand throughput isn.t supported"
    r"|\b(models?|deployment)\b.{0,200}(does not exist|not found|not exist)",
    re.IGNORECASE,
)
# Of those that answer so what a model does not take, and not who may ask it.
_NOT_TAKEN = re.compile("did not allow prompt caching", re.IGNORECASE)
_NO_ROUTE = re.compile("no endpoints found that support", re.IGNORECASE)
_TLS_WANTED = re.compile(r"HTTP request (was )?(sent )?to (an )?HTTPS", re.IGNORECASE)
_BAD_KEY = re.compile("api key (not valid|not found|expired|invalid)", re.IGNORECASE)
_SECONDS = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_OVERFLOW = re.compile(
    r"context.?(length|window|size|limit)|maximum context|max_model_len|n_ctx|(prompt|input) is too long|too many tokens"
    r"|reduce the length|maximum (prompt|input|number of) (length|tokens)|max_new_tokens`? must be <=",
    re.IGNORECASE,
)
_STATUS = {
    "rate_limit_exceeded": 429, "rate_limit_error": 429, "too_many_requests": 429, "insufficient_quota": 429,
    "authentication_error": 401, "invalid_api_key": 401, "permission_error": 403, "permission_denied": 403,
    "not_found_error": 404, "model_not_found": 404,
    "invalid_request_error": 400, "badrequesterror": 400, "context_length_exceeded": 400, "invalid_prompt": 400,
    "tool_use_failed": 400, "json_validate_failed": 400,
    "resource_exhausted": 429, "unauthenticated": 401, "not_found": 404, "invalid_argument": 400, "failed_precondition": 400,
    "throttlingexception": 429, "validationexception": 400, "accessdeniedexception": 403, "serviceunavailableexception": 503,
}  # fmt: skip
