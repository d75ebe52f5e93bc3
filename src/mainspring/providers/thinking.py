"""Reasoning that comes as text, told by what stands around it: tags, or the channels of the harmony format.

No model is asked for its name: whoever begins with such a tag thinks, and whoever only writes of one does not begin with it.
"""

import re
from collections.abc import Iterator
from re import Match
from typing import Final

THINK_TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<longcat_think>", "</longcat_think>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
CHANNELS: Final = ("<|channel|>", "<|start|>assistant")


class TagSplitter:
    """Tells reasoning from text by its tags, however the pieces are cut. Only a text that begins with a tag has reasoning, or one
    that `is_begun`: the prompt has opened it."""

    __slots__ = ("_channels", "_close", "_held", "_is_begun", "_is_fresh", "_place")

    def __init__(self, *, is_begun: bool = False) -> None:
        self._is_begun = is_begun
        self._close = ""
        self._channels: ChannelSplitter | None = None
        self._place = "before"
        self._held = ""
        self._is_fresh = False

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        """What the piece adds: whether it is reasoning, and the words."""
        held = self._held + delta
        self._held = ""
        if self._channels is not None:
            yield from self._channels.feed(delta)
            return
        if self._place == "before":
            begun = held.lstrip()
            if begun and begun[0] not in _FIRST and not self._is_begun and "</think>" not in begun:
                self._place = "after"
                yield False, held
                return
            if any(len(begun) < len(tag) and tag.startswith(begun) for tag in self._list_openings()):
                self._held = held
                return
            if begun.startswith(CHANNELS):
                self._channels = ChannelSplitter()
                yield from self._channels.feed(begun)
                return
            tags = next((tags for tags in THINK_TAGS if begun.startswith(tags[0])), None)
            if tags is None and (closed := find_unopened(begun)):
                yield True, closed[1]
                held = self._enter("after", begun[closed.end() :])
            elif tags is None and self._is_begun:
                self._close = "</think>"
                held = self._enter("within", begun)
            elif tags is None:
                self._place = "after"
            else:
                self._close = tags[1]
                held = self._enter("within", begun[len(tags[0]) :])
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
        yield from [(self._place == "within", held)] if self._channels is None else self._channels.end()

    def _list_openings(self) -> Iterator[str]:
        yield from CHANNELS
        yield "</think>\n"
        yield from [tags[0] for tags in THINK_TAGS]

    def _enter(self, place: str, rest: str) -> str:
        self._place, self._is_fresh = place, True
        return rest

    def _trim(self, text: str) -> str:
        """The text without the line breaks directly behind a tag."""
        if self._is_fresh:
            text = text.lstrip("\n")
            self._is_fresh = not text
        return text


class ChannelSplitter:
    """Reads the channels of harmony, whose control tokens should have stayed with the server: analysis is reasoning, the final
    channel is text. A message to a function is handed on as text in the one form of a call that says the same."""

    __slots__ = ("_header", "_held", "_is_thought", "_recipient")

    def __init__(self) -> None:
        self._held = ""
        # None within a message.
        self._header: str | None = ""
        self._is_thought = False
        self._recipient = ""

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        held = self._held + delta
        place = 0
        for token in _TOKEN.finditer(held):
            yield from self._tell(held[place : token.start()])
            yield from self._turn_to(token[0])
            place = token.end()
        held = held[place:]
        kept = _HALF_TOKEN.search(held)
        cut = len(held) if kept is None else kept.start()
        self._held = held[cut:]
        yield from self._tell(held[:cut])

    def end(self) -> Iterator[tuple[bool, str]]:
        yield from self._tell(self._held)
        yield from self._close_call()
        self._held = ""

    def _tell(self, words: str) -> Iterator[tuple[bool, str]]:
        if self._header is None:
            yield self._is_thought, words
        else:
            self._header = (self._header + words)[-_MOST_HEADER:]

    def _turn_to(self, token: str) -> Iterator[tuple[bool, str]]:
        if token == "<|message|>":
            header, self._header = self._header or "", None
            recipient = _RECIPIENT.search(header)
            self._recipient = recipient[1] if recipient else ""
            self._is_thought = "analysis" in header and not self._recipient
            if self._recipient:
                yield False, f"\n<function={self._recipient}>"
        elif token != "<|constrain|>":
            yield from self._close_call()
            # A header may name its recipient before its channel.
            self._header = f"{self._header} " if self._header and token == "<|channel|>" else ""

    def _close_call(self) -> Iterator[tuple[bool, str]]:
        if self._header is None and self._recipient:
            self._recipient = ""
            yield False, "</function>"


def find_unopened(text: str) -> Match[str] | None:
    """Thoughts that the prompt has opened, with the tag that closes them: the only one, at the end of a line, and not in code."""
    if text.count("</think>") != 1 or (closed := _CLOSED.match(text)) is None:
        return None
    is_code = closed[1].count("```") % 2 or closed[1].endswith("`")
    return None if is_code else closed


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


_CLOSED: Final = re.compile(r"((?:(?!</?think>).)*)</think>[ \t]*\n", re.DOTALL)
_MOST_HEADER: Final = 500
_TOKEN: Final = re.compile(r"<\|(?:start|channel|constrain|message|end|return|call)\|>")
_HALF_TOKEN: Final = re.compile(r"<(?:\|(?:[a-z]{1,9}\|?)?)?\Z")
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([\w.:-]+)")
_FIRST: Final = frozenset([opening[0] for opening in (*CHANNELS, "</think>", *[tag for tag, _ in THINK_TAGS])])
