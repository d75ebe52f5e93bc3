"""Finds out who grants access to an MCP server: its own metadata (RFC 9728), then that of its authorization server (RFC 8414).

A server that has no metadata of its own may be of the revision 2025-03-26, in which it is its own authorization server: then its
host has the metadata, or the endpoints where that revision has them by default.

Every address must be https, but on this machine. Requests go through the guard, and so does each redirect: metadata may be
moved to another public place, never to a private one. What is found must name what it was looked up for: the resource the
server, and the issuer itself, letter by letter.
"""

from typing import TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from yarl import URL

from mainspring.core.errors import InvalidRequest, ToolUnavailable
from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.net.client import HttpClient, encode_headers, make_endpoint
from mainspring.net.connection import Answer, HttpError
from mainspring.tools.addresses import check_length

MOST_BYTES = 256 * 1024
MOST_REDIRECTS = 3
LONGEST_CHALLENGE = 16_384
_SCHEMES = frozenset({"bearer", "dpop"})
_LOCAL = frozenset({"127.0.0.1", "::1", "localhost"})

Metadata = TypeVar("Metadata", bound=Struct)


class Challenge(Struct, frozen=True):
    """What a server says of the credentials it wants (`WWW-Authenticate: Bearer ...`, or `DPoP ...`). `wants_proof` if it takes
    none but those that are bound to a key (RFC 9449)."""

    resource_metadata: str = ""
    scope: str = ""
    error: str = ""
    wants_proof: bool = False


class ResourceMetadata(Struct, frozen=True):
    """What a server publishes of itself."""

    resource: str
    authorization_servers: tuple[str, ...] = ()
    scopes_supported: tuple[str, ...] | None = None
    dpop_bound_access_tokens_required: bool = False


class IssuerMetadata(Struct, frozen=True):
    """What an authorization server publishes of itself."""

    issuer: str
    token_endpoint: str
    authorization_endpoint: str = ""
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    scopes_supported: tuple[str, ...] | None = None
    code_challenge_methods_supported: tuple[str, ...] = ()
    token_endpoint_auth_methods_supported: tuple[str, ...] | None = None
    grant_types_supported: tuple[str, ...] | None = None
    dpop_signing_alg_values_supported: tuple[str, ...] = ()
    client_id_metadata_document_supported: bool = False
    authorization_response_iss_parameter_supported: bool = False


class Grantor(Struct, frozen=True):
    """Who grants access to a server. `resource` is how tokens name the server, `scope` what is to be asked for, if anything.
    `is_assumed` where the server names nobody, so that it is taken to do so itself; `wants_proof` where tokens must be bound to a
    key."""

    resource: str
    issuer: IssuerMetadata
    scope: str = ""
    is_assumed: bool = False
    wants_proof: bool = False


class OAuthFailed(ToolUnavailable):
    """Signing in to an MCP server is not possible as things are. `error` is what the authorization server calls it."""

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


def parse_challenge(header: str) -> Challenge:
    """Reads a header in one pass, whatever it holds. What is no parameter of `Bearer` or `DPoP` is left out."""
    found: dict[str, str] = {}
    schemes: set[str] = set()
    scheme, place, text = "", 0, header[:LONGEST_CHALLENGE]
    while place < len(text):
        if text[place] in ", \t":
            place += 1
            continue
        end = place
        while end < len(text) and text[end] not in ' \t,="':
            end += 1
        word = text[place:end].lower()
        if end == place:
            place += 1
        elif end < len(text) and text[end] == "=":
            value, place = _read_value(text, end + 1)
            if scheme in _SCHEMES:
                found.setdefault(word, value)
        else:
            scheme, place = word, end
            schemes.add(scheme)
    wants_proof = "dpop" in schemes and "bearer" not in schemes
    return Challenge(found.get("resource_metadata", ""), found.get("scope", ""), found.get("error", ""), wants_proof)


