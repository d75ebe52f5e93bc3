"""What is left of a text when look-alike characters do not count: by that a name that imitates another one is found, and a word
that is written so as not to be found.
"""

import unicodedata
from functools import lru_cache
from typing import Final

from mainspring.core.normal_form import normalize

# What looks like a Latin letter, in small letters: of other alphabets, digits, signs. `i`, `l`, `1` and `|` count as one.
_ALIKE: Final = {
    "a": (0x251, 0x3b1, 0x430, 0x1d00, 0x2c81),
    "b": (0x185, 0x299, 0x432, 0x44a, 0x44c, 0x15af),
    "c": (0x3c3, 0x441, 0x1d04, 0x2ca5),
    "d": (0x257, 0x501, 0x13e7, 0x1d05),
    "e": (0x3b5, 0x435, 0x4bd, 0x1971, 0x1d07, 0x212e, 0x2c89),
    "f": (0x192, 0x584, 0xa730, 0xa799),
    "g": (0x261, 0x262, 0x581, 0x1d83),
    "h": (0x29c, 0x43d, 0x4bb, 0x570, 0x13c2, 0x2c8f),
    "j": (0x3f3, 0x458, 0x1d0a),
    "k": (0x3ba, 0x43a, 0x1d0b, 0x2c95),
    "l": (0x31, 0x69, 0x7c, 0x131, 0x1c0, 0x269, 0x26a, 0x29f, 0x3b9, 0x456, 0x4cf, 0x16c1, 0x2c93),
    "m": (0x43c, 0x1d0d, 0x2c99),
    "n": (0x274, 0x3b7, 0x43f, 0x578, 0x57c, 0x2c9b),
    "o": (0x30, 0x3bf, 0x43e, 0x585, 0xcf2, 0xd66, 0x2c9f),
    "p": (0x3c1, 0x440, 0x1d18, 0x1d29, 0x2ca3),
    "q": (0x51b, 0x563, 0x566),
    "r": (0x27e, 0x280, 0x433, 0x1d26, 0x2c85, 0xab47),
    "s": (0x455, 0x2c8b, 0xa731),
    "t": (0x3c4, 0x442, 0x1d1b, 0x2ca7),
    "u": (0x3c5, 0x57d, 0x1d1c),
    "v": (0x3bd, 0x475, 0x1d20),
    "w": (0x461, 0x51d, 0x561, 0x1d21),
    "x": (0xd7, 0x3c7, 0x445, 0x2cad),
    "y": (0x28f, 0x3b3, 0x443, 0x4af, 0x2ca9),
    "z": (0x290, 0x1d22, 0x2c8d),
}  # fmt: skip
# Letters and a sign of which nothing is to be seen, as they are after normalization.
_BLANK: Final = (0x115F, 0x1160, 0x2800)
_LOOK_ALIKE: Final = {code: letter for letter, codes in _ALIKE.items() for code in codes} | dict.fromkeys(_BLANK, "")

# Models see no more than the first 64 characters of a name.
LONGEST_NAME: Final = 256


def fold_name(name: str) -> str:
    """What is left of a name when case, separators, signs, marks and look-alike characters do not count."""
    return _fold(name[:LONGEST_NAME])


@lru_cache(8192)
def _fold(name: str) -> str:
    return "".join([each for each in fold_text(name) if unicodedata.category(each)[0] not in "CZPS"])


def fold_text(text: str) -> str:
    """What is left of a text when case, marks, look-alike characters and those that cannot be seen do not count."""
    seen = "".join([each for each in text if each.isspace() or unicodedata.category(each)[0] != "C"])
    folded = normalize("NFKD", seen).casefold()
    return "".join([each for each in folded if unicodedata.category(each)[0] != "M"]).translate(_LOOK_ALIKE)
