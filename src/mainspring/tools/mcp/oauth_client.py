"""Gets tokens from an authorization server: by a code, by a refresh token, or as a machine; and gives them back.

Which client we are follows from the settings and from what the authorization server can do: one that is registered there by
hand, a metadata document that we publish, or one that we register ourselves. Secrets and tokens are in no message.
"""

import time
from base64 import b64encode, urlsafe_b64decode
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_urlsafe
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from yarl import URL

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.core.text import shorten_line
from mainspring.net.client import HttpClient
from mainspring.net.signed_tokens import encode_base64, sign_jwt
from mainspring.tools.mcp.key_proofs import LONGEST_NONCE, Prover
from mainspring.tools.mcp.oauth_metadata import IssuerMetadata, OAuthFailed, check_url, read_json, send
from mainspring.tools.mcp.server_specs import OAuthOptions

Method = Literal["none", "client_secret_basic", "client_secret_post", "private_key_jwt"]
NAME = "Mainspring"
ASSERTION_SECONDS = 300
LONGEST_ASSERTION = 16_384
REFRESH = "refresh_token"
OFFLINE = "offline_access"
JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_ID_JAG = "urn:ietf:params:oauth:token-type:id-jag"
_JWT_PROOF = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_TOKEN_CHARACTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/=")


class OAuthClient(Struct, frozen=True):
    """Who we are to an authorization server."""

    id: str
    secret: str = ""
    method: Method = "none"
    key_file: str = ""

    def __repr__(self) -> str:
        return f"OAuthClient({self.id!r})"


class Tokens(Struct, frozen=True):
    """What an authorization server has granted. `expires_at` is None if it has not said. `key` is what they are bound to, if they
    are."""

    access: str
    refresh: str = ""
    scope: str = ""
    expires_at: float | None = None
    key: str = ""

    def __repr__(self) -> str:
        return "Tokens(...)"


class Proof(Struct, frozen=True):
    """A PKCE verifier, and the challenge that goes ahead of it."""

    verifier: str

    @property
    def challenge(self) -> str:
        return encode_base64(sha256(self.verifier.encode()).digest())


def make_proof() -> Proof:
    return Proof(token_urlsafe(48))


def find_client(issuer: IssuerMetadata, options: OAuthOptions) -> OAuthClient | None:
    """The client for a sign-in that needs no registration, if there is one."""
    if options.client_id:
        return make_configured_client(issuer, options)
    if issuer.client_id_metadata_document_supported and options.client_metadata_url:
        return OAuthClient(options.client_metadata_url)
    return None


def make_configured_client(issuer: IssuerMetadata, options: OAuthOptions) -> OAuthClient:
    """The client of the settings, with the way to prove it that the authorization server takes."""
    if options.private_key_file:
        return OAuthClient(options.client_id, method="private_key_jwt", key_file=options.private_key_file)
    if not options.client_secret:
        return OAuthClient(options.client_id)
    taken = issuer.token_endpoint_auth_methods_supported
    method: Method = "client_secret_post" if taken is not None and "client_secret_basic" not in taken else "client_secret_basic"
    return OAuthClient(options.client_id, options.client_secret, method)


async def register_client(http: HttpClient, issuer: IssuerMetadata, redirect_uri: str) -> OAuthClient:
    """A client that is registered for this. Raises `OAuthFailed`."""
    if issuer.registration_endpoint is None:
        raise _refuse_registration(issuer, redirect_uri)
    taken = issuer.token_endpoint_auth_methods_supported or ("client_secret_basic",)
    known: tuple[Method, ...] = ("client_secret_basic", "client_secret_post", "none")
    method = next((each for each in known if each in taken), "none")
    asked = {
        "client_name": NAME,
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", REFRESH],
        "response_types": ["code"],
        "token_endpoint_auth_method": method,
        "application_type": "native" if URL(redirect_uri).scheme == "http" else "web",
    }
    headers = [("Content-Type", "application/json")]
    answer = await send(http, "POST", issuer.registration_endpoint, headers, msgspec.json.encode(asked))
    if answer.status in (404, 405):
        answer.close()
        raise _refuse_registration(issuer, redirect_uri)
    status, told = answer.status, await read_json(answer)
    if status not in (200, 201) or not isinstance(told.get("client_id"), str):
        raise _refuse("registering a client", issuer.issuer, status, told)
    secret = told.get("client_secret")
    said = told.get("token_endpoint_auth_method", method)
    if said not in known:
        raise OAuthFailed(f"`{issuer.issuer}` wants clients to prove themselves by `{shorten_line(str(said), 60)}`")
    return OAuthClient(str(told["client_id"]), secret if isinstance(secret, str) else "", said)


