"""JSON Schema as Gemini takes it: the part of it that its API reference names, written so that nothing of it is refused."""

from typing import Final

from mainspring.core.items import Json


def cleaned(schema: object) -> Json:
    """The schema without the keywords that Gemini does not know. What they said is not enforced by the model, but by us."""
    if not isinstance(schema, dict):
        # A schema may be `true` or `false`; Gemini has only objects.
        return {}
    match schema.get("allOf"):
        case [dict(only)]:
            schema = only | {key: value for key, value in schema.items() if key != "allOf"}
        case _:
            pass
    kept = {key: _inner(key, value) for key, value in schema.items() if key in _DEEP}
    if "definitions" in schema:
        kept["$defs"] = _inner("$defs", schema["definitions"])
    if isinstance(reference := schema.get("$ref"), str):
        # Beside a reference, nothing that does not begin with `$` may stand.
        kept = {"$defs": kept["$defs"]} if "$defs" in kept else {}
        return kept | {"$ref": reference.replace("#/definitions/", "#/$defs/", 1)}
    kept |= {key: value for key, value in schema.items() if key in _PLAIN}
    if schema.get("format") in _FORMATS:
        kept["format"] = schema["format"]
    return kept | _enumerated(schema)


def _inner(key: str, value: object) -> object:
    match value:
        case dict() if key in ("properties", "$defs"):
            return {name: cleaned(part) for name, part in value.items()}
        case list():
            return [cleaned(part) for part in value]
        case bool() if key == "additionalProperties":
            return value
        case _:
            return cleaned(value)


def _enumerated(schema: Json) -> Json:
    """The values to choose from, which can only be words and numbers."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list) or not all(
        isinstance(value, str | int | float) and not isinstance(value, bool) for value in values
    ):
        return {}
    is_text = "type" not in schema and all(isinstance(value, str) for value in values)
    return {"enum": values} | ({"type": "string"} if is_text else {})


_DEEP: Final = frozenset({"properties", "$defs", "items", "prefixItems", "anyOf", "oneOf", "additionalProperties"})
_PLAIN: Final = frozenset(
    {"type", "description", "required", "minItems", "maxItems", "minimum", "maximum", "propertyOrdering", "$id", "$anchor"}
)
_FORMATS: Final = frozenset({"date-time", "date", "time", "int32", "int64", "float", "double"})
