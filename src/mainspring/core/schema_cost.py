"""What it costs to hold a value against a JSON Schema, told without doing it.

References make a small schema large: one of two kilobytes, in which each of 40 definitions names the next one twice, takes a
validator years. The cost is counted here with every pair of subschema and value looked at once.
"""

import re
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urljoin

from mainspring.core.items import Json

MOST_STEPS: Final = 2_000_000
# Counting takes longer than validating.
MOST_VISITS: Final = 200_000
# A pattern may be tried in thousands of ways on one value.
PATTERN_STEPS: Final = 1_000

_SLOW = re.compile(r"\(\?[=!<>(]|\\[1-9kKG]|[*+?}]\+")
_REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})
_BESIDE = frozenset({"allOf", "anyOf", "oneOf", "not", "if", "then", "else"})
_ITEMS = frozenset({"items", "contains", "additionalItems", "unevaluatedItems"})
_VALUES = frozenset({"additionalProperties", "unevaluatedProperties"})
# The schemas of JSON Schema itself, which validators bring along.
_KNOWN = ("http://json-schema.org/", "https://json-schema.org/")
# What names are relative to in a schema that has none.
_BASE = "http://schema.invalid/"


class SchemaCost:
    """The steps that validation by one schema takes, at most.

    Names are absolute: an `$id` is relative to the one around it, and a reference to that of the schema that it stands in.
    """

    def __init__(self, schema: Json) -> None:
        self._schema = schema
        self._named: dict[str, Any] = {_BASE: schema}
        self._dynamic: dict[str, list[Json]] = {}
        self._bases: dict[int, str] = {}
        self._size = PATTERN_STEPS * sum([is_slow_pattern(pattern) for pattern in list_patterns(schema)])
        ahead: list[tuple[Any, str]] = [(schema, _BASE)]
        while ahead:
            self._size += 1
            node, base = ahead.pop()
            if isinstance(node, dict):
                base = self._note(node, base)
                ahead += [(inner, base) for inner in node.values()]
            elif isinstance(node, list):
                ahead += [(inner, base) for inner in node]

    def count_steps(self, value: Any) -> int:
        """How many steps it takes to validate this value; `MOST_STEPS + 1` if more than `MOST_STEPS`."""
        if not self._bases and (most := self._size * _measure(value)) <= MOST_STEPS:
            return most
        try:
            return min(_Count(self).visit(self._schema, value), MOST_STEPS + 1)
        except (_TooManyError, RecursionError):
            return MOST_STEPS + 1

    def find_targets(self, node: Json, key: str) -> list[Any]:
        """What the reference of a node may name: one that is dynamic, any schema of that name. Raises `_TooManyError` if that
        cannot be told."""
        url, _, place = _join(self._bases[id(node)], str(node[key])).partition("#")
        moving = self._dynamic.get(place, []) if key != "$ref" else []
        if place and not place.startswith("/"):
            found = self._named.get(f"{url}#{place}")
        elif (found := self._named.get(url)) is None and url.startswith(_KNOWN):
            return [True]
        for step in place.split("/")[1:] if place.startswith("/") else ():
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            found = found.get(name) if isinstance(found, dict) else _find_element(found, name)
        if found is None:
            raise _TooManyError
        return [found, *[other for other in moving if other is not found]]

    def _note(self, node: Json, base: str) -> str:
        """Keeps the names of a schema, and returns what those in it are relative to."""
        if isinstance(name := node.get("$id"), str):
            url = _join(base, name)
            self._name(url.removesuffix("#"), node)
            base = base if name.startswith("#") else url.partition("#")[0]
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(name := node.get(key), str):
                self._name(f"{base}#{name}", node)
        for moving in (node.get("$dynamicAnchor"), "" if node.get("$recursiveAnchor") is True else None):
            if isinstance(moving, str):
                self._dynamic.setdefault(moving, []).append(node)
        if not _REFERENCES.isdisjoint(node):
            self._bases[id(node)] = base
        return base

    def _name(self, url: str, node: Json) -> None:
        """Two schemas of one name: which of them is meant cannot be told."""
        is_first = url not in self._named or self._named[url] is node
        self._named[url] = node if is_first else None


class _Count:
    def __init__(self, schema: SchemaCost) -> None:
        self._schema = schema
        self._known: dict[tuple[int, int], int] = {}
        self._visits = 0

    def visit(self, node: Any, value: Any) -> int:
        self._visits += 1
        if self._visits > MOST_VISITS:
            raise _TooManyError
        if not isinstance(node, dict):
            return 1
        pair = (id(node), id(value))
        if (known := self._known.get(pair)) is not None:
            return known
        self._known[pair] = 1  # validators do not follow a circle either
        pairs = (inner for key, part in node.items() for inner in self._list_pairs(node, key, part, value))
        slow = sum([is_slow_pattern(pattern) for pattern in _read_patterns(node)])
        own = 1 + slow * PATTERN_STEPS * (len(value) if isinstance(value, dict) else 1)
        self._known[pair] = steps = own + sum([self.visit(*inner) for inner in pairs])
        return steps

    def _list_pairs(self, node: Json, key: str, part: Any, value: Any) -> Iterator[tuple[Any, Any]]:
        """What a keyword has validated: subschemas, each with a value."""
        if key in _REFERENCES:
            yield from [(target, value) for target in self._schema.find_targets(node, key)]
        elif key in _BESIDE:
            yield from [(node, value) for node in (part if isinstance(part, list) else [part])]
        elif key in ("dependentSchemas", "dependencies") and isinstance(part, dict):
            yield from [(node, value) for node in part.values()]
        elif isinstance(value, list) and key in ("prefixItems", *_ITEMS):
            yield from zip(part, value, strict=False) if isinstance(part, list) else ((part, item) for item in value)
        elif isinstance(value, dict):
            yield from self._list_members(key, part, value)

    def _list_members(self, key: str, part: Any, value: Json) -> Iterator[tuple[Any, Any]]:
        if key == "properties" and isinstance(part, dict):
            yield from ((part[name], value[name]) for name in part.keys() & value.keys())
        elif key == "patternProperties" and isinstance(part, dict):
            yield from ((node, item) for node in part.values() for item in value.values())
        elif key in _VALUES:
            yield from ((part, item) for item in value.values())
        elif key == "propertyNames":
            yield from ((part, name) for name in value)


class _TooManyError(Exception):
    pass


def _join(base: str, reference: str) -> str:
    try:
        return f"{base.partition('#')[0]}{reference}" if reference.startswith("#") else urljoin(base, reference)
    except ValueError:  # no URL at all
        return reference


def list_patterns(schema: Any) -> Iterator[str]:
    """The regular expressions of a schema."""
    ahead = [schema]
    while ahead:
        match ahead.pop():
            case dict() as node:
                yield from _read_patterns(node)
                ahead += node.values()
            case list() as nodes:
                ahead += nodes


def is_slow_pattern(pattern: str) -> bool:
    """Whether it looks around or back, so that matching it may mean to try many ways."""
    return _SLOW.search(pattern) is not None


def _read_patterns(node: Json) -> Iterator[str]:
    if isinstance(pattern := node.get("pattern"), str):
        yield pattern
    if isinstance(patterns := node.get("patternProperties"), dict):
        yield from patterns


def _measure(value: Any) -> int:
    size, ahead = 0, [value]
    while ahead:
        size += 1
        match inner := ahead.pop():
            case dict():
                ahead += inner.values()
            case list():
                ahead += inner
    return size


def _find_element(found: Any, key: str) -> Any:
    return found[int(key)] if isinstance(found, list) and key.isdecimal() and int(key) < len(found) else None
