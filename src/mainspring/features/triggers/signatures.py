"""Signatures of webhooks, in and out, by the scheme of Standard Webhooks: an HMAC over id, time and body.

The headers are `webhook-id`, `webhook-timestamp` and `webhook-signature`, as the SDKs of OpenAI and the libraries of Standard
Webhooks read them.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from hmac import compare_digest, digest
from secrets import token_bytes
from typing import Final

from msgspec import Struct

from mainspring.core.errors import CallerError

PREFIX: Final = "whsec_"
# How far the clock of a sender may be from ours, and so how long a message may be under way.
WINDOW_SECONDS: Final = 300.0
MOST_ID_CHARS: Final = 256


class BadSignature(CallerError):
    """A message that was not signed with the secret of its webhook, or too long ago."""

    code = "invalid_signature"
    status = 401


class SignedHead(Struct, frozen=True):
    """What the headers of a message say of it."""

    id: str
    timestamp: str
    signatures: tuple[str, ...]


def make_secret() -> str:
    return PREFIX + b64encode(token_bytes(32)).decode()


def sign_message(secret: str, id: str, at: float, body: bytes) -> dict[str, str]:
    """The headers of a message that is sent now."""
    timestamp = str(int(at))
    signature = b64encode(_compute(secret, id, timestamp, body)).decode()
    return {"webhook-id": id, "webhook-timestamp": timestamp, "webhook-signature": f"v1,{signature}"}


def read_head(headers: Mapping[str, str], now: float) -> SignedHead:
    """Raises `BadSignature` for headers that are not there, or of another time."""
    id, timestamp, sent = [headers.get(f"webhook-{name}", "") for name in ("id", "timestamp", "signature")]
    if not (id and timestamp and sent) or len(id) > MOST_ID_CHARS:
        raise BadSignature("send the headers webhook-id, webhook-timestamp and webhook-signature of Standard Webhooks")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        raise BadSignature("webhook-timestamp must be seconds since 1970", param="webhook-timestamp")
    if abs(now - int(timestamp)) > WINDOW_SECONDS:
        told = (
            f"webhook-timestamp is more than {WINDOW_SECONDS:g} s from the time here; set the clock, and sign each attempt anew"
        )
        raise BadSignature(told, param="webhook-timestamp")
    signatures = [each.partition(",") for each in sent[:4096].split()]
    return SignedHead(id, timestamp, tuple([signature for version, _, signature in signatures if version == "v1"]))


def check_signature(secrets: Sequence[str], head: SignedHead, body: bytes) -> None:
    """Raises `BadSignature` unless one of these secrets has signed the message."""
    for secret in secrets:
        wanted = b64encode(_compute(secret, head.id, head.timestamp, body)).decode()
        if any(compare_digest(wanted.encode(), given.encode()) for given in head.signatures):
            return
    raise BadSignature("webhook-signature is not that of this message and the secret of the webhook", param="webhook-signature")


def _compute(secret: str, id: str, timestamp: str, body: bytes) -> bytes:
    return digest(b64decode(secret.removeprefix(PREFIX)), b"%b.%b.%b" % (id.encode(), timestamp.encode(), body), "sha256")
