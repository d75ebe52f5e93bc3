"""The JSON that was asked for, as an answer that begins with it: told as it comes while it is JSON, mended where it slips.

Theory of operation. What has been told cannot be taken back, so no more is told than what any JSON may begin with: a comma waits
for what follows it, a number and a word for their end. At the first slip all that follows waits for the end. Then the whole is
mended if that takes no guess: commas too many, other quotes, words of Python's, comments, brackets that nobody closes behind a
whole value, and words or tokens behind the value. What cannot be mended is told as it came, and fails where it is checked.
"""

import json
import re
from contextlib import suppress
from itertools import chain
from typing import Final

from mainspring.providers.json_text import MOST_ODD, WHOLE_VALUE, mend_json


class JsonAnswer:
    """Holds back what may be no JSON. It is fed an answer that begins with a bracket."""

    __slots__ = ("_at", "_is_inside", "_is_odd", "_is_past", "_next", "_open", "_pieces", "_rest", "_told", "is_mended")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        # What is not told, and how far it was read.
        self._rest, self._at = "", 0
        # How much was told of the whole.
        self._told = 0
        self._open: list[str] = []
        # It slips, and is too long to be mended.
        self._is_past = False
        # What may come next, by its signs, and whether a string goes on.
        self._next, self._is_inside = _VALUE, False
        self._is_odd = False
        self.is_mended = False

    @property
    def is_holding(self) -> bool:
        return bool(self._rest)

    def feed(self, delta: str) -> str:
        """What is certainly JSON."""
        if self._is_past:
            return delta
        self._pieces.append(delta)
        if self._is_inside and not self._rest and _PLAIN.fullmatch(delta):
            # The token path: more of a text.
            self._told += len(delta)
            return delta
        self._rest += delta
        if self._is_odd:
            self._is_past = self._told + len(self._rest) > MOST_ODD
            return self.drop() if self._is_past else ""
        place = self._read()
        told, self._rest = self._rest[:place], self._rest[place:]
        self._at -= place
        self._told += place
        return told

    def _read(self) -> int:
        """Reads on, and returns up to where it may be told."""
        text, safe = self._rest, 0
        while self._at < len(text):
            if self._is_inside:
                string = _WITHIN.match(text, self._at)
                self._at = safe = self._at if string is None else string.end()
                if self._at == len(text) or _HALF_ESCAPE.fullmatch(text, self._at):
                    return safe
                if text[self._at] != '"':
                    self._is_odd = True
                    return safe
                self._is_inside = False
                self._at = safe = self._at + 1
                continue
            token = _TOKEN.match(text, self._at)
            if token is None or (token.end() == len(text) and token.lastgroup == "word"):
                # Blanks, or a word that may go on.
                self._is_odd = len(text) - self._at > _LONGEST_WORD
                return safe
            if not self._accept(token[0].strip()):
                self._is_odd = True
                return safe
            self._at = token.end()
            if not token[0].endswith(","):
                safe = self._at
        return safe

    def _accept(self, sign: str) -> bool:
        kind = sign if sign in _SIGNS else "word"
        if kind not in self._next:
            return False
        if kind in "{[":
            self._open.append(kind)
            self._next = _KEY_OR_END if kind == "{" else _VALUE_OR_END
        elif kind in "}]":
            if self._open.pop() != _PAIRS[kind]:
                return False
            self._next = self._find_behind()
        elif kind == ",":
            self._next = _KEY if self._open[-1] == "{" else _VALUE
        elif kind == ":":
            self._next = _VALUE
        elif kind == '"':
            self._is_inside = True
            self._next = _COLON if self._next in (_KEY, _KEY_OR_END) else self._find_behind()
        else:
            if _WORD.fullmatch(sign) is None:
                return False
            self._next = self._find_behind()
        return True

    def _find_behind(self) -> frozenset[str]:
        """What may follow a value."""
        return _NOTHING if not self._open else _AFTER_KEYED if self._open[-1] == "{" else _AFTER_LISTED

    def drop(self) -> str:
        """What is held, as it came."""
        rest, self._rest = self._rest, ""
        return rest

    def end(self) -> str:
        """What is held, mended if the whole can be."""
        rest = self.drop()
        is_whole = self._next is _NOTHING and not self._is_inside
        if is_whole and not rest.strip():
            return rest
        whole = "".join(self._pieces)
        if self._is_past or len(whole) > MOST_ODD:
            return rest
        told = whole[: self._told]
        mended = told if is_whole and _OPENING.search(rest) is None else self._close(whole) or mend_answer(whole)
        self.is_mended = mended is not None and mended.startswith(told)
        return mended[len(told) :] if mended is not None and self.is_mended else rest

    def _close(self, whole: str) -> str | None:
        """The answer with the brackets that nobody has closed behind a whole value."""
        if self._is_odd or self._is_inside or not self._open or not WHOLE_VALUE.search(whole):
            return None
        closed = whole + "".join([_CLOSINGS[sign] for sign in reversed(self._open)])
        return closed if parse_strictly(closed) else None


def mend_answer(text: str) -> str | None:
    """The one object or list that a text has, which slips or is among words; None if that takes a guess."""
    first, last = _OPENING.search(text), max(text.rfind("}"), text.rfind("]"))
    if first is None or len(text) > MOST_ODD:
        return None
    written = text[first.start() : last + 1] if last > first.start() else text[first.start() :]
    meant = chain(mend_json(written), mend_json(text[first.start() :]))
    return next(filter(parse_strictly, meant), None)


def parse_strictly(text: str) -> bool:
    """Whether it is an object or a list of JSON's, and nothing else."""
    with suppress(ValueError, RecursionError):
        return isinstance(json.loads(text, parse_constant=_refuse), dict | list)
    return False


def _refuse(constant: str) -> None:
    raise ValueError(constant)


_SIGNS: Final = '{}[],:"'
_PAIRS: Final = {"}": "{", "]": "["}
_CLOSINGS: Final = {"{": "}", "[": "]"}
_VALUE: Final = frozenset({"{", "[", '"', "word"})
_VALUE_OR_END: Final = frozenset({*_VALUE, "]"})
_KEY: Final = frozenset({'"'})
_KEY_OR_END: Final = frozenset({'"', "}"})
_COLON: Final = frozenset({":"})
_AFTER_KEYED: Final = frozenset({",", "}"})
_AFTER_LISTED: Final = frozenset({",", "]"})
_NOTHING: Final[frozenset[str]] = frozenset()
_OPENING: Final = re.compile(r"[{\[]")
# Blanks that wait for what follows them are no longer, either.
_LONGEST_WORD: Final = 1_024
_TOKEN: Final = re.compile(r"\s*+(?:[{}\[\],:\"]|(?P<word>[^\s{}\[\],:\"]++))")
_WORD: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?|true|false|null")
_PLAIN: Final = re.compile(r'[^"\\\x00-\x1f]*+')
_HEX: Final = "[0-9a-fA-F]"
_WITHIN: Final = re.compile(rf'[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u{_HEX}{_HEX}{_HEX}{_HEX})[^"\\\x00-\x1f]*+)*+')
_HALF_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
