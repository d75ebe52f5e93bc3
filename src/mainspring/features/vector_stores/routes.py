"""`/v1/vector_stores`: stores, their files and batches of files, and search. Each sees the caller's tenant."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Final, Literal, TypeVar

from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.vector_stores.chunking import ChunkingStrategy, ShownStrategy, resolve_chunking
from mainspring.features.vector_stores.filters import Attribute, Attributes, parse_filter
from mainspring.features.vector_stores.passage_rows import FileStatus, NewFile, StoreBody, StoreCounts, StoredStore, StoreFile
from mainspring.features.vector_stores.vector_stores import (
    DEFAULT_RESULTS,
    MOST_RESULTS,
    RankingOptions,
    SearchOptions,
    SearchResult,
    VectorStores,
)
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import Metadata, Name
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.ignored import read_known
from mainspring.http.queries import CURSOR, Deleted, Page, make_page, read_choice, read_cursor

_APOSTROPHE: Final = "\u2019"
_WORD: Final = re.compile(rf"[^\W_](?:['.{_APOSTROPHE}-]?[^\W_])*")
# They make a question of what is asked for, and say nothing about it.
_QUESTION: Final = """
a about am an and any anyone anything are be been being can could did do does explain find for from get give had has have hello
help hi how i i'd i'm in is it its kindly know like list look me mean means my of on or our please search should show so some tell
than thank thanks that the their them then there these they this those to us want was we were what what's when where where's
which who whom whose why will with would you your
"""
_NEEDLESS: Final = frozenset(_QUESTION.split())

MOST_FILES: Final = 500
MOST_QUERIES: Final = 16
MOST_CONTENT: Final = 10_000
_STATUSES: Final = ("in_progress", "completed", "failed", "cancelled")
_STORES: Final = (*CURSOR, Parameter("before"))
_FILES: Final = (*_STORES, Parameter("filter", {"enum": list(_STATUSES)}))
_STORE: Final = "/v1/vector_stores/{vector_store_id}"
_FILE: Final = f"{_STORE}/files/{{file_id}}"
_BATCH: Final = f"{_STORE}/file_batches/{{batch_id}}"

T = TypeVar("T")
Days = Annotated[int, Meta(ge=1, le=365)]
Text = Annotated[str, Meta(max_length=4096)]


class StoreExpiry(Struct, frozen=True):
    """When a store expires: so many days after it was last used."""

    days: Days
    anchor: Literal["last_active_at"] = "last_active_at"


class CreateVectorStore(Struct):
    """The body of `POST /v1/vector_stores`."""

    name: Name | None = None
    description: Name | None = None
    file_ids: Annotated[tuple[str, ...], Meta(max_length=MOST_FILES)] | None = None
    expires_after: StoreExpiry | None = None
    chunking_strategy: ChunkingStrategy | None = None
    metadata: Metadata | None = None


class UpdateVectorStore(Struct):
    """The body of `POST /v1/vector_stores/{vector_store_id}`: what is not there stays as it is."""

    name: Name | UnsetType | None = UNSET
    expires_after: StoreExpiry | UnsetType | None = UNSET
    metadata: Metadata | UnsetType | None = UNSET


class AddStoreFile(Struct):
    """The body of `POST /v1/vector_stores/{vector_store_id}/files`, and an entry of a batch."""

    file_id: str
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class ChangeStoreFile(Struct):
    """The body of `POST /v1/vector_stores/{vector_store_id}/files/{file_id}`."""

    attributes: Attributes | None


class CreateFileBatch(Struct):
    """The body of `POST /v1/vector_stores/{vector_store_id}/file_batches`: `file_ids`, which share the rest, or `files`."""

    file_ids: Annotated[tuple[str, ...], Meta(max_length=MOST_FILES)] | None = None
    files: Annotated[tuple[AddStoreFile, ...], Meta(max_length=MOST_FILES)] | None = None
    attributes: Attributes | None = None
    chunking_strategy: ChunkingStrategy | None = None


class SearchVectorStore(Struct):
    """The body of `POST /v1/vector_stores/{vector_store_id}/search`."""

    query: Text | Annotated[tuple[Text, ...], Meta(max_length=MOST_QUERIES)]
    filters: Json | None = None
    max_num_results: Annotated[int, Meta(ge=1, le=MOST_RESULTS)] | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None


class VectorStoreObject(Struct, frozen=True):
    id: str
    created_at: int
    name: str
    description: str | None
    status: Literal["expired", "in_progress", "completed"]
    usage_bytes: int
    file_counts: StoreCounts
    last_active_at: int
    expires_after: StoreExpiry | None
    expires_at: int | None
    metadata: dict[str, str]
    object: str = "vector_store"


class FileError(Struct, frozen=True):
    """Why a file could not be indexed."""

    code: str
    message: str


class VectorStoreFile(Struct, frozen=True):
    id: str
    created_at: int
    vector_store_id: str
    status: FileStatus
    usage_bytes: int
    last_error: FileError | None
    attributes: dict[str, Attribute]
    chunking_strategy: ShownStrategy
    object: str = "vector_store.file"


class FileBatch(Struct, frozen=True):
    id: str
    created_at: int
    vector_store_id: str
    status: Literal["in_progress", "completed", "cancelled"]
    file_counts: StoreCounts
    object: str = "vector_store.files_batch"


class PassageText(Struct, frozen=True):
    text: str
    type: str = "text"


class ShownResult(Struct, frozen=True):
    """A passage that fits. `page` and `line` say where in the file it begins; those are ours."""

    file_id: str
    filename: str
    score: float
    attributes: dict[str, Attribute]
    content: Sequence[PassageText]
    page: int | None
    line: int


class SearchPage(Struct, frozen=True):
    search_query: Sequence[str]
    data: Sequence[ShownResult]
    has_more: bool = False
    next_page: str | None = None
    object: str = "vector_store.search_results.page"


class ContentPage(Struct, frozen=True):
    data: Sequence[PassageText]
    has_more: bool = False
    next_page: str | None = None
    object: str = "vector_store.file_content.page"


class VectorStoreRoutes:
    def __init__(self, stores: VectorStores) -> None:
        self._stores = stores

    def endpoints(self) -> tuple[Endpoint, ...]:
        add, batch = f"{_STORE}/files", f"{_STORE}/file_batches"
        return (
            Endpoint("POST", "/v1/vector_stores", self.create, "responses", VectorStoreObject, CreateVectorStore, errors=(404,)),
            Endpoint("GET", "/v1/vector_stores", self.list, "responses", Page, query=_STORES),
            Endpoint("GET", _STORE, self.retrieve, "responses", VectorStoreObject),
            Endpoint("POST", _STORE, self.update, "responses", VectorStoreObject, UpdateVectorStore),
            Endpoint("DELETE", _STORE, self.delete, "responses", Deleted),
            Endpoint("POST", f"{_STORE}/search", self.search, "responses", SearchPage, SearchVectorStore),
            Endpoint("POST", add, self.add_file, "responses", VectorStoreFile, AddStoreFile),
            Endpoint("GET", add, self.list_files, "responses", Page, query=_FILES),
            Endpoint("GET", _FILE, self.retrieve_file, "responses", VectorStoreFile),
            Endpoint("POST", _FILE, self.update_file, "responses", VectorStoreFile, ChangeStoreFile),
            Endpoint("DELETE", _FILE, self.delete_file, "responses", Deleted),
            Endpoint("GET", f"{_FILE}/content", self.content, "responses", ContentPage),
            Endpoint("POST", batch, self.create_batch, "responses", FileBatch, CreateFileBatch),
            Endpoint("GET", _BATCH, self.retrieve_batch, "responses", FileBatch),
            Endpoint("POST", f"{_BATCH}/cancel", self.cancel_batch, "responses", FileBatch),
            Endpoint("GET", f"{_BATCH}/files", self.list_batch_files, "responses", Page, query=_FILES),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a vector store."""
        tenant = get_tenant(request)
        body, headers = await read_known(request, CreateVectorStore, may_be_empty=True)
        chunking = resolve_chunking(body.chunking_strategy)
        files = [await self._check(tenant, NewFile(id, "", {}, chunking)) for id in body.file_ids or ()]
        days = None if body.expires_after is None else body.expires_after.days
        made = await self._stores.create(tenant, StoreBody(body.name or "", body.description, body.metadata, days), files)
        return json_response(await self._render(made), headers=headers)

    async def list(self, request: Request) -> HttpResponse:
        """Lists vector stores, newest first."""
        tenant = get_tenant(request)

        async def list_some(after: str | None, limit: int, newest_first: bool) -> Sequence[StoredStore]:
            return await self._stores.list(tenant, after, limit, newest_first=newest_first)

        found, has_more = await _read_page(request, list_some, lambda store: store.id)
        shown = [await self._render(store) for store in found]
        return json_response(make_page(shown, [each.id for each in shown], has_more=has_more))

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a vector store."""
        return json_response(await self._render(await self._stores.get(*_key(request))))

    async def update(self, request: Request) -> HttpResponse:
        """Changes the name, the metadata or the expiry of a vector store."""
        tenant, id = _key(request)
        body, headers = await read_known(request, UpdateVectorStore, may_be_empty=True)
        changes: Json = {}
        if body.name is not UNSET:
            changes["name"] = body.name or ""
        if body.metadata is not UNSET:
            changes["metadata"] = body.metadata
        if body.expires_after is not UNSET:
            changes["expires_days"] = None if body.expires_after is None else body.expires_after.days
        return json_response(await self._render(await self._stores.change(tenant, id, changes)), headers=headers)

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a vector store; the files in it stay."""
        tenant, id = _key(request)
        await self._stores.remove(tenant, id)
        return json_response(Deleted(id, "vector_store.deleted"))

    async def search(self, request: Request) -> HttpResponse:
        """Searches a vector store by words and by meaning."""
        body, headers = await read_known(request, SearchVectorStore, may_be_empty=True)
        queries = (body.query,) if isinstance(body.query, str) else body.query
        if body.rewrite_query:
            queries = tuple([cut_question(query) for query in queries])
        options = SearchOptions(
            body.max_num_results or DEFAULT_RESULTS,
            None if body.filters is None else parse_filter(body.filters),
            body.ranking_options or RankingOptions(),
        )
        found = await self._stores.search(*_key(request), queries, options)
        return json_response(SearchPage(queries, [_render_result(each) for each in found]), headers=headers)

    async def add_file(self, request: Request) -> HttpResponse:
        """Adds a file to a vector store; it is indexed in the background."""
        tenant, id = _key(request)
        body, headers = await read_known(request, AddStoreFile, may_be_empty=True)
        await self._stores.get(tenant, id)
        chunking = resolve_chunking(body.chunking_strategy)
        file = await self._check(tenant, NewFile(body.file_id, "", body.attributes or {}, chunking))
        await self._stores.add_files(tenant, id, [file])
        return json_response(_render_file(await self._stores.get_file(tenant, id, file.file)), headers=headers)

    async def list_files(self, request: Request) -> HttpResponse:
        """Lists the files of a vector store, newest first."""
        return await self._list_files(request, {})

    async def retrieve_file(self, request: Request) -> HttpResponse:
        """Retrieves a file of a vector store: how far it is indexed, and why not."""
        return json_response(_render_file(await self._stores.get_file(*_file_key(request))))

    async def update_file(self, request: Request) -> HttpResponse:
        """Replaces the attributes of a file in a vector store."""
        body, headers = await read_known(request, ChangeStoreFile, may_be_empty=True)
        changed = await self._stores.change_attributes(*_file_key(request), body.attributes or {})
        return json_response(_render_file(changed), headers=headers)

    async def delete_file(self, request: Request) -> HttpResponse:
        """Takes a file out of a vector store; the file itself stays."""
        tenant, store, file = _file_key(request)
        await self._stores.remove_file(tenant, store, file)
        return json_response(Deleted(file, "vector_store.file.deleted"))

    async def content(self, request: Request) -> HttpResponse:
        """Reads the passages of a file in a vector store."""
        found = await self._stores.list_passages(*_file_key(request), MOST_CONTENT + 1)
        return json_response(ContentPage([PassageText(text) for text in found[:MOST_CONTENT]], len(found) > MOST_CONTENT))

    async def create_batch(self, request: Request) -> HttpResponse:
        """Adds files to a vector store; they are indexed in the background."""
        tenant, id = _key(request)
        body, headers = await read_known(request, CreateFileBatch, may_be_empty=True)
        await self._stores.get(tenant, id)
        if (body.file_ids is None) is (body.files is None):
            told = "name either `file_ids`, or `files` with their attributes"
            raise InvalidRequest(told, param="file_ids", code="missing_required_parameter")
        shared = resolve_chunking(body.chunking_strategy)
        wanted = [NewFile(file, "", body.attributes or {}, shared) for file in body.file_ids or ()]
        for number, each in enumerate(body.files or ()):
            chunking = resolve_chunking(each.chunking_strategy, f"files[{number}].chunking_strategy")
            wanted.append(NewFile(each.file_id, "", each.attributes or {}, chunking))
        batch = await self._stores.add_batch(tenant, id, [await self._check(tenant, file) for file in wanted])
        return json_response(await self._render_batch(tenant, id, batch), headers=headers)

    async def retrieve_batch(self, request: Request) -> HttpResponse:
        """Retrieves a batch of files: how far it is indexed."""
        return json_response(await self._render_batch(*_batch_key(request)))

    async def cancel_batch(self, request: Request) -> HttpResponse:
        """Cancels what is not yet indexed of a batch."""
        await self._stores.cancel_batch(*_batch_key(request))
        return json_response(await self._render_batch(*_batch_key(request)))

    async def list_batch_files(self, request: Request) -> HttpResponse:
        """Lists the files of a batch, newest first."""
        _, _, batch = _batch_key(request)
        await self._stores.get_batch(*_batch_key(request))
        return await self._list_files(request, {"batch": batch})

    async def _list_files(self, request: Request, only: dict[str, str]) -> HttpResponse:
        if (status := read_choice(request, "filter", {each: each for each in _STATUSES})) is not None:
            only = {**only, "status": status}

        async def list_some(after: str | None, limit: int, newest_first: bool) -> Sequence[StoreFile]:
            return await self._stores.list_files(*_key(request), after, limit, newest_first=newest_first, only=only)

        found, has_more = await _read_page(request, list_some, lambda file: file.file)
        shown = [_render_file(file) for file in found]
        return json_response(make_page(shown, [file.id for file in shown], has_more=has_more))

    async def _check(self, tenant: str, file: NewFile) -> NewFile:
        return await self._stores.check_file(tenant, file)

    async def _render(self, store: StoredStore) -> VectorStoreObject:
        counts, size = await self._stores.count(store.id)
        is_expired = self._stores.is_expired(store, await self._stores.read_clock())
        days, expires = store.body.expires_days, store.expires_at
        return VectorStoreObject(
            store.id,
            int(store.created_at),
            store.body.name,
            store.body.description,
            "expired" if is_expired else "in_progress" if counts.in_progress else "completed",
            size,
            counts,
            int(store.active_at),
            None if days is None else StoreExpiry(days),
            None if expires is None else int(expires),
            store.body.metadata or {},
        )

    async def _render_batch(self, tenant: str, store: str, batch: str) -> FileBatch:
        created_at, is_cancelled, counts = await self._stores.get_batch(tenant, store, batch)
        status: Literal["in_progress", "completed", "cancelled"] = "in_progress" if counts.in_progress else "completed"
        return FileBatch(batch, int(created_at), store, "cancelled" if is_cancelled else status, counts)


