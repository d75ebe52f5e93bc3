"""Access to MCP servers by OAuth 2.1: who has signed in, who has yet to, and the tokens of each.

Theory of operation. An account is one user of one tenant at one server; what is known of it is one document of the store,
encrypted, and bound to the server's address: with another address it counts for nothing. A sign-in starts with an attempt, a
document that is found by the hash of its `state` alone, says whose it is, and is removed before its code is used: so a code
counts once, for the account that asked, at the issuer that was asked. Tokens are written together with a note that runs may wait
for them, which goes when those have been continued. So whatever process dies, the sign-in is either still to be made, by the
same link, or made.

Of several processes that find a token expired one marks the document and refreshes; the others wait for it. A mark of a process
that died counts for `REFRESH_SECONDS`, in which a refresh has ended, one way or the other: a refresh token is good once, so what
it is exchanged for is kept though whoever wanted it is gone, or something else of the account has changed.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from hashlib import sha256
from hmac import compare_digest
from logging import getLogger
from secrets import token_urlsafe

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from multidict import CIMultiDict
from yarl import URL

from mainspring.core.errors import InvalidRequest, NotFound, SignInNeeded
from mainspring.core.items import decode, encode
from mainspring.core.text import shorten_line
from mainspring.net.client import HttpClient, encode_headers
from mainspring.ports import Document, DocumentStore
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.guarded_http import make_guarded_http
from mainspring.tools.mcp.key_proofs import LONGEST_NONCE, Prover, make_key
from mainspring.tools.mcp.oauth_client import (
    JWT_BEARER,
    OFFLINE,
    OAuthClient,
    Proof,
    Tokens,
    choose_scope,
    exchange_assertion,
    fetch_tokens,
    find_client,
    join_scopes,
    make_configured_client,
    make_proof,
    read_assertion,
    register_client,
    revoke_token,
)
from mainspring.tools.mcp.oauth_metadata import (
    Challenge,
    Grantor,
    IssuerMetadata,
    MetadataFinder,
    OAuthFailed,
    covers,
    parse_challenge,
    send,
)
from mainspring.tools.mcp.server_specs import OAuthOptions, ServerSpec
from mainspring.tools.mcp.token_cipher import TokenCipher

log = getLogger(__name__)

ACCOUNT = "mcp_account"
ATTEMPT = "mcp_sign_in_attempt"
LINK = "mcp_sign_in_link"
SIGNED_IN = "mcp_signed_in"
CLIENT = "mcp_oauth_client"
ISSUER = "mcp_oauth_issuer"

ATTEMPT_SECONDS = 600.0
CLIENT_SECONDS = 3600.0
REFRESH_SECONDS = 30.0
LONGEST_REFRESH = 25.0
EARLY_SECONDS = 30.0
MEMORY_SECONDS = 5.0
HTTP_SECONDS = 20.0
LONGEST_EXCHANGE = 60.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5
SWEEP = 100

_PROBE = b'{"jsonrpc":"2.0","id":0,"method":"ping"}'


class Account(Struct, frozen=True):
    """One user of one tenant at one server. What all share has no user and no tenant."""

    label: str
    tenant: str = ""
    user: str = ""

    @property
    def id(self) -> str:
        return sha256(msgspec.json.encode((self.label, self.tenant, self.user))).hexdigest()


class Access(Struct, frozen=True):
    """What is kept of an account: its tokens, and where they are from and for. `wanted` are scopes by the tool that lacks them;
    somebody refreshes the tokens until `busy_until`."""

    account: Account
    resource: str
    issuer: str
    token_endpoint: str
    client: OAuthClient
    tokens: Tokens
    revocation_endpoint: str | None = None
    wanted: dict[str, str] = {}
    busy_until: float = 0.0


class Attempt(Struct, frozen=True):
    """A sign-in that is under way. `browser` is a hash of the cookie of the browser that began it, if one has; `key`
    what its tokens are to be bound to, if they are."""

    account: Account
    at: float
    grantor: Grantor
    client: OAuthClient
    proof: Proof
    redirect_uri: str
    scope: str
    browser: str = ""
    key: str = ""


class RegisteredClient(Struct, frozen=True):
    """A client that an authorization server has registered for us."""

    at: float
    client: OAuthClient


class SignIns:
    """The sign-ins of a store. `public_url` is where browsers reach this server, if that is known."""

    def __init__(
        self,
        store: DocumentStore,
        cipher: TokenCipher,
        *,
        guard: AddressGuard | None = None,
        public_url: str = "",
        clock: Callable[[], float] = time.time,
        longest_exchange: float = LONGEST_EXCHANGE,
    ) -> None:
        self._store, self._cipher, self._clock = store, cipher, clock
        self._longest_exchange = longest_exchange
        self._guard = guard or AddressGuard()
        self.public_url = public_url.rstrip("/")
        self._refreshing: set[asyncio.Task[Access | None]] = set()

    def find_account(self, spec: ServerSpec, tenant: str, user: str) -> Account:
        """Whose access a request has to this server."""
        return Account(spec.label, tenant, user) if spec.is_personal else Account(spec.label)

    def authorize(self, spec: ServerSpec, account: Account) -> "Authorizer":
        return Authorizer(self, spec, account)

    async def is_signed_in(self, spec: ServerSpec, account: Account, tool: str = "") -> bool:
        """Whether there is access, and nothing more is wanted for this tool."""
        found = await self.read(spec, account)
        return found is not None and not self._is_spent(found) and tool not in found[0].wanted

    async def make_link(self, account: Account) -> str:
        """The id of the account's link, the same each time."""
        id = self._cipher.make_id(LINK, account.id)
        await self._store.put([Document(LINK, id, self._cipher.seal(encode(account), f"{LINK}/{id}"))], if_absent=True)
        return id

    async def follow_link(self, id: str) -> Account:
        """Raises `NotFound`."""
        found = await self._store.get(LINK, id)
        body = None if found is None else self._cipher.open(found.body, f"{LINK}/{id}")
        if body is None:
            raise NotFound("There is no such sign-in; ask for a new link.")
        return decode(body, Account)

    async def begin(self, spec: ServerSpec, account: Account, redirect_uri: str, *, browser: str = "") -> str:
        """The address at which the person signs in. Raises `OAuthFailed`, `InvalidRequest`."""
        options = _get_options(spec)
        if options.is_for_machine:
            raise InvalidRequest(f"MCP server `{spec.label}` is used by `{options.grant}`; nobody needs to sign in")
        known = await self.read(spec, account)
        async with self._connect(self._guard.allow(spec.host)) as http:
            grantor = await self._find_grantor(http, spec)
            issuer = grantor.issuer
            if not issuer.authorization_endpoint or "S256" not in issuer.code_challenge_methods_supported:
                raise OAuthFailed(f"`{issuer.issuer}` does not support PKCE with S256, without which codes can be stolen")
            client = find_client(issuer, self._complete(options)) or await self._register(http, issuer, redirect_uri)
        held = () if known is None else (known[0].tokens.scope, *known[0].wanted.values())
        scope = choose_scope(issuer, *(options.scopes or (grantor.scope,)), *held)
        proof, state = make_proof(), token_urlsafe(32)
        attempt = Attempt(
            account,
            self._clock(),
            grantor,
            client,
            proof,
            redirect_uri,
            scope,
            _digest(browser) if browser else "",
            _make_key(grantor),
        )
        id = _digest(state)
        await self._sweep_attempts()
        await self._store.put([Document(ATTEMPT, id, self._cipher.seal(encode(attempt), f"{ATTEMPT}/{id}"))])
        asked = {
            "response_type": "code",
            "client_id": client.id,
            "redirect_uri": redirect_uri,
            "state": state,
            "code_challenge": proof.challenge,
            "code_challenge_method": "S256",
            "resource": grantor.resource,
            **({"scope": scope} if scope else {}),
            # OpenID providers give refresh tokens only to those who say that they ask.
            **({"prompt": "consent"} if OFFLINE in scope.split() else {}),
        }
        return str(URL(issuer.authorization_endpoint).update_query(asked))

    async def finish(self, answer: Mapping[str, str], *, browser: str = "") -> Account:
        """Takes what the authorization server has sent the browser back with. Raises `InvalidRequest` for what belongs to no
        sign-in under way, `OAuthFailed` for one that did not succeed."""
        id = _digest(answer.get("state", ""))
        found = await self._store.get(ATTEMPT, id)
        body = None if found is None else self._cipher.open(found.body, f"{ATTEMPT}/{id}")
        attempt = None if body is None else decode(body, Attempt)
        if attempt is not None and attempt.browser and not compare_digest(attempt.browser, _digest(browser)):
            raise InvalidRequest("this sign-in was begun in another browser; open its link in this one", code="sign_in_foreign")
        if not await self._store.remove(ATTEMPT, id) or attempt is None or self._clock() > attempt.at + ATTEMPT_SECONDS:
            raise InvalidRequest(
                "this sign-in was completed before, or has taken too long; open its link again", code="sign_in_unknown"
            )
        _check_issuer(attempt.grantor, answer.get("iss"))
        if "code" not in answer:
            error = shorten_line(answer.get("error", "no code"), 60)
            raise OAuthFailed(f"`{attempt.grantor.issuer.issuer}` did not grant access: {error}", error)
        await self._exchange(attempt, answer["code"])
        return attempt.account

    async def list_signed_in(self) -> list[Account]:
        """The accounts for which runs may wait that have not been continued."""
        found = [
            self._cipher.open(document.body, f"{SIGNED_IN}/{document.id}") for document in await self._store.documents(SIGNED_IN)
        ]
        return [decode(body, Account) for body in found if body is not None]

    async def note_continued(self, account: Account) -> None:
        """Says that no run waits any more for this sign-in."""
        await self._store.remove(SIGNED_IN, account.id)

    async def want(self, spec: ServerSpec, account: Account, tool: str, scope: str) -> None:
        """Notes that a tool needs more than was granted."""
        for _ in range(10):
            found = await self.read(spec, account)
            if found is None or found[0].wanted.get(tool) == scope:
                return
            access, stored = found
            if await self._swap(replace(access, wanted={**access.wanted, tool: scope}), stored):
                return

    async def sign_out(self, spec: ServerSpec | None, account: Account) -> bool:
        """Forgets the account's tokens, and has them revoked. Says whether there were any."""
        found = await self._store.get(ACCOUNT, account.id)
        if found is None:
            return False
        access = self._open(found)
        await self._store.remove(ACCOUNT, account.id)
        if access is not None:
            await self._revoke(spec, access)
        return True

    async def sign_out_all(self, spec: ServerSpec | None, label: str) -> int:
        """Forgets and revokes all tokens for a server. Returns how many accounts had some."""
        found = [self._open(document) for document in await self._store.documents(ACCOUNT)]
        accounts = [access.account for access in found if access is not None and access.account.label == label]
        if spec is not None and spec.oauth is not None:
            await self._store.remove(ISSUER, _name_binding(label, spec.oauth))
        return sum([await self.sign_out(spec, account) for account in accounts])

    async def read(self, spec: ServerSpec, account: Account) -> tuple[Access, bytes] | None:
        """What there is of this account for the server as it is configured now, and its stored form."""
        found = await self._store.get(ACCOUNT, account.id)
        access = None if found is None else self._open(found)
        if found is None or access is None or not covers(access.resource, spec.url):
            return None
        return access, found.body

    async def refresh(self, spec: ServerSpec, account: Account, old: str) -> Access | None:
        """The account with another token than the old one; None if a person must sign in. One process does it for all."""
        pause = FIRST_PAUSE
        while True:
            found = await self.read(spec, account)
            if found is None or found[0].tokens.access != old:
                return None if found is None else found[0]
            access, stored = found
            if not access.tokens.refresh:
                return None
            now = self._clock()
            if access.busy_until <= now:
                held = replace(access, busy_until=now + REFRESH_SECONDS)
                if await self._swap(held, stored, sealed := self._seal(held)):
                    return await asyncio.shield(self._start_refresh(spec, held, sealed))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def forget(self, spec: ServerSpec, account: Account, token: str) -> None:
        """Forgets a token that the server does not take."""
        found = await self._store.get(ACCOUNT, account.id)
        access = None if found is None else self._open(found)
        if found is not None and access is not None and access.tokens.access == token:
            await self._store.remove(ACCOUNT, account.id, number=found.number)

    async def fetch_machine_tokens(self, spec: ServerSpec, account: Account, challenge: Challenge, scope: str = "") -> Access:
        """The tokens of a client that has access itself. Raises `OAuthFailed`."""
        options = _get_options(spec)
        async with self._connect(self._guard.allow(spec.host)) as http:
            grantor = await self._read_grantor(http, spec, challenge)
            client = make_configured_client(grantor.issuer, options)
            wanted = join_scopes((*(options.scopes or (grantor.scope,)), scope))
            issuer = grantor.issuer
            form = {"grant_type": options.grant, "resource": grantor.resource, **({"scope": wanted} if wanted else {})}
            if options.grant == "jwt_bearer":
                form |= {"grant_type": JWT_BEARER, "assertion": await self._make_assertion(grantor, options, wanted)}
            key = _make_key(grantor)
            tokens = await fetch_tokens(http, issuer.issuer, issuer.token_endpoint, client, form, scope=wanted, key=key)
        access = Access(
            account, grantor.resource, issuer.issuer, issuer.token_endpoint, client, tokens, issuer.revocation_endpoint
        )
        await self._store.put([Document(ACCOUNT, account.id, self._seal(access))])
        return access

    async def _make_assertion(self, grantor: Grantor, options: OAuthOptions, scope: str) -> str:
        told = read_assertion(grantor.issuer, options)
        if not options.exchange_url:
            return told
        # The operator's word, so that it may be within the company.
        async with self._connect(self._guard.allow(URL(options.exchange_url).host or "")) as http:
            return await exchange_assertion(http, grantor.issuer.issuer, options, told, grantor.resource, scope)

    def _is_spent(self, found: tuple[Access, bytes]) -> bool:
        tokens = found[0].tokens
        return not tokens.refresh and tokens.expires_at is not None and tokens.expires_at <= self._clock()

    async def _revoke(self, spec: ServerSpec | None, access: Access) -> None:
        """Has the tokens revoked, if that is possible."""
        if access.revocation_endpoint is None:
            return
        token = access.tokens.refresh or access.tokens.access
        try:
            guard = self._guard if spec is None else self._guard.allow(spec.host)
            async with self._connect(guard) as http:
                await revoke_token(http, access.issuer, access.revocation_endpoint, access.client, token)
        except (OAuthFailed, InvalidRequest) as error:
            log.warning("a token for MCP server %s could not be revoked: %s", access.account.label, error.message)

    def _start_refresh(self, spec: ServerSpec, held: Access, sealed: bytes) -> "asyncio.Task[Access | None]":
        task = asyncio.get_running_loop().create_task(self._refresh(spec, held, sealed))
        self._refreshing.add(task)
        task.add_done_callback(self._note_refreshed)
        return task

    def _note_refreshed(self, task: "asyncio.Task[Access | None]") -> None:
        self._refreshing.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("a token was not refreshed: %s", error)  # whoever wanted it may be gone

    async def _refresh(self, spec: ServerSpec, held: Access, sealed: bytes) -> Access | None:
        """Uses the refresh token, which only whoever holds the document may. If it is refused, the account is forgotten."""
        try:
            async with asyncio.timeout(LONGEST_REFRESH):
                tokens = await self._fetch_fresh_tokens(spec, held)
        except TimeoutError:
            await self._swap(replace(held, busy_until=0.0), sealed)
            raise OAuthFailed(f"`{held.issuer}` gave no token within {LONGEST_REFRESH:g} s") from None
        except OAuthFailed as error:
            if error.error in ("invalid_grant", "invalid_client", "unauthorized_client"):
                await self.forget(spec, held.account, held.tokens.access)
                return None
            await self._swap(replace(held, busy_until=0.0), sealed)
            raise
        current, known = held, sealed
        fresh = replace(tokens, refresh=tokens.refresh or held.tokens.refresh)
        while not await self._swap(done := replace(current, tokens=fresh, busy_until=0.0), known):
            found = await self.read(spec, held.account)
            if found is None or found[0].tokens != held.tokens:
                await self._revoke(spec, done)  # somebody has signed out, or in again
                return None if found is None else found[0]
            current, known = found
        return done

    async def _fetch_fresh_tokens(self, spec: ServerSpec, held: Access) -> Tokens:
        form = {"grant_type": "refresh_token", "refresh_token": held.tokens.refresh, "resource": held.resource}
        async with self._connect(self._guard.allow(spec.host)) as http:
            grantor = await self._find_grantor(http, spec)
            issuer = grantor.issuer
            if issuer.issuer != held.issuer:
                # A refresh token goes to nobody but who gave it. A server that names nobody may name it again.
                error = "" if grantor.is_assumed else "invalid_grant"
                raise OAuthFailed("the server has another authorization server now, or names none", error)
            endpoint, old = issuer.token_endpoint, held.tokens
            return await fetch_tokens(http, held.issuer, endpoint, held.client, form, scope=old.scope, key=old.key)

    async def _exchange(self, attempt: Attempt, code: str) -> None:
        issuer = attempt.grantor.issuer
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": attempt.redirect_uri,
            "code_verifier": attempt.proof.verifier,
            "resource": attempt.grantor.resource,
        }
        guard = self._guard.allow(URL(attempt.grantor.resource).host or "")
        async with self._connect(guard) as http:
            try:
                endpoint, key = issuer.token_endpoint, attempt.key
                tokens = await fetch_tokens(http, issuer.issuer, endpoint, attempt.client, form, scope=attempt.scope, key=key)
            except OAuthFailed as error:
                if error.error in ("invalid_client", "unauthorized_client"):
                    await self._store.remove(CLIENT, _name_client(issuer.issuer, attempt.redirect_uri))
                raise
        account = attempt.account
        access = Access(
            account,
            attempt.grantor.resource,
            issuer.issuer,
            issuer.token_endpoint,
            attempt.client,
            tokens,
            issuer.revocation_endpoint,
        )
        note = self._cipher.seal(encode(account), f"{SIGNED_IN}/{account.id}")
        await self._store.put([Document(ACCOUNT, account.id, self._seal(access)), Document(SIGNED_IN, account.id, note)])

    async def _register(self, http: HttpClient, issuer: IssuerMetadata, redirect_uri: str) -> OAuthClient:
        """A client that is registered for this redirect address. Whoever begins a sign-in again soon gets the same one; an older
        one may be known no more, which nobody but the person at the browser would be told."""
        id = _name_client(issuer.issuer, redirect_uri)
        found = await self._store.get(CLIENT, id)
        body = None if found is None else self._cipher.open(found.body, f"{CLIENT}/{id}")
        known = None if body is None else decode(body, RegisteredClient)
        if known is not None and self._clock() < known.at + CLIENT_SECONDS:
            return known.client
        made = RegisteredClient(self._clock(), await register_client(http, issuer, redirect_uri))
        await self._store.put([Document(CLIENT, id, self._cipher.seal(encode(made), f"{CLIENT}/{id}"))])
        return made.client

    async def _sweep_attempts(self) -> None:
        """Removes attempts that nobody has finished in time."""
        for document in await self._store.documents(ATTEMPT, limit=SWEEP):
            body = self._cipher.open(document.body, f"{ATTEMPT}/{document.id}")
            if body is None or self._clock() > decode(body, Attempt).at + ATTEMPT_SECONDS:
                await self._store.remove(ATTEMPT, document.id, number=document.number)

    async def _find_grantor(self, http: HttpClient, spec: ServerSpec) -> Grantor:
        """Who grants access, by what the server says to somebody without a token."""
        headers = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream")]
        answer = await send(http, "POST", spec.url, headers, _PROBE)
        answer.close()
        return await self._read_grantor(http, spec, parse_challenge(_join_challenges(answer.headers)))

    async def _read_grantor(self, http: HttpClient, spec: ServerSpec, challenge: Challenge) -> Grantor:
        """Who grants access, by what the server has said. A client that is registered by hand belongs to one issuer, the first
        that it was used with: a server that names another later gets neither its secret nor codes for it."""
        options, finder = _get_options(spec), MetadataFinder(http)
        if options.issuer or not options.client_id:
            return await finder.find_grantor(spec.url, challenge, options.issuer)
        id = _name_binding(spec.label, options)
        if (known := await self._read_binding(id)) is None:
            grantor = await finder.find_grantor(spec.url, challenge)
            body = self._cipher.seal(grantor.issuer.issuer.encode(), f"{ISSUER}/{id}")
            if await self._store.put([Document(ISSUER, id, body)], if_absent=True):
                return grantor
            known = await self._read_binding(id) or ""
        return await finder.find_grantor(spec.url, challenge, known)

    async def _read_binding(self, id: str) -> str | None:
        found = await self._store.get(ISSUER, id)
        body = None if found is None else self._cipher.open(found.body, f"{ISSUER}/{id}")
        if found is not None and body is None:  # sealed by another key, as the client's tokens are
            await self._store.remove(ISSUER, id, number=found.number)
        return None if body is None else body.decode()

    def _complete(self, options: OAuthOptions) -> OAuthOptions:
        if options.client_metadata_url or not self.public_url.startswith("https://"):
            return options
        return replace(options, client_metadata_url=f"{self.public_url}/sign-in/client.json")

    @asynccontextmanager
    async def _connect(self, guard: AddressGuard) -> AsyncGenerator[HttpClient, None]:
        """A client for one exchange, which ends in time though whoever answers never stops doing so. Raises `OAuthFailed`."""
        try:
            async with asyncio.timeout(self._longest_exchange), make_guarded_http(guard, HTTP_SECONDS) as http:
                yield http
        except TimeoutError:
            raise OAuthFailed(f"the authorization server was not done within {self._longest_exchange:g} s") from None

    def _seal(self, access: Access) -> bytes:
        return self._cipher.seal(encode(access), f"{ACCOUNT}/{access.account.id}")

    def _open(self, document: Document) -> Access | None:
        body = self._cipher.open(document.body, f"{ACCOUNT}/{document.id}")
        if body is None:
            log.warning("a sign-in to an MCP server cannot be read: `secret_key` or the key file is another one; sign in again")
        return None if body is None else decode(body, Access)

    async def _swap(self, access: Access, known: bytes, sealed: bytes | None = None) -> bool:
        return await self._store.swap(Document(ACCOUNT, access.account.id, sealed or self._seal(access)), known)


