"""`/v1/session`: an API key becomes the session of a browser. `/v1/keys`: the keys themselves, for those who look after them."""

from typing import Annotated, Final

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, NotFound
from mainspring.http.auth import ApiCaller, Key, Keys, get_caller, identify_caller, needs_key
from mainspring.http.bodies import Name, parse_body, read_json_body
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.http.faults import Fault, json_response
from mainspring.http.key_limits import NO_LIMITS, KeyLimits
from mainspring.http.origins import require_same_origin
from mainspring.http.queries import CURSOR, Page, cut_page, read_cursor
from mainspring.http.sessions import make_cookie, read_token
from mainspring.http.tenants import TENANT, choose_tenant

_SESSION: Final = "/v1/session"
# Strangers may send it.
MOST_SIGN_IN_BYTES: Final = 8 * 1024
_KEYS: Final = "/v1/keys"


class SessionState(Struct, frozen=True):
    """Who asks, and what they may do. Without `needs_key`, everybody may do everything."""

    needs_key: bool
    signed_in: bool
    tenant: str
    scopes: tuple[str, ...]
    is_operator: bool
    object: str = "session"


class SignIn(Struct, frozen=True):
    key: Annotated[str, Meta(min_length=1, max_length=512)]


class ShownKey(Struct, frozen=True):
    """A key without its secret. `key` is the whole of it, once, in the answer that creates it."""

    id: str
    name: str
    tenant: str
    scopes: tuple[str, ...]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    limits: KeyLimits
    key: str | None = None
    object: str = "key"


class CreateKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The body of `POST /v1/keys`. `seconds` is how long the key is good; if not given, as long as the one that makes it."""

    name: Name = ""
    tenant: Name | None = None
    scopes: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=100)] = ("*",)
    seconds: Annotated[float, Meta(gt=0, le=1e10)] | None = None
    limits: KeyLimits = NO_LIMITS


class KeyRoutes:
    """Every endpoint under `/v1/session` and `/v1/keys`."""

    def __init__(self, keys: Keys) -> None:
        self._keys = keys

    def endpoints(self) -> tuple[Endpoint, ...]:
        return (
            Endpoint("GET", _SESSION, self.show_session, PUBLIC, SessionState),
            Endpoint("POST", _SESSION, self.sign_in, PUBLIC, SessionState, SignIn, errors=(401, 403)),
            Endpoint("DELETE", _SESSION, self.sign_out, PUBLIC, SessionState, errors=(403,)),
            Endpoint("GET", _KEYS, self.list, "admin", Page, query=(*CURSOR, TENANT), schemas=(ShownKey,)),
            Endpoint("POST", _KEYS, self.create, "admin", ShownKey, CreateKey),
            Endpoint("DELETE", f"{_KEYS}/{{key_id}}", self.revoke, "admin", ShownKey),
        )

    async def show_session(self, request: Request) -> HttpResponse:
        """Reports whether a key is needed here, and what the caller may do."""
        needed = await needs_key(request)
        try:
            caller = await identify_caller(request)
        except Fault as fault:
            if fault.status != 401:
                raise
            return json_response(SessionState(needed, False, "", (), False))
        return json_response(_tell_session(caller, needed))

    async def sign_in(self, request: Request) -> HttpResponse:
        """Signs in: an API key becomes a cookie, which stands for the key until it ends."""
        if "origin" in request.headers:
            require_same_origin(request)
        body = parse_body(await read_json_body(request, MOST_SIGN_IN_BYTES), SignIn)
        caller = await self._keys.caller(f"Bearer {body.key}")
        token = await self._keys.open_session(body.key)
        return _answer(request, _tell_session(caller, await needs_key(request)), token)

    async def sign_out(self, request: Request) -> HttpResponse:
        """Signs out: the session ends."""
        if token := read_token(request):
            require_same_origin(request)
            await self._keys.close_session(token)
        return _answer(request, SessionState(await needs_key(request), False, "", (), False), "")

    async def list(self, request: Request) -> HttpResponse:
        """Lists the keys, newest first, without their secrets; those that are good no more among them."""
        cursor, tenant = read_cursor(request), choose_tenant(request)
        keys = [key for key in await self._keys.list() if tenant in (None, key.tenant)]
        return json_response(cut_page([_show(key) for key in keys], [key.id for key in keys], cursor))

    async def create(self, request: Request) -> HttpResponse:
        """Creates a key. The answer has the whole of it, this once."""
        body, caller = parse_body(await read_json_body(request), CreateKey), get_caller(request)
        tenant = caller.tenant if body.tenant is None else body.tenant
        if tenant != caller.tenant and not caller.is_operator:
            raise Fault(403, "insufficient_scope", "keys of other tenants are made by the default tenant's", param="tenant")
        if beyond := [scope for scope in body.scopes if scope not in caller.scopes and "*" not in caller.scopes]:
            message = f"this API key has no scope `{beyond[0][:80]}` itself, so it cannot give it to another"
            raise Fault(403, "insufficient_scope", message, param="scopes")
        limits = body.limits.complete(caller.limits)
        if (name := limits.find_excess(caller.limits)) is not None:
            message = f"this API key has a lower `{name}` itself, so it cannot give more to another; ask for less"
            raise InvalidRequest(message, param=f"limits.{name}", code="invalid_value")
        try:
            made = await self._keys.create(
                name=body.name,
                tenant=tenant,
                scopes=body.scopes,
                seconds=body.seconds,
                until=caller.expires_at,
                limits=limits,
            )
        except InvalidRequest as error:
            param = "scopes" if error.param == "scope" else error.param
            raise InvalidRequest(error.message, param=param, code=error.code) from None
        return json_response(_show(await self._find(made.split("_")[1], caller), made))

    async def revoke(self, request: Request) -> HttpResponse:
        """Revokes a key, and ends its sessions; other processes learn of it within seconds."""
        found = await self._find(str(request.path_params["key_id"]), get_caller(request))
        return json_response(_show(await self._keys.revoke(found.id)))

    async def _find(self, id: str, caller: ApiCaller) -> Key:
        for key in await self._keys.list():
            if key.id == id and (key.tenant == caller.tenant or caller.is_operator):
                return key
        raise NotFound(f"there is no key `{id}`; list them with GET /v1/keys", param="key_id")


def _tell_session(caller: ApiCaller, needed: bool) -> SessionState:
    return SessionState(needed, needed, caller.tenant, caller.scopes, caller.is_operator)


def _answer(request: Request, state: SessionState, token: str) -> HttpResponse:
    # Behind a proxy we may not know that the browser speaks HTTPS; its page does.
    is_secure = request.url.scheme == "https" or request.headers.get("origin", "").startswith("https:")
    return json_response(state, headers={"set-cookie": make_cookie(token, is_secure=is_secure), "cache-control": "no-store"})


def _show(key: Key, whole: str | None = None) -> ShownKey:
    times = (key.created_at, key.expires_at, key.revoked_at)
    return ShownKey(key.id, key.name, key.tenant, key.scopes, *times, key.limits, whole)
