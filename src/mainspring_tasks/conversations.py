"""Conversations that are kept for a person: what was said is remembered, and what waits for a yes is found again.

A chat is a conversation like any other in the store, with messages in it that people read: not what the model and its tools said
to each other. It belongs to the person alone: no other door leads to it. The id of a message holds the time it was said.
"""

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from secrets import token_hex
from typing import Final

from msgspec import Struct

from mainspring.core.conversation_items import CONVERSATION, ITEM, Conversation
from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.core.ids import NewId, derive_id, random_id
from mainspring.core.items import Item, assistant, decode, encode, user
from mainspring.core.items import Message as MessageItem
from mainspring.core.spec import Caller
from mainspring.ports import Document, DocumentStore
from mainspring_tasks.decision_engine import LLMAgentEngine, RecordedDecision, derive_owner
from mainspring_tasks.decision_types import MAX_HISTORY_MESSAGES, MAX_MESSAGE_LENGTH, DecisionContext, Message
from mainspring_tasks.speech import ReplyListener

LONGEST_CONTENT: Final = 32_000
LONGEST_TITLE: Final = 60
MOST_MESSAGES: Final = 100
_ID: Final = re.compile(r"conv_[A-Za-z0-9_-]{1,120}")
_TIMED: Final = re.compile(r"msg_([0-9a-f]{12})[0-9a-f]{12}")


class SpokenMessage(Struct, frozen=True):
    """A stored message. `created_at` is null for one that was added by hand."""

    id: str
    role: str
    content: str
    created_at: datetime | None


class MessageResult(Struct, frozen=True):
    """The result of a message: its conversation, the reply, the latest messages including both, and the decision."""

    conversation_id: str
    message: SpokenMessage
    messages: tuple[SpokenMessage, ...]
    recorded: RecordedDecision


