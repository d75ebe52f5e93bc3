"""Reads the tools that a server lists, one by one: what the protocol does not allow is rejected, with the reason, and no more."""

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from mainspring.core.items import Json
from mainspring.net.client import encode_headers
from mainspring.tools.mcp.exchange import RejectedTool, RemoteTool
from mainspring.tools.mcp.json_rpc import BadAnswer
from mainspring.tools.schema import CompiledSchema, compile_schema

HEADER = "x-mcp-header"
MOST_LISTED = 2_000

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_SAFE = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?)?")
_MIRRORED = ("string", "integer", "boolean")
# The keywords of JSON Schema whose values are schemas, lists of them, and schemas by name.
_INNER = frozenset({
    "items", "contains", "unevaluatedItems", "additionalProperties", "propertyNames", "unevaluatedProperties", "not", "if",
    "then", "else", "contentSchema",
})  # fmt: skip
_INNER_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_INNER_MAPS = frozenset({"patternProperties", "dependentSchemas", "$defs", "definitions"})


class ListedTool(Struct, frozen=True, rename="camel"):
    """A tool as the protocol spells it."""

    name: str
    input_schema: Json
    description: str | None = None
    annotations: Json | None = None
    output_schema: Json | None = None
    execution: Json | None = None

    @property
    def needs_task(self) -> bool:
        return (self.execution or {}).get("taskSupport") == "required"


class ToolFacts:
    """What a session must know of a tool to call it: which arguments are mirrored in headers, and what its results look like."""

    def __init__(self, tool: ListedTool, headers: dict[tuple[str, ...], str]) -> None:
        self.needs_task = tool.needs_task
        self._head = encode_call_headers(tool.name)
        self._headers = headers
        self._output = tool.output_schema
        self._compiled: CompiledSchema | None = None

    def build_headers(self, arguments: Json) -> bytes:
        """The headers of a call, with one for each argument that is to be mirrored and is there."""
        if not self._headers:
            return self._head
        found = [(f"Mcp-Param-{token}", _get_value(arguments, path)) for path, token in self._headers.items()]
        return self._head + encode_headers(
            [(name, _encode_value(text)) for name, value in found if (text := _render_value(value)) is not None]
        )

    def find_flaw(self, result: Json) -> str | None:
        """Why a result is not what the tool has promised."""
        if self._output is None:
            return None
        if result.get("structuredContent") is None:
            return "it has an output schema, but there is no structured content"
        try:
            self._compiled = self._compiled or compile_schema(self._output)
            errors = self._compiled.list_errors(result["structuredContent"])
        except ValueError as error:
            return f"its output schema cannot be used: {error}"
        return f"its structured content is not valid: {errors[0].message}" if errors else None


class ToolReader:
    """Collects the tools of a list, page by page."""

    def __init__(self, *, mirrors: bool, has_tasks: bool = False) -> None:
        self.tools: list[RemoteTool] = []
        self.rejected: list[RejectedTool] = []
        self.known: dict[str, ToolFacts] = {}
        self._mirrors, self._has_tasks = mirrors, has_tasks

    def read_page(self, result: Json) -> None:
        """Raises `BadAnswer` for a result that is no list."""
        found = result.get("tools")
        if not isinstance(found, list):
            raise BadAnswer("there is no list of tools")
        if len(found) > MOST_LISTED:
            self.rejected.append(RejectedTool("the rest", f"the server lists more than {MOST_LISTED} tools at once"))
        for place, each in enumerate(found[:MOST_LISTED]):
            try:
                self._add(each)
            except ValueError as error:
                name = each.get("name") if isinstance(each, dict) else None
                self.rejected.append(RejectedTool(str(name or f"tool {place}")[:200], str(error)[:500]))

    def _add(self, found: object) -> None:
        tool = msgspec.convert(found, ListedTool)
        if tool.input_schema.get("type") != "object":
            raise ValueError("inputSchema.type must be `object`")
        headers = dict(_find_headers(tool.input_schema)) if self._mirrors else {}
        annotations = {name: value for name, value in (tool.annotations or {}).items() if value is not None}
        may_be_task = self._has_tasks if self._mirrors else tool.needs_task
        self.tools.append(RemoteTool(tool.name, tool.description or "", tool.input_schema, annotations, may_be_task))
        self.known[tool.name] = ToolFacts(tool, headers)


def encode_call_headers(name: str, method: str = "tools/call") -> bytes:
    """The headers of a call of this tool, whatever its arguments, or of another request that names something."""
    return encode_headers([("Mcp-Method", method), ("Mcp-Name", _encode_value(name))])


def _encode_value(text: str) -> str:
    """The text as the value of a header, in base64 where it would not arrive as it is."""
    if _SAFE.fullmatch(text) and not (text.startswith("=?base64?") and text.endswith("?=")):
        return text
    return f"=?base64?{b64encode(text.encode(errors='replace')).decode()}?="


def _find_headers(schema: Json) -> Iterator[tuple[tuple[str, ...], str]]:
    """The paths of the properties that are mirrored in headers. Raises `ValueError` if one may not be."""
    seen: set[str] = set()
    for path, inner in _walk(schema):
        if HEADER not in inner:
            continue
        token = inner[HEADER]
        if not path:
            raise ValueError(f"its {HEADER} annotations are not valid: one is where no property of an argument is")
        if not isinstance(token, str) or not _TOKEN.fullmatch(token) or inner.get("type") not in _MIRRORED:
            raise ValueError(f"its {HEADER} annotations are not valid: see property `{'.'.join(path)}`")
        if token.lower() in seen:
            raise ValueError(f"its {HEADER} annotations are not valid: two properties have the same")
        seen.add(token.lower())
        yield path, token


def _walk(root: Json) -> Iterator[tuple[tuple[str, ...] | None, Json]]:
    """Every schema in a schema, with its path if that leads through properties alone."""
    stack: list[tuple[tuple[str, ...] | None, object]] = [((), root)]
    while stack:
        path, node = stack.pop()
        if not isinstance(node, dict):
            continue
        yield path, node
        for keyword, value in node.items():
            if keyword == "properties" and isinstance(value, dict):
                stack += [(None if path is None else (*path, name), inner) for name, inner in value.items()]
            else:
                stack += [(None, inner) for inner in _list_inner(keyword, value)]


def _list_inner(keyword: str, value: object) -> Iterable[object]:
    if keyword in _INNER:
        return [value]
    if keyword in _INNER_LISTS and isinstance(value, list):
        return value
    return value.values() if keyword in _INNER_MAPS and isinstance(value, dict) else ()


def _get_value(arguments: Json, path: tuple[str, ...]) -> object:
    node: object = arguments
    for name in path:
        node = node.get(name) if isinstance(node, dict) else None
    return node


def _render_value(value: object) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (str, int, float)) else None