def _refuse_registration(issuer: IssuerMetadata, redirect_uri: str) -> OAuthFailed:
    return OAuthFailed(
        f"`{issuer.issuer}` registers no clients by itself; register one there with the redirect address {redirect_uri}, and set "
        "`client_id`, and `client_secret` if there is one, in the table `oauth` of the server; if it wants a key instead of a "
        "sign-in, give that in `headers`"
    )


def publish_client(url: str, redirect_uri: str) -> Json:
    """The metadata document by which authorization servers know us as the client of this URL."""
    return {
        "client_id": url,
        "client_name": NAME,
        "redirect_uris": [redirect_uri, "http://127.0.0.1/callback"],
        "grant_types": ["authorization_code", REFRESH],
        "response_types": ["code"],
        "token_endpoint_auth_method": "none",
    }


def choose_scope(issuer: IssuerMetadata, *wanted: str) -> str:
    """All that is wanted, and the scope for refresh tokens where there is one."""
    named = [scope for each in wanted for scope in each.split()]
    if OFFLINE in (issuer.scopes_supported or ()) and REFRESH in (issuer.grant_types_supported or (REFRESH,)):
        named.append(OFFLINE)
    return " ".join(dict.fromkeys(named))


async def fetch_tokens(
    http: HttpClient, issuer: str, endpoint: str, client: OAuthClient, form: Mapping[str, str], *, scope: str, key: str = ""
) -> Tokens:
    """The tokens that the authorization server grants for this form. `scope` was asked for; with a `key` they must be bound to
    that. Raises `OAuthFailed`."""
    prover, nonce = Prover(key) if key else None, ""
    while True:
        proof, headers = _prove(client, issuer)
        headers += [("Content-Type", "application/x-www-form-urlencoded")]
        headers += [("DPoP", prover.prove("POST", URL(endpoint), nonce=nonce))] if prover is not None else []
        answer = await send(http, "POST", endpoint, headers, urlencode({**form, **proof}).encode())
        status, told = answer.status, await read_json(answer)
        wanted = answer.headers.get("DPoP-Nonce", "")
        if nonce or prover is None or told.get("error") != "use_dpop_nonce" or not 0 < len(wanted) <= LONGEST_NONCE:
            break
        nonce = wanted
    token, refresh = told.get("access_token"), told.get("refresh_token")
    if status != 200 or not isinstance(token, str):
        raise _refuse("a token", issuer, status, told)
    kind = "dpop" if key else "bearer"
    if str(told.get("token_type", "")).lower() != kind or not token or not _TOKEN_CHARACTERS.issuperset(token):
        raise OAuthFailed(f"`{issuer}` has granted a token that is {'not bound to our key' if key else 'no bearer token'}")
    granted = told.get("scope")
    expires_at: float | None = None
    match told.get("expires_in"):
        case (int() | float()) as seconds if 0 <= seconds < 1e10:
            expires_at = time.time() + seconds
        case _:
            pass
    return Tokens(
        token,
        refresh if isinstance(refresh, str) else "",
        granted if isinstance(granted, str) and granted else scope,
        expires_at,
        key,
    )


def read_assertion(issuer: IssuerMetadata, options: OAuthOptions) -> str:
    """What the platform says of who we are (RFC 7523). It is for the authorization server that the settings name, or else for the
    one that it names itself, or for who exchanges it: no other is told. Raises `InvalidRequest`, `OAuthFailed`."""
    file = options.assertion_file
    try:
        with Path(file).open("rb") as opened:
            told = opened.read(LONGEST_ASSERTION).decode("ascii").strip()
        claims = msgspec.json.decode(_decode_base64(told.split(".")[1]), type=dict[str, object])
    except (OSError, ValueError, IndexError, RecursionError) as error:
        raise InvalidRequest(f"`assertion_file` {file} holds no token (JWT) that can be read") from error
    audience = claims.get("aud")
    names = audience if isinstance(audience, list) else [audience]
    is_named = bool(options.issuer or options.exchange_url)
    if not is_named and not {issuer.issuer, f"{issuer.issuer}/", issuer.token_endpoint}.intersection(map(str, names)):
        raise OAuthFailed(
            f"the token in `assertion_file` is not for `{issuer.issuer}` by its `aud`, which is "
            f"`{shorten_line(', '.join(map(str, names)), 200)}`; have one made for that, or set `issuer` if it takes this one"
        )
    return told