def _read_value(text: str, place: int) -> tuple[str, int]:
    if text[place : place + 1] != '"':
        end = place
        while end < len(text) and text[end] not in ", \t":
            end += 1
        return text[place:end], end
    pieces: list[str] = []
    place += 1
    while place < len(text) and text[place] != '"':
        place += text[place] == "\\"
        pieces.append(text[place : place + 1])
        place += 1
    return "".join(pieces), place + 1


def check_url(url: str, what: str) -> str:
    """The URL, which must be https, or of this machine. Raises `OAuthFailed`."""
    try:
        check_length(url)
        parts = urlsplit(url)
        is_safe = parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOCAL)
        if not is_safe or not parts.hostname or parts.fragment or parts.username is not None:
            raise ValueError
        make_endpoint(URL(url))
    except (ValueError, InvalidRequest):
        raise OAuthFailed(f"{what} is `{shorten_line(url, 200)}`; it must be an https:// address") from None
    return url


class MetadataFinder:
    """Looks up who grants access, by a client that is guarded."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client

    async def find_grantor(self, server_url: str, challenge: Challenge, issuer: str = "") -> Grantor:
        """By this issuer, if one is given, else by the first that the server names. Raises `OAuthFailed`, and `InvalidRequest`
        for an address that may not be reached."""
        told = await self._find_resource(server_url, challenge)
        if told is None:
            own = await self._find_own_issuer(server_url)
            if issuer not in ("", own.issuer):
                raise OAuthFailed(
                    f"the server names no authorization server, so that its own host would be asked, and not `{issuer}`, which "
                    "is the one to sign in at",
                    "issuer_mismatch",
                )
            return Grantor(server_url, own, challenge.scope, is_assumed=True, wants_proof=challenge.wants_proof)
        if not covers(told.resource, server_url):
            raise OAuthFailed(
                f"the server calls itself `{shorten_line(told.resource, 200)}`, which is not its address; tokens for it would be "
                "for somebody else"
            )
        if not told.authorization_servers:
            raise OAuthFailed("the server names no authorization server")
        chosen = issuer or told.authorization_servers[0]
        if chosen not in told.authorization_servers:
            raise OAuthFailed(
                f"the server names `{shorten_line(told.authorization_servers[0], 200)}` as its authorization server, and not "
                f"`{chosen}`, which is the one to sign in at; if it has moved, set `issuer` in the table `oauth` of the server",
                "issuer_mismatch",
            )
        scope = challenge.scope or " ".join(told.scopes_supported or ())
        wants_proof = challenge.wants_proof or told.dpop_bound_access_tokens_required
        return Grantor(told.resource, await self.find_issuer(chosen), scope, wants_proof=wants_proof)

    async def find_issuer(self, issuer: str) -> IssuerMetadata:
        """The metadata of this issuer. Raises `OAuthFailed`."""
        if (told := await self._look_up_issuer(issuer)) is None:
            raise OAuthFailed(f"the authorization server `{issuer}` has no metadata")
        return told

    async def _find_own_issuer(self, server_url: str) -> IssuerMetadata:
        """What a server of the revision 2025-03-26 is as its own authorization server. That revision has PKCE from everybody."""
        base = str(URL(check_url(server_url, "the MCP server")).origin())
        if (told := await self._look_up_issuer(base, f"{base}/")) is not None:
            return told
        token, authorization, registration = [f"{base}/{name}" for name in ("token", "authorize", "register")]
        return IssuerMetadata(base, token, authorization, registration, code_challenge_methods_supported=("S256",))

    async def _look_up_issuer(self, issuer: str, *names: str) -> IssuerMetadata | None:
        """The metadata of this issuer, which may call itself by one of `names`, too."""
        base = URL(check_url(issuer, "the authorization server"))
        path = base.path.rstrip("/")
        places = [f"/.well-known/oauth-authorization-server{path}", f"/.well-known/openid-configuration{path}"]
        places += [f"{path}/.well-known/openid-configuration"] if path else []
        for place in places:
            found = await self._fetch(str(base.origin().with_path(place)))
            if found is None:
                continue
            told = _convert(found, IssuerMetadata, "the metadata of the authorization server")
            if told.issuer not in (issuer, *names):
                raise OAuthFailed(f"the authorization server `{issuer}` calls itself `{shorten_line(told.issuer, 200)}`")
            check_url(told.token_endpoint, "the token endpoint")
            for name in ("authorization_endpoint", "registration_endpoint", "revocation_endpoint"):
                if url := getattr(told, name):
                    check_url(url, name)
            return told
        return None

    async def _find_resource(self, server_url: str, challenge: Challenge) -> ResourceMetadata | None:
        """What the server publishes of itself; None if it neither does nor says where that would be."""
        url = URL(check_url(server_url, "the MCP server"))
        well_known = "/.well-known/oauth-protected-resource"
        path = url.path.rstrip("/")
        places = dict.fromkeys([str(url.origin().with_path(well_known + path)), str(url.origin().with_path(well_known))])
        for place in [challenge.resource_metadata] if challenge.resource_metadata else places:
            if (found := await self._fetch(check_url(place, "`resource_metadata`"))) is not None:
                return _convert(found, ResourceMetadata, "the metadata of the server")
        if challenge.resource_metadata:
            raise OAuthFailed("there is nothing where the server says that its metadata is, which tells who grants access to it")
        return None

    async def _fetch(self, url: str) -> Json | None:
        """What is there, None if there is nothing."""
        for _ in range(MOST_REDIRECTS + 1):
            answer = await send(self._client, "GET", url)
            if answer.status not in (301, 302, 303, 307, 308):
                break
            answer.close()
            url = check_url(_join(url, answer.headers.get("Location", "")), "a redirect of metadata")
        else:
            raise OAuthFailed("metadata is redirected too often")
        if answer.status != 200:
            answer.close()
            if answer.status >= 500:
                raise OAuthFailed(f"metadata cannot be read: HTTP {answer.status}")
            return None
        return await read_json(answer)


def covers(resource: str, url: str) -> bool:
    """Whether a token for this resource is for the server at the URL: its address, or one above it."""
    try:
        whole, part = URL(resource), URL(url)
        is_same = whole.origin() == part.origin()
    except ValueError:  # also of an address without a scheme
        return False
    above = whole.path.rstrip("/")
    is_inside = part.path.rstrip("/") == above or part.path.startswith(above + "/")
    return is_same and is_inside and whole.query_string in ("", part.query_string)


async def send(
    client: HttpClient, method: str, url: str, headers: list[tuple[str, str]] | None = None, body: bytes | None = None
) -> Answer:
    """Raises `OAuthFailed` if there is no answer."""
    told = encode_headers(
        [("Accept", "application/json"), ("Accept-Encoding", "identity"), ("User-Agent", "Mainspring"), *(headers or [])]
    )
    try:
        return await client.request(method, make_endpoint(URL(url)), told, body, is_repeatable=method == "GET")
    except HttpError as error:
        raise OAuthFailed(f"`{URL(url).origin()}` cannot be reached: {error}") from error


async def read_json(answer: Answer) -> Json:
    pieces, size = list[bytes](), 0
    try:
        while data := await answer.read():
            pieces.append(data)
            size += len(data)
            if size > MOST_BYTES:
                raise OAuthFailed("an answer of the authorization server is too large")
    except HttpError as error:
        raise OAuthFailed(f"an answer of the authorization server broke off: {error}") from error
    finally:
        answer.close()
    try:
        return msgspec.json.decode(b"".join(pieces), type=dict[str, object])
    except (ValueError, RecursionError):
        raise OAuthFailed("an answer of the authorization server is no JSON object") from None


def _join(url: str, to: str) -> str:
    try:
        return str(URL(url).join(URL(to)))
    except ValueError:
        return to


def _convert(found: Json, kind: type[Metadata], what: str) -> Metadata:
    try:
        return msgspec.convert({name: value for name, value in found.items() if value is not None}, kind)
    except msgspec.ValidationError as error:
        raise OAuthFailed(f"{what} cannot be used: {error}") from None
