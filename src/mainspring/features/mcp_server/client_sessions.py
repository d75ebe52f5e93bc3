"""Sessions of clients that speak a protocol up to 2025-11-25.

A session is a document in the store, so that every process on it knows it, and a restart ends none. Each key has a bounded
number; one that was not used for a while has ended. That it was used is written down once a minute, not with each request.
"""

import time
from asyncio import Lock
from collections.abc import Callable
from secrets import token_urlsafe
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Json, decode, encode
from mainspring.core.lru_cache import LRUCache
from mainspring.features.mcp_server.client_messages import INVALID_PARAMS, RequestId, RpcError
from mainspring.features.mcp_server.settings import OfferSettings
from mainspring.ports import Document, DocumentStore

SESSION: Final = "mcp_session"
HOLDER: Final = "mcp_sessions"
CALL: Final = "mcp_call"
NOTE_SECONDS: Final = 60.0
REMEMBERED_SECONDS: Final = 5.0
REMEMBERED: Final = 1_024
MOST_CAPABILITIES: Final = 4_096
# What is read of the capabilities of a client; nothing else is kept.
READ_CAPABILITIES: Final = ("elicitation", "extensions")


class ClientSession(Struct, frozen=True):
    revision: str
    capabilities: Json
    used_at: float


class _Seen(Struct, frozen=True):
    session: ClientSession
    read_at: float


class McpSessions:
    def __init__(self, store: DocumentStore, settings: OfferSettings, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._most, self._seconds = settings.sessions_per_key, settings.session_seconds
        self._opening: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        self._seen: LRUCache[tuple[str, str], _Seen] = LRUCache(REMEMBERED)

    async def open(self, holder: str, revision: str, capabilities: Json) -> str:
        """The id of a new session. Those of this key that are over end, and with too many the one unused longest. Raises
        `RpcError` for more capabilities than a session keeps."""
        kept: Json = {name: capabilities[name] for name in READ_CAPABILITIES if name in capabilities}
        if len(encode(kept)) > MOST_CAPABILITIES:
            told = f"`elicitation` and `extensions` of `capabilities` have more than {MOST_CAPABILITIES} bytes; say less"
            raise RpcError(INVALID_PARAMS, told)
        async with self._opening.setdefault(holder, Lock()):
            return await self._open(holder, revision, kept)

    async def _open(self, holder: str, revision: str, capabilities: Json) -> str:
        id, now = token_urlsafe(24), self._clock()
        parent = _name(holder)
        await self._store.put([Document(HOLDER, parent, b"{}")], if_absent=True)
        known = await self._store.documents(SESSION, parent=parent)
        by_use = sorted([(decode(document.body, ClientSession).used_at, document.id) for document in known])
        spare = len(by_use) + 1 - self._most
        for place, (used_at, old) in enumerate(by_use):
            if place < spare or now - used_at > self._seconds:
                await self.close(holder, old)
        session = ClientSession(revision, capabilities, now)
        await self._store.put([Document(SESSION, id, encode(session), parent=parent)])
        return id

    async def find(self, holder: str, id: str) -> ClientSession | None:
        """The session, if this key has it and it is not over."""
        now = self._clock()
        if (seen := self._seen.get((holder, id))) is not None and now - seen.read_at < REMEMBERED_SECONDS:
            return seen.session
        found = await self._store.get(SESSION, id, parent=_name(holder))
        session = None if found is None else decode(found.body, ClientSession)
        if session is None or now - session.used_at > self._seconds:
            return None
        if found is not None and now - session.used_at > min(NOTE_SECONDS, self._seconds / 4):
            session = replace(session, used_at=now)
            await self._store.swap(replace(found, body=encode(session)), found.body)
        self._seen[(holder, id)] = _Seen(session, now)
        return session

    async def close(self, holder: str, id: str) -> bool:
        """Says whether there was such a session. Other processes may go on with it for `REMEMBERED_SECONDS`."""
        self._seen.pop((holder, id))
        return await self._store.remove(SESSION, id, parent=_name(holder))

    async def note_call(self, holder: str, session: str, id: RequestId, work: str) -> None:
        """Has every process know which work a request has started, as long as it is under way."""
        await self._store.put([Document(CALL, f"{session} {id!r}", work.encode(), parent=_name(holder))])

    async def find_call(self, holder: str, session: str, id: RequestId) -> str | None:
        found = await self._store.get(CALL, f"{session} {id!r}", parent=_name(holder))
        return None if found is None else found.body.decode()

    async def forget_call(self, holder: str, session: str, id: RequestId) -> None:
        await self._store.remove(CALL, f"{session} {id!r}", parent=_name(holder))


def _name(holder: str) -> str:
    return holder or "nobody"
