"""Conversations between the store and a run: read when it begins, written when it ends."""

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.conversation_items import CONVERSATION, ITEM, build_history, list_new_items
from mainspring.core.drafts import item_id
from mainspring.core.errors import AlreadyInConversation, NotFound
from mainspring.core.history import History, list_answers
from mainspring.core.items import Item, decode, encode
from mainspring.core.run import Run
from mainspring.core.spec import Conversation, RunSpec
from mainspring.ports import Document, DocumentStore


class Entered(Struct, frozen=True):
    """A run's order with the place in its conversation where it begins, and what came before."""

    spec: RunSpec
    history: History


async def enter(store: DocumentStore, spec: RunSpec, conversation: Conversation) -> Entered:
    """Raises `NotFound` if the tenant has no such conversation, `AlreadyInConversation` if part of the input is in it."""
    if await store.get(CONVERSATION, conversation.id, tenant=spec.tenant) is None:
        raise NotFound(f"Conversation with id '{conversation.id}' not found.", param="conversation")
    found = await store.documents(ITEM, tenant=spec.tenant, parent=conversation.id)
    known = {document.id for document in found}
    for item in spec.input:
        if item_id(item) in known:
            message = f"Item with id '{item_id(item)}' is in the conversation already; leave it out."
            raise AlreadyInConversation(message, param="input")
    history = build_history([decode(document.body, Item) for document in found], size=sum([len(each.body) for each in found]))
    place = Conversation(conversation.id, found[-1].number if found else 0, history.waiting)
    return Entered(replace(spec, conversation=place), history)


async def reread(store: DocumentStore, tenant: str, conversation: Conversation) -> History:
    """What a run found in its conversation when it began, but for what has been removed since."""
    found = await store.documents(ITEM, tenant=tenant, parent=conversation.id, after=conversation.upto + 1, newest_first=True)
    size = sum([len(document.body) for document in found])
    return build_history([decode(document.body, Item) for document in reversed(found)], conversation.waiting, size)


def documents(run: Run) -> tuple[Document, ...]:
    """What this run adds to its conversation, if it has one. One that failed before it said or did anything adds nothing: its
    request is sent again, and would be there twice. An answer of a person is used up, and stays."""
    came_to_nothing = run.status == "failed" and not run.output and not run.tools_used
    if (conversation := run.spec.conversation) is None or (came_to_nothing and not list_answers(run.spec.input)):
        return ()
    tenant = run.spec.tenant
    return tuple([Document(ITEM, item_id(item), encode(item), tenant, conversation.id) for item in list_new_items(run)])