class Chats:
    """The chats of a store and their agent. `history` is the number of earlier messages that the agent sees."""

    def __init__(
        self,
        agent: LLMAgentEngine,
        store: DocumentStore,
        *,
        history: int = MAX_HISTORY_MESSAGES,
        clock: Callable[[], float] = time.time,
        new_id: NewId = random_id,
    ) -> None:
        self._agent, self._store, self._history = agent, store, history
        self._clock, self._new_id = clock, new_id

    async def send(
        self,
        person: str,
        content: str,
        conversation_id: str | None = None,
        *,
        tenant: str = "",
        caller: Caller | None = None,
        listener: ReplyListener | None = None,
        key: str = "",
    ) -> MessageResult:
        """Sends a message in a conversation, or starts one. The agent sees its first 4000 characters. With a `key`, `recall`
        finds what came of it.

        Raises `InvalidRequest` for invalid content or an invalid id, `NotFound` for a conversation that is not this user's.
        """
        if not content.strip() or len(content) > LONGEST_CONTENT:
            message = f"content must have 1 to {LONGEST_CONTENT} characters, and not only blanks; it has {len(content)}"
            raise InvalidRequest(message, param="content")
        own = derive_owner(tenant, person)
        if conversation_id is None:
            conversation_id = await self._begin(content, own, key)
        else:
            await self._check(conversation_id, own)
        async with self._agent.turn(person, conversation_id, tenant=tenant, caller=caller) as turn:
            earlier = await self.messages(person, conversation_id, tenant=tenant)
            waiting = await self._agent.waiting(person, conversation_id, tenant=tenant)
            context = DecisionContext(
                person,
                content.strip()[:MAX_MESSAGE_LENGTH],
                conversation_id,
                tuple([_make_history_message(spoken) for spoken in earlier[-self._history :]]) if self._history else (),
                None if waiting is None else waiting.action,
            )
            said = user(content, id=self._message_id(key, "user"))
            recorded = await turn.decide(context, listener=listener, key=key)
            told = await self._keep(said, recorded, own, conversation_id, key)
        return MessageResult(conversation_id, told[-1], (*earlier, *told)[-MOST_MESSAGES:], recorded)

    async def recall(
        self, person: str, content: str, conversation_id: str | None, key: str, *, tenant: str = ""
    ) -> MessageResult | None:
        """What came of a message that was sent with this key, and is added to its conversation if that had no time to be; None if
        it cannot be told. Raises `NotFound` if nothing was decided about it."""
        id, own = conversation_id or derive_id("conv", key), derive_owner(tenant, person)
        async with self._agent.turn(person, id, tenant=tenant):
            if (recorded := await self._agent.recall(key)) is None:
                return None
            found = await self.messages(person, id, tenant=tenant)
            places = [place for place, spoken in enumerate(found) if spoken.id.endswith(_mark(key, "assistant"))]
            if not places:
                said = user(content, id=self._message_id(key, "user"))
                found = (*found, *await self._keep(said, recorded, own, id, key))[-MOST_MESSAGES:]
                places = [len(found) - 1]
        return MessageResult(id, found[places[0]], found[: places[0] + 1], recorded)

    async def _keep(
        self, said: MessageItem, recorded: RecordedDecision, own: str, conversation_id: str, key: str
    ) -> tuple[SpokenMessage, ...]:
        reply = assistant(recorded.decision.response_text or "", id=self._message_id(key, "assistant"))
        await self._store.put([_document(item, own, conversation_id) for item in (said, reply)])
        return tuple([_read_message(item) for item in (said, reply)])

    async def messages(self, person: str, conversation_id: str, *, tenant: str = "") -> tuple[SpokenMessage, ...]:
        """The latest messages of a user's conversation, oldest first."""
        own = derive_owner(tenant, person)
        found = await self._store.documents(ITEM, tenant=own, parent=conversation_id, limit=MOST_MESSAGES, newest_first=True)
        items = [decode(document.body, Item) for document in reversed(found)]
        return tuple([_read_message(item) for item in items if isinstance(item, MessageItem) and item.text.strip()])

    async def find(self, person: str, conversation_id: str, *, tenant: str = "") -> tuple[SpokenMessage, ...]:
        """As `messages`. Raises `NotFound` for a conversation that is not this user's."""
        await self._check(conversation_id, derive_owner(tenant, person))
        return await self.messages(person, conversation_id, tenant=tenant)

    async def list(
        self, person: str, limit: int, after: str | None = None, *, newest_first: bool = True, tenant: str = ""
    ) -> tuple[Conversation, ...]:
        """At most so many of a user's conversations, behind the one with the id `after`. Raises `NotFound` if there is none."""
        own, number = derive_owner(tenant, person), None
        if after is not None:
            if (seen := await self._store.get(CONVERSATION, after, tenant=own)) is None:
                raise NotFound(f"Conversation with id '{after}' not found.", param="after")
            number = seen.number
        found = await self._store.documents(CONVERSATION, tenant=own, after=number, limit=limit, newest_first=newest_first)
        return tuple([decode(document.body, Conversation) for document in found])

    async def _begin(self, content: str, own: str, key: str) -> str:
        title = " ".join(content.split())[:LONGEST_TITLE]
        made = Conversation(derive_id("conv", key) if key else self._new_id("conv"), int(self._clock()), {"title": title})
        await self._store.put([Document(CONVERSATION, made.id, encode(made), own)])
        return made.id

    async def _check(self, id: str, own: str) -> None:
        if not _ID.fullmatch(id):
            raise InvalidRequest("conversation_id must be an id such as `conv_abc`", param="conversation_id")
        if await self._store.get(CONVERSATION, id, tenant=own) is None:
            raise NotFound(f"Conversation with id '{id}' not found.", param="conversation_id")

    def _message_id(self, key: str, role: str) -> str:
        return f"msg_{int(self._clock() * 1000):012x}{_mark(key, role) if key else token_hex(6)}"


def _mark(key: str, role: str) -> str:
    """How the id of a message ends that was sent with a key."""
    return sha256(f"{role}\0{key}".encode()).hexdigest()[:12]


def _document(item: MessageItem, tenant: str, conversation: str) -> Document:
    return Document(ITEM, item.id, encode(item), tenant, conversation)


def _read_message(item: MessageItem) -> SpokenMessage:
    found = _TIMED.fullmatch(item.id)
    at = None if found is None else datetime.fromtimestamp(int(found[1], 16) / 1000, UTC)
    return SpokenMessage(item.id, item.role, item.text, at)


def _make_history_message(spoken: SpokenMessage) -> Message:
    return Message("assistant" if spoken.role == "assistant" else "user", spoken.content, spoken.created_at or _LONG_AGO)


_LONG_AGO: Final = datetime.fromtimestamp(0, UTC)
