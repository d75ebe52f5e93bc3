"""Proves by a key who we are: as a client (RFC 7523), and as the one to whom a token was granted (DPoP, RFC 9449)."""

import time
from base64 import b64decode, b64encode, urlsafe_b64encode
from hashlib import sha256
from secrets import token_urlsafe
from typing import TYPE_CHECKING

import msgspec
from yarl import URL

from mainspring.core.items import Json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

LONGEST_NONCE = 1_024


def encode_base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def sign_jwt(key: "ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey", head: Json, claims: Json) -> str:
    """By ES256 with a key of the curve P-256, by RS256 with an RSA one."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
    from cryptography.hazmat.primitives.hashes import SHA256

    head = {"alg": "RS256" if isinstance(key, rsa.RSAPrivateKey) else "ES256", **head}
    told = f"{encode_base64(msgspec.json.encode(head))}.{encode_base64(msgspec.json.encode(claims))}"
    if isinstance(key, rsa.RSAPrivateKey):
        signature = key.sign(told.encode(), padding.PKCS1v15(), SHA256())
    else:
        one, other = decode_dss_signature(key.sign(told.encode(), ec.ECDSA(SHA256())))
        signature = one.to_bytes(32, "big") + other.to_bytes(32, "big")
    return f"{told}.{encode_base64(signature)}"


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
