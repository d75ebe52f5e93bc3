"""Signature Version 4: how Amazon knows who sends a request, and that nobody has changed it."""

import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import reduce
from logging import getLogger
from typing import Final
from urllib.parse import parse_qsl, quote, urlsplit

from msgspec import Struct

from mainspring.providers.credentials import CredentialCache

log = getLogger(__name__)

ALGORITHM = "AWS4-HMAC-SHA256"
MOST_SKEW: Final = timedelta(minutes=4)
_LATE: Final = ("InvalidSignature", "SignatureDoesNotMatch", "RequestTimeTooSkewed", "RequestExpired")


class AwsKeys(Struct, frozen=True):
    """An access key with its secret, and the session token of one that expires."""

    id: str
    secret: str
    token: str | None = None


def sign_request(
    keys: AwsKeys, method: str, url: str, body: bytes, *, region: str, service: str, at: datetime, headers: Mapping[str, str] = {}
) -> dict[str, str]:
    """The headers that authorize the request. `headers` are others that it has and that are to be signed."""
    parts = urlsplit(url)
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    added = {"x-amz-date": moment, **({"x-amz-security-token": keys.token} if keys.token else {})}
    host = (parts.hostname or "") + (f":{parts.port}" if parts.port not in (None, _PORTS.get(parts.scheme)) else "")
    signed = {name.lower(): " ".join(value.split()) for name, value in {"host": host, **headers, **added}.items()}
    names = ";".join(sorted(signed))
    canonical = [
        method,
        # The path counts as it was sent, and is encoded once more.
        quote(parts.path or "/", safe="/-_.~"),
        "&".join(f"{_encode(name)}={_encode(value)}" for name, value in sorted(parse_qsl(parts.query, keep_blank_values=True))),
        *[f"{name}:{signed[name]}" for name in sorted(signed)],
        "",
        names,
        hashlib.sha256(body).hexdigest(),
    ]
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    digest = hashlib.sha256("\n".join(canonical).encode()).hexdigest()
    key = reduce(_hash, scope.split("/"), f"AWS4{keys.secret}".encode())
    signature = _hash(key, f"{ALGORITHM}\n{moment}\n{scope}\n{digest}").hex()
    authorization = f"{ALGORITHM} Credential={keys.id}/{scope}, SignedHeaders={names}, Signature={signature}"
    return {**added, "Authorization": authorization}


class SigV4Signer:
    """Signs with keys that may expire; those that have are fetched anew."""

    def __init__(
        self,
        keys: CredentialCache[AwsKeys],
        region: str,
        service: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._keys, self._region, self._service, self._clock = keys, region, service, clock
        self._skew = timedelta()

    @property
    def secrets(self) -> Sequence[str]:
        kept = self._keys.kept
        return () if kept is None else tuple(filter(None, (kept.value.secret, kept.value.token)))

    async def sign(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        keys = await self._keys.get()
        return sign_request(keys, method, url, body, region=self._region, service=self._service, at=self._clock() + self._skew)

    def renew(self, signed: Mapping[str, str], status: int, headers: Mapping[str, str]) -> bool:
        kept, kind = self._keys.kept, headers.get("x-amzn-errortype", "")
        if status in (400, 401, 403) and kind.startswith(_LATE) and (skew := self._measure_skew(headers)) is not None:
            log.warning("the clock of this machine is wrong by %d s; requests are signed by that of Amazon", skew.total_seconds())
            self._skew = skew
            return True
        if status not in (400, 401, 403) or not kind.startswith("ExpiredToken"):
            return False
        if kept is not None and kept.value.token == signed.get("x-amz-security-token"):
            self._keys.forget(kept.value)
        return True

    def _measure_skew(self, headers: Mapping[str, str]) -> timedelta | None:
        """By how much the clock of Amazon differs from what was signed with, if that is more than it accepts."""
        try:
            skew = parsedate_to_datetime(headers.get("Date", "")) - self._clock()
        except (ValueError, TypeError, OverflowError):
            return None
        return skew if abs(skew - self._skew) > MOST_SKEW else None


def _hash(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def _encode(text: str) -> str:
    return quote(text, safe="-_.~")


_PORTS = {"https": 443, "http": 80}
