"""Texts in which `{{ name }}` stands for a value: a text, or in messages also an image or a file."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from mainspring.core.items import InputText, Part, encode, to_json

SLOT: Final = re.compile(r"\{\{\s*([A-Za-z_][A-Za-z0-9_-]*)\s*\}\}")
# Ends at the next opening braces, else a text of nothing but those would take time by the square of its length.
_BRACES = re.compile(r"\{\{(?:(?!\{\{|\}\}).)*\}\}", re.DOTALL)


def list_slots(*texts: str) -> tuple[str, ...]:
    """The names that stand in these texts, each once, in their order."""
    return tuple(dict.fromkeys([name for text in texts for name in SLOT.findall(text)]))


def list_misspelt(text: str) -> list[str]:
    """What is in double braces and is no name."""
    return _BRACES.findall(SLOT.sub("", text))


def count_filled(template: str, values: Mapping[str, object]) -> int:
    """How many characters the text has with its values. Images and files count from their second time on: a short name may
    stand a thousand times for a long value."""
    size = len(template)
    for name, times in Counter(SLOT.findall(template)).items():
        value = values.get(name, "")
        size += len(encode(value)) * (times - 1) if isinstance(value, Part) else len(_write(value)) * times
    return size


def fill_text(template: str, values: Mapping[str, object]) -> str:
    """The text with its values. What is no text is written as JSON; a name without a value leaves nothing."""
    return SLOT.sub(lambda slot: _write(values.get(slot[1], "")), template)


def fill_parts(template: str, values: Mapping[str, object]) -> tuple[Part, ...]:
    """The content of a message: text, with a part of its own for each value that is one."""
    parts: list[Part] = []
    pieces: list[str] = []  # of the text that is not among the parts yet
    place = 0
    for slot in SLOT.finditer(template):
        value = values.get(slot[1], "")
        pieces.append(template[place : slot.start()])
        place = slot.end()
        if isinstance(value, Part):
            parts += [*_make_text(pieces), value]
            pieces = []
        else:
            pieces.append(_write(value))
    return (*parts, *_make_text([*pieces, template[place:]]))


def _write(value: object) -> str:
    return value if isinstance(value, str) else to_json(value)


def _make_text(pieces: Sequence[str]) -> Iterable[Part]:
    return (InputText(text),) if (text := "".join(pieces)).strip() else ()
