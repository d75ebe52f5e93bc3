"""JSON as backends write it: read where it can be understood in one way only, and arguments as the text that calls carry."""

import ast
import json
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from io import StringIO
from itertools import pairwise
from re import Match
from token import STRING as STRING_TOKEN
from tokenize import COMMENT, NEWLINE, NL, generate_tokens
from typing import Final

import msgspec

from mainspring.core.errors import BadOutput, Refused
from mainspring.core.items import Json, are_arguments_large

MOST_TOKENS = 2**53
MOST_ODD: Final = 65_536
"""Longer arguments are read as JSON and nothing else: to find out what is meant takes time and memory."""
ARGUMENT_KEYS: Final = (
    "arguments",
    "parameters",
    "args",
    "input",
    "tool_input",
    "action_input",
    "params",
    "kwargs",
    "tool_args",
    "tool_arguments",
    "function_args",
)
# What the parser of Python raises for a text that is none of its; the last of them where it counts its own depth wrong, as 3.11
# does when memory is tidied up or another thread parses meanwhile.
UNREADABLE: Final = (ValueError, SyntaxError, TypeError, MemoryError, RecursionError, SystemError)
_AROUND: Final = (*ARGUMENT_KEYS, "properties")
_BESIDE_ARGUMENTS: Final = ("name", "tool", "tool_name", "function", "function_name", "type", "id")
_HEAD: Final = re.compile(r'\s*\{\s*"(\w*)("?)')
_HALF_HEAD: Final = re.compile(r"\s*(?:\{\s*(?:\}\s*)?)?")
_CONSTANTS: Final = {"True": "true", "False": "false", "None": "null"}
STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# A string, or the rest of the text if nothing closes it: each place is read once.
OPEN_STRING: Final = re.compile(rf"{STRING.pattern[:-1]}(?:\"|\\?\Z)", re.DOTALL)
# A string, what closes behind a comma, a constant, a key or a text as JavaScript has it, or a comment.
_SLIP: Final = re.compile(
    rf"({OPEN_STRING.pattern})|,(\s*[}}\]])|\b(True|False|None)\b|(?<=[{{,\s])([A-Za-z_$][\w$]*)(?=\s*:)"
    r"|'([^'\"\\\n]*)'|/\*.{0,500}?\*/|//[^\n]*",
    re.DOTALL,
)
_WRITERS_QUOTES: Final = str.maketrans("\u201c\u201d", '""')
# What strings of JSON must have escaped.
_RAW: Final = re.compile(r"[\x00-\x1f]")
_BETWEEN: Final = re.compile(r"[\s,]*(?=\{|\Z)")
_decoder: Final = json.JSONDecoder()
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
# What Python reads as an escape, and of that what looks like a letter of a path or of a pattern.
_ESCAPES: Final = frozenset("\\'\"/\nabfnrtvxuUN01234567")
_MEANT: Final = frozenset("abfnrtvxuUN01234567")
_RAW_STRING: Final = re.compile(r"""(?<!\w)[rR]["']""")
# Two strings with nothing but blanks between them.
_ADJACENT: Final = re.compile(r"""["']\s+[rbfu]{0,2}["']""", re.IGNORECASE)
_ESCAPED: Final = re.compile(r"(\\[^'])|\\'", re.DOTALL)
WHOLE_VALUE: Final = re.compile(r'(?:["}\]]|\b(?:true|false|null))\s*\Z')
# Gemma's token for a quote around all of a string, and in place of its quotes.
_QUOTED: Final = re.compile(r'"<\|\\"\|>(.*)<\|\\"\|>"', re.DOTALL)
_BARE_QUOTED: Final = re.compile(r'<\|"\|>(.*?)<\|"\|>', re.DOTALL)


