"""The answer that a decision run ends with: a small JSON object, by which the model says what it understood and what it says.

Models that can be held to a schema are; the others are asked in words. One that answers in plain text all the same has given a
reply and nothing else: the decision is to respond, never to ask or to refuse, and the intent is read off the calls it made.
"""

import json
import re
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mainspring.decisions.types import IntentType
from mainspring.items import Json

Kind = Literal["respond", "clarify", "refuse"]
Why = Literal["none", "unclear", "several_tasks", "no_such_task", "missing_detail", "bad_input", "off_topic", "not_allowed"]

_INTENTS: Final = [intent.value for intent in IntentType if not intent.value.startswith("CONFIRM_")]
_WHYS: Final = ["none", "unclear", "several_tasks", "no_such_task", "missing_detail", "bad_input", "off_topic", "not_allowed"]

SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "intent": {"type": "string", "enum": _INTENTS},
        "possible_intents": {"type": "array", "items": {"type": "string", "enum": _INTENTS}, "maxItems": 3},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "decision": {"type": "string", "enum": ["respond", "clarify", "refuse"]},
        "why": {"type": "string", "enum": _WHYS},
        "reply": {"type": "string"},
    },
    "required": ["intent", "possible_intents", "confidence", "decision", "why", "reply"],
    "additionalProperties": False,
}
FORMAT: Final[Json] = {"format": {"type": "json_schema", "name": "decision", "strict": True, "schema": SCHEMA}}

_REPLY: Final = re.compile(r'"reply"\s*:\s*"')
_FENCE: Final = re.compile(r"```(?:json)?\s*(.*?)\s*(?:```)?", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])|[^\"\\]")


class Answer(Struct, frozen=True):
    """What the model ended with. `intent` is None if it said it in plain text."""

    reply: str
    intent: IntentType | None = None
    possible_intents: tuple[IntentType, ...] = ()
    confidence: float | None = None
    decision: Kind = "respond"
    why: Why = "none"


def read(text: str) -> Answer:
    """The answer that a text is. One that is not in the form, or not quite, is a plain reply; JSON itself is nobody's reply."""
    bare = _bare(text)
    if not bare.startswith("{"):
        return Answer(text.strip())
    try:
        return msgspec.json.decode(bare, type=Answer)
    except msgspec.DecodeError:
        return Answer((spoken(bare) or "").strip())


def spoken(text: str) -> str | None:
    """The reply as far as it has been written, of an answer that may not be whole yet. None as long as nothing can be said."""
    bare = _bare(text)
    if not bare:
        return None
    if not bare.startswith(("{", "`")):
        return text
    if (found := _REPLY.search(bare)) is None:
        return None
    pieces = []
    place = found.end()
    while (piece := _ESCAPE.match(bare, place)) is not None:
        pieces.append(piece[0])
        place = piece.end()
    # Half of a surrogate pair waits for the other.
    written = re.sub(r"\\u[dD][89abAB][0-9a-fA-F]{2}$", "", "".join(pieces))
    return str(json.loads(f'"{written}"', strict=False))


def _bare(text: str) -> str:
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped)
    return fenced[1] if fenced is not None else stripped
