"""The hosted tool `web_search`: the model searches the web, opens pages and finds text on them, and what it cites is annotated.

Each result comes with a mark such as 【3f9a01bc】, made from its URL, which the model is asked to put behind what it takes from
it. Marks, and links to results, become `url_citation` annotations at their places when a message is done; the text keeps them.
"""

import re
from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from itertools import zip_longest
from typing import Final

import msgspec
from yarl import URL

from mainspring.core.errors import ProviderError
from mainspring.core.items import Json, ServerTool, ToolDefinition, ToolKind
from mainspring.features.search_results import (
    OVERHEAD_CHARS,
    CitationProvider,
    CitedText,
    ListNotes,
    Output,
    find_room,
    fit_results,
)
from mainspring.features.web_search.declaration import NAME, SIZES, WebSearchStep, WebSearchTool
from mainspring.parts import PartContents
from mainspring.ports import CallContext, FoundPage, ModelFeature, Provider, ToolCall, ToolResult, WebQuery, WebSearcher
from mainspring.tools.builtin.web_fetch import PageText, WebFetch
from mainspring.tools.contract import ToolContext
from mainspring.tools.scope import find_domain

MOST_QUERIES: Final = 5
MOST_MATCHES: Final = 10
MATCH_CHARS: Final = 300
"""What is shown before and behind a text that was found on a page."""
_MARK: Final = re.compile(r"【([0-9a-f]{8})】|\[[^\[\]\n]{0,300}\]\((https?://[^\s()<>]{1,2000})\)")


class CitedPage(CitedText, frozen=True, omit_defaults=True):
    """A result as the model reads it. `next_start` is where the text of an opened page goes on."""

    url: str = ""
    title: str = ""
    next_start: int | None = None


class FoundPages(msgspec.Struct, frozen=True):
    """What the tool returns, if it finds something."""

    results: tuple[CitedPage, ...]


def make_web_search(searcher: WebSearcher, fetcher: WebFetch) -> PartContents:
    """The tool, as a part of an engine. Pages are opened by `fetcher`."""
    return PartContents(name=NAME, executors=(WebSearch(searcher, fetcher),), steps=(WebSearchStep(),), wrap=WebCitationProvider)


class WebSearch:
    """Performs the calls."""

    kind: ToolKind = "builtin"

    def __init__(self, searcher: WebSearcher, fetcher: WebFetch) -> None:
        self._searcher, self._fetcher = searcher, fetcher

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.form == NAME

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        server = context.tool.server
        assert isinstance(server, ServerTool), "the order step has made the tool"
        wanted = msgspec.json.decode(server.at, type=WebSearchTool)
        room = await find_room(context)
        if call.parsed.get("url"):
            return await self._open(call, wanted, room)
        queries = [str(query) for query in call.parsed.get("queries") or () if str(query).strip()][:MOST_QUERIES]
        if not queries:
            return ToolResult(call.id, 'name a query, {"queries": ["..."]}, or a page, {"url": "https://..."}', is_error=True)
        try:
            found = await self._search(queries, wanted)
        except ProviderError as error:
            return ToolResult(call.id, error.message, is_error=True)
        said = FoundPages(fit_results(found, room))
        return ToolResult(call.id, _encode(said), data={"queries": queries, "count": len(said.results)})

    async def _search(self, queries: Sequence[str], wanted: WebSearchTool) -> list[CitedPage]:
        """The best results of all queries in turn, each page once."""
        most, chars = SIZES[wanted.search_context_size or "medium"]
        answers = [
            _filter_pages(await self._searcher.search(WebQuery(query, most, chars, wanted.domains)), wanted.domains)
            for query in queries
        ]
        pages: dict[str, FoundPage] = {}
        for page in [page for row in zip_longest(*answers) for page in row if page is not None]:
            pages.setdefault(page.url, page)
        return [CitedPage(make_mark(page.url), page.text[:chars], page.url, page.title[:300]) for page in pages.values()][:most]

    async def _open(self, call: ToolCall, wanted: WebSearchTool, room: int) -> ToolResult:
        url, pattern = str(call.parsed["url"]), str(call.parsed.get("pattern") or "")
        if wanted.external_web_access is False:
            return ToolResult(call.id, "no pages are opened here (`external_web_access`); search instead", is_error=True)
        read = await self._fetcher.read(url, ToolContext(domain_allowlist=wanted.domains or None))
        if not isinstance(read, PageText):
            return ToolResult(call.id, read.output or read.error, is_error=not read.success)
        page = CitedPage(make_mark(read.page.url), "", read.page.url, read.title[:300])
        if pattern:
            text = _find_matches(read.text, pattern)
            if not text:
                return ToolResult(call.id, f"`{pattern[:200]}` is not on the page; it has {len(read.text):,} characters")
            said = FoundPages(fit_results([msgspec.structs.replace(page, text=text)], room))
        else:
            start = max(int(call.parsed.get("start") or 0), 0)
            said = FoundPages((_take_piece(page, read.text, start, room),))
        return ToolResult(call.id, _encode(said), data={"url": read.page.url})


