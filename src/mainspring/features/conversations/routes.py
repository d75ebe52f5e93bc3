"""The Conversations API: lists of items that live as long as one likes, and that responses read and add to.

A conversation is a document, and so is each of its items; the engine reads them when a response begins and adds to them when it
ends (`loop.conversation` says how). Of two responses at once in one conversation, neither sees the other, and both are kept.
"""

import time
from collections.abc import Sequence
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.conversation_items import CONVERSATION, ITEM, Conversation, with_id
from mainspring.core.drafts import item_id
from mainspring.core.errors import AlreadyInConversation, InvalidRequest, NotFound
from mainspring.core.items import Item, Message, Unknown, decode, encode
from mainspring.engine.engine import Engine
from mainspring.http.auth import get_tenant
from mainspring.http.bodies import Metadata, read_json_body
from mainspring.http.client_tools import flatten_call, parse_client_items, render_client_item
from mainspring.http.endpoints import Endpoint, Parameter
from mainspring.http.faults import json_response
from mainspring.http.ignored import IgnoredFields, ItemReader, read_known
from mainspring.http.kinds import TRIGGER
from mainspring.http.queries import CURSOR, Deleted, Page, make_page, read_cursor
from mainspring.http.sent_items import assign_id, resolve_references
from mainspring.http.support import check_needs, list_item_needs
from mainspring.ports import PAGE_BYTES, Document
from mainspring.providers.wrapper import find_features

MOST_ITEMS: Final = 20
# How many items are read before it is known whether they fill a page.
ITEMS_AT_A_TIME: Final = 20

LISTED_AT_A_TIME: Final = 50
MOST_SEARCHED: Final = 2000
"""How many conversations are looked at for one page."""
TITLE_CHARS: Final = 120
_LIST: Final = (*CURSOR, Parameter("q"))
_ALL: Final = "/v1/conversations"
_PATH: Final = f"{_ALL}/{{conversation_id}}"

Items = Annotated[tuple[Item, ...], Meta(max_length=MOST_ITEMS)]


