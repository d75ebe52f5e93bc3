"""A vendor's published types as a judge: what its SDK would not let through is a fault, and so is a key that it does not name."""

from functools import cache
from typing import Any

from jsonschema_rs import Draft202012Validator
from pydantic import TypeAdapter

from mainspring.core.items import Json


@cache
def _validator(published: Any) -> Draft202012Validator:
    return Draft202012Validator(_closed(TypeAdapter(published).json_schema()))


def check(published: Any, body: Json) -> None:
    """Fails, as an assertion, if the body is none of this published type."""
    faults = [
        f"{'.'.join(map(str, fault.instance_path))}: {fault.message:.300}" for fault in _validator(published).iter_errors(body)
    ]
    assert not faults, "; ".join(faults)


def _closed(schema: Any) -> Any:
    """The schema, but that objects may have no keys beside those it names."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _closed(part) for key, part in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
