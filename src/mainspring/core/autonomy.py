"""How much an agent may do without a person: one scale of four levels, by name or by number.

Two settings use it. `[governance] level`, like `autonomy_level` of an agent, says which calls a person is asked about; at
the upper two levels none. `[budget] level` names the preset that bounds what a run may touch and how much it may use.
"""

from enum import IntEnum
from typing import Final, Literal, get_args

LevelName = Literal["read-only", "supervised", "standard", "full"]
Level = Literal["read-only", "supervised", "standard", "full", 0, 1, 2, 3]
"""A level as files and requests spell it."""

_NAMES: Final[tuple[LevelName, ...]] = get_args(LevelName)


class Autonomy(IntEnum):
    READ_ONLY = 0
    SUPERVISED = 1
    STANDARD = 2
    FULL = 3

    @classmethod
    def parse(cls, level: Level | str) -> "Autonomy":
        """Takes a name, a number, or a number in quotes. Raises `ValueError` for anything else."""
        for each in cls:
            if level in (each, each.label, str(int(each))):
                return each
        raise ValueError(f"must be 0, 1, 2, 3 or one of {', '.join(_NAMES)}, not `{str(level)[:40]}`")

    @property
    def label(self) -> LevelName:
        return _NAMES[self]
