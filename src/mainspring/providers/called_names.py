"""The tool that a model means by a name that is none: with tokens, signs or a namespace around it, or in another case."""

import re
from collections.abc import Collection
from functools import lru_cache
from typing import Final


def find_tool_name(name: str, names: Collection[str]) -> str:
    """The one tool that is meant by a name with control tokens, brackets or a number behind it or a namespace before it, or in
    other case or with other signs between its words; else the name."""
    if name in names:
        return name
    if name.isascii() and name.isalnum():  # nothing is around it
        meant = [known for known in names if _flatten(known) == name.lower()]
        return meant[0] if len(meant) == 1 else name
    name = _BEFORE.sub("", name)
    recipient = _RECIPIENT.search(name) or _TAGGED.match(name)
    bare = _BEHIND.split((recipient[1] if recipient else name).strip().strip("\"'`"), maxsplit=1)[0].strip()
    bare = _COUNTED.sub("", bare).rstrip(":")
    # A word of the header may stand behind it.
    bare = first if (first := bare.partition(" ")[0]) in names else bare
    meant = [known for known in names if bare == known or bare.endswith(tuple([f"{mark}{known}" for mark in _MARKS]))]
    if not meant and (numbered := _NUMBERED.fullmatch(bare)):
        meant = [known for known in names if numbered[1] == known]
    if not meant:
        plain = _flatten(_NAMESPACE.sub("", bare))
        meant = [known for known in names if plain and plain == _flatten(known)]
    return meant[0] if len(meant) == 1 else name


@lru_cache(maxsize=1024)
def _flatten(name: str) -> str:
    return _SIGNS.sub("", name).casefold()


_SIGNS: Final = re.compile(r"[\W_]")
_COUNTED: Final = re.compile(r":\d+$")
_MARKS: Final = (":", ".", "/", "__")
_BEFORE: Final = re.compile(r"\A\s*(?:<\|?tool_calls?\|?>\s*)+")
_BEHIND: Final = re.compile(r"<[|\uff5c/]|\(")
_NAMESPACE: Final = re.compile(r"\A.*[.:/]", re.DOTALL)
_RECIPIENT: Final = re.compile(r"(?:\bto|<function)=([\w.:-]+)")
_TAGGED: Final = re.compile(r"\s*<[a-z_]+>\s*([\w.:-]+)\s*</")
# As some make ids of names.
_NUMBERED: Final = re.compile(r"(?:call|func|function|tool|toolu)_(.+)_\d+")
