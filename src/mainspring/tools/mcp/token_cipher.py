"""Encrypts what is kept of sign-ins, by a key that the database does not have.

The key is that of the settings, or in a file beside the database, for its owner alone, which is made when it is first needed.
What is encrypted is bound to its place: moved to another document, it cannot be read.
"""

import hmac
import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import decode, encode

KEY_FILE: Final = "key:"
"""What a `secret_key` begins with that is the content of a key file, in hexadecimal digits."""
KEY_BYTES: Final = 32
_NONCE_BYTES = 12


class _Sealed(Struct, frozen=True):
    sealed: bytes


class TokenCipher:
    """AES-256-GCM under a key of 32 bytes."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        self._cipher, self._key = AESGCM(key), key

    def seal(self, data: bytes, place: str) -> bytes:
        """The body of a document."""
        nonce = os.urandom(_NONCE_BYTES)
        return encode(_Sealed(nonce + self._cipher.encrypt(nonce, data, place.encode())))

    def open(self, sealed: bytes, place: str) -> bytes | None:
        """None if it was sealed by another key, or for another place."""
        from cryptography.exceptions import InvalidTag

        try:
            data = decode(sealed, _Sealed).sealed
            return self._cipher.decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], place.encode())
        except (InvalidTag, ValueError):
            return None

    def make_id(self, *parts: str) -> str:
        """An id that nobody can guess, the same for the same parts."""
        return hmac.new(self._key, "\0".join(parts).encode(), sha256).hexdigest()[:32]


def load_cipher(secret: str | None, database: Path | None, *, is_shared: bool) -> TokenCipher:
    """The cipher by the secret of the settings, else by the key file of a database that is a file; what is only in memory has a
    key of its own. Raises `InvalidRequest` if there is none, or it is open to others."""
    if secret:
        if secret.startswith(KEY_FILE):
            return TokenCipher(_read_digits(secret.removeprefix(KEY_FILE)))
        if len(secret) < 16:
            raise InvalidRequest("`secret_key` is too short; use at least 16 characters, such as `openssl rand -hex 32` prints")
        return TokenCipher(sha256(b"mainspring sign-ins\0" + secret.encode()).digest())
    if database is not None:
        return TokenCipher(_read_key(find_key_file(database)))
    if is_shared:
        raise InvalidRequest(
            "sign-ins to MCP servers are kept encrypted: set `secret_key` (MAINSPRING_SECRET_KEY), the same for all processes on "
            "this database; `openssl rand -hex 32` prints one",
            param="secret_key",
        )
    return TokenCipher(os.urandom(KEY_BYTES))


def find_key_file(database: Path) -> Path:
    return database.with_name(f"{database.name}.key")


def _read_digits(text: str) -> bytes:
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        told = f"`secret_key` begins with `{KEY_FILE}`, so the {2 * KEY_BYTES} hexadecimal digits of a key file are to follow"
        raise InvalidRequest(told, param="secret_key")
    return key


def _read_key(file: Path) -> bytes:
    try:
        if not file.exists():
            _write_key(file)
        if file.stat().st_mode & 0o077:
            raise InvalidRequest(f"{file} holds the key to sign-ins, and others may read it; run: chmod 600 {file}")
        key = file.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"the key file {file} cannot be used: {error.strerror}; or set `secret_key`") from error
    if len(key) != KEY_BYTES:
        raise InvalidRequest(f"{file} holds no key; restore it from a backup, or remove it and sign in again")
    return key


def _write_key(file: Path) -> None:
    """Writes a new key, once: of several processes that do, one succeeds, and no one sees half a key."""
    made, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}")
    try:
        with os.fdopen(made, "wb") as out:
            out.write(os.urandom(KEY_BYTES))
            out.flush()
            os.fsync(out.fileno())
        with suppress(FileExistsError):
            os.link(name, file)
    finally:
        os.unlink(name)
