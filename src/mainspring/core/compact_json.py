"""Structs as they are stored: without the fields that have their usual value, since decoding fills those in.

So a usual value, once released, is not changed: what was stored without it would read otherwise. A test holds them.
"""

from collections.abc import Callable
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct, structs


class _Fields(NamedTuple):
    tag: dict[str, object]
    names: tuple[str, ...]
    usual: tuple[object, ...]
    read: Callable[[Any], tuple[object, ...]]


def omit_usual(value: Struct, inner: frozenset[type] = frozenset()) -> dict[str, object]:
    """The struct as JSON, tag first. Structs of the types `inner` that it holds are treated alike."""
    fields = _describe(type(value))
    told = fields.tag.copy()
    for name, usual, held in zip(fields.names, fields.usual, fields.read(value), strict=True):
        if held is not usual and held != usual:
            told[name] = omit_usual(held, inner) if isinstance(held, Struct) and type(held) in inner else held
    return told


@cache
def _describe(kind: type[Struct]) -> _Fields:
    fields = structs.fields(kind)
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    assert len(fields) > 1  # or else `read` returns no tuple
    tag: dict[str, object] = {} if info.tag_field is None else {info.tag_field: info.tag}
    # What has no usual value is never equal to this.
    usual = [each.default if each.default_factory is NODEFAULT else each.default_factory() for each in fields]
    names = tuple([each.encode_name for each in fields])
    return _Fields(tag, names, tuple(usual), attrgetter(*[each.name for each in fields]))
