"""The JSON Schema of a tool: `inline_components` makes one complete in itself, `Validator` holds arguments against it."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json, ToolDefinition, encode
from mainspring.core.lru_cache import LRUCache
from mainspring.core.schema_cost import MOST_STEPS, SchemaCost, list_patterns

if TYPE_CHECKING:
    import jsonschema_rs

MOST_COMPILED = 1024
MOST_SCHEMA_BYTES = 512_000
# Each error takes longer than a hundred steps.
FEW_STEPS = 5_000
LONGEST_MESSAGE = 300
# Compiling a pattern of 1 MB takes about 10 ms, and 10,000 steps back at most one.
MOST_PATTERN_BYTES = 16_000_000
LARGEST_PATTERN = 4_000_000
MOST_BACKTRACKS = 10_000
MOST_PATTERN_STEPS = 400_000
REF = "#/$defs/"

_VALUES = frozenset({"default", "examples", "enum", "const"})
# Where a pattern may fall into parts that are compiled each by itself: groups, possessive quantifiers, references, boundaries.
_SEAM = re.compile(r"\(|[*+?}]\+|\\[1-9kKGbB]")


class Validator:
    """Validates the arguments of a tool. The constructor raises `InvalidRequest` if the tool's schema is invalid.

    A schema may be untrusted: external references are never fetched.
    """

    def __init__(self, tool: ToolDefinition) -> None:
        try:
            self._schema = compile_schema(tool.parameters or {})
        except ValueError as error:
            told = f"tool `{tool.name}`: its parameters are not a JSON Schema: {error}; correct the tool"
            raise InvalidRequest(told, param="tools") from error

    def errors(self, parsed: Json) -> list[str]:
        """Every error in the arguments, each as `path: message`; empty if they are valid."""
        try:
            return [
                f"{_render_path(error.instance_path, 'arguments')}: {_describe_error(error)}"
                for error in self._schema.list_errors(parsed)
            ]
        except ValueError as error:
            return [f"arguments: {error}"]


class CompiledSchema:
    """A schema that values are held against, as far as that takes bounded time."""

    def __init__(self, schema: "jsonschema_rs.Validator", cost: SchemaCost) -> None:
        self._schema, self._cost = schema, cost

    def list_errors(self, value: Any) -> "list[jsonschema_rs.ValidationError]":
        """Every error; of a large value the first. Raises `ValueError` for one that it would take too long to validate."""
        if (steps := self._cost.count_steps(value)) > MOST_STEPS:
            raise ValueError(f"by this schema it takes more than {MOST_STEPS} steps to validate them; make it simpler")
        if steps <= FEW_STEPS:
            return list(self._schema.iter_errors(value))
        import jsonschema_rs

        try:
            self._schema.validate(value)
        except jsonschema_rs.ValidationError as error:
            return [error]
        return []


def compile_schema(schema: Json) -> CompiledSchema:
    """Compiles the schema. Raises `ValueError` that says what is wrong with it, and where."""
    # The library takes longer to import than most commands need to start.
    import jsonschema_rs

    if (size := len(encode(schema))) > MOST_SCHEMA_BYTES:
        raise ValueError(f"it has {size} bytes, more than {MOST_SCHEMA_BYTES}")
    limit = _limit_patterns(schema)
    options = jsonschema_rs.FancyRegexOptions(backtrack_limit=MOST_BACKTRACKS, size_limit=limit)
    try:
        compiled = jsonschema_rs.validator_for(schema, retriever=_refuse_fetch, pattern_options=options)
        return CompiledSchema(compiled, SchemaCost(schema))
    except ValueError as error:
        place, told = "the schema", _shorten(str(error))
        if isinstance(error, jsonschema_rs.ValidationError):
            place, told = _shorten(_render_path(error.instance_path, place)), _shorten(error.message)
            if isinstance(error.kind, jsonschema_rs.ValidationErrorKind.Format):
                told += f", or takes more than the {limit} bytes that it has beside the groups of all patterns; use fewer"
        raise ValueError(f"{place}: {told}") from error


def _limit_patterns(schema: Json) -> int:
    """How many bytes each part of a pattern may be compiled to. Raises `ValueError` for patterns that are too long."""
    patterns = list(list_patterns(schema))
    # The library reads a pattern again for each of its escapes.
    if sum([len(pattern) * pattern.count("\\") for pattern in patterns]) > MOST_PATTERN_STEPS:
        raise ValueError("its patterns are too long for the escapes that they have; make them shorter")
    parts = sum([1 + len(_SEAM.findall(pattern)) for pattern in patterns])
    return min(LARGEST_PATTERN, MOST_PATTERN_BYTES // max(1, parts))


class Validators:
    """The validators of many tools, compiled on first use and cached."""

    def __init__(self) -> None:
        # Tools come with requests, so there is no end to them.
        self._compiled: LRUCache[tuple[str, bytes], Validator] = LRUCache(MOST_COMPILED)

    def errors(self, tool: ToolDefinition, parsed: Json) -> list[str]:
        """Like `Validator.errors`; raises `InvalidRequest` if the tool's schema is invalid."""
        key = (tool.name, encode(tool.parameters))
        if (validator := self._compiled.get(key)) is None:
            validator = self._compiled[key] = Validator(tool)
        return validator.errors(parsed)


