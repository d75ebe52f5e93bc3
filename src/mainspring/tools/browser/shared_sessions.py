"""Browser sessions that every process of a deployment can go on with.

A session is a leased document: after each call it says where the conversation is, and with which cookies. A call at another
process, or after a restart, opens that address anew with those cookies. What was typed, the history, and what else a page keeps
stay behind.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from logging import getLogger
from typing import Final

from anyio import CancelScope
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.errors import NotFound, OurError, StoreError, ToolUnavailable
from mainspring.core.ids import derive_id
from mainspring.core.items import Json, encode
from mainspring.ports import DocumentStore, Drivers
from mainspring.tools.builtin.containers import Key
from mainspring.tools.builtin.leased_documents import HeldDocument, LeasedDocuments

log = getLogger(__name__)

# A call has two minutes.
WAIT_SECONDS: Final = 110.0
# Cookies that take up more are not kept.
MOST_COOKIES: Final = 256 << 10


class SessionFacts(Struct, frozen=True):
    created_at: float


class SessionPlace(Struct, frozen=True, omit_defaults=True):
    """Where a session is. `home` is the process that has its pages."""

    used_at: float
    home: str = ""
    address: str = ""
    cookies: tuple[Json, ...] = ()


class HeldSession:
    """A session in our hands. What `state` is at the end is kept."""

    def __init__(self, state: SessionPlace, me: str) -> None:
        self.state = state
        self.is_home = state.home == me

    def keep(self, address: str, cookies: tuple[Json, ...]) -> None:
        if len(encode(cookies)) > MOST_COOKIES:
            log.warning("the cookies of a browser session are too large to be kept; they are lost when it moves")
            cookies = ()
        self.state = replace(self.state, address=address, cookies=cookies)


class SharedSessions:
    """The sessions of all processes on a store."""

    def __init__(self, store: DocumentStore, drivers: Drivers, idle_seconds: float) -> None:
        self._records = LeasedDocuments(store, drivers, "browser", "browser session", SessionFacts, SessionPlace)
        self._idle_seconds = idle_seconds

    @asynccontextmanager
    async def hold(self, key: Key, *, makes: bool) -> AsyncIterator[HeldSession]:
        """The session for one call; with `makes`, a missing one is made. Raises `ToolUnavailable`, `DocumentBusy`."""
        claim = await self._claim(_document_key(key), makes)
        held = HeldSession(claim.state, self._records.me)
        try:
            yield held
        finally:
            state = replace(held.state, home=self._records.me)
            with CancelScope(shield=True), suppress(StoreError):  # it is given back all the same
                state = replace(state, used_at=await self._records.read_clock())
            await claim.end(state)

    async def is_here(self, key: Key) -> bool:
        """Whether no other process has gone on with it."""
        try:
            return (await self._records.read(_document_key(key))).state.home == self._records.me
        except NotFound:
            return False

    async def remove(self, key: Key) -> None:
        await self._records.remove(_document_key(key))

    async def sweep(self) -> None:
        """Forgets idle sessions, once for the deployment."""
        try:
            if await self._records.is_sweeper(self._idle_seconds / 4):
                async for _, claim in self._records.claim_idle(self._is_idle):
                    await claim.remove()
        except OurError as error:
            log.warning("idle browser sessions are not forgotten now: %s", error)

    def _is_idle(self, facts: SessionFacts, state: SessionPlace, now: float) -> bool:
        return state.used_at + self._idle_seconds <= now

    async def _claim(self, key: Key, makes: bool) -> HeldDocument[SessionFacts, SessionPlace]:
        while True:
            try:
                return await self._records.claim(key, WAIT_SECONDS)
            except NotFound:
                if not makes:
                    raise ToolUnavailable("no page is open in this conversation; begin with `open`") from None
                now = await self._records.read_clock()
                await self._records.create(key, SessionFacts(now), SessionPlace(now))


def _document_key(key: Key) -> Key:
    """Not the id of the conversation, which has documents of its own."""
    return key[0], derive_id("brws", key[1])