def split_objects(data: bytes) -> list[bytes]:
    """The objects of a text that has several with nothing between them but blanks and commas, or in an array, else none."""
    text, at, found = data.decode(errors="replace").strip(), 0, list[bytes]()
    text = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    while match := _BETWEEN.match(text, at):
        at = match.end()
        if at == len(text):
            return found if len(found) > 1 else []
        try:
            _, end = _decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        found.append(text[at:end].encode())
        at = end
    return []


def repair(data: bytes) -> bytes:
    """JSON without what only some parsers accept: NaN, a byte order mark, half a surrogate pair, half a UTF-8 character, or the
    name of a stream's field once more.

    Raises `ValueError` or `RecursionError` if it is no JSON at all.
    """
    value = json.loads(data.removeprefix(b"data:").decode("utf-8-sig", errors="replace"), parse_constant=lambda _: None)
    return json.dumps(value, ensure_ascii=False).encode(errors="replace")


def json_text(arguments: object) -> str:
    """Arguments as JSON text, also from backends that send the object itself; nothing stays nothing."""
    if isinstance(arguments, str):
        return arguments
    try:
        return "" if arguments is None else json.dumps(arguments, ensure_ascii=False, separators=(",", ":"))
    except RecursionError as error:
        raise BadOutput("the model called a tool with arguments nested too deeply; ask again") from error


def read_arguments(text: str, tool: str = "", properties: Collection[str] = ()) -> str:
    """Arguments as the object that they can only mean: JSON in JSON or in a list, null, JSON among words or with slips, an object
    of Python's, arguments within arguments. As they are if they are what they should be, mean none, or are too many to read."""
    if are_arguments_large(text):
        return text
    cleaned = OPEN_STRING.sub(_drop_quote_tokens, text) if "<|" in text else text
    value = _parse(cleaned)
    if isinstance(value, dict):
        inner = _unwrap(value, tool, properties)
        return cleaned if inner is value else json_text(inner)
    if len(text) > MOST_ODD:
        return text
    for written in _mend(cleaned):
        if isinstance(_parse(written), dict):
            return written
    match value:
        case None:
            return "{}" if text.strip() in ("null", "None") else _find_object(cleaned) or text
        case "" | []:
            return "{}"
        case str():
            told = read_arguments(value, tool, properties)
            return told if isinstance(_parse(told), dict) else text
        case [str(only)] if only.lstrip().startswith("{"):
            return read_arguments(only, tool, properties)
        case [dict(only)]:
            return json_text(_unwrap(only, tool, properties))
        case _:
            return text


def parse_loosely(text: str) -> object:
    """The value of JSON with slips, or of an object as Python writes it; None if it is neither, or too long."""
    if len(text) > MOST_ODD:
        return None
    with suppress(*UNREADABLE):
        return _read_literal(text)
    return next((value for written in _mend(text) if (value := _parse(written)) is not None), None)


def mend_json(text: str) -> Iterator[str]:
    """What a text may mean that is meant for JSON: as it is, with its slips mended, or as Python writes it. Not all are JSON."""
    yield text
    yield from _mend(text)
    with suppress(*UNREADABLE):
        literal = _read_literal(text)
        if not (_ADJACENT.search(text) and _joins_strings(text)):
            yield json.dumps(literal, ensure_ascii=False)


def may_be_wrapped(head: str, tool: str, properties: Collection[str]) -> bool | None:
    """Whether arguments that begin like this may have the real ones within or behind them; None if it cannot be told yet."""
    if not properties:
        return False
    key = _HEAD.match(head)
    if key is None:
        return None if _HALF_HEAD.fullmatch(head) else False
    words = (*_AROUND, *_BESIDE_ARGUMENTS, tool)
    if key[2]:
        return key[1] in words and key[1] not in properties
    return None if any(word.startswith(key[1]) for word in words if word not in properties) else False


