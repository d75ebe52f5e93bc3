"""API keys: who may use the server, for which tenant, and for what.

Theory of operation. A key is `ms_<id>_<secret>`. The id finds its document; of the secret, 256 random bits, only a hash is kept,
so a key is shown once and cannot be had again. `AuthMiddleware` stands before every route, WebSockets included, and leaves a
`ApiCaller` for the handlers. Keys that were shown lately are remembered for `MEMORY` seconds: so much later, at most, a process
learns that another one has revoked a key. A revoked key stays in the list, lest revoking the last one open the door.

A server that only this machine can reach needs no keys as long as there are none. Once there is one, or one is configured, or the
server listens to the network, everybody needs one. Browsers on this machine reach it too, on behalf of any web page: without keys
a page is let in only from this machine, and only by its name, lest a name that was pointed here make a foreign page ours.

A key without a list of scopes is for everything. One with a list is for what that names and nothing else: scopes of the API, and
for tools that run here `tools:execute`, or `tools:execute:NAME` for one of them.

A browser shows its key once, and is known by the cookie of a session from then on (`sessions.py`). A cookie comes along with
whatever page makes the browser ask, so it counts only for pages of this server.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import sha256
from hmac import compare_digest
from secrets import token_hex
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mainspring.core.errors import InvalidRequest, MainspringError, NotFound
from mainspring.core.items import decode, encode
from mainspring.core.lru_cache import LRUCache
from mainspring.core.memory_quota import MemoryQuota, find_holder
from mainspring.core.spec import Caller, RunSpec
from mainspring.engine.approvals import APPROVE
from mainspring.engine.traceparent import clean_traceparent
from mainspring.http.client_connection import CONNECTION, ClientConnection
from mainspring.http.endpoints import PUBLIC, WEBSOCKET, KeyScope, ScopeTable
from mainspring.http.faults import Fault, RenderFault, fault_response
from mainspring.http.key_limits import (
    KEY_SUBJECT,
    KIND,
    NO_LIMITS,
    Headers,
    KeyAdmission,
    KeyLimits,
    KeyMeter,
    KeyUse,
    find_key_limits,
)
from mainspring.http.origins import REMEMBERED, require_local, require_same_origin
from mainspring.http.sessions import Sessions, read_token
from mainspring.ports import Document, DocumentStore, Store
from mainspring.storage.shared_limits import StoreLimits
from mainspring.tools.contract import EXECUTE

MEMORY: Final = 5.0
POLICY_VIOLATION: Final = 1008

INVOKE: Final = "agents:invoke"

KEY_SCOPES: Final[tuple[KeyScope, ...]] = get_args(KeyScope)
Seconds = Callable[[], float]

_FORM = re.compile(r"ms_([0-9a-f]{12})_([0-9a-f]{64})")
_TOOLS = re.compile(rf"{EXECUTE}(:[A-Za-z0-9_-]{{1,64}})?")
_HOW = "send the header `Authorization: Bearer KEY`; keys are made with `mainspring keys create --database FILE`"
_NOBODY = sha256(b"").digest()


class ApiCaller(Struct, frozen=True):
    """Who sends a request. Without keys, everybody is the default tenant and may do all. `subject` names the key, which is good
    until `expires_at`."""

    tenant: str = ""
    scopes: tuple[str, ...] = ("*",)
    subject: str = ""
    expires_at: float | None = None
    limits: KeyLimits = NO_LIMITS

    def may(self, scope: KeyScope) -> bool:
        return scope in self.scopes or "*" in self.scopes

    @property
    def tools(self) -> tuple[str, ...] | None:
        """The scopes that calls and answers to questions about them are judged by, None if all may be."""
        return None if "*" in self.scopes else tuple([scope for scope in self.scopes if scope.startswith((EXECUTE, APPROVE))])

    @property
    def holder(self) -> str:
        """Whose memory it is that a request takes, as for the runs of this caller."""
        return find_holder(self.subject, self.tenant)

    @property
    def is_operator(self) -> bool:
        """Whether it may look at every tenant."""
        return not self.tenant and self.may("admin")

    def as_run_caller(self) -> Caller:
        """On whose behalf a run of this request acts."""
        return Caller(self.subject, self.tools)


class Key(Struct, frozen=True):
    """A key as it is kept: everything but the secret."""

    id: str
    created_at: float
    digest: bytes
    name: str = ""
    tenant: str = ""
    scopes: tuple[str, ...] = ("*",)
    expires_at: float | None = None
    revoked_at: float | None = None
    limits: KeyLimits = NO_LIMITS

    def __repr__(self) -> str:
        return f"Key({self.id!r}, name={self.name!r}, tenant={self.tenant!r})"


class _Seen(Struct, frozen=True):
    key: Key
    until: float


async def list_tenants(store: Store) -> Sequence[str]:
    """Every tenant that has runs or keys, those of applications among them; the default one is first."""
    found = {each.group for each in await store.sum_usage("tenant")}
    found |= {decode(document.body, Key).tenant for document in await store.documents(KIND)}
    return ["", *sorted(found - {""})]


class Keys:
    """The keys of a store. `configured` is one more, for the default tenant and everything, that the store knows nothing of.
    `limits` hold for every key of the store that has none of its own, `use` is what keys have used of them. No key may have more
    than `most_at_once` requests under way at all processes, and `most_requests` at this one."""

    def __init__(
        self,
        store: DocumentStore,
        *,
        configured: str | None = None,
        most_requests: int | None = None,
        quota: MemoryQuota | None = None,
        use: KeyUse | None = None,
        limits: KeyLimits = NO_LIMITS,
        most_at_once: int | None = None,
        clock: Seconds = time.time,
        ticks: Seconds = time.monotonic,
    ) -> None:
        self._store = store
        self._configured = _digest(configured) if configured else None
        self._clock, self._ticks = clock, ticks
        self.sessions = Sessions(store, clock)
        self._most_requests = most_requests
        self._open: Counter[str] = Counter()
        self._quota = quota
        self._use, self._limits = use or KeyUse(StoreLimits(store), partial(find_key_limits, store, limits, most_at_once)), limits
        self._most_at_once = most_at_once
        self._seen: LRUCache[bytes, _Seen] = LRUCache(REMEMBERED)
        self._revocations = 0
        self._has_keys = False
        self._looked_at: float | None = None

    async def create(
        self,
        *,
        name: str = "",
        tenant: str = "",
        scopes: Sequence[str] = ("*",),
        seconds: float | None = None,
        until: float | None = None,
        limits: KeyLimits = NO_LIMITS,
    ) -> str:
        """A new key, good for so many seconds, and no longer than `until`. What is returned is nowhere else. Raises
        `InvalidRequest`."""
        for scope in scopes:
            check_scope(scope)
        if not tenant.isprintable():
            raise InvalidRequest(f"a tenant's name has printable characters only, not {tenant[:60]!a}", param="tenant")
        id, secret, now = token_hex(6), token_hex(32), self._clock()
        expires_at = until if seconds is None else now + seconds
        if until is not None and expires_at is not None and expires_at > until:
            told = f"this API key is good for {until - now:.0f} seconds more, and so are the keys that it makes; ask for fewer"
            raise InvalidRequest(told, param="seconds", code="invalid_value")
        key = Key(id, now, _digest(secret), name, tenant, tuple(scopes), expires_at, limits=limits)
        await self._store.put([Document(KIND, id, encode(key))])
        self._has_keys = True
        return f"ms_{id}_{secret}"

    async def list(self) -> Sequence[Key]:
        """All keys, oldest first, those that are good no more among them."""
        return [decode(document.body, Key) for document in await self._store.documents(KIND)]

    async def revoke(self, id: str) -> Key:
        """Makes the key useless, in this process from now on. Raises `NotFound`; a second time does nothing."""
        found = await self._store.get(KIND, id)
        if found is None:
            raise NotFound(f"there is no key `{id}`; see `mainspring keys list`")
        key = decode(found.body, Key)
        if key.revoked_at is None:
            key = replace(key, revoked_at=self._clock())
            await self._store.put([replace(found, body=encode(key))])
        self._revocations += 1
        for token in [token for token, seen in self._seen.items() if seen.key.id == id]:
            self._seen.pop(token)
        return key

    async def are_needed(self) -> bool:
        """Whether there is a key, be it a useless one. That there is none is remembered for `MEMORY` seconds."""
        if self._configured is not None or self._has_keys:
            return True
        now = self._ticks()
        if self._looked_at is None or now - self._looked_at >= MEMORY:
            self._has_keys = bool(await self._store.documents(KIND, limit=1))
            self._looked_at = now
        return self._has_keys

    async def caller(self, authorization: str) -> ApiCaller:
        """Who sends this header. Raises `Fault` 401 that says what to do, and never what was sent."""
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise Fault(401, "missing_api_key", f"an API key is needed: {_HOW}")
        digest = _digest(token)
        return ApiCaller() if self._is_configured(digest) else self._admit(await self._key(token, digest))

    async def find_caller(self, subject: str) -> ApiCaller:
        """Who acts on behalf of a key, though nobody shows it now; without a key, whoever looks after the server. Raises `Fault`
        401 if the key is good no more."""
        if not subject:
            return ApiCaller()
        found = await self._store.get(KIND, subject.removeprefix("key:"))
        return self._admit(None if found is None else decode(found.body, Key))

    async def open_session(self, key: str) -> str:
        """The token of a session that stands for this key. Raises `Fault` 401 as `caller` does."""
        await self.caller(f"Bearer {key}")
        parts = _FORM.fullmatch(key.strip())
        return await self.sessions.open("" if parts is None else parts[1], _digest(key.strip()))

    async def find_session_caller(self, token: str) -> ApiCaller:
        """Whoever this session stands for. Raises `Fault` 401 if that is nobody any more. Asked again within `MEMORY` seconds, it
        is remembered as keys are."""
        if (seen := self._seen.get(digest := _digest(f"session {token}"))) is not None and self._ticks() < seen.until:
            return self._admit(seen.key)
        revocations, session = self._revocations, await self.sessions.find(token)
        if session is None:
            raise Fault(401, "session_ended", "the session has ended; sign in again, or send an API key")
        if self._is_configured(session.digest):
            return ApiCaller()
        found = await self._store.get(KIND, session.key)
        key = None if found is None else decode(found.body, Key)
        if key is not None and revocations == self._revocations:
            self._seen[digest] = _Seen(key, self._ticks() + min(MEMORY, session.expires_at - self._clock()))
        return self._admit(key)

    async def close_session(self, token: str) -> None:
        """Ends the session; other processes may go on with it for `MEMORY` seconds."""
        self._seen.pop(_digest(f"session {token}"))
        await self.sessions.close(token)

    def _is_configured(self, digest: bytes) -> bool:
        return self._configured is not None and compare_digest(digest, self._configured)

    def _admit(self, key: Key | None) -> ApiCaller:
        if key is None or key.revoked_at is not None:
            raise Fault(401, "invalid_api_key", f"this API key is not known here, or was revoked: {_HOW}")
        if key.expires_at is not None and key.expires_at <= self._clock():
            raise Fault(401, "expired_api_key", f"this API key has expired: {_HOW}")
        limits = key.limits.complete(self._limits, self._most_at_once)
        return ApiCaller(key.tenant, key.scopes, f"{KEY_SUBJECT}{key.id}", key.expires_at, limits)

    async def close(self) -> None:
        await self._use.close()

    async def count_request(self, caller: ApiCaller, receive: Receive) -> "CountedRequest":
        """Counts a request until its end is told. Raises `Fault` 429 if this key has as many as it may, or does not read its
        answers, and `StoreError`."""
        if caller.subject:
            if self._quota is not None and self._quota.is_over(caller.holder):
                message = "the answers to this API key that are not read yet are as many bytes as it may have; read them"
                raise Fault(429, "too_many_requests", message, retry_after=1)
            if self._most_requests is not None and self._open[caller.subject] >= self._most_requests:
                message = f"this API key has {self._most_requests} requests under way here; wait for one to end"
                raise Fault(429, "too_many_requests", message, retry_after=1)
            if caller.limits is NO_LIMITS:
                self._open[caller.subject] += 1
                return CountedRequest(self._open, self._quota, caller, receive)
            meter = self._use.open_meter(caller.subject, caller.limits)
            admission = _check_admission(await meter.admit())
            self._open[caller.subject] += 1
            return CountedRequest(self._open, self._quota, caller, receive, admission.headers, meter)
        return CountedRequest(self._open, self._quota, caller, receive)

    def note_tokens(self, caller: ApiCaller, count: int) -> None:
        """Counts tokens that a request has used, and no run."""
        if caller.subject.startswith(KEY_SUBJECT):
            self._use.open_meter(caller.subject, caller.limits).note(count)

    async def admit_message(self, caller: ApiCaller) -> None:
        """Counts a message of a connection against the minute of its key. Raises `Fault` 429 if that is used up, `StoreError`."""
        if caller.subject and caller.limits is not NO_LIMITS:
            _check_admission(await self._use.open_meter(caller.subject, caller.limits).admit(is_message=True))

    async def _key(self, token: str, digest: bytes) -> Key | None:
        now = self._ticks()
        if (seen := self._seen.get(digest)) is not None and now < seen.until:
            return seen.key
        if (parts := _FORM.fullmatch(token)) is None:
            return None
        revocations = self._revocations
        found = await self._store.get(KIND, parts[1])
        key = None if found is None else decode(found.body, Key)
        if not compare_digest(_digest(parts[2]), _NOBODY if key is None else key.digest):
            return None
        if key is not None and revocations == self._revocations:  # else what was read may be out of date
            self._seen[digest] = _Seen(key, now + MEMORY)
        return key


def _check_admission(admission: KeyAdmission) -> KeyAdmission:
    if admission.refusal:
        headers = {name.decode(): value.decode() for name, value in admission.headers}
        raise Fault(429, admission.code, admission.refusal, retry_after=admission.seconds, headers=headers)
    return admission


class CountedRequest:
    """A request under way, with the bytes that it has brought: a thousand bodies may come at once."""

    __slots__ = ("_caller", "_meter", "_open", "_quota", "_receive", "_size", "headers")

    def __init__(
        self,
        open: Counter[str],
        quota: MemoryQuota | None,
        caller: ApiCaller,
        receive: Receive,
        headers: Headers = (),
        meter: KeyMeter | None = None,
    ) -> None:
        self.headers, self._meter = headers, meter
        self._open, self._quota, self._caller, self._receive = open, quota, caller, receive
        self._size = 0

    async def receive(self) -> Message:
        """The next message. Raises `Fault` 429 if there are too many bytes under way, of this key or in all."""
        message = await self._receive()
        if self._quota is not None and (size := len(message.get("body", b""))):
            if not self._quota.take(self._caller.holder, size):
                told = "requests and runs under way have as many bytes as the server takes at a time; wait for some to end"
                raise Fault(429, "too_many_requests", told, param="body", retry_after=1)
            self._size += size
        return message

    async def wait_until_read(self, scope: Scope) -> None:
        """Counts an answer for its key until little of it is left to read: whoever does not read has it kept for them."""
        connection: ClientConnection | None = scope.get(CONNECTION)
        if connection is None or self._quota is None or not connection.is_full:
            return
        self._quota.give_back(self._caller.holder, self._size)  # its body is gone
        self._size = self._quota.count(self._caller.holder, connection.unread)
        await connection.drain()

    def end(self) -> None:
        if self._caller.subject:
            self._open[self._caller.subject] -= 1
        if self._meter is not None:
            self._meter.leave()
        if self._quota is not None and self._size:
            self._quota.give_back(self._caller.holder, self._size)


class AuthMiddleware:
    """Lets a request pass if its key has the scope of the endpoint, or the endpoint is public.

    `is_local` says that only this machine can reach us.
    """

    def __init__(self, app: ASGIApp, keys: Keys, scopes: ScopeTable, *, is_local: bool) -> None:
        self._app = app
        self._keys = keys
        self._scopes = scopes
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        try:
            scope[_MIDDLEWARE] = self
            scope[_CALLER] = caller = await self.authorize(HTTPConnection(scope))
            counted = await self._keys.count_request(caller, receive)
        except (Fault, MainspringError) as fault:
            found = self._scopes.find(scope.get("method", WEBSOCKET), find_path(scope))
            await _refuse(fault, found.choose_render(HTTPConnection(scope).headers), scope, receive, send)
            return
        try:
            told = _add_headers(send, counted.headers) if counted.headers else send
            await self._app(scope, counted.receive if scope["type"] == "http" else receive, told)
            await counted.wait_until_read(scope)
        finally:
            counted.end()

    async def authorize(self, connection: HTTPConnection) -> ApiCaller:
        """Whoever sends this request. Raises `Fault` if they may not."""
        needed = self._scopes.find_scopes(connection.scope.get("method", WEBSOCKET), find_path(connection.scope))
        if PUBLIC in needed:
            return ApiCaller()
        caller = await self.identify(connection)
        connection.scope.setdefault(_CALLER, caller)  # the log names whom it refuses
        if not any(caller.may(scope) for scope in needed if scope != PUBLIC):
            scopes = ", ".join([f"`{scope}`" for scope in caller.scopes])
            wanted = " or ".join([f"`{scope}`" for scope in needed])
            raise Fault(403, "insufficient_scope", f"this API key is for {scopes}; a key with the scope {wanted} is needed here")
        return caller

    async def identify(self, connection: HTTPConnection) -> ApiCaller:
        """Whoever sends this request, whatever it is for. Raises `Fault` if that cannot be said."""
        if not await self.needs_key():
            require_local(connection)
            return ApiCaller()
        if (sent := _find_key(connection)) is None and (token := read_token(connection)):
            require_same_origin(connection)
            return await self._keys.find_session_caller(token)
        return await self._keys.caller(sent or "")

    async def needs_key(self) -> bool:
        return not self._is_local or await self._keys.are_needed()

    async def admit_message(self, caller: ApiCaller) -> None:
        """Raises `Fault` 429 if this key has used up its minute, `StoreError`."""
        await self._keys.admit_message(caller)


def _add_headers(send: Send, headers: Headers) -> Send:
    async def tell(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        await send(message)

    return tell


def _find_key(connection: HTTPConnection) -> str | None:
    """The key that a request shows, as `Authorization` has it; clients of the Messages API send it as `x-api-key`."""
    sent: str | None = connection.headers.get("authorization")
    return f"Bearer {key}" if sent is None and (key := connection.headers.get("x-api-key")) is not None else sent


def get_caller(connection: HTTPConnection) -> ApiCaller:
    """Who sends this request, as the middleware has found out."""
    found = connection.scope.get(_CALLER)
    return found if isinstance(found, ApiCaller) else ApiCaller()


async def identify_caller(connection: HTTPConnection) -> ApiCaller:
    """Who sends a request to a public endpoint. Raises `Fault` 401 if that cannot be said."""
    middleware = connection.scope.get(_MIDDLEWARE)
    return await middleware.identify(connection) if isinstance(middleware, AuthMiddleware) else ApiCaller()


async def needs_key(connection: HTTPConnection) -> bool:
    """Whether this server asks for keys."""
    middleware = connection.scope.get(_MIDDLEWARE)
    return isinstance(middleware, AuthMiddleware) and await middleware.needs_key()


def get_tenant(connection: HTTPConnection) -> str:
    return get_caller(connection).tenant


async def authorize_again(connection: HTTPConnection) -> None:
    """Raises `Fault` if whoever opened this connection would be let in no more: keys are revoked and expire."""
    middleware = connection.scope.get(_MIDDLEWARE)
    if isinstance(middleware, AuthMiddleware):
        await middleware.authorize(connection)


async def admit_again(connection: HTTPConnection) -> None:
    """Counts one more request on a connection that brings many. Raises `Fault` 429 if its key has used up its minute,
    `StoreError`."""
    middleware = connection.scope.get(_MIDDLEWARE)
    if isinstance(middleware, AuthMiddleware):
        await middleware.admit_message(get_caller(connection))


def sign_order(connection: HTTPConnection, spec: RunSpec) -> RunSpec:
    """The order, with the tenant, the caller and the trace of this request."""
    caller = get_caller(connection)
    traceparent = clean_traceparent(connection.headers.get("traceparent", ""))
    return replace(spec, tenant=caller.tenant, caller=caller.as_run_caller(), traceparent=traceparent)


def check_scope(scope: str) -> None:
    """Raises `InvalidRequest` for what is no scope."""
    if scope not in KEY_SCOPES and _TOOLS.fullmatch(scope) is None:
        known = ", ".join([f"`{each}`" for each in (*KEY_SCOPES, EXECUTE, f"{EXECUTE}:NAME")])
        raise InvalidRequest(f"there is no scope `{scope}`; known: {known}", param="scope")


def find_path(scope: Scope) -> str:
    """The path as the routes see it: behind the prefix under which a proxy offers us."""
    path, prefix = str(scope["path"]), str(scope.get("root_path", ""))
    return path.removeprefix(prefix) if path.startswith(f"{prefix}/") else path


async def _refuse(fault: Fault | MainspringError, render: RenderFault, scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket" and "websocket.http.response" not in scope.get("extensions", {}):
        await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": fault.code})
        return
    response = fault_response(fault, render)
    if fault.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    await response(scope, receive, send)


def _digest(secret: str) -> bytes:
    return sha256(secret.encode(errors="surrogateescape")).digest()


_CALLER, _MIDDLEWARE = "mainspring.caller", "mainspring.auth"
