"""JSON Schemas as those who constrain a model by them take them.

Schemas come from everywhere, converters know part of the language: llama.cpp's refuses booleans for schemas and references that
do not begin with `#/`, looks at alternatives before properties, and lets an object have no property that it does not name.
`tidied` says the same in words it understands, or leaves out what it would misread. A value made for such a schema may then
still break a rule that the converter ignores (`not`, `multipleOf`, `minProperties`, most of `format`); whoever needs to know
validates it.
"""

import re

from mainspring.errors import Refused
from mainspring.items import Json


def tidied(schema: Json, owner: str, place: str = "#") -> Json:
    """The schema for use at `place`, to which its references are moved. Raises `Refused`, naming the `owner`, for one that leads
    out of the schema."""
    return _Tidier(owner, place).node(schema)


class _Tidier:
    def __init__(self, owner: str, place: str) -> None:
        self._owner = owner
        self._place = place

    def node(self, schema: Json) -> Json:
        node = {key: self._value(key, value) for key, value in schema.items() if key not in _NOTES}
        if node.get("items") is False:
            del node["items"]
        if not _PATTERN.fullmatch(str(node.get("pattern", "^$"))):
            del node["pattern"]
        return _closed(_united(node))

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
            raise Refused(
                f"{self._owner}: its schema refers to `{target}`, outside itself; put that in `$defs` and refer to it there"
            )
        moved = self._place + target[1:]
        if moved == "#":
            raise Refused(f"{self._owner}: its schema refers to itself as a whole; put it in `$defs` and refer to it there")
        return moved


def _united(node: Json) -> Json:
    """The node with the parts of `allOf` in it that speak of other things than it does."""
    apart: list[object] = []
    for part in node.pop("allOf", ()):
        if isinstance(part, dict) and not part.keys() & node.keys():
            node |= part
        else:
            apart.append(part)
    return {**node, "allOf": apart} if apart else node


def _closed(node: Json) -> Json:
    """The node with every required property named; alternatives beside properties would hide them."""
    required, properties = node.get("required"), node.get("properties")
    if node.get("type") == "object" and isinstance(required, list) and required:
        properties = {**(properties or {}), **{name: {} for name in required if name not in (properties or {})}}
        node = {**node, "properties": properties}
    if properties is not None:
        return {key: value for key, value in node.items() if key not in ("anyOf", "oneOf")}
    return node


# In a string rule, a negated class or a dot would match the closing quote as well; of escapes, the converter knows few.
_PATTERN = re.compile(r"\^[A-Za-z0-9 _,:|?*+(){}\[\]-]*\$")
_NOTES = frozenset(
    {"$schema", "$id", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"}
)
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTED = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
_SINGLE = frozenset({"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames"})
