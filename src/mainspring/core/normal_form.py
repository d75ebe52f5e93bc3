"""The normal forms of Unicode, in time that grows with the text alone.

To put the marks of a letter in order takes time by the square of their number, and no letter of any script has more than a few:
a text of a hundred thousand, which is nothing to send, would hold everybody up for seconds.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Final, Literal

MOST_MARKS: Final = 32
# Marks are from here to there.
_FIRST, _LAST = 0x300, 0x1_EFFF


def normalize(form: Literal["NFC", "NFD", "NFKC", "NFKD"], text: str) -> str:
    """The text in this form. Of more than `MOST_MARKS` marks in a row, the others are left out."""
    return text if text.isascii() else unicodedata.normalize(form, _find_many_marks().sub(r"\1", text))


@lru_cache(1)
def _find_many_marks() -> re.Pattern[str]:
    signs = map(chr, range(_FIRST, _LAST + 1))
    # Some signs are marks only once they are taken apart.
    marks = "".join([sign for sign in signs if unicodedata.combining(unicodedata.normalize("NFKD", sign)[0])])
    return re.compile(f"([{marks}]{{{MOST_MARKS}}})[{marks}]+")
