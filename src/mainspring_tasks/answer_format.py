"""The answer that a decision run ends with: a small JSON object, by which the model says what it understood and what it says.

Models that can be held to a schema are; the others are asked in words. One that answers in plain text all the same has given a
reply and nothing else: the decision is to respond, never to ask or to refuse, and the intent is read off the calls it made.
"""

import json
import re
from itertools import islice
from typing import Final, Literal, get_args

from msgspec import Struct

from mainspring.core.items import Json
from mainspring_tasks.decision_types import IntentType

Kind = Literal["respond", "clarify", "refuse", "undo"]
Why = Literal["none", "unclear", "several_tasks", "no_such_task", "missing_detail", "bad_input", "off_topic", "not_allowed"]

_INTENTS: Final = [intent.value for intent in IntentType]
_KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
_WHYS: Final[tuple[Why, ...]] = get_args(Why)

SCHEMA: Final[Json] = {
    "type": "object",
    "properties": {
        "intent": {"type": "string", "enum": _INTENTS},
        "possible_intents": {"type": "array", "items": {"type": "string", "enum": _INTENTS}, "maxItems": 3},
        "confidence": {"type": "number", "minimum": 0, "maximum": 1},
        "decision": {"type": "string", "enum": list(_KINDS)},
        "why": {"type": "string", "enum": list(_WHYS)},
        "reply": {"type": "string"},
    },
    "required": ["intent", "possible_intents", "confidence", "decision", "why", "reply"],
    "additionalProperties": False,
}
FORMAT: Final[Json] = {"format": {"type": "json_schema", "name": "decision", "strict": True, "schema": SCHEMA}}

_REPLY: Final = re.compile(r'"reply"\s*:\s*"')
_FENCE: Final = re.compile(r"```\w*\s*(.*?)\s*(?:```)?", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[^u])|[^\"\\]")
_BACKSLASH: Final = re.compile(r"\\(?:([\"\\/bfnrt]|u[0-9a-fA-F]{4})|(.?))", re.DOTALL)
_FIELDS: Final = frozenset({"intent", "decision", "reply"})
_MOST_TRIES: Final = 20


class ModelAnswer(Struct, frozen=True):
    """The final answer of the model. `intent` is None for an answer in plain text."""

    reply: str
    intent: IntentType | None = None
    possible_intents: tuple[IntentType, ...] = ()
    confidence: float | None = None
    decision: Kind = "respond"
    why: Why = "none"


def parse_model_answer(text: str) -> ModelAnswer:
    """Parses the answer in a text. Text without a JSON object is a plain reply; broken JSON is never shown as one."""
    text = clean(text)
    if (found := _find_object(text) or _find_object(_drop_bad_escapes(text))) is not None:
        return _read_fields(found)
    bare = _strip_fence(text)
    if bare.startswith("{") or _REPLY.search(bare) is not None:
        return ModelAnswer((read_partial_reply(bare) or "").strip())
    return ModelAnswer(text.strip())


def read_partial_reply(text: str) -> str | None:
    """The reply as far as it is written, from an answer that may be incomplete. None if nothing of it is written yet."""
    bare = _strip_fence(text)
    if (found := _REPLY.search(bare)) is None:
        return None if not bare or bare.startswith(("{", "`")) else clean(text)
    pieces = []
    place = found.end()
    while (piece := _ESCAPE.match(bare, place)) is not None:
        pieces.append(piece[0])
        place = piece.end()
    # Half of a surrogate pair waits for the other.
    written = re.sub(r"\\u[dD][89abAB][0-9a-fA-F]{2}$", "", "".join(pieces))
    return clean(str(json.loads(f'"{_drop_bad_escapes(written)}"', strict=False)))


def _find_object(text: str) -> Json | None:
    """The first JSON object of the text that has one of the known fields."""
    decoder = json.JSONDecoder(strict=False)
    for brace in islice(re.finditer(r"\{", text), _MOST_TRIES):
        try:
            found, _ = decoder.raw_decode(text, brace.start())
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and _FIELDS & found.keys():
            return found
    return None


def _read_fields(found: Json) -> ModelAnswer:
    """Reads each field by itself; one with an invalid value counts as missing."""
    sure, possible = found.get("confidence"), found.get("possible_intents")
    kind, why, reply = found.get("decision"), found.get("why"), found.get("reply")
    intents = [_parse_intent(each) for each in possible] if isinstance(possible, list) else []
    return ModelAnswer(
        clean(reply).strip() if isinstance(reply, str) else "",
        _parse_intent(found.get("intent")),
        tuple([intent for intent in intents if intent is not None]),
        float(sure) if isinstance(sure, int | float) and not isinstance(sure, bool) else None,
        next((known for known in _KINDS if known == kind), "respond"),
        next((known for known in _WHYS if known == why), "none"),
    )


def _parse_intent(value: object) -> IntentType | None:
    return IntentType(value) if isinstance(value, str) and value in IntentType._value2member_map_ else None


def _drop_bad_escapes(text: str) -> str:
    """The text without backslashes that are no JSON escape."""
    return _BACKSLASH.sub(lambda found: found[0] if found[1] is not None else found[2], text)


def _strip_fence(text: str) -> str:
    stripped = text.strip()
    fenced = _FENCE.fullmatch(stripped)
    return fenced[1] if fenced is not None else stripped


def clean(text: str) -> str:
    """Text that a model wrote, without lone surrogates, which no encoding takes: each becomes a replacement character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_value(value: object) -> object:
    """Cleans all text in a JSON value."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {clean(str(name)): clean_value(each) for name, each in value.items()}
        case list() | tuple():
            return [clean_value(each) for each in value]
        case _:
            return value
