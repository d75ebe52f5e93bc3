"""What the fields of structs mean, read from the strings below them in the source, and JSON Schemas with it, for editors."""

import ast
from collections.abc import Iterator
from inspect import getdoc, getsource
from itertools import pairwise
from textwrap import dedent
from typing import Any, Final

import msgspec
from msgspec import Struct
from msgspec import inspect as types

from mainspring.core.items import Json

DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"


def build_schema(kind: type[Struct], title: str) -> Json:
    """The JSON Schema of a file that holds such a struct. Keys that no struct has are mistakes."""
    [root], components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    for struct in list_structs(kind):
        names = (struct.__name__, f"{struct.__module__}.{struct.__qualname__}")  # the longer one if two have the same name
        schema = next(components[name] for name in names if name in components)
        schema["additionalProperties"] = False
        for name, text in read_field_docs(struct).items():
            schema["properties"][name]["description"] = text
    return {"$schema": DRAFT, "title": title, **root, "$defs": components}


def read_field_docs(kind: type[Struct]) -> dict[str, str]:
    """What each field means, those of base classes included. The tables of a class made at run time are
    described by what they say of themselves."""
    docs: dict[str, str] = {}
    for base in reversed([base for base in kind.__mro__ if issubclass(base, Struct) and base is not Struct]):
        body = _find_body(base)
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    docs[name] = " ".join(text.split())
        for name, table in () if body else base.__annotations__.items():
            if issubclass(table, Struct):
                docs[name] = " ".join((getdoc(table) or "").split()).partition(". ")[0].rstrip(".") + "."
    return docs


def _find_body(kind: type[Struct]) -> list[ast.stmt]:
    """The statements of the class; none for one that was made at run time."""
    try:
        source = getsource(kind)
    except OSError:
        return []
    return next((node.body for node in ast.parse(dedent(source)).body if isinstance(node, ast.ClassDef)), [])


def list_structs(kind: type[Struct]) -> list[type[Struct]]:
    """The struct and all that its fields may hold, each once."""
    return list(dict.fromkeys(_walk(types.type_info(kind), set())))


def _walk(info: Any, seen: set[type[Struct]]) -> Iterator[type[Struct]]:
    match info:
        case types.StructType(cls=cls):
            if cls not in seen:
                seen.add(cls)
                yield cls
                for field in info.fields:
                    yield from _walk(field.type, seen)
        case types.UnionType(types=several):
            for each in several:
                yield from _walk(each, seen)
        case (
            types.DictType(value_type=inner)
            | types.VarTupleType(item_type=inner)
            | types.ListType(item_type=inner)
            | types.Metadata(type=inner)
        ):
            yield from _walk(inner, seen)