class Authorizer:
    """The credentials of an account for the requests to its server, and what to do when those are refused."""

    def __init__(self, sign_ins: SignIns, spec: ServerSpec, account: Account) -> None:
        self._sign_ins, self._spec, self._account = sign_ins, spec, account
        self._is_machine = _get_options(spec).is_for_machine
        self._header, self._token, self._until = b"", "", 0.0
        self._prover: Prover | None = None
        self._key = self._nonce = ""

    async def get_header(self, method: str, url: URL) -> bytes:
        """Those of one request. Raises `SignInNeeded`, `OAuthFailed`. A machine without a token sends none, and is told whom to
        ask."""
        header = await self._find_header()
        if self._prover is None or not header:
            return header
        return header + encode_headers([("DPoP", self._prover.prove(method, url, token=self._token, nonce=self._nonce))])

    async def _find_header(self) -> bytes:
        if time.monotonic() < self._until:
            return self._header
        found = await self._sign_ins.read(self._spec, self._account)
        if found is None:
            if self._is_machine:
                return b""
            raise SignInNeeded(self._spec.label)
        access: Access | None = found[0]
        if _is_old(found[0].tokens):
            access = await self._sign_ins.refresh(self._spec, self._account, found[0].tokens.access)
            if access is None and (self._is_machine or not _is_over(found[0].tokens)):
                access = found[0]  # the server says when it is over
        if access is None:
            raise SignInNeeded(self._spec.label)
        return self._remember(access)

    async def recover(self, status: int, headers: "CIMultiDict[str]", sent: bytes) -> bool:
        """Whether a request that was refused with this may be sent again: there is another token now. Raises `SignInNeeded`."""
        challenge = parse_challenge(_join_challenges(headers))
        if status == 403 and challenge.error == "insufficient_scope":
            held = await self._sign_ins.read(self._spec, self._account)
            scope = join_scopes(("" if held is None else held[0].tokens.scope, challenge.scope))
            if held is not None and scope == join_scopes([held[0].tokens.scope]):
                # All that it wants was granted: nobody can permit more, but the token that was sent may be an older one.
                return not _carries(sent, self._remember(held[0]))
            if not self._is_machine:
                raise SignInNeeded(self._spec.label, scope)
            self._remember(await self._sign_ins.fetch_machine_tokens(self._spec, self._account, challenge, scope))
            return True
        if status != 401:
            return False
        nonce = headers.get("DPoP-Nonce", "")
        if challenge.error == "use_dpop_nonce" and self._prover is not None and 0 < len(nonce) <= LONGEST_NONCE:
            self._nonce = nonce
            return True
        self._until = 0.0
        if self._is_machine:
            self._remember(await self._sign_ins.fetch_machine_tokens(self._spec, self._account, challenge))
            return not _carries(sent, self._header)
        old = self._token if _carries(sent, self._header) else ""
        # What is bound to no key cannot be exchanged for what is.
        is_unbound = challenge.wants_proof and not self._key
        access = None if is_unbound else await self._sign_ins.refresh(self._spec, self._account, old)
        if access is None:
            await self._sign_ins.forget(self._spec, self._account, old)
            raise SignInNeeded(self._spec.label)
        return not _carries(sent, self._remember(access))

    def _remember(self, access: Access) -> bytes:
        self._token = access.tokens.access
        if access.tokens.key != self._key:
            self._key, self._nonce = access.tokens.key, ""
            self._prover = Prover(self._key) if self._key else None
        self._header = encode_headers([("Authorization", f"{'DPoP' if self._key else 'Bearer'} {self._token}")])
        self._until = time.monotonic() + MEMORY_SECONDS
        return self._header


