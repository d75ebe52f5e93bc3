"""The tool `web_fetch`: reads a page of the web as text.

Every connection, redirects included, goes to a checked address: public, or of a host that the operator allows. Size, time and
redirects are limited, and compressed content is decompressed only up to the size limit.
"""

import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, lookup
from collections.abc import Awaitable, Callable

import anyio
from msgspec import Struct
from yarl import URL

from mainspring.core.errors import CallerError, InvalidRequest
from mainspring.core.items import Effect, Json, Purpose
from mainspring.net.client import encode_headers, make_endpoint
from mainspring.net.connection import Answer, HttpError, MalformedAnswer
from mainspring.tools.addresses import AddressGuard, check_length
from mainspring.tools.builtin.subprocess_work import run_in_subprocess
from mainspring.tools.contract import ToolContext, ToolResult
from mainspring.tools.guarded_http import make_guarded_http
from mainspring.tools.scope import find_domain

MOST_BYTES = 2_000_000
MOST_REDIRECTS = 5
SECONDS = 20.0
READING_SECONDS = 5.0
# Below the default limit of a tool output, so that a page is not cut.
PAGE_CHARS = 12_000
MODULE = "mainspring.tools.builtin.readable"

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TEXT = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml)|application/(?:x-)?(?:javascript|ndjson|yaml|toml)")
_CHARSET = re.compile(r"""charset\s{0,5}=\s{0,5}["']?([\w.:-]{1,40})""", re.IGNORECASE)
_HEADERS = encode_headers([("User-Agent", "Mainspring"), ("Accept", "*/*"), ("Accept-Encoding", "gzip")])
_HTML = frozenset({"text/html", "application/xhtml+xml"})
# The encodings of web pages. Python has others, some of which take for ever to decode.
_ENCODINGS = re.compile(
    r"ascii|utf-(?:8|16|32)(?:-(?:le|be|sig))?|iso8859-\d+|cp\d+|koi8-[rtu]|gb\w+|big5\w*|euc_\w+|shift_jis\w*|iso2022_\w+"
    r"|mac-\w+|hz|johab|tis-620"
)
_META = re.compile(rb"""<meta[^>]{0,200}?charset\s{0,5}=\s{0,5}["']?([\w.:-]{1,40})""", re.IGNORECASE)
_MARKS = ((BOM_UTF8, "utf-8-sig"), (BOM_UTF16_LE, "utf-16"), (BOM_UTF16_BE, "utf-16"))


class FetchedPage(Struct, frozen=True):
    """A response. `data` is decompressed; `is_cut` says that there was more."""

    url: str
    status: int
    reason: str
    kind: str
    charset: str
    data: bytes
    is_cut: bool


class PageText(Struct, frozen=True):
    """What can be read on a page; of HTML, as Markdown."""

    page: FetchedPage
    title: str
    text: str


# Why a URL may not be fetched, None if it may.
Flaw = Callable[[str], Awaitable[str | None]]


class WebFetch:
    """Fetches by GET. `guard` knows the hosts that need not be public; `seconds` is for all of a call's requests together."""

    name = "web_fetch"
    description = "Reads a page of the web as text, with its links. Long pages come in pieces: go on with `start`."
    parameters_schema: Json = {  # noqa: RUF012 (read only, as all of these)
        "type": "object",
        "properties": {
            "url": {"type": "string", "description": "Address that begins with http:// or https://."},
            "start": {"type": "integer", "minimum": 0, "default": 0, "description": "Character of the text to begin at."},
        },
        "required": ["url"],
        "additionalProperties": False,
    }
    effects: tuple[Effect, ...] = ("read", "network")
    purposes: dict[str, Purpose] = {"url": "url"}  # noqa: RUF012
    repeatable = True
    timeout = SECONDS + READING_SECONDS + 5

    def __init__(self, guard: AddressGuard | None = None, *, seconds: float = SECONDS, flaw: Flaw | None = None) -> None:
        self._guard = guard or AddressGuard()
        self._seconds = seconds
        self._flaw = flaw

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        read = await self.read(str(params["url"]), context)
        return read if isinstance(read, ToolResult) else _render_piece(read, int(params.get("start", 0)))

    async def read(self, url: str, context: ToolContext) -> PageText | ToolResult:
        """All text of a page, or what is to be said where there is none."""
        try:
            with anyio.fail_after(self._seconds):
                page = await self._fetch(url, context)
            return await _read_text(page, context.tenant)
        except TimeoutError:
            return ToolResult.fail(f"`{url}` was not read within {self._seconds:g} s; try another source")
        except CallerError as error:
            return ToolResult.fail(error.message)
        except MalformedAnswer as error:
            return ToolResult.fail(f"`{url}` cannot be reached over HTTP: it sends {error}; try another source")
        except HttpError as error:
            return ToolResult.fail(f"`{url}` cannot be reached: {error}; check the URL")

    async def _fetch(self, url: str, context: ToolContext) -> FetchedPage:
        asked = check_url(url, context)
        for _ in range(MOST_REDIRECTS + 1):
            if self._flaw is not None and (why := await self._flaw(str(asked))) is not None:
                raise InvalidRequest(f"`{url}` leads to a page that may not be fetched: {why}")
            async with make_guarded_http(self._guard, self._seconds) as client:
                response = await client.request("GET", make_endpoint(asked), _HEADERS)
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or location is None:
                    return await _read_page(asked, response)
                asked = check_url(location, context, base=asked)
        raise InvalidRequest(f"`{url}` redirects more than {MOST_REDIRECTS} times; try another source")