class CreateConversation(Struct):
    """The body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata | None = None


class UpdateConversation(Struct):
    metadata: Metadata | None


class CreateItems(Struct):
    items: Items


class ListedConversation(Struct, frozen=True):
    id: str
    created_at: int
    metadata: dict[str, str]
    title: str
    object: str = "conversation"


class ConversationRoutes:
    """Every endpoint under `/v1/conversations`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("POST", _ALL, self.create, "conversations", Conversation, CreateConversation),
            Endpoint("GET", _ALL, self.list_conversations, "conversations", Page, query=_LIST, schemas=(ListedConversation,)),
            Endpoint("GET", _PATH, self.retrieve, "conversations", Conversation),
            Endpoint("POST", _PATH, self.update, "conversations", Conversation, UpdateConversation),
            Endpoint("DELETE", _PATH, self.delete, "conversations", Deleted),
            Endpoint("GET", f"{_PATH}/items", self.list_items, "conversations", Page, query=CURSOR),
            Endpoint("POST", f"{_PATH}/items", self.add_items, "conversations", Page, CreateItems),
            Endpoint("GET", f"{_PATH}/items/{{item_id}}", self.retrieve_item, "conversations"),
            Endpoint("DELETE", f"{_PATH}/items/{{item_id}}", self.delete_item, "conversations", Conversation),
        )

    async def create(self, request: Request) -> HttpResponse:
        """Creates a conversation."""
        ignored = IgnoredFields()
        raw = await read_json_body(request) or b"{}"
        body = ignored.parse(raw, CreateConversation, ItemReader("items", ignored).read)
        conversation = Conversation(self._engine.new_id("conv"), int(time.time()), body.metadata or {})
        tenant = get_tenant(request)
        items = await self._documents(body.items or (), tenant, conversation.id)
        await self._engine.store.put([_make_document(conversation, tenant), *items])
        return json_response(conversation, headers=ignored.make_headers())

    async def list_conversations(self, request: Request) -> HttpResponse:
        """Lists the conversations, newest first, each with its title: that of its metadata, or what was said first."""
        cursor, tenant, wanted = read_cursor(request), get_tenant(request), request.query_params.get("q", "").lower()
        store, number, read = self._engine.store, None, 0
        if cursor.after is not None:
            if (seen := await store.get(CONVERSATION, cursor.after, tenant=tenant)) is None:
                raise NotFound(f"No conversation with id '{cursor.after}'.", param="after")
            number = seen.number
        found: list[ListedConversation] = []
        while len(found) <= cursor.limit and read < MOST_SEARCHED:
            batch = await store.documents(
                CONVERSATION, tenant=tenant, after=number, limit=LISTED_AT_A_TIME, newest_first=cursor.newest_first
            )
            for document in batch:
                told = await self._entitle(decode(document.body, Conversation), tenant)
                found += [told] if wanted in told.title.lower() or wanted == told.id else []
            if len(batch) < LISTED_AT_A_TIME:
                break
            number, read = batch[-1].number, read + len(batch)
        shown = found[: cursor.limit]
        page = make_page(shown, [told.id for told in shown], has_more=len(found) > cursor.limit)
        if read >= MOST_SEARCHED and not page.has_more:
            page = replace(page, has_more=True, last_id=batch[-1].id)  # there may be more behind those that were looked at
        return json_response(page)

    async def _entitle(self, conversation: Conversation, tenant: str) -> ListedConversation:
        title = conversation.metadata.get("title", "")
        if not title:
            first = await self._engine.store.documents(ITEM, tenant=tenant, parent=conversation.id, limit=1)
            item = decode(first[0].body, Item) if first else None
            title = " ".join(item.text[:TITLE_CHARS].split()) if isinstance(item, Message) else ""
        return ListedConversation(conversation.id, conversation.created_at, conversation.metadata, title)

    async def retrieve(self, request: Request) -> HttpResponse:
        """Retrieves a conversation, without its items."""
        return json_response(await self._find(request))

    async def update(self, request: Request) -> HttpResponse:
        """Replaces the metadata of a conversation."""
        body, headers = await read_known(request, UpdateConversation, may_be_empty=True)
        found = await self._find(request)
        changed = Conversation(found.id, found.created_at, body.metadata or {})
        await self._engine.store.put([_make_document(changed, get_tenant(request))])
        return json_response(changed, headers=headers)

    async def delete(self, request: Request) -> HttpResponse:
        """Deletes a conversation."""
        id = str(request.path_params["conversation_id"])
        if not await self._engine.store.remove(CONVERSATION, id, tenant=get_tenant(request)):
            raise _not_found(id)
        return json_response(Deleted(id, "conversation.deleted"))

    async def list_items(self, request: Request) -> HttpResponse:
        """Lists the items of a conversation, newest first."""
        cursor = read_cursor(request)
        conversation, tenant = await self._find(request), get_tenant(request)
        number = None
        if cursor.after is not None:
            seen = await self._engine.store.get(ITEM, cursor.after, tenant=tenant, parent=conversation.id)
            if seen is None:
                raise NotFound(f"No item with id '{cursor.after}'.", param="after")
            number = seen.number
        found: list[Document] = []
        size, is_more = 0, True
        while is_more and len(found) < cursor.limit and size <= PAGE_BYTES:
            count = min(ITEMS_AT_A_TIME, cursor.limit - len(found))
            batch = await self._engine.store.documents(
                ITEM, tenant=tenant, parent=conversation.id, after=number, limit=count + 1, newest_first=cursor.newest_first
            )
            is_more = len(batch) > count
            found += batch[:count]
            number = found[-1].number if found else None
            size += sum([len(document.body) for document in batch[:count]])
        return json_response(_make_item_page(found, has_more=is_more))

    async def add_items(self, request: Request) -> HttpResponse:
        """Adds items to a conversation."""
        ignored = IgnoredFields()
        raw = await read_json_body(request) or b"{}"
        body = ignored.parse(raw, CreateItems, ItemReader("items", ignored).read)
        conversation, tenant = await self._find(request), get_tenant(request)
        items = await self._documents(body.items, tenant, conversation.id)
        if not await self._engine.store.put(items, if_absent=True):
            for item in items:
                if await self._engine.store.get(ITEM, item.id, tenant=tenant, parent=conversation.id) is not None:
                    raise _already_there(item.id)
            raise _not_found(conversation.id)
        return json_response(_make_item_page(items, has_more=False), headers=ignored.make_headers())

    async def retrieve_item(self, request: Request) -> HttpResponse:
        """Retrieves an item of a conversation."""
        conversation, id = await self._find(request), str(request.path_params["item_id"])
        found = await self._engine.store.get(ITEM, id, tenant=get_tenant(request), parent=conversation.id)
        if found is None:
            raise _no_item(id, conversation.id)
        return json_response(render_client_item(decode(found.body, Item)))

    async def delete_item(self, request: Request) -> HttpResponse:
        """Deletes an item of a conversation."""
        conversation, id = await self._find(request), str(request.path_params["item_id"])
        if not await self._engine.store.remove(ITEM, id, tenant=get_tenant(request), parent=conversation.id):
            raise _no_item(id, conversation.id)
        return json_response(conversation)

    async def _find(self, request: Request) -> Conversation:
        """The conversation that the path names. One of another tenant is not found."""
        id = str(request.path_params["conversation_id"])
        found = await self._engine.store.get(CONVERSATION, id, tenant=get_tenant(request))
        if found is None:
            raise _not_found(id)
        return decode(found.body, Conversation)

    async def _documents(self, items: tuple[Item, ...], tenant: str, conversation: str) -> list[Document]:
        """The items to be added, each with an id. Raises `InvalidRequest` if one is there twice, or names one that is not."""
        if needs := [*list_item_needs(items, "items")]:
            check_needs(needs, find_features(self._engine.provider, self._engine.model))
        items = await resolve_references(items, self._engine.store, tenant, param="items")
        await self._engine.seal.check(items)
        documents: dict[str, Document] = {}
        for given in parse_client_items(items):
            if isinstance(given, Unknown) and given.data.get("type") == TRIGGER:
                message = f"a `{TRIGGER}` is nothing to keep; send it as the last item of the `input` of a response"
                raise InvalidRequest(message, param="items", code="unsupported_value")
            item = assign_id(flatten_call(given, {}), self._engine.new_id)
            id = item_id(item) or self._engine.new_id("item")
            if id in documents:
                raise _already_there(id)
            documents[id] = Document(ITEM, id, encode(with_id(item, id)), tenant, conversation)
        return list(documents.values())


def _make_document(conversation: Conversation, tenant: str) -> Document:
    return Document(CONVERSATION, conversation.id, encode(conversation), tenant)


def _make_item_page(documents: Sequence[Document], *, has_more: bool) -> Page:
    ids = [document.id for document in documents]
    data = [render_client_item(decode(document.body, Item)) for document in documents]
    return make_page(data, ids, has_more=has_more)


def _already_there(id: str) -> AlreadyInConversation:
    return AlreadyInConversation(f"Item with id '{id}' is in the conversation already; leave it out.", param="items")


def _not_found(id: str) -> NotFound:
    return NotFound(f"Conversation with id '{id}' not found.", param="conversation_id")


def _no_item(id: str, conversation: str) -> NotFound:
    return NotFound(f"Item with id '{id}' not found in conversation '{conversation}'.", param="item_id")
