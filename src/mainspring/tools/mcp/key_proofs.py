"""Proves by a key who we are: as a client (RFC 7523), and as the one to whom a token was granted (DPoP, RFC 9449)."""

import time
from base64 import b64decode, b64encode
from hashlib import sha256
from secrets import token_urlsafe

from yarl import URL

from mainspring.core.items import Json
from mainspring.net.signed_tokens import encode_base64, sign_jwt

LONGEST_NONCE = 1_024


def make_key() -> str:
    """A new key for `Prover`, as it is kept."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    made = ec.generate_private_key(ec.SECP256R1())
    return b64encode(made.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())).decode()


class Prover:
    """Proves, with each request anew, that whoever sends a token has the key to which it is bound."""

    def __init__(self, key: str) -> None:
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import load_der_private_key

        loaded = load_der_private_key(b64decode(key), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        point = loaded.public_key().public_numbers()
        x, y = [encode_base64(number.to_bytes(32, "big")) for number in (point.x, point.y)]
        self._key, self._head = loaded, {"typ": "dpop+jwt", "jwk": {"kty": "EC", "crv": "P-256", "x": x, "y": y}}

    def prove(self, method: str, url: URL, *, token: str = "", nonce: str = "") -> str:
        """The header `DPoP` of a request with this token, if it has one. The nonce is what was last asked for."""
        claims: Json = {
            "jti": token_urlsafe(16),
            "htm": method,
            "htu": str(url.with_query(None).with_fragment(None)),
            "iat": int(time.time()),
        }
        if token:
            claims["ath"] = encode_base64(sha256(token.encode()).digest())
        if nonce:
            claims["nonce"] = nonce
        return sign_jwt(self._key, self._head, claims)