def find_charset(response: Answer) -> str:
    found = _CHARSET.search(response.headers.get("Content-Type", ""))
    return found[1] if found is not None else ""


def check_url(text: str, context: ToolContext, base: URL | None = None) -> URL:
    """Parses and checks a URL, relative to `base`. Raises `InvalidRequest` for one that is not allowed."""
    check_length(text)
    try:
        url = URL(text) if base is None else base.join(URL(text))
        host = url.raw_host
    except ValueError as error:
        raise InvalidRequest(f"`{text:.200}` is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not host:
        raise InvalidRequest(f"`{text:.200}` is no web address; write http:// or https:// and a host")
    if url.raw_user is not None or url.raw_password is not None:
        raise InvalidRequest(f"the URL for host `{host}` carries a user or password; leave them out")
    allowed = context.domain_allowlist
    if allowed is not None and find_domain(host, allowed) is None:
        listed = ", ".join([f"`{domain}`" for domain in allowed]) or "none"
        raise InvalidRequest(f"host `{host}` is not among the allowed domains; allowed: {listed}")
    return url.with_fragment(None)


async def _read_page(url: URL, response: Answer) -> FetchedPage:
    kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind and not _TEXT.fullmatch(kind):
        length = response.headers.get("Content-Length", "")
        size = f"{int(length):,} bytes" if length.isdecimal() else "unknown size"
        raise InvalidRequest(f"`{url}` is {kind} ({size}), which is not text; web_fetch reads text only")
    data = bytearray()
    while len(data) <= MOST_BYTES and (piece := await response.read()):
        data += piece
    page, is_cut = bytes(data[:MOST_BYTES]), len(data) > MOST_BYTES
    return FetchedPage(str(url), response.status, response.reason, kind, find_charset(response), page, is_cut)


async def _read_text(page: FetchedPage, tenant: str) -> PageText | ToolResult:
    if not page.data:
        told = f"`{page.url}` answered {page.status} {page.reason} without content."
        return ToolResult.fail(told) if page.status >= 400 else ToolResult.ok(told)
    if page.kind in _HTML or (not page.kind and decode_page(page).lstrip()[:1] == "<"):
        read = await run_in_subprocess(MODULE, lambda: {"html": decode_page(page), "base": page.url}, READING_SECONDS, tenant)
        if read is None:
            return ToolResult.fail(f"`{page.url}` is HTML that cannot be read within {READING_SECONDS:g} s; try another source")
        title, text = str(read["title"]), str(read["text"])
    else:
        title, text = "", decode_page(page)
    if page.status >= 400:
        return ToolResult.fail(f"`{page.url}` answered {page.status} {page.reason}: {text[:500]}")
    return PageText(page, title, text)


def _render_piece(read: PageText, start: int) -> ToolResult:
    page, title, text = read.page, read.title, read.text
    if start and start >= len(text):
        return ToolResult.fail(f"`{page.url}` has {len(text):,} characters of text; there is nothing from {start:,} on")
    end = min(start + PAGE_CHARS, len(text))
    more = f"; go on with start={end}" if end < len(text) else ""
    cut = f"; the page is longer than the {MOST_BYTES:,} bytes that are read" if page.is_cut else ""
    note = f"\n\n[characters {start} to {end} of {len(text)}{cut}{more}]" if start or more or cut else ""
    heading = f"{page.url}\n{title}\n\n" if title else f"{page.url}\n\n"
    return ToolResult.ok(f"{heading}{text[start:end] or '[no text]'}{note}")


def decode_page(page: FetchedPage) -> str:
    """Decodes by the byte order mark, else the charset of the header, else that of the page, else as UTF-8 or Windows-1252."""
    mark = next((name for mark, name in _MARKS if page.data.startswith(mark)), "")
    meta = _META.search(page.data[:2048])
    for name in (mark, page.charset, meta[1].decode("ascii") if meta is not None else ""):
        if name and _is_encoding(name):
            return page.data.decode(name, "replace")
    try:
        return page.data.decode()
    except UnicodeDecodeError as error:
        # Where the page was cut, a character may have been cut with it.
        return page.data.decode("utf-8" if page.is_cut and error.start > len(page.data) - 4 else "cp1252", "replace")


def _is_encoding(name: str) -> bool:
    try:
        return _ENCODINGS.fullmatch(lookup(name).name) is not None
    except LookupError:
        return False
