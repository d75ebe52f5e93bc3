"""JSON as backends write it: read where it can be understood in one way only, and arguments as the text that calls carry."""

import json
from typing import TypeVar

import msgspec

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.items import Json

T = TypeVar("T")


def lenient(decoder: "msgspec.json.Decoder[T]", data: bytes) -> T:
    """What the data says, also where it has what only some parsers accept. Raises `ValueError` or `RecursionError`."""
    try:
        return decoder.decode(data)
    except (ValueError, RecursionError) as error:
        try:
            return decoder.decode(_repaired(data))
        except (ValueError, RecursionError):
            raise error from None


def json_text(arguments: object) -> str:
    """Arguments as JSON text, also from backends that send the object itself; nothing stays nothing."""
    if isinstance(arguments, str):
        return arguments
    try:
        return "" if arguments is None else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise BadOutput("the model called a tool with arguments nested too deeply; ask again") from error


def counted(tokens: object) -> int | None:
    """A number of tokens, however it is written; None for what is no number."""
    try:
        return min(max(0, int(float(tokens))), 2**53) if isinstance(tokens, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def merged(body: Json, extra: Json | None) -> Json:
    """The body with what the caller adds to it; an object in both has the fields of both."""
    both = {name: value for name, value in (extra or {}).items() if isinstance(value, dict) and isinstance(body.get(name), dict)}
    return body | (extra or {}) | {name: body[name] | value for name, value in both.items()}


def written(body: Json) -> bytes:
    """The body as it is sent. Raises `Refused` if it cannot be."""
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"the request cannot be written as JSON: {error}") from error


def _repaired(data: bytes) -> bytes:
    """JSON without NaN, a byte order mark, half a surrogate pair, half a UTF-8 character."""
    value = json.loads(data.decode("utf-8-sig", errors="replace"), parse_constant=lambda _: None)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")
