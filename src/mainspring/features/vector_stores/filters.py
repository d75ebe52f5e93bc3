"""Filters over the attributes of files: comparisons, and `and` and `or` of them."""

from collections.abc import Mapping
from math import inf
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json

Attribute = str | float | bool
Attributes = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)] | float | bool], Meta(max_length=16)
]
DEEPEST: Final = 8
MOST_FILTERS: Final = 100
MOST_COMPARISONS: Final = 1_000
"""How many there may be in all."""
_COMPOUND: Final = ("and", "or")
_OPERATORS: Final = ("eq", "ne", "gt", "gte", "lt", "lte", "in", "nin")


class Comparison(Struct, frozen=True):
    operator: Literal["eq", "ne", "gt", "gte", "lt", "lte", "in", "nin"]
    key: str
    value: Attribute | frozenset[tuple[bool, Attribute]]
    """For `in` and `nin` the values, each with whether it is a boolean: to Python, True is 1."""

    def fits(self, attributes: Mapping[str, Attribute]) -> bool:
        """A file without the attribute fits only what says that it is something else."""
        found, value = attributes.get(self.key), self.value
        match self.operator:
            case "eq":
                return _equal(found, value)
            case "ne":
                return not _equal(found, value)
            case "in" | "nin":
                assert isinstance(value, frozenset)
                return ((isinstance(found, bool), found) in value) is (self.operator == "in")
            case "gt" | "gte" | "lt" | "lte":
                return _compare(self.operator, found, value)


class Compound(Struct, frozen=True):
    operator: Literal["and", "or"]
    filters: "tuple[Comparison | Compound, ...]"

    def fits(self, attributes: Mapping[str, Attribute]) -> bool:
        found = (each.fits(attributes) for each in self.filters)
        return all(found) if self.operator == "and" else any(found)


Filter = Comparison | Compound


def parse_filter(given: Json, param: str = "filters", depth: int = 1) -> Filter:
    """Raises `InvalidRequest` that says where the filter is wrong."""
    match given:
        case {"type": "and" | "or" as operator, "filters": [*inner]} if depth <= DEEPEST and 1 <= len(inner) <= MOST_FILTERS:
            parsed = [
                parse_filter(_check(each, f"{param}.filters[{n}]"), f"{param}.filters[{n}]", depth + 1)
                for n, each in enumerate(inner)
            ]
            made = Compound(operator, tuple(parsed))
            if count_comparisons(made) > MOST_COMPARISONS:
                told = f"{param} has more than {MOST_COMPARISONS:,} comparisons in all; name many values by `in`"
                raise InvalidRequest(told, param=param, code="invalid_value")
            return made
        case {"type": "in" | "nin" as member, "key": str(key), "value": [*values]} if all(_is_attribute(each) for each in values):
            return Comparison(member, key, frozenset([(isinstance(each, bool), _as_kept(each)) for each in values]))
        case {"type": "eq" | "ne" as operator, "key": str(key), "value": str() | bool() | int() | float() as value}:
            return Comparison(operator, key, value)
        case {"type": "gt" | "gte" | "lt" | "lte" as order, "key": str(key), "value": str() | int() | float() as value}:
            return Comparison(order, key, value)
        case _:
            told = (
                f'{param} must be {{"type": one of {", ".join(_OPERATORS)}, "key": ..., "value": ...}}, with a list for `in` and '
                f'`nin`, or {{"type": "and" or "or", "filters": [...]}}, at most {DEEPEST} deep'
            )
            raise InvalidRequest(told, param=param, code="invalid_value")


def count_comparisons(filter: Filter) -> int:
    return 1 if isinstance(filter, Comparison) else sum([count_comparisons(each) for each in filter.filters])


def _check(given: object, param: str) -> Json:
    if not isinstance(given, dict):
        raise InvalidRequest(f"{param} must be a filter", param=param, code="invalid_type")
    return given


def _is_attribute(value: object) -> bool:
    return isinstance(value, str | bool | int | float)


def _as_kept(value: Attribute) -> Attribute:
    """The value as attributes are kept, whose numbers are floats. Whole numbers of any size may be chosen to have the same hash,
    and a set of them takes time by the square of their number."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    try:
        return float(value)
    except OverflowError:
        return inf if value > 0 else -inf  # which no attribute is


def _equal(found: object, value: object) -> bool:
    # To Python, True is 1.
    return found == value and isinstance(found, bool) is isinstance(value, bool)


def _compare(operator: str, found: Attribute | None, value: object) -> bool:
    match found, value:
        case (bool(), _) | (_, bool()):
            return False
        case (str(), str()) | (int() | float(), int() | float()):
            less, same = found < value, found == value  # type: ignore[operator]
            return {"gt": not less and not same, "gte": not less, "lt": less, "lte": less or same}[operator]
        case _:
            return False