def make_mark(url: str) -> str:
    """The mark of a page, the same wherever it is found."""
    return f"【{sha256(url.encode()).hexdigest()[:8]}】"


def _encode(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _filter_pages(pages: Sequence[FoundPage], domains: Sequence[str]) -> list[FoundPage]:
    """The pages of the web among these, and of the domains: not every service keeps to them."""
    return [page for page in pages if (host := _find_host(page.url)) and (not domains or find_domain(host, domains) is not None)]


def _find_host(url: str) -> str:
    try:
        read = URL(url)
        return (read.raw_host or "") if read.scheme in ("http", "https") else ""
    except ValueError:
        return ""


def _take_piece(page: CitedPage, text: str, start: int, room: int) -> CitedPage:
    """The page with as much of the text from `start` on as there is room for."""
    free = max(room - len(_encode(page)) - OVERHEAD_CHARS, 0)
    piece = text[start : start + free]
    while (size := len(_encode(piece))) > free and piece:
        piece = piece[: len(piece) * free // size]
    end = start + len(piece)
    return msgspec.structs.replace(page, text=piece, next_start=end if piece and end < len(text) else None)


def _find_matches(text: str, pattern: str) -> str:
    """The places of a page where the pattern is, with what stands around them."""
    shown: list[str] = []
    # Not by a regular expression: one that ignores case takes as long as the page times the pattern.
    wanted, folded, end = _fold(pattern), _fold(text), 0
    while len(shown) < MOST_MATCHES and (place := folded.find(wanted, end)) >= 0:
        end = place + len(wanted) + MATCH_CHARS
        shown.append(text[max(place - MATCH_CHARS, 0) : end])
    return "\n[...]\n".join(shown)


def _fold(text: str) -> str:
    """The text in small letters, each at its place: one letter becomes two otherwise, and one is another at the end of a word."""
    return text.replace("\u0130", "i").lower().replace("\u03c2", "\u03c3")


class WebCitationProvider(CitationProvider):
    """Annotates what the model cites, and says that every model can search the web here."""

    def __init__(self, provider: Provider) -> None:
        super().__init__(provider, NAME, read_outputs)

    def find_features(self, model: str) -> frozenset[ModelFeature]:
        return super().find_features(model) | {"web_search"}


def read_results(output: Output) -> tuple[CitedPage, ...]:
    """The results in an output of the tool, none if it is an error."""
    try:
        return msgspec.json.decode(output, type=FoundPages).results if isinstance(output, str) else ()
    except (ValueError, RecursionError):
        return ()


def read_outputs(outputs: Sequence[Output]) -> ListNotes | None:
    """What finds the pages of these outputs in a text; see `CitationProvider`."""
    pages = {page.url: page for output in outputs for page in read_results(output) if page.url}
    known = {make_mark(url).strip("【】"): page for url, page in pages.items()} | pages
    return partial(list_notes, known) if known else None


def list_notes(known: dict[str, CitedPage], text: str) -> list[Json]:
    """The annotations that the marks and links in a text stand for."""
    return list(_find_notes(known, text))


def _find_notes(known: dict[str, CitedPage], text: str) -> Iterator[Json]:
    for mark in _MARK.finditer(text):
        if (page := known.get(mark[1] or mark[2])) is not None:
            place = {"start_index": mark.start(), "end_index": mark.end()}
            yield {"type": "url_citation", "url": page.url, "title": page.title or page.url, **place}