async def _read_page(
    request: Request, list_some: Callable[[str | None, int, bool], Awaitable[Sequence[T]]], find_id: Callable[[T], str]
) -> tuple[Sequence[T], bool]:
    """The entries behind `after` and in front of `before`, those next to the one that is named, and whether there are more."""
    cursor, before = read_cursor(request), request.query_params.get("before")
    if before is not None and cursor.after is None:
        found = await list_some(before, cursor.limit + 1, not cursor.newest_first)
        return found[: cursor.limit][::-1], len(found) > cursor.limit
    found = await list_some(cursor.after, cursor.limit + 1, cursor.newest_first)
    if before in (ids := [find_id(each) for each in found]):
        found = found[: ids.index(before)]
    return found[: cursor.limit], len(found) > cursor.limit


def _key(request: Request) -> tuple[str, str]:
    return get_tenant(request), str(request.path_params["vector_store_id"])


def _file_key(request: Request) -> tuple[str, str, str]:
    return (*_key(request), str(request.path_params["file_id"]))


def _batch_key(request: Request) -> tuple[str, str, str]:
    return (*_key(request), str(request.path_params["batch_id"]))


def _render_file(file: StoreFile) -> VectorStoreFile:
    return VectorStoreFile(
        file.file,
        int(file.created_at),
        file.store,
        file.status,
        file.usage_bytes,
        FileError(file.error_code, file.error) if file.error_code else None,
        file.attributes,
        ShownStrategy(file.chunking),
    )


def _render_result(found: SearchResult) -> ShownResult:
    passage = found.passage
    text = [PassageText(passage.text)]
    return ShownResult(passage.file, passage.filename, found.score, passage.attributes, text, passage.page, passage.line)


def cut_question(query: str) -> str:
    """The words of a question that say what it is about, as they are written; all of it if there are none."""
    words = [word for word in _WORD.findall(query) if word.lower().replace(_APOSTROPHE, "'") not in _NEEDLESS]
    return " ".join(words) or query