def describe_arguments(arguments: type[Struct]) -> Json:
    """The schema of a struct that holds the arguments of a tool."""
    (root,), components = msgspec.json.schema_components([arguments], ref_template=REF + "{name}")
    return {key: value for key, value in inline_components(root, components).items() if key != "description"}


def inline_components(schema: Json, components: Mapping[str, Json]) -> Json:
    """The schema with each `$ref` to a component replaced by it, and objects closed to properties they do not name.

    Only a recursive component stays a reference, with its definition in `$defs`.
    """
    graph = {name: set(_list_references(component)) for name, component in components.items()}
    endless = {name for name in graph if name in _reach(graph[name], graph)}
    inliner = _Inliner(components, endless)
    whole = inliner.node(schema)
    if needed := sorted(endless & _reach(set(_list_references(schema)), graph)):
        whole["$defs"] = {name: inliner.component(name) for name in needed}
    return whole


class _Inliner:
    def __init__(self, components: Mapping[str, Json], endless: set[str]) -> None:
        self._components = components
        self._endless = endless

    def node(self, schema: Json) -> Json:
        # A discriminator speaks of references that are no longer there; the tag of each variant says the same.
        own = {key: self._value(key, value) for key, value in schema.items() if key not in ("$ref", "discriminator")}
        if (target := schema.get("$ref")) is None:
            return own
        name = target.removeprefix(REF)
        return {"$ref": target, **own} if name in self._endless else {**self.component(name), **own}

    def component(self, name: str) -> Json:
        whole = self.node({key: value for key, value in self._components[name].items() if key != "title"})
        if "properties" in whole:
            whole.setdefault("additionalProperties", False)
        return whole

    def _value(self, key: str, value: object) -> object:
        if key in _VALUES:
            return value
        if key == "properties" and isinstance(value, dict):
            return {name: self.node(inner) for name, inner in value.items()}
        if isinstance(value, dict):
            return self.node(value)
        if isinstance(value, list):
            return [self.node(inner) if isinstance(inner, dict) else inner for inner in value]
        return value


def _list_references(node: object) -> Iterator[str]:
    """The names of the components that a piece of schema refers to."""
    if isinstance(node, list):
        for inner in node:
            yield from _list_references(inner)
    elif isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].removeprefix(REF)
        for key, value in node.items():
            if key not in _VALUES:
                yield from _list_references(list(value.values()) if key == "properties" else value)


def _reach(start: set[str], graph: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    ahead = set(start)
    while ahead:
        found |= ahead
        ahead = set().union(*[graph[name] for name in ahead]) - found
    return found


def _describe_error(error: "jsonschema_rs.ValidationError") -> str:
    """The error message, with the reason of each alternative where there are several."""
    from jsonschema_rs import ValidationErrorKind as kinds

    kind = error.kind
    variants = kind.context if isinstance(kind, kinds.AnyOf | kinds.OneOfNotValid | kinds.OneOfMultipleValid) else []
    reasons = dict.fromkeys([_shorten(inner.message) for variant in variants for inner in variant[:1]])
    return ", or ".join(reasons) if reasons else _shorten(error.message)


def _render_path(steps: Sequence[str | int], root: str) -> str:
    """`city`, `stops[2].name`, or the root's name for the value as a whole."""
    path = "".join([f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps])
    return path.removeprefix(".") or root


def _shorten(message: str) -> str:
    """A message quotes the value at fault, whatever its size, and gives the reason last."""
    if len(message) <= LONGEST_MESSAGE:
        return message
    half = LONGEST_MESSAGE // 2
    return f"{message[:half]} ... {message[-half:]}"


def _refuse_fetch(uri: str) -> Json:
    raise ValueError(f"`{uri}` is outside the schema and is not fetched")
