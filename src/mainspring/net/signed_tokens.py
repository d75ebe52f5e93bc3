"""JSON Web Tokens that we sign ourselves (RFC 7519), to be let in somewhere."""

from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING

import msgspec

from mainspring.core.items import Json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec, rsa


def encode_base64(data: bytes) -> str:
    """As it stands in tokens and URLs: without padding."""
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
