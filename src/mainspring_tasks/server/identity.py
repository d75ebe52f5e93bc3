"""Whose tasks a connection may touch. A model's arguments never say.

Theory of operation. A server on standard input has one user, named by whoever starts it. A server on the network reads a token
from each request: the user's name and when it ends, signed with a secret (HMAC-SHA256) that only the server and the issuer of
tokens have. So there is no table of users, a client can be one user only, and an engine that holds the secret can speak for each
of its users. Another secret makes all tokens useless.
"""

import hmac
import os
import re
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from secrets import token_urlsafe
from tempfile import NamedTemporaryFile

from mainspring.core.errors import InvalidRequest
from mainspring_tasks.server.task import LONGEST_USER

Identity = Callable[[Mapping[str, str]], str]
"""The user, by the headers of a request, which are none on standard input. Raises `Unidentified`."""

SHORTEST_SECRET = 32
_FORM = re.compile(r"mst\.([A-Za-z0-9_-]+)\.(\d{1,12})\.([A-Za-z0-9_-]{43})", re.ASCII)
_HOW = "send the header `Authorization: Bearer TOKEN`; tokens are made with `mainspring tasks token USER`"


class Unidentified(Exception):
    """A request does not say whose it is. The message says what to do, and never what was sent."""


def fix_user(user: str) -> Identity:
    """Everybody who connects is this user. Raises `InvalidRequest` if that is no name."""
    name = check_user_name(user)
    return lambda headers: name


def verify_tokens(secret: str, *, clock: Callable[[], float] = time.time) -> Identity:
    """The user that the request's token names."""

    def identity(headers: Mapping[str, str]) -> str:
        scheme, _, given = headers.get("authorization", "").strip().partition(" ")
        if scheme.lower() != "bearer" or not given.strip():
            raise Unidentified(f"the request has no token: {_HOW}")
        found = _FORM.fullmatch(given.strip())
        if found is None or not hmac.compare_digest(found[3], _signature(secret, found[1], found[2])):
            raise Unidentified(f"this token is not valid here: {_HOW}")
        if 0 < int(found[2]) <= clock():
            raise Unidentified(f"this token has expired: {_HOW}")
        return urlsafe_b64decode(found[1] + "=" * (-len(found[1]) % 4)).decode()

    return identity


def issue_token(secret: str, user: str, *, expires_at: int = 0) -> str:
    """A token that speaks for this user until that time, in seconds since 1970, or for ever. Raises `InvalidRequest`."""
    name = _base64(check_user_name(user).encode())
    return f"mst.{name}.{expires_at}.{_signature(secret, name, str(expires_at))}"


def check_user_name(user: str) -> str:
    """The name itself. Raises `InvalidRequest` if it is none."""
    if not user.strip() or not user.isprintable() or len(user) > LONGEST_USER:
        raise InvalidRequest(f"a user's name has 1 to {LONGEST_USER} printable characters, not {user[:60]!a}", param="user")
    return user


def read_secret(file: Path, *, make: bool = False) -> str:
    """The secret that the file holds. With `make`, a new one, for its owner's eyes alone, if there is no file.

    Raises `InvalidRequest`.
    """
    try:
        if not file.exists():
            if not make:
                told = f"there is no secret in {file}: name the file of the task server, which creates it when it starts"
                raise InvalidRequest(told, param="secret_file")
            _write(file, token_urlsafe(SHORTEST_SECRET))
        if file.stat().st_mode & 0o002:
            told = f"everybody on this machine can write {file}, so anybody may know its secret"
            raise InvalidRequest(f"{told}: remove the file, or chmod 600 it and put a new secret in", param="secret_file")
        secret = file.read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise InvalidRequest(f"the secret cannot be read from {file}: {error}", param="secret_file") from None
    if len(secret) < SHORTEST_SECRET:
        told = f"{file} holds a secret of {len(secret)} characters, which can be guessed; it needs {SHORTEST_SECRET}"
        raise InvalidRequest(f"{told}: remove the file, and a new one is created", param="secret_file")
    return secret


def _write(file: Path, secret: str) -> None:
    # Whole or not at all, and the first of several wins: others must not read half a secret, nor one that is replaced.
    with NamedTemporaryFile("w", dir=file.parent, prefix=f".{file.name}.", encoding="utf-8", delete=False) as draft:
        draft.write(secret + "\n")
    try:
        with suppress(FileExistsError):
            try:
                os.link(draft.name, file)
            except FileExistsError:
                raise
            except OSError:  # not every file system has links
                file.touch(0o600, exist_ok=False)
                os.replace(draft.name, file)
    finally:
        Path(draft.name).unlink(missing_ok=True)


def _signature(secret: str, name: str, expires_at: str) -> str:
    return _base64(hmac.digest(secret.encode(), f"mainspring tasks.{name}.{expires_at}".encode(), "sha256"))


def _base64(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()
