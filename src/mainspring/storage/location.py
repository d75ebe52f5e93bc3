"""Where a database is: a file, or a PostgreSQL server that a URL names.

A URL may hold a password. It is in `Location.given` alone; as text a location has none, so that messages can name it.
"""

import re
from os import PathLike, fspath
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, urlencode, urlsplit

from msgspec import Struct

from mainspring.core.errors import InvalidRequest

SCHEMES: Final = ("postgresql", "postgres")
HIDDEN: Final = "***"
_SCHEME = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*):(?://|(?<=postgres:)|(?<=postgresql:))", re.IGNORECASE)
_SECRETS: Final = ("password", "sslpassword")
# A URL with something before it, as with quotes or a space in a file of variables, or without its colon; or what libpq calls a
# connection string.
_NO_FILE = re.compile(r"://|\bpassword\s*=|^postgres(ql)?//", re.IGNORECASE)


class Location(Struct, frozen=True):
    """Where a database is. `name` may be shown; `given` is how it was named, with all its secrets. `file` is there for files.
    With `is_unfinished` it may be one that a copy is being made in, which is for nobody else to use."""

    name: str
    given: str
    file: Path | None = None
    is_unfinished: bool = False

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"Location({self.name!r})"


def parse_location(text: "str | PathLike[str] | Location") -> Location:
    """Reads the name of a file or a `postgresql://` URL. Raises `InvalidRequest` for any other URL, and shows no password."""
    if isinstance(text, Location):
        return text
    text = fspath(text)
    if (found := _SCHEME.match(text)) is None:
        if _NO_FILE.search(text):
            raise _not_a_url("postgresql")
        return Location(text, text, Path(text))
    scheme = found["scheme"].lower()
    if scheme not in SCHEMES:
        raise InvalidRequest(
            f"`{scheme}:` is no database that Mainspring knows; name a file, or write postgresql://USER:PASSWORD@HOST/NAME",
            param="database",
        )
    return Location(_hide_password(text, scheme), text)


def hide_password(text: str) -> str:
    """The text as it may be shown, whatever it is: a URL of a database without its password, and anything else as it is."""
    try:
        return parse_location(text).name
    except InvalidRequest:
        found = _SCHEME.match(text)
        return text if found is None or found["scheme"].lower() not in SCHEMES else f"{found['scheme']}://{HIDDEN}"


def _hide_password(url: str, scheme: str) -> str:
    """The URL as it may be shown. Raises `InvalidRequest` if it cannot be told where the password ends."""
    try:
        parts = urlsplit(url)
        for host in parts.netloc.rpartition("@")[2].split(","):
            _ = urlsplit(f"//{host}").port
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _not_a_url(scheme) from None
    if not url.lower().startswith(f"{scheme}://") or parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise _not_a_url(scheme)
    account, sign, host = parts.netloc.rpartition("@")
    user, colon, _ = account.partition(":")
    shown = [(name, HIDDEN if name.lower() in _SECRETS else value) for name, value in pairs]
    query = f"?{urlencode(shown, safe='/:*,')}" if shown else ""
    return f"{scheme}://{user}{f':{HIDDEN}' if colon else ''}{sign}{host}{parts.path}{query}"


def _not_a_url(scheme: str) -> InvalidRequest:
    return InvalidRequest(
        f"the {scheme}:// URL of the database cannot be read; write it as postgresql://USER:PASSWORD@HOST:PORT/NAME with nothing "
        "around it, and characters of the user or password such as @ : / ? # as %40 %3A %2F %3F %23",
        param="database",
    )
