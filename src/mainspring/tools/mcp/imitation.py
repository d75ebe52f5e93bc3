"""Finds tools whose names imitate those of another server: other case, other separators, or characters that look alike.

A model that means one of them may call the other. Names that are the same are no imitation: such tools are told apart by their
servers' labels.
"""

import unicodedata
from functools import lru_cache
from typing import Final

# Letters of other alphabets, and digits, that look like Latin letters.
_LOOK_ALIKE: Final = {
    0x430: "a", 0x435: "e", 0x43E: "o", 0x440: "p", 0x441: "c", 0x443: "y", 0x445: "x", 0x455: "s", 0x456: "i",
    0x458: "j", 0x51B: "q", 0x51D: "w", 0x4BB: "h", 0x4CF: "l", 0x43A: "k", 0x43C: "m", 0x442: "t", 0x43D: "h",
    0x432: "b", 0x433: "r", 0x3B1: "a", 0x3BF: "o", 0x3C1: "p", 0x3BD: "v", 0x3C4: "t", 0x3B9: "i", 0x3BA: "k",
    0x3C5: "u", 0x3C7: "x", 0x3B5: "e", 0x131: "i", 0x261: "g", 0x251: "a", 0x30: "o", 0x31: "l", 0x7C: "l",
}  # fmt: skip

# Models see no more than the first 64 characters of a name. Putting marks in order takes time by the square of their number.
LONGEST_NAME: Final = 256


def fold_name(name: str) -> str:
    """What is left of a name when case, separators, marks and look-alike characters do not count."""
    return _fold(name[:LONGEST_NAME])


@lru_cache(8192)
def _fold(name: str) -> str:
    text = unicodedata.normalize("NFKD", name).casefold()
    return "".join([each for each in text if unicodedata.category(each)[0] not in "MCZP"]).translate(_LOOK_ALIKE)