async def exchange_assertion(http: HttpClient, issuer: str, options: OAuthOptions, told: str, resource: str, scope: str) -> str:
    """What the company's identity provider says of us to this authorization server, in exchange for what the platform says (RFC
    8693, ID-JAG). Raises `OAuthFailed`."""
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "requested_token_type": _ID_JAG,
        "audience": issuer,
        "resource": resource,
        "subject_token": told,
        "subject_token_type": "urn:ietf:params:oauth:token-type:id_token",
        **({"scope": scope} if scope else {}),
        **({"client_id": options.exchange_client_id} if options.exchange_client_id else {}),
    }
    url = check_url(options.exchange_url, "`exchange_url`")
    headers = [("Content-Type", "application/x-www-form-urlencoded")]
    answer = await send(http, "POST", url, headers, urlencode(form).encode())
    status, said = answer.status, await read_json(answer)
    given = said.get("access_token")
    if status != 200 or not isinstance(given, str) or not given or said.get("issued_token_type") != _ID_JAG:
        raise _refuse("to exchange the token in `assertion_file`", str(URL(url).origin()), status, said)
    return given


def _decode_base64(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


async def revoke_token(http: HttpClient, issuer: str, endpoint: str, client: OAuthClient, token: str) -> None:
    """Raises `OAuthFailed`."""
    proof, more = _prove(client, issuer)
    headers = [("Content-Type", "application/x-www-form-urlencoded"), *more]
    answer = await send(http, "POST", endpoint, headers, urlencode({"token": token, **proof}).encode())
    answer.close()
    if answer.status >= 400:
        raise OAuthFailed(f"`{issuer}` did not take a token back: HTTP {answer.status}")


def _prove(client: OAuthClient, issuer: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """The fields and headers by which the authorization server knows the client."""
    match client.method:
        case "none":
            return {"client_id": client.id} if client.id else {}, []
        case "client_secret_post":
            return {"client_id": client.id, "client_secret": client.secret}, []
        case "client_secret_basic":
            account = f"{quote(client.id, safe='')}:{quote(client.secret, safe='')}"
            return {}, [("Authorization", f"Basic {b64encode(account.encode()).decode()}")]
        case "private_key_jwt":
            assertion = _sign_assertion(client, issuer)
            return {"client_id": client.id, "client_assertion_type": _JWT_PROOF, "client_assertion": assertion}, []


def _sign_assertion(client: OAuthClient, issuer: str) -> str:
    """Says who we are, signed (RFC 7523): ES256 with an elliptic key, RS256 with an RSA one."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(Path(client.key_file).read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidRequest(f"`private_key_file` {client.key_file} holds no private key that can be read") from error
    now = int(time.time())
    claims = {
        "iss": client.id,
        "sub": client.id,
        "aud": issuer,
        "iat": now,
        "exp": now + ASSERTION_SECONDS,
        "jti": token_urlsafe(16),
    }
    match key:
        case ec.EllipticCurvePrivateKey(curve=ec.SECP256R1()) | rsa.RSAPrivateKey():
            return sign_jwt(key, {"typ": "JWT"}, claims)
        case _:
            raise InvalidRequest(f"`private_key_file` {client.key_file} must hold an RSA key, or one of the curve P-256")


def join_scopes(scopes: Sequence[str]) -> str:
    return " ".join(dict.fromkeys([word for each in scopes for word in each.split()]))


def _refuse(what: str, issuer: str, status: int, told: Json) -> OAuthFailed:
    error = told.get("error")
    code = error if isinstance(error, str) and error.isascii() and error.isprintable() else ""
    # The description may repeat what was sent.
    return OAuthFailed(f"`{issuer}` refused {what}: {shorten_line(code, 60) or f'HTTP {status}'}", code)
