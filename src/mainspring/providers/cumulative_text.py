"""Text whose pieces each repeat all before them, as some gateways send it."""

import re
from typing import Final


class CumulativeText:
    """Finds what is new in each piece. The second piece tells: one that repeats the first waits for the third."""

    __slots__ = ("_held", "_said", "is_plain", "repeats")

    def __init__(self) -> None:
        self._said = self._held = ""
        self.repeats = False
        self.is_plain = False
        """The pieces follow one another as they should: nothing is to be found any more."""

    def feed(self, piece: str) -> str:
        if not piece:
            return ""
        if self.repeats:
            is_more = piece.startswith(self._said)
            new, self._said = (piece[len(self._said) :], piece) if is_more else (piece, self._said + piece)
            return new
        if not self._said:
            self._said = piece
            return piece
        if self._held:
            return self._decide(piece)
        # Nobody says many words twice and nothing else. A line is drawn from pieces that are alike.
        is_more = len(piece) > len(self._said) or len(piece) > _SENTENCE
        if is_more and piece.startswith(self._said) and self._said.strip() and _WORD.search(piece):
            self._held = piece
            return ""
        self.is_plain = True
        return piece

    def _decide(self, piece: str) -> str:
        held, self._held = self._held, ""
        if not piece.startswith(held) or piece == self._said:
            self.is_plain = True
            return held + piece
        new, self._said, self.repeats = piece[len(self._said) :], piece, True
        return new

    def end(self) -> str:
        """What is still held. Few words are said twice by themselves, and longer ones less often."""
        held, self._held = self._held, ""
        return held[len(self._said) :] if len(self._said) >= _LONG else held


_LONG: Final = 3
_SENTENCE: Final = 12
_WORD: Final = re.compile(r"[^\W_]")
