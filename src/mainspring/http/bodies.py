"""Request bodies: read up to a limit, decoded into structs, and refused with the name of the field at fault."""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import fields
from starlette.requests import Request

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import from_wire
from mainspring.core.json_values import check_depth
from mainspring.definitions.parsed_file import hint
from mainspring.http.faults import Fault
from mainspring.http.json_size import check_value_count

MOST_BODY_BYTES: Final = 32 * 1024 * 1024

Name = Annotated[str, Meta(max_length=512)]
Metadata = Annotated[dict[Annotated[str, Meta(max_length=64)], Name], Meta(max_length=16)]

Body = TypeVar("Body", bound=Struct)


async def read_body(request: Request, most: int = MOST_BODY_BYTES) -> bytes:
    """The body, whatever its type. Raises `Fault` 413 for one beyond the limit before all of it is read."""
    if (coding := request.headers.get("content-encoding", "identity").lower()) != "identity":
        message = f"send the body as it is, not compressed as `{coding[:80]}`"
        raise Fault(415, "unsupported_media_type", message, param="content-encoding")
    if int(request.headers.get("content-length", 0)) > most:
        raise _too_large(most)
    pieces: list[bytes] = []
    size = 0
    is_whole = False
    while not is_whole:
        told = await request.receive()
        if told["type"] == "http.disconnect":  # nobody is left to read this, but it is no failure of ours
            raise Fault(400, "incomplete_body", "the connection ended before the body did", param="body")
        piece = told.get("body", b"")
        size += len(piece)
        if size > most:
            raise _too_large(most)
        pieces.append(piece)
        is_whole = not told.get("more_body", False)
    return b"".join(pieces)


async def read_json_body(request: Request, most: int = MOST_BODY_BYTES) -> bytes:
    """The body of a request that says it is JSON. Raises `Fault` 415 for another content type, 413 for too much."""
    kind = media_type(request)
    if kind != "application/json":
        message = f"send the body as application/json, not as `{kind[:80] or 'nothing'}`"
        raise Fault(415, "unsupported_media_type", message, param="content-type")
    body = await read_body(request, most)
    await check_value_count(body)
    return body


def media_type(request: Request) -> str:
    """The content type without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def parse_body(body: bytes, kind: type[Body], read: Callable[[type, Any], Any] = from_wire) -> Body:
    """The body as a struct. Raises `InvalidRequest` that names the field at fault. `read` is the codec's hook."""
    try:
        request = msgspec.json.decode(body, type=kind, dec_hook=read)
        check_depth(body)
        return request
    except msgspec.ValidationError as error:
        if (unknown := _UNKNOWN.fullmatch(str(error))) is not None:
            known = tuple([field.encode_name for field in fields(kind)])
            message = f"there is no `{unknown[1][:80]}` in this request; {hint(unknown[1][:80], known)}"
            raise InvalidRequest(message, param=unknown[1][:80], code="unknown_parameter") from None
        raise _misfit(error) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", param="body", code="invalid_json") from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply; send flatter JSON", param="body", code="invalid_json") from None


_MISSING = re.compile(r"Object missing required field `(.*)`", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)


def _misfit(error: msgspec.ValidationError) -> InvalidRequest:
    message, *paths = str(error).split(" - at `")
    names = [path.rstrip("`").removeprefix("key` in `").removeprefix("$") for path in reversed(paths)]
    field = "".join(names).removeprefix(".").partition("[...]")[0]
    if (missing := _MISSING.fullmatch(message)) is not None and "[...]" not in str(error):
        path = f"{field}.{missing[1]}".removeprefix(".")
        return InvalidRequest(f"{path} is missing", param=path, code="missing_required_parameter")
    code = "missing_required_parameter" if missing else "invalid_type"
    told = f"{field or 'the body'}: {message}"
    for words, name, rule in _BOUNDS:
        if message.startswith(words):
            owner = f"a key in {field}" if " - at `key` in `" in str(error) else field
            code, told = name, f"{owner} {rule.format(message.removeprefix(words))}"
    if (types := _TYPES.fullmatch(message)) is not None:
        owner = f"a value in {field}" if "[...]" in str(error) else field or "the body"
        wanted = " or ".join([_JSON_TYPES.get(each, each) for each in types[1].split(" | ")])
        told = f"{owner} must be {wanted}, not {_JSON_TYPES.get(types[2], types[2])}"
    return InvalidRequest(told, param=field or "body", code=code)


_TYPES: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_JSON_TYPES: Final = {
    "str": "a string", "int": "an integer", "float": "a number", "bool": "a boolean", "array": "an array", "object": "an object",
}  # fmt: skip

# What msgspec says of a value out of bounds, what OpenAI calls it, and what to tell.
_BOUNDS = (
    ("Invalid enum value ", "invalid_value", "cannot be {}"),
    ("Expected `str` of length <= ", "string_above_max_length", "must have at most {} characters"),
    ("Expected `array` of length <= ", "array_above_max_length", "must have at most {} elements"),
    ("Expected `str` of length >= ", "string_below_min_length", "must have at least {} characters"),
    ("Expected `array` of length >= ", "array_below_min_length", "must have at least {} elements"),
    ("Expected `object` of length <= ", "object_above_max_properties", "must have at most {} fields"),
    ("Expected `int` >= ", "integer_below_min_value", "must be at least {}"),
    ("Expected `int` <= ", "integer_above_max_value", "must be at most {}"),
    ("Expected `float` >= ", "decimal_below_min_value", "must be at least {}"),
    ("Expected `float` <= ", "decimal_above_max_value", "must be at most {}"),
)


def _too_large(most: int) -> Fault:
    return Fault(413, "request_too_large", f"the body has more than {most} bytes; send less", param="body")