def _carries(sent: bytes, header: bytes) -> bool:
    """Whether a request was sent with this token. A proof of its own may be behind that."""
    return sent.startswith(header) if header else not sent


def _make_key(grantor: Grantor) -> str:
    """What the tokens of a server are to be bound to, if it wants that. Raises `OAuthFailed`."""
    if not grantor.wants_proof:
        return ""
    if "ES256" not in grantor.issuer.dpop_signing_alg_values_supported:
        raise OAuthFailed(
            f"the server takes only tokens that are bound to a key (DPoP), and `{grantor.issuer.issuer}` binds none by ES256"
        )
    return make_key()


def _check_issuer(grantor: Grantor, told: str | None) -> None:
    """Raises `OAuthFailed` if the answer is of another authorization server than was asked (RFC 9207)."""
    issuer = grantor.issuer
    if told is None and issuer.authorization_response_iss_parameter_supported:
        raise OAuthFailed(f"`{issuer.issuer}` says in its answers who it is, and this one does not say so", "issuer_mismatch")
    if told is not None and told != issuer.issuer:
        raise OAuthFailed(f"the answer is of another authorization server than `{issuer.issuer}`", "issuer_mismatch")


def _get_options(spec: ServerSpec) -> OAuthOptions:
    if spec.oauth is None:
        raise InvalidRequest(
            f"MCP server `{spec.label}` is not used by OAuth; if it wants a sign-in, add an empty table [mcp.{spec.label}.oauth]"
        )
    return spec.oauth


def _join_challenges(headers: "CIMultiDict[str]") -> str:
    return ", ".join(headers.getall("WWW-Authenticate", []))


def _is_old(tokens: Tokens) -> bool:
    return tokens.expires_at is not None and tokens.expires_at - EARLY_SECONDS <= time.time()


def _is_over(tokens: Tokens) -> bool:
    return tokens.expires_at is not None and tokens.expires_at <= time.time()


def _name_client(issuer: str, redirect_uri: str) -> str:
    return _digest(f"{issuer} {redirect_uri}")


def _name_binding(label: str, options: OAuthOptions) -> str:
    return _digest(f"{label} {options.client_id}")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()
