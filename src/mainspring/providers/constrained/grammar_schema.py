"""JSON Schemas as those who constrain a model by them take them.

Schemas come from everywhere, converters know part of the language: llama.cpp's refuses booleans for schemas and references that
do not begin with `#/`, looks at alternatives before properties, and lets an object have no property that it does not name.
`tidy_schema` says the same in words it understands, or leaves out what it would misread. A value made for such a schema may then
still break a rule that the converter ignores (`not`, `multipleOf`, `minProperties`, most of `format`); `find_flaw` finds out.
"""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from mainspring.core.errors import Refused
from mainspring.core.items import Json, ToolDefinition, decode, encode, parse_arguments

if TYPE_CHECKING:
    from jsonschema_rs import Validator


def tidy_schema(schema: Json, owner: str, place: str = "#") -> Json:
    """The schema for use at `place`, to which its references are moved. Raises `Refused`, naming the `owner`, for one that leads
    out of the schema."""
    return _Tidier(owner, place).node(schema)


def find_flaw(tool: ToolDefinition, arguments: str) -> str | None:
    """What is wrong with the arguments by the tool's own schema, None if nothing is. Raises `Refused` if that is no schema."""
    try:
        validator = _compile(encode(tool.parameters or {}))
    except ValueError as error:
        why = str(error).partition("\n")[0]
        raise Refused(f"tool `{tool.name}`: its parameters are not a JSON Schema: {why:.300}; correct the tool") from error
    try:
        found = list(islice(validator.iter_errors(parse_arguments(arguments)), 3))
    except ValueError as error:
        return str(error)
    places = [".".join(map(str, error.instance_path)) or "arguments" for error in found]
    return "; ".join([f"{place}: {error.message:.200}" for place, error in zip(places, found, strict=True)]) or None


@lru_cache(maxsize=256)
def _compile(schema: bytes) -> "Validator":
    # The library takes long to import, and most programs make no constrained call.
    from jsonschema_rs import validator_for

    given = decode(schema, Json)
    if not str(given.get("$schema")).startswith(("http://json-schema.org/", "https://json-schema.org/")):
        given.pop("$schema", None)
    return validator_for(given, retriever=_refuse_fetch)


def _refuse_fetch(uri: str) -> Json:
    raise ValueError(f"`{uri}` is outside the schema and is not fetched")


class _Tidier:
    def __init__(self, owner: str, place: str) -> None:
        self._owner = owner
        self._place = place

    def node(self, schema: Json) -> Json:
        node = {key: self._value(key, value) for key, value in schema.items() if key not in _NOTES}
        if node.get("items") is False:
            del node["items"]
        if "pattern" in node:
            pattern = _ESCAPED.sub(_spell_out, str(node.pop("pattern")))
            node |= {"pattern": pattern} if _PATTERN.fullmatch(pattern) else {}
        return _divide(_close(_unite(node)))

    def _value(self, key: str, value: object) -> object:
        if key == "$ref":
            return self._reference(value)
        if key in _NAMED and isinstance(value, dict):
            return {name: self._schema(inner) for name, inner in value.items() if inner is not False}
        if key in _LISTED and isinstance(value, list):
            return [self._schema(inner) for inner in value]
        if key in _SINGLE and not isinstance(value, bool):
            return self._schema(value)
        return {} if key == "items" and value is True else value

    def _schema(self, schema: object) -> object:
        if schema is True:
            return {}
        return self.node(schema) if isinstance(schema, dict) else schema

    def _reference(self, target: object) -> str:
        if not isinstance(target, str) or not (target == "#" or target.startswith("#/")):
            raise Refused(f"{self._owner}: its schema refers to `{target}`, outside itself; put that in `$defs`")
        moved = self._place + target[1:]
        if moved == "#":
            raise Refused(f"{self._owner}: its schema refers to itself as a whole; put it in `$defs` and refer to it there")
        return moved


def _unite(node: Json) -> Json:
    """The node with the parts of `allOf` in it, but for those that say of something what it says differently."""
    apart: list[object] = []
    for part in _list(node.pop("allOf", None)):
        both = _both(node, part)
        if both is None:
            apart.append(part)
        else:
            node = both
    if not apart:
        return node
    own, defined = _split(node)
    if all(isinstance(part, dict) and part.keys() & {"properties", "$ref"} for part in (own, *apart)):
        # Next to properties or a reference the rest would be overlooked; objects in a row are taken as one.
        return {**defined, "allOf": [own, *apart]}
    return {**node, "allOf": apart}


def _both(one: object, other: object) -> Json | None:
    """What both schemas say, if it can be said in one."""
    if not isinstance(one, dict) or not isinstance(other, dict) or ("$ref" in one.keys() ^ other.keys() and one and other):
        return None
    both = {**one, **other}
    for key in one.keys() & other.keys():
        first, second = one[key], other[key]
        if first == second:
            continue
        if key == "required" and isinstance(first, list) and isinstance(second, list):
            both[key] = [*first, *[name for name in second if name not in first]]
        elif key in _NAMED and isinstance(first, dict) and isinstance(second, dict):
            both[key] = {**first, **second, **{name: _both(first[name], second[name]) for name in first.keys() & second.keys()}}
            if None in both[key].values():
                return None
        else:
            return None
    return both


def _close(node: Json) -> Json:
    """The node with every required property named."""
    properties = node.get("properties")
    if (node.get("type") == "object" and properties is None) or isinstance(properties, dict):
        missing: Json = {name: {} for name in _list_required(node) if name not in (properties or {})}
        return {**node, "properties": {**(properties or {}), **missing}} if missing else node
    return node


def _divide(node: Json) -> Json:
    """The node with its properties in each of its alternatives, which would hide them; without those that cannot have them."""
    keys = node.keys() & {"anyOf", "oneOf"}
    if not keys or not isinstance(node.get("properties"), dict):
        return node
    own, defined = _split({key: value for key, value in node.items() if key not in keys})
    alternatives = _list(node[min(keys)])
    divided = [both for part in alternatives if (both := _both(own, part)) is not None]
    if not divided or len(divided) < len(alternatives):
        return {**defined, **own}
    if keys == {"oneOf"}:
        divided = [_without(part, [name for each in divided for name in _list_required(each)]) for part in divided]
    return {**defined, "anyOf": [_close(part) for part in divided]}


def _without(node: Json, names: Sequence[str]) -> Json:
    """The node without those of the properties that it does not require: with them, another alternative would be true too."""
    others = {*names} - {*_list_required(node)}
    return {**node, "properties": {name: inner for name, inner in node["properties"].items() if name not in others}}


def _split(node: Json) -> tuple[Json, Json]:
    """What the node says, and the definitions in it, to which references lead."""
    own = {key: value for key, value in node.items() if key not in _DEFINED}
    return own, {key: value for key, value in node.items() if key in _DEFINED}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _list_required(node: Json) -> list[str]:
    return [name for name in _list(node.get("required")) if isinstance(name, str)]


def _spell_out(found: re.Match[str]) -> str:
    """A class in place of the escapes that stand for it."""
    inner = found[0].replace(r"\d", "0-9").replace(r"\w", "A-Za-z0-9_")
    return inner if inner.startswith("[") else f"[{inner}]"


# In a string rule, a negated class or a dot would match the closing quote as well; of escapes, the converter knows few.
_PATTERN = re.compile(r"\^[A-Za-z0-9 _,:|?*+(){}\[\]-]*\$")
_ESCAPED = re.compile(r"\[(?:\\.|[^\]\\])*\]|\\[dw]")
_DEFINED = frozenset({"$defs", "definitions"})
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
