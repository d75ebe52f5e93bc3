"""Sessions of browsers: who has shown an API key once is known by a cookie for a while.

The cookie has a random token, of which only a hash is kept, beside the key that it stands for. What the session may do is what
that key may do now: it ends with the key, when its time is up, and when its holder signs out.
"""

import time
from collections.abc import Callable
from hashlib import sha256
from secrets import token_urlsafe
from typing import Final

from msgspec import Struct
from starlette.requests import HTTPConnection

from mainspring.core.items import decode, encode
from mainspring.ports import Document, DocumentStore

SESSION: Final = "session"
COOKIE: Final = "mainspring_session"
SESSION_SECONDS: Final = 12 * 3600
MOST_CLEARED: Final = 100


class Session(Struct, frozen=True):
    """The key that a session stands for, by its id, which the configured one has not, and by a digest of it."""

    key: str
    digest: bytes
    expires_at: float


class Sessions:
    """The sessions of a store."""

    def __init__(self, store: DocumentStore, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock

    async def open(self, key: str, digest: bytes) -> str:
        """A token that stands for this key. Sessions whose time is up are cleared away."""
        token, now = token_urlsafe(32), self._clock()
        for document in await self._store.documents(SESSION, limit=MOST_CLEARED):
            if decode(document.body, Session).expires_at <= now:
                await self._store.remove(SESSION, document.id)
        session = Session(key, digest, now + SESSION_SECONDS)
        await self._store.put([Document(SESSION, _name(token), encode(session))])
        return token

    async def find(self, token: str) -> Session | None:
        """The session of this token, if its time is not up."""
        found = await self._store.get(SESSION, _name(token))
        session = None if found is None else decode(found.body, Session)
        return session if session is not None and session.expires_at > self._clock() else None

    async def close(self, token: str) -> None:
        await self._store.remove(SESSION, _name(token))


def read_token(connection: HTTPConnection) -> str:
    """The token that a request brings in its cookie; empty if it has none."""
    return connection.cookies.get(COOKIE, "") if "cookie" in connection.headers else ""


def make_cookie(token: str, *, is_secure: bool) -> str:
    """The header that gives a browser the token. An empty one takes it away."""
    age = SESSION_SECONDS if token else 0
    secure = "; Secure" if is_secure else ""
    return f"{COOKIE}={token}; Path=/; Max-Age={age}; HttpOnly; SameSite=Strict{secure}"


def _name(token: str) -> str:
    return sha256(token.encode()).hexdigest()
