"""What is known of model families and cannot be asked: facts as data, so that no adapter has a branch for a model.

Much that differs needs no fact, because it can be understood in one way only: missing, repeated or late call ids, arguments as
objects, parallel calls without an index, usage that never comes. `Turn` and the readers see to that for every model alike.
"""

import re
from collections.abc import Iterator

from msgspec import Struct


class ModelProfile(Struct, frozen=True):
    """`think` are the tags around reasoning that comes as text. A model that does not `call` is never sent tools. One that
    `recalls` wants its reasoning back with the calls it led to. One that does not `sample` takes no temperature and no top_p."""

    think: tuple[str, str] | None = None
    calls: bool = True
    recalls: bool = False
    samples: bool = True


THINK = ("<think>", "</think>")
PLAIN = ModelProfile()
THINKING = ModelProfile(think=THINK)

# The first that fits counts. Names come with an owner before and a size or a quantisation behind them.
FAMILIES: tuple[tuple[str, ModelProfile], ...] = (
    (r"deepseek-(reasoner|v3\.[1-9]|v4)", ModelProfile(think=("<think>", "</think>"), recalls=True)),
    (r"deepseek-r1", THINKING),
    (r"qwq|qwen-?3|smollm3|glm-4\.[5-9]|nemotron|exaone-deep|cogito|phi-4.*reasoning|minimax-m", THINKING),
    (r"magistral", ModelProfile(think=("[THINK]", "[/THINK]"))),
    (r"smollm-?2|tinyllama|llama-?2\b|phi-?[123]\b|vicuna|falcon(?!-?3)", ModelProfile(calls=False)),
    (r"(^|[/:])gemma(-?2)?(?=$|[:@]|-\d+b)", ModelProfile(calls=False)),
    (r"(^|/)(o[134](-|$)|gpt-5)", ModelProfile(samples=False)),
)
_FAMILIES = tuple([(re.compile(pattern, re.IGNORECASE), profile) for pattern, profile in FAMILIES])


def find_profile(model: str) -> ModelProfile:
    return next((profile for pattern, profile in _FAMILIES if pattern.search(model)), PLAIN)


class TagSplitter:
    """Tells reasoning from text by its tags, however the pieces are cut. Only a text that begins with the tag has reasoning."""

    __slots__ = ("_close", "_held", "_is_fresh", "_open", "_place")

    def __init__(self, tags: tuple[str, str]) -> None:
        self._open, self._close = tags
        self._place = "before"
        self._held = ""
        self._is_fresh = False

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        """What the piece adds: whether it is reasoning, and the words."""
        held = self._held + delta
        self._held = ""
        if self._place == "before":
            begun = held.lstrip()
            if len(begun) < len(self._open) and self._open.startswith(begun):
                self._held = held
                return
            if begun.startswith(self._open):
                held = self._enter("within", begun[len(self._open) :])
            else:
                self._place = "after"
        if self._place == "within":
            thought, tag, said = held.partition(self._close)
            kept = 0 if tag else _overlap(thought, self._close)
            self._held = thought[len(thought) - kept :]
            yield True, self._trim(thought[: len(thought) - kept])
            if not tag:
                return
            held = self._enter("after", said)
        yield False, self._trim(held)

    @property
    def is_past(self) -> bool:
        """Only words can follow."""
        return self._place == "after" and not self._is_fresh

    def end(self) -> Iterator[tuple[bool, str]]:
        """What was held back because it might have been the beginning of a tag."""
        held, self._held = self._held, ""
        yield self._place == "within", held

    def _enter(self, place: str, rest: str) -> str:
        self._place, self._is_fresh = place, True
        return rest

    def _trim(self, text: str) -> str:
        """The text without the line breaks directly behind a tag."""
        if self._is_fresh:
            text = text.lstrip("\n")
            self._is_fresh = not text
        return text


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)