def _unwrap(value: Json, tool: str, properties: Collection[str]) -> Json:
    """The arguments within arguments, if all of them are known to the tool and what is around them is not."""
    keys = [key for key in (*_AROUND, tool) if key in value and key not in properties]
    if len(keys) != 1 or not value.keys() <= {keys[0], *_BESIDE_ARGUMENTS} - {*properties}:
        return value
    inner = value[keys[0]]
    if isinstance(inner, str):
        inner = _parse(inner)
    # A schema describes its properties, each by an object.
    is_schema = keys[0] == "properties" and isinstance(inner, dict) and all(isinstance(each, dict) for each in inner.values())
    return inner if isinstance(inner, dict) and inner.keys() <= {*properties} and not is_schema else value


def _drop_quote_tokens(found: Match[str]) -> str:
    """A string without Gemma's tokens for its quotes."""
    quoted = _QUOTED.fullmatch(found[0])
    return found[0] if quoted is None else f'"{quoted[1]}"'


def _read_literal(text: str) -> object:
    """The value of an object as Python writes it. Raises what is `UNREADABLE` if it is none, or if one backslash in it is meant
    and another may be: no path has a line break, whatever `C:\\dir\\new` looks like."""
    escapes = {escape[1] for escape in _ESCAPE.finditer(text)} if "\\" in text else set[str]()
    if not escapes <= _ESCAPES:
        if escapes & _MEANT or _RAW_STRING.search(text):
            raise ValueError("it has a backslash that is meant, and another that may be")
        text = _ESCAPE.sub(lambda escape: escape[0] if escape[1] in _ESCAPES else f"\\{escape[0]}", text)
    return ast.literal_eval(text)


def _joins_strings(text: str) -> bool:
    """Whether two strings stand side by side, which Python joins: a comma may be missing."""
    kinds = [token.type for token in generate_tokens(StringIO(text).readline) if token.type not in (NL, NEWLINE, COMMENT)]
    return any(first == second == STRING_TOKEN for first, second in pairwise(kinds))


def _mend(text: str) -> Iterator[str]:
    """JSON without the slips of those who write it by hand: a comma too many, words of Python's, line breaks in a string, no
    brace at the end."""
    if text.lstrip().startswith('{\\"') and isinstance(told := _parse(f'"{text}"'), str):
        # All of it is written as within a string.
        yield told
    quoted = _BARE_QUOTED.sub(lambda found: json.dumps(found[1]), text) if "<|" in text else text
    written = _SLIP.sub(_mend_slip, quoted if '"' in quoted else quoted.translate(_WRITERS_QUOTES))
    yield written
    # Behind a number or within a text, more may have been to come.
    if WHOLE_VALUE.search(text) and WHOLE_VALUE.search(written):
        yield written + "}"


def _mend_slip(found: Match[str]) -> str:
    text, closed, constant, key, word = found.groups()
    named = key if key is not None else word
    if text:
        # In JSON, an apostrophe needs no backslash, and may have none.
        return _ESCAPED.sub(lambda escaped: escaped[1] or "'", _RAW.sub(lambda raw: json.dumps(raw[0])[1:-1], text))
    if named is not None:
        return json.dumps(named)
    # A comment stands between values, and does not join them.
    return closed or _CONSTANTS.get(constant, "") or (" " if found[0].startswith("/*") else "")


def _find_object(text: str) -> str | None:
    """The first whole object in a text, as JSON or as Python writes it."""
    start = text.find("{")
    if start < 0:
        return None
    with suppress(ValueError, RecursionError):
        _, end = json.JSONDecoder().raw_decode(text, start)
        return text[start:end]
    with suppress(*UNREADABLE):
        literal = _read_literal(text[start : text.rfind("}") + 1])
        return json_text(literal) if isinstance(literal, dict) else None
    return None


def _parse(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def parse_count(tokens: object) -> int | None:
    """A number of tokens, however it is written; None for what is none."""
    if type(tokens) is int and 0 <= tokens <= MOST_TOKENS:
        return tokens
    try:
        count = int(float(tokens)) if isinstance(tokens, int | float | str) else -1
        return None if count < 0 else min(count, MOST_TOKENS)
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
