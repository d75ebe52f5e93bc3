"""What is remembered: one thing that an agent said or did, fit to be kept.

Nothing is kept before it is cleaned. Arguments are the dangerous part: they are looked at value by value, JSON within JSON
included, because a secret under a telling name looks like nothing by itself.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.items import Json
from mainspring.core.spec import RunSpec

EventType = Literal["tool_call", "llm_response", "decision", "error"]
Redact = Callable[[str, int], str]
"""The text without secrets, and not much longer than so many characters."""

PRIVATE: Final = frozenset({"sensitive", "pii", "secret", "unstored"})
RUN: Final = "run"
TAGS: Final = "tags"
SESSION: Final = "session_id"
CONTENT_CHARS: Final = 16_000
VALUE_CHARS: Final = 4_000
METADATA_BYTES: Final = 16_384
MOST_TAGS: Final = 16
TAG_CHARS: Final = 64
DEPTH: Final = 16
REDACTED: Final = "[redacted]"


class Observation(Struct, frozen=True):
    """One model response, tool call, decision or error. `timestamp` is in seconds since 1970, and 0 until it is
    recorded; `tenant` is whose it is.

    An observation with a tag of `PRIVATE` never leaves the process. `unstored` is what runs are tagged with that are not to be
    stored.
    """

    id: str
    session_id: str
    agent_name: str
    event_type: EventType
    content: str
    metadata: Json = {}
    tags: tuple[str, ...] = ()
    timestamp: float = 0.0
    tenant: str = ""

    @property
    def is_private(self) -> bool:
        return any(tag.strip().lower() in PRIVATE for tag in self.tags)

    @property
    def run(self) -> str:
        """The run that it was made of; empty for one that somebody has recorded."""
        return str(self.metadata.get(RUN, ""))

    @property
    def about(self) -> str:
        """What a call was, in words: its tool and its arguments."""
        tool, arguments = self.metadata.get("tool"), self.metadata.get("arguments")
        return " ".join([part for part in (tool, arguments) if isinstance(part, str) and part])

    @property
    def said(self) -> str:
        """All there is to read."""
        return f"{self.about}: {self.content}" if self.about else self.content

    @property
    def moment(self) -> str:
        try:
            return datetime.fromtimestamp(self.timestamp, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        except (ValueError, OverflowError, OSError):
            return "at an unknown time"


class Cleaner:
    """Takes secrets, excess and what is no text out of observations. `redact` knows what a secret looks like."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact
        self._name = lru_cache(maxsize=MOST_NAMES)(self._judge_name)  # which threads may share

    def clean(self, seen: Observation) -> Observation:
        """The observation as it may be kept; cleaning it again changes nothing that matters."""
        metadata = self._value(seen.metadata, 0)
        assert isinstance(metadata, dict)
        if len(body := msgspec.json.encode(metadata)) > METADATA_BYTES:
            whose = {RUN: seen.run} if seen.run else {}
            metadata = {**whose, "shortened": body[:METADATA_BYTES].decode(errors="replace")}
        return replace(
            seen,
            session_id=make_storable(seen.session_id)[:VALUE_CHARS],
            agent_name=make_storable(seen.agent_name)[:VALUE_CHARS],
            content=self._redact(make_storable(seen.content), CONTENT_CHARS),
            metadata=metadata,
            tags=tuple([self._redact(make_storable(tag), TAG_CHARS)[:TAG_CHARS] for tag in seen.tags[:MOST_TAGS]]),
        )

    def _value(self, value: object, depth: int) -> object:
        if depth > DEPTH:
            return REDACTED
        match value:
            case dict():
                return {self._name(str(name)).text: self._clean_named(str(name), inner, depth) for name, inner in value.items()}
            case list() | tuple():
                before = ["", *value]
                return [self._clean_named(_flag(before[at]), inner, depth) for at, inner in enumerate(value)]
            case str():
                return self._string(value, depth)
            case _:
                return value

    def _clean_named(self, name: str, value: object, depth: int) -> object:
        if value is None or isinstance(value, bool) or not self._name(name).is_telling:
            return self._value(value, depth + 1)
        return REDACTED

    def _string(self, text: str, depth: int) -> str:
        text = make_storable(text)
        if text.lstrip()[:1] in ("{", "["):
            with suppress(msgspec.DecodeError, RecursionError):  # what only looks like JSON is text
                whole = msgspec.json.encode(self._value(msgspec.json.decode(text), depth + 1)).decode()
                return whole if len(whole) <= VALUE_CHARS else whole[:VALUE_CHARS] + "..."
        return self._redact(text, VALUE_CHARS)

    def _judge_name(self, name: str) -> "_Name":
        """The name, and whether a secret stands under it: it does if the redaction takes out a harmless value behind it."""
        clean = self._redact(make_storable(name), TAG_CHARS)
        says_so = clean.lower().endswith(("token", "cookie", "authorization"))
        return _Name(clean, says_so or _HARMLESS not in self._redact(f'{clean}: "{_HARMLESS}"', VALUE_CHARS))


class _Name(Struct, frozen=True):
    text: str
    is_telling: bool


MOST_NAMES: Final = 1_000
_HARMLESS: Final = "a value of 1 kind"


def _flag(value: object) -> str:
    """The name of a command-line option, whose value comes next; nothing for anything else."""
    return value.lstrip("-") if isinstance(value, str) and value.startswith("-") else ""


def make_storable(text: str) -> str:
    """The text as SQLite and UTF-8 can hold it."""
    return text if text.isascii() and "\0" not in text else text.replace("\0", "\ufffd").encode(errors="replace").decode()


def find_session(spec: RunSpec) -> str:
    """What the run says it belongs to, else its conversation, else itself."""
    if session := spec.metadata.get(SESSION):
        return session
    return spec.conversation.id if spec.conversation is not None else spec.id


def find_tags(spec: RunSpec) -> tuple[str, ...]:
    """The tags of a run's observations: those in its metadata, between commas."""
    given = [tag.strip() for tag in spec.metadata.get(TAGS, "").split(",")]
    return (*[tag for tag in given if tag], *(() if spec.store else ("unstored",)))
