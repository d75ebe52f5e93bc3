"""JSON as backends write it: read where it can be understood in one way only, and arguments as the text that calls carry."""

import ast
import json
from contextlib import suppress

import msgspec

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.items import Json

_MOST_TOKENS = 2**53


def repair(data: bytes) -> bytes:
    """JSON without what only some parsers accept: NaN, a byte order mark, half a surrogate pair, half a UTF-8 character.

    Raises `ValueError` or `RecursionError` if it is no JSON at all.
    """
    value = json.loads(data.decode("utf-8-sig", errors="replace"), parse_constant=lambda _: None)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def json_text(arguments: object) -> str:
    """Arguments as JSON text, also from backends that send the object itself; nothing stays nothing."""
    if isinstance(arguments, str):
        return arguments
    try:
        return "" if arguments is None else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise BadOutput("the model called a tool with arguments nested too deeply; ask again") from error


def unwrap_arguments(text: str) -> str:
    """Arguments that begin as no object, as the object that they can only mean: JSON in JSON, null, JSON among words, an object
    of Python's. As they are if they mean none."""
    value: object = text
    with suppress(ValueError, RecursionError):
        value = json.loads(text)
    if value is None:
        return "{}"
    if not isinstance(value, str) or (start := value.find("{")) < 0:
        return text
    with suppress(ValueError, RecursionError):
        _, end = json.JSONDecoder().raw_decode(value, start)
        return value[start:end]
    with suppress(ValueError, RecursionError, SyntaxError, TypeError, MemoryError):
        literal = ast.literal_eval(value[start : value.rfind("}") + 1])
        return json_text(literal) if isinstance(literal, dict) else text
    return text


def cut_behind_object(before: str, piece: str) -> str:
    """The piece without what follows the object that it completes; all of it if it completes none."""
    text = before + piece
    start = len(text) - len(text.lstrip())
    try:
        _, end = json.JSONDecoder().raw_decode(text, start)
    except (ValueError, RecursionError):
        return piece
    return piece[: max(0, end - len(before))]


def parse_count(tokens: object) -> int | None:
    """A number of tokens, however it is written; None for what is no number."""
    if type(tokens) is int and 0 <= tokens <= _MOST_TOKENS:
        return tokens
    try:
        return min(max(0, int(float(tokens))), _MOST_TOKENS) if isinstance(tokens, int | float | str) else None
    except (ValueError, OverflowError):
        return None


def drop_none(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value is not None}


def merge_extra(body: Json, extra: Json | None) -> Json:
    """The body with what the caller adds to it; an object in both has the fields of both."""
    both = {name: value for name, value in (extra or {}).items() if isinstance(value, dict) and isinstance(body.get(name), dict)}
    return body | (extra or {}) | {name: body[name] | value for name, value in both.items()}


def encode_body(body: Json) -> bytes:
    """The body as it is sent. Raises `Refused` if it cannot be."""
    try:
        return msgspec.json.encode(body)
    except (ValueError, TypeError, RecursionError) as error:
        raise Refused(f"the request cannot be written as JSON: {error}") from error
