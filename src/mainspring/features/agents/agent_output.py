"""An agent's answer as fields: the JSON object that it holds, or else its text under the name of the first output."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from mainspring.core.items import Json

RESULT: Final = "result"

_FENCE = re.compile(r"[ \t]*(`{3,}|~{3,})[^`]*")


def parse_output(text: str, outputs: Sequence[str] = ()) -> Json:
    """The fields of an answer. A JSON object is taken as it is, also from the one fenced block that the text holds; a JSON list
    goes under the first of `outputs`, or `result`, and so does text that is neither, without a fence around all of it."""
    key = outputs[0] if outputs else RESULT
    bare = text.strip()
    block = _only_block(bare)
    for candidate in (bare, *([] if block is None else [block])):
        match _json(candidate):
            case dict() as fields:
                return fields
            case list() as values:
                return {key: values}
            case _:
                continue
    is_all = block is not None and bare.count("\n") == block.count("\n") + 2
    return {key: block if is_all else text}


def _only_block(text: str) -> str | None:
    """What is in the fenced block of the text, None if there is none, or several."""
    found: list[str] = []
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        if fence and line.strip() == fence:
            found.append("\n".join(lines))
            fence = ""
        elif fence:
            lines.append(line)
        elif (opening := _FENCE.fullmatch(line)) is not None:
            fence, lines = opening[1], []
    return found[0] if len(found) == 1 and not fence else None


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
