"""Searches of the web, as blocks of the Messages API and back.

A search is a `server_tool_use` with a `web_search_tool_result`; a page that was opened is one with a `web_fetch_tool_result`.
What the model has read of a search result is in its `encrypted_content`, which clients send back as it is.
"""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec

from mainspring.core.ids import derive_id
from mainspring.core.items import Item, Json, OutputText, Unknown
from mainspring.features.messages.api_tools import SEARCH

CALL: Final = "web_search_call"
FETCH: Final = "web_fetch"
USE: Final = "server_tool_use"
RESULTS: Final = ("web_search_tool_result", "web_fetch_tool_result")
CITED_CHARS: Final = 150


def is_search(item: object) -> bool:
    return isinstance(item, Unknown) and item.data.get("type") == CALL


def shows_searches(tools: Sequence[Json]) -> bool:
    """Whether a client with these tools has declared that it wants the web searched, and so knows the blocks."""
    return any(str(tool.get("type")).startswith(SEARCH) for tool in tools)


def render_search(call: Json) -> Iterator[Json]:
    """A `web_search_call` with its results."""
    id, action, results = derive_id("srvtoolu", str(call["id"])), call.get("action") or {}, call.get("results")
    if url := action.get("url"):
        given = {"url": url, **({"pattern": action["pattern"]} if action.get("pattern") else {})}
        yield {"type": USE, "id": id, "name": FETCH, "input": given}
        kind = "web_fetch_tool_result"
        content: Json | list[Json] = _render_page(str(url), results or [{}])
    else:
        queries = action.get("queries") or [action.get("query") or ""]
        more = {"queries": queries} if len(queries) > 1 else {}
        yield {"type": USE, "id": id, "name": SEARCH, "input": {"query": queries[0], **more}}
        kind = "web_search_tool_result"
        content = [_render_found(page) for page in (action.get("sources") or () if results is None else results)]
    if call["status"] == "failed":
        content = {"type": f"{kind}_error", "error_code": "unavailable"}
    if call["status"] != "incomplete":
        yield {"type": kind, "tool_use_id": id, "content": content}


def _render_page(url: str, results: Sequence[Json]) -> Json:
    page = results[0]
    source = {"type": "text", "media_type": "text/plain", "data": str(page.get("text", ""))}
    document = {"type": "document", "source": source, "title": page.get("title"), "citations": None}
    return {"type": "web_fetch_result", "url": url, "retrieved_at": None, "content": document}


def _render_found(page: Json) -> Json:
    url = str(page.get("url", ""))
    sealed = b64encode(msgspec.json.encode({name: page[name] for name in ("cite", "text") if name in page})).decode()
    title = str(page.get("title") or url)
    return {"type": "web_search_result", "url": url, "title": title, "encrypted_content": sealed, "page_age": None}


def list_cited(part: OutputText, texts: Mapping[str, str]) -> list[Json]:
    """The citations of a text. `texts` says what the pages say."""
    return [
        {
            "type": "web_search_result_location",
            "url": note["url"],
            "title": note.get("title"),
            "encrypted_index": "",
            "cited_text": texts.get(str(note["url"]), "")[:CITED_CHARS],
        }
        for note in part.annotations
        if note.get("type") == "url_citation"
    ]


def find_texts(items: Sequence[Item]) -> dict[str, str]:
    """What the pages say that were found, by their addresses."""
    found = [page for item in items if isinstance(item, Unknown) and is_search(item) for page in item.data.get("results") or ()]
    return {str(page["url"]): str(page.get("text", "")) for page in found if "url" in page}


def count_searches(items: Sequence[Item]) -> Json | None:
    """How often the web was searched, and pages were opened, as the usage has it; None if neither."""
    actions = [item.data.get("action") or {} for item in items if isinstance(item, Unknown) and is_search(item)]
    opened = sum(["url" in action for action in actions])
    return {"web_search_requests": len(actions) - opened, "web_fetch_requests": opened} if actions else None


def read_search(use: Json, result: Json) -> Unknown:
    """The `web_search_call` that these blocks stand for."""
    given = use.get("input") if isinstance(use.get("input"), dict) else {}
    assert isinstance(given, dict)
    content = result.get("content")
    action: Json
    if use.get("name") == FETCH:
        url = str(given.get("url", ""))
        kind = {"type": "find_in_page", "pattern": str(given["pattern"])} if given.get("pattern") else {"type": "open_page"}
        action, results = {**kind, "url": url}, [_read_page(url, content)]
    else:
        queries = given.get("queries") if isinstance(given.get("queries"), list) else [given.get("query") or ""]
        results = [_read_found(page) for page in content if isinstance(page, dict)] if isinstance(content, list) else []
        sources = [{"type": "url", "url": page["url"]} for page in results]
        action = {"type": "search", "queries": [str(query) for query in queries or ()], "sources": sources}
    return Unknown({"type": CALL, "id": derive_id("ws", str(use["id"])), "action": action, "results": results})


def _read_page(url: str, content: object) -> Json:
    match content:
        case {"content": {"source": {"data": str(text)}, "title": title}}:
            return {"url": url, "text": text, "title": str(title or "")}
        case _:
            return {"url": url}


def _read_found(page: Json) -> Json:
    """A result of ours with what the model has read; of one that another server has sealed, what can be told."""
    try:
        kept = msgspec.json.decode(b64decode(str(page.get("encrypted_content", "")), validate=True), type=dict[str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        kept = {}
    known = {name: text for name, text in kept.items() if name in ("cite", "text")}
    return {**known, "url": str(page.get("url", "")), "title": str(page.get("title", ""))}
