"""Tokens of Google Cloud: of a service account, a user, a federated workload, or the machine.

A credentials file says what it is: the settings name it, or GOOGLE_APPLICATION_CREDENTIALS, or it is where `gcloud` leaves it.
Without any file the metadata server is asked.
"""

import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest, Unauthorized
from mainspring.core.items import Json
from mainspring.net.signed_tokens import sign_jwt
from mainspring.providers.credentials import (
    Expiring,
    check_metadata_address,
    decode_credential,
    fetch_bearer,
    fetch_credential,
    read_secret_file,
)

Fetch = Callable[[], Awaitable[Expiring[str]]]

SCOPE = "https://www.googleapis.com/auth/cloud-platform"
TOKENS = "https://oauth2.googleapis.com/token"
METADATA = "169.254.169.254"
LIFETIME = 3600


class CredentialsFile(Struct, frozen=True):
    """What the files of Google Cloud have in them."""

    type: str
    project_id: str | None = None
    quota_project_id: str | None = None
    token_uri: str = TOKENS
    client_email: str = ""
    private_key: str = ""
    private_key_id: str | None = None
    client_id: str = ""
    client_secret: str = ""
    refresh_token: str = ""
    audience: str = ""
    subject_token_type: str = ""
    token_url: str = ""
    credential_source: Json = {}
    service_account_impersonation_url: str | None = None


def read_credentials(environment: Mapping[str, str], path: str | None) -> CredentialsFile | None:
    """The credentials file in force, None if there is none. Raises `Unauthorized` for one that cannot be read."""
    usual = Path(environment.get("HOME") or "~").expanduser() / ".config/gcloud/application_default_credentials.json"
    named = path or environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named is None and not usual.exists():
        return None
    file = Path(named or usual).expanduser()
    try:
        return msgspec.json.decode(file.read_bytes(), type=CredentialsFile)
    except (OSError, ValueError) as error:
        # A part of the file in a message might be a part of the key.
        why = error.strerror if isinstance(error, OSError) else "it is no credentials file"
        advice = "correct `credentials_file` or GOOGLE_APPLICATION_CREDENTIALS, and start again"
        raise Unauthorized(f"no credentials: `{file}` cannot be read: {why}; {advice}") from error


def lack_credentials(error: Unauthorized) -> Fetch:
    """Stands for credentials that cannot be read: whoever needs them is told why, and other backends go on."""

    async def fetch() -> Expiring[str]:
        raise Unauthorized(error.message)

    return fetch


def make_source(environment: Mapping[str, str], file: CredentialsFile | None) -> Fetch:
    """What fetches tokens. Raises `InvalidRequest` for a kind of credentials that is not known."""
    if file is None:
        return _use_machine(environment)
    match file.type:
        case "service_account":
            return _use_service_account(file)
        case "authorized_user":
            return _use_user(file)
        case "external_account" if isinstance(file.credential_source.get("file"), str):
            return _use_workload(file)
        case kind:
            known = "a service account, a user, or a workload with a token in a file"
            raise InvalidRequest(f"credentials of type `{kind}` are not supported like this; use {known}", param="providers")


def _use_service_account(file: CredentialsFile) -> Fetch:
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    url = check_metadata_address(file.token_uri, "`token_uri` of the credentials")
    try:
        key = load_pem_private_key(file.private_key.encode(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidRequest(
            "the private key of the service account cannot be read; download a new one", param="providers"
        ) from error
    if not isinstance(key, RSAPrivateKey):
        raise InvalidRequest("the private key of the service account is no RSA key; download a new one", param="providers")

    async def fetch() -> Expiring[str]:
        now = int(time.time())
        header = {"typ": "JWT", **({"kid": file.private_key_id} if file.private_key_id else {})}
        claims = {"iss": file.client_email, "scope": SCOPE, "aud": file.token_uri, "iat": now, "exp": now + LIFETIME}
        form = {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": sign_jwt(key, header, claims)}
        return await fetch_bearer(url, form=form, hint=f"check the service account `{file.client_email}` and its key")

    return fetch


def _use_user(file: CredentialsFile) -> Fetch:
    url = check_metadata_address(file.token_uri, "`token_uri` of the credentials")
    form = {"client_id": file.client_id, "client_secret": file.client_secret, "refresh_token": file.refresh_token}

    async def fetch() -> Expiring[str]:
        hint = "run `gcloud auth application-default login` again"
        return await fetch_bearer(url, form={"grant_type": "refresh_token", **form}, hint=hint)

    return fetch


def _use_workload(file: CredentialsFile) -> Fetch:
    """A token that somebody else has signed is exchanged for one of Google's, and that for one of a service account."""
    url = check_metadata_address(file.token_url, "`token_url` of the credentials")
    account = file.service_account_impersonation_url
    if account is not None:
        check_metadata_address(account, "`service_account_impersonation_url` of the credentials")
    form = {
        "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
        "audience": file.audience,
        "scope": SCOPE,
        "requested_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "subject_token_type": file.subject_token_type,
    }
    hint = "check the workload identity pool and its provider"

    async def fetch() -> Expiring[str]:
        token = await fetch_bearer(url, form={**form, "subject_token": _read_subject(file)}, hint=hint)
        if account is None:
            return token
        headers = {"Authorization": f"Bearer {token.value}"}
        data = await fetch_credential(account, json={"scope": [SCOPE]}, headers=headers, hint=f"{hint}, and the service account")
        found = decode_credential(data, _impersonated, account)
        return Expiring(found.accessToken, datetime.fromisoformat(found.expireTime.replace("Z", "+00:00")).timestamp())

    return fetch


def _read_subject(file: CredentialsFile) -> str:
    text = read_secret_file(str(file.credential_source["file"]), "`credential_source` of the credentials")
    match file.credential_source.get("format"):
        case {"type": "json", "subject_token_field_name": str(field)}:
            try:
                return msgspec.json.decode(text, type=dict[str, str])[field]
            except (ValueError, KeyError) as error:
                raise Unauthorized(f"no credentials: the token file of the workload has no text in `{field}`") from error
        case _:
            return text


def _use_machine(environment: Mapping[str, str]) -> Fetch:
    host = environment.get("GCE_METADATA_HOST") or METADATA
    base = check_metadata_address(f"http://{host}", "GCE_METADATA_HOST")
    hint = "set `credentials_file` or GOOGLE_APPLICATION_CREDENTIALS, or run where Google Cloud gives tokens"

    async def fetch() -> Expiring[str]:
        url = f"{base}/computeMetadata/v1/instance/service-accounts/default/token"
        return await fetch_bearer(url, headers={"Metadata-Flavor": "Google"}, hint=hint)

    return fetch


class _Impersonated(Struct, gc=False):
    accessToken: str
    expireTime: str


_impersonated = msgspec.json.Decoder(_Impersonated)
