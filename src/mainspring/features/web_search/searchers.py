"""Search services, behind `ports.WebSearcher`: SearXNG, Brave, Tavily and Exa."""

from collections.abc import Callable, Sequence
from logging import getLogger
from typing import Final

import anyio
import msgspec
from msgspec import Struct
from yarl import URL

from mainspring.core.errors import BadOutput, InvalidRequest, Refused, Unavailable
from mainspring.core.items import Json
from mainspring.core.json_values import count_values
from mainspring.core.redact import redact_text
from mainspring.core.text import shorten_line
from mainspring.features.web_search.settings import SearchService, WebSearchSettings
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.net.connection import HttpError
from mainspring.ports import FoundPage, WebQuery

log = getLogger(__name__)

SECONDS: Final = 15.0
MOST_BYTES: Final = 8_000_000
MOST_VALUES: Final = 65_536
MOST_SITES: Final = 8
"""How many domains a query names; with more of them, only the answer is filtered."""


class _Request(Struct, frozen=True):
    """Without a body, it is a GET."""

    path: str
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    body: Json | None = None


class _Page(Struct):
    """A result of any of them: what they say of a page has other names with each."""

    url: str = ""
    title: str | None = None
    content: str | None = None
    description: str | None = None
    text: str | None = None


class _Results(Struct):
    results: tuple[_Page, ...] = ()


class _Answer(_Results):
    web: _Results | None = None


def _ask_searxng(query: WebQuery, key: str) -> _Request:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return _Request("search", {"q": _name_sites(query), "format": "json"}, headers)


def _ask_brave(query: WebQuery, key: str) -> _Request:
    asked = {"q": _name_sites(query), "count": str(query.most), "text_decorations": "false", "result_filter": "web"}
    return _Request("web/search", asked, {"X-Subscription-Token": key})


def _ask_tavily(query: WebQuery, key: str) -> _Request:
    body: Json = {"query": query.text, "max_results": query.most, "search_depth": "basic"}
    if query.domains:
        body["include_domains"] = query.domains
    return _Request("search", headers={"Authorization": f"Bearer {key}"}, body=body)


def _ask_exa(query: WebQuery, key: str) -> _Request:
    body: Json = {"query": query.text, "numResults": query.most, "contents": {"text": {"maxCharacters": query.chars}}}
    if query.domains:
        body["includeDomains"] = query.domains
    return _Request("search", headers={"x-api-key": key}, body=body)


def _name_sites(query: WebQuery) -> str:
    if not query.domains or len(query.domains) > MOST_SITES:
        return query.text
    return f"{query.text} ({' OR '.join([f'site:{domain}' for domain in query.domains])})"


class _Service(Struct, frozen=True):
    ask: Callable[[WebQuery, str], _Request]
    url: str = ""
    """Where the vendor has it."""


_SERVICES: Final[dict[SearchService, _Service]] = {
    "searxng": _Service(_ask_searxng),
    "brave": _Service(_ask_brave, "https://api.search.brave.com/res/v1"),
    "tavily": _Service(_ask_tavily, "https://api.tavily.com"),
    "exa": _Service(_ask_exa, "https://api.exa.ai"),
}


class HttpSearcher:
    """A `WebSearcher` that asks a service. Raises `InvalidRequest` for a URL that is none."""

    def __init__(self, name: SearchService, url: str | None = None, key: str | None = None) -> None:
        self._name, self._service, self._key = name, _SERVICES[name], key or ""
        try:
            self._base = URL((url or self._service.url).rstrip("/") + "/")
            make_endpoint(self._base)
        except ValueError as error:
            raise InvalidRequest(f"web_search.url: {error}", param="web_search.url") from None
        if self._base.raw_user is not None or self._base.raw_password is not None:
            told = "web_search.url has a user or password, which would not be sent; leave them out, and set web_search.key"
            raise InvalidRequest(told, param="web_search.url")

    async def search(self, query: WebQuery) -> Sequence[FoundPage]:
        told = await self._ask(self._service.ask(query, self._key))
        if any(values > MOST_VALUES for values in count_values(told, MOST_VALUES)):
            raise BadOutput(f"the search service `{self._name}` answered more than {MOST_VALUES:,} values")
        try:
            answer = msgspec.json.decode(told, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadOutput(f"the search service `{self._name}` answered what are no results: {error}") from error
        pages = answer.results if answer.web is None else answer.web.results
        return [FoundPage(page.url, page.title or "", page.content or page.description or page.text or "") for page in pages]

    async def _ask(self, asked: _Request) -> bytes:
        """The body of the answer. What the model reads names no address and no key; the log says more."""
        url = self._base.join(URL(asked.path)).with_query(asked.query)
        headers = {"Accept": "application/json", "User-Agent": "Mainspring", **asked.headers}
        body = None
        if asked.body is not None:
            headers["Content-Type"], body = "application/json", msgspec.json.encode(asked.body)
        try:
            with anyio.fail_after(SECONDS):
                async with HttpClient(seconds=SECONDS) as client:
                    method = "GET" if body is None else "POST"
                    answer = await client.request(method, make_endpoint(url), encode_headers(headers.items()), body)
                    told = bytearray()
                    while len(told) <= MOST_BYTES and (piece := await answer.read()):
                        told += piece
        except (HttpError, TimeoutError) as error:
            log.warning("the search service at %s gives no answer: %s", self._base, error or "it takes too long")
            raise Unavailable(f"the search service `{self._name}` gives no answer; try again later") from error
        if answer.status != 200:
            log.warning("the search service at %s answered %s: %s", self._base, answer.status, self._quote(bytes(told[:2_000])))
            raise Refused(f"the search service `{self._name}` answered {answer.status} {answer.reason}")
        if len(told) > MOST_BYTES:
            raise BadOutput(f"the search service `{self._name}` answered more than {MOST_BYTES:,} bytes")
        return bytes(told)

    def _quote(self, told: bytes) -> str:
        """What it said, for the log: it may repeat the key that it was sent."""
        text = told.decode(errors="replace")
        return shorten_line(redact_text(text.replace(self._key, "***") if self._key else text), 500)


def build_searcher(settings: WebSearchSettings) -> HttpSearcher:
    """The service that the settings name. Raises `InvalidRequest` if they do not say what it needs."""
    name = settings.provider
    if name is None:
        told = f"web_search.provider is missing; known: {', '.join(_SERVICES)}"
        raise InvalidRequest(told, param="web_search.provider")
    if name == "searxng" and not settings.url:
        told = "web_search.url is missing; `searxng` needs the address of the server, such as http://127.0.0.1:8888"
        raise InvalidRequest(told, param="web_search.url")
    if name != "searxng" and not settings.key:
        raise InvalidRequest(f"web_search.key is missing; `{name}` needs the key of an account", param="web_search.key")
    return HttpSearcher(name, settings.url, settings.key)
