"""Query parameters, and the pages that list endpoints answer with."""

from collections.abc import Mapping, Sequence
from typing import Final, TypeVar

from msgspec import Raw, Struct
from starlette.requests import Request

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.items import encode
from mainspring.http.endpoints import Parameter
from mainspring.http.faults import MESSAGES_HEADER
from mainspring.ports import PAGE_BYTES, Document, DocumentStore

T = TypeVar("T")

FLAGS: Final = {"true": True, "false": False, "1": True, "0": False}
CURSOR: Final = (
    Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}),
    Parameter("order", {"enum": ["asc", "desc"], "default": "desc"}),
    Parameter("after"),
)
"""The query of every list endpoint, as `read_cursor` reads it."""


class Page(Struct, frozen=True):
    data: Sequence[object]
    first_id: str | None
    last_id: str | None
    has_more: bool
    object: str = "list"


class Deleted(Struct, frozen=True):
    id: str
    object: str = "response"
    deleted: bool = True


class Cursor(Struct, frozen=True):
    """Which part of a list is wanted: at most `limit` entries, those behind the id `after`."""

    limit: int
    newest_first: bool
    after: str | None


def is_of_messages(request: Request) -> bool:
    """Whether a client of the Messages API asks, which knows other lists than those here."""
    return MESSAGES_HEADER in request.headers


def read_cursor(request: Request) -> Cursor:
    """`limit`, `order` and `after` of the query. Raises `InvalidRequest`."""
    limit = read_number(request, "limit", most=100)
    newest_first = read_choice(request, "order", {"desc": True, "asc": False})
    return Cursor(20 if limit is None else limit, newest_first is not False, request.query_params.get("after"))


def read_number(request: Request, name: str, *, most: int | None = None) -> int | None:
    """A whole number of the query, from 1 to `most` if that is given; None if it is not there. Raises `InvalidRequest`."""
    if (text := request.query_params.get(name)) is None:
        return None
    is_number = text.isascii() and text.isdigit() and len(text) <= 15
    if not is_number or (most is not None and not 1 <= int(text) <= most):
        raise _invalid(name, "a whole number from 0 on" if most is None else f"between 1 and {most}", text)
    return int(text)


def read_choice(request: Request, name: str, meanings: Mapping[str, T]) -> T | None:
    """What a word of the query means, None if it is not there. Raises `InvalidRequest` for an unknown word."""
    text = request.query_params.get(name)
    if text is not None and text.lower() not in meanings:
        raise _invalid(name, "one of " + ", ".join([f"`{word}`" for word in meanings]), text)
    return None if text is None else meanings[text.lower()]


class PageBuilder:
    """The entries of a page, written as they come. It is full behind the one with which it has `PAGE_BYTES`."""

    def __init__(self) -> None:
        self._data: list[Raw] = []
        self._ids: list[str] = []
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size > PAGE_BYTES

    def add(self, id: str, entry: object) -> None:
        written = encode(entry)
        self._size += len(written)
        self._data.append(Raw(written))
        self._ids.append(id)

    def build(self, *, has_more: bool) -> Page:
        ids = self._ids
        return Page(self._data, ids[0] if ids else None, ids[-1] if ids else None, has_more)


def make_page(data: Sequence[object], ids: Sequence[str], *, has_more: bool) -> Page:
    """As many of the entries as a page has room for."""
    page = PageBuilder()
    for id, entry in zip(ids, data, strict=True):
        if page.is_full:
            return page.build(has_more=True)
        page.add(id, entry)
    return page.build(has_more=has_more)


def cut_page(data: Sequence[object], ids: Sequence[str], cursor: Cursor) -> Page:
    """The wanted part of a list that is all at hand, oldest entry first. Raises `NotFound` for an unknown `after`."""
    if cursor.newest_first:
        data, ids = data[::-1], ids[::-1]
    start = 0
    if cursor.after is not None:
        if cursor.after not in ids:
            raise NotFound(f"No item with id '{cursor.after}'.", param="after")
        start = ids.index(cursor.after) + 1
    end = start + cursor.limit
    return make_page(data[start:end], ids[start:end], has_more=end < len(data))


class DocumentSlice(Struct, frozen=True):
    """The documents that a page shows."""

    documents: Sequence[Document]
    has_more: bool


async def read_document_page(store: DocumentStore, kind: str, tenant: str, cursor: Cursor) -> DocumentSlice:
    """The wanted part of a tenant's documents; no others are read. Raises `NotFound` for an unknown `after`."""
    number = None
    if cursor.after is not None:
        if (last := await store.get(kind, cursor.after, tenant=tenant)) is None:
            raise NotFound(f"No item with id '{cursor.after[:80]}'.", param="after")
        number = last.number
    found = await store.documents(
        kind,
        tenant=tenant,
        after=number,
        limit=cursor.limit + 1,
        newest_first=cursor.newest_first,
        most_bytes=PAGE_BYTES,
    )
    is_cut = sum([len(document.body) for document in found]) > PAGE_BYTES
    return DocumentSlice(found[: cursor.limit], is_cut or len(found) > cursor.limit)


def _invalid(name: str, wanted: str, text: str) -> InvalidRequest:
    return InvalidRequest(f"{name} must be {wanted}, not `{text[:40]}`", param=name, code="invalid_value")
