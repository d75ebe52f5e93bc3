"""JSON schemas as Claude takes them for answers and strict tools: closed objects, few keywords, the rest in words."""

from typing import Any

import msgspec

from mainspring.core.items import Json


def strict(schema: Any) -> Json:
    """The schema in the vendor's subset. Keywords that it lacks become part of the description, which the model reads.

    Raises `ValueError` for a schema that cannot be told so: one that leaves its type or its properties open.
    """
    if not isinstance(schema, dict):
        raise ValueError(f"a schema must be an object, not `{schema}`")
    rest = {key: value for key, value in schema.items() if key not in _IGNORED}
    kept: Json = {}
    for name in ("$defs", "definitions"):
        if isinstance(parts := rest.pop(name, None), dict):
            kept[name] = {key: strict(part) for key, part in parts.items()}
    if "$ref" in rest:
        return kept | {"$ref": rest["$ref"]}
    kept |= {name: rest.pop(name) for name in ("title", "description") if isinstance(rest.get(name), str)}
    kept |= _shape(rest)
    if rest:
        kept["description"] = f"{kept.get('description', '')}\n\nMust fit {msgspec.json.encode(rest).decode()}".strip()
    return kept


def _shape(rest: Json) -> Json:
    """What the value is; takes out of `rest` what it has said."""
    for name in ("enum", "const"):
        if name in rest:
            rest.pop("type", None)
            return {name: rest.pop(name)}
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := rest.pop(name, None), list):
            rest.pop("type", None)
            return {"allOf" if name == "allOf" else "anyOf": [strict(part) for part in parts]}
    match rest.pop("type", None):
        case [*kinds]:
            alternatives = [strict({**rest, "type": kind}) for kind in kinds]
            rest.clear()
            return {"anyOf": alternatives}
        case "object":
            return _object(rest)
        case "array":
            items = {"items": strict(rest.pop("items"))} if "items" in rest else {}
            return {"type": "array", **items, **({"minItems": rest.pop("minItems")} if rest.get("minItems") in (0, 1) else {})}
        case "string":
            return {"type": "string", **({"format": rest.pop("format")} if rest.get("format") in _FORMATS else {})}
        case "integer" | "number" | "boolean" | "null" as kind:
            return {"type": kind}
        case kind:
            raise ValueError(f"a schema must say its type, not `{kind}`")


def _object(rest: Json) -> Json:
    properties = rest.pop("properties", None) or {}
    if isinstance(rest.pop("additionalProperties", None), dict):
        raise ValueError("a schema must name its properties")
    required = {"required": rest.pop("required")} if rest.get("required") else {}
    return {
        "type": "object",
        "properties": {key: strict(part) for key, part in properties.items()},
        **required,
        "additionalProperties": False,
    }


_IGNORED = frozenset({"$schema", "$id", "$comment"})
_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
