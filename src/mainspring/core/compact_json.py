"""Structs as they are stored: without most of the fields that have their usual value, since decoding fills those in.

So a usual value, once released, is not changed: what was stored without it would read otherwise. A test holds them.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs


class _Form(NamedTuple):
    make: Callable[..., Struct]
    is_by_name: bool
    inner: dict[int, object]


def omit_usual(value: Struct, inner: frozenset[type] = frozenset()) -> Struct:
    """A struct that encodes as this one does, but for what is usual. Structs of the types `inner` in it are treated alike."""
    form = _find_form(type(value), inner)
    if form.is_by_name:
        return form.make(**structs.asdict(value))
    held = list(structs.astuple(value))
    for place, usual in form.inner.items():
        if held[place] == usual:
            held[place] = usual
        elif type(held[place]) in inner:
            held[place] = omit_usual(held[place], inner)
    return form.make(*held)


@cache
def _find_form(kind: type[Struct], inner: frozenset[type]) -> _Form:
    config = kind.__struct_config__
    kept = msgspec.defstruct(
        kind.__name__, [], bases=(kind,), omit_defaults=True, frozen=True, tag=config.tag, tag_field=config.tag_field
    )
    fields = structs.fields(kind)
    places = {place: each.default for place, each in enumerate(fields) if _holds(each.type, inner)}
    return _Form(kept, len(kind.__match_args__) < len(fields), places)


def _holds(kind: object, inner: frozenset[type]) -> bool:
    found = msgspec.inspect.type_info(kind)
    options = found.types if isinstance(found, msgspec.inspect.UnionType) else (found,)
    return any(isinstance(each, msgspec.inspect.StructType) and each.cls in inner for each in options)
