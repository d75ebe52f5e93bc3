"""Tools as clients declare them, and as every backend can be told of them.

A client declares functions, custom tools, fixed kinds such as `shell`, namespaces of functions, and a search for tools that are
deferred until the model asks for them. The model calls each like a function of its own name: one in a namespace is
`namespace__tool`, or a name made from that where it is too long or taken. `namespace` and `inner` keep what the client calls it,
which is what the client sees. A function that is deferred by itself counts as the only one of a namespace called like it.

More tools come with the conversation: `additional_tools` items bring them, searches load them. `load_tools` adds those.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import FunctionCallOutput, Item, Json, ServerTool, Tool, ToolDefinition, Unknown, convert
from mainspring.core.tool_names import clean_name, fit_name, propose_names

SEARCH = "tool_search"
MOST_NAME_CHARS = 512
Identity = tuple[str, str]

_TEXT: Json = {"type": "string"}
_COUNT: Json = {"type": ["integer", "null"], "minimum": 1}
_WORDS: Json = {"type": "array", "items": _TEXT, "minItems": 1}
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


def _object(required: list[str], **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


_FIXED = {
    "shell": ToolDefinition(
        "shell",
        "Runs shell commands on the user's machine, one after the other, and returns what each wrote and its exit code.",
        _object(["commands"], commands=_WORDS, timeout_ms=_COUNT, max_output_length=_COUNT),
        form="shell",
    ),
    "local_shell": ToolDefinition(
        "local_shell",
        "Runs one command on the user's machine. `command` is the program and its arguments; use `bash -lc` for a shell line.",
        _object(
            ["command"],
            command=_WORDS,
            working_directory={"type": ["string", "null"]},
            timeout_ms=_COUNT,
            env={"type": "object", "additionalProperties": _TEXT},
            user={"type": ["string", "null"]},
        ),
        form="local_shell",
    ),
    "apply_patch": ToolDefinition(
        "apply_patch",
        "Creates, updates or deletes one file in the user's workspace. `diff` is what changes, as hunks that begin with `@@` and "
        "hold lines beginning with a space, `-` or `+`; a new file has only `+` lines, and to delete a file takes no diff.",
        _object(
            ["type", "path"],
            type={"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
            path=_TEXT,
            diff=_TEXT,
        ),
        form="apply_patch",
    ),
}
_SEARCHES = _object(
    [],
    query={"type": "string", "description": "What the tools should be able to do, in a few words."},
    paths={"type": "array", "items": _TEXT, "description": "Names of namespaces or tools to load as a whole."},
)


def define_tools(given: Sequence[Json], place: str, known: Sequence[Tool] = ()) -> tuple[Tool, ...]:
    """The tools that these declarations stand for; a kind that nobody here performs stays as it is.

    Their names are none of those that other tools of `known` have. Raises `InvalidRequest` that names the declaration at fault.
    """
    defined: list[Tool] = []
    for number, tool in enumerate(given):
        try:
            defined += _define(tool)
        except InvalidRequest as error:
            field = f".{error.param}" if error.param else ""
            message = f"{place}[{number}]{field or ':'} {error.message}"
            raise InvalidRequest(message, param=f"{place}[{number}]{field}", code=error.code) from None
    return _name_tools(defined, known)


def _define(tool: Json) -> list[Tool]:
    match tool:
        case {"type": "namespace"}:
            return _define_namespace(tool)
        case {"type": "function" | "custom"}:
            made = _define_function(tool)
            if made.deferred is not True:
                return [made]
            return [replace(made, namespace=made.name, inner=made.name)]
        case {"type": "tool_search"}:
            return [_define_search(tool)]
        case {"type": str(kind)}:
            fixed = None if find_hosted_tool(tool) else _FIXED.get(kind)
            return [Unknown(tool) if fixed is None else fixed]
        case _:
            raise InvalidRequest("is missing; say what kind of tool it is", param="type", code="missing_required_parameter")


def _define_namespace(tool: Json) -> list[Tool]:
    name, members = tool.get("name"), tool.get("tools")
    if not isinstance(name, str) or not name:
        raise InvalidRequest("is missing; a namespace needs one", param="name", code="missing_required_parameter")
    if len(name) > MOST_NAME_CHARS:
        raise InvalidRequest(f"must have at most {MOST_NAME_CHARS} characters", param="name", code="string_above_max_length")
    if not isinstance(members, list) or not members:
        raise InvalidRequest("must be a list of functions and custom tools, at least one", param="tools")
    made: list[Tool] = []
    for number, member in enumerate(members):
        try:
            if not isinstance(member, dict) or member.get("type") not in ("function", "custom"):
                raise InvalidRequest("a namespace holds tools of type `function` and `custom` only")
            inner = _define_function(member)
        except InvalidRequest as error:
            raise InvalidRequest(error.message, param=f"tools[{number}]") from None
        about = str(tool.get("description") or "") if not made else ""
        joined = _join_name(name, inner.name)
        made.append(replace(inner, name=joined, namespace=name, inner=inner.name, about=about or UNSET))
    return made


def _define_function(tool: Json) -> ToolDefinition:
    """A function, or a custom tool as one that takes a text."""
    known = {key: tool[key] for key in ("type", "name", "description", "parameters", "strict") if tool.get(key) is not None}
    if "name" not in known and isinstance(tool.get("function"), dict):
        raise InvalidRequest(
            "holds what stands beside `type` in this API: move `name`, `parameters` and the rest there", param="function"
        )
    if tool["type"] == "custom":
        text = {"type": "string", "description": _describe_format(tool.get("format"))}
        known = {**known, "type": "function", "parameters": _object(["input"], input=text), "strict": None}
    try:
        # Client functions run at the client, whatever else their declaration says.
        made = convert(known, ToolDefinition)
    except msgspec.ValidationError as error:
        raise InvalidRequest(str(error)) from None
    if _NAME.fullmatch(made.name) is None:
        message = f"must be 1 to 64 ASCII letters, digits, `_` or `-`, not `{made.name[:80]}`"
        raise InvalidRequest(message, param="name")
    deferred = True if tool.get("defer_loading") is True else UNSET
    return replace(made, deferred=deferred, form="custom" if tool["type"] == "custom" else UNSET)


def _describe_format(form: object) -> str:
    match form:
        case {"type": "grammar", "syntax": str(syntax), "definition": str(rules)}:
            return f"Plain text that matches this {syntax} grammar:\n{rules}"
        case None | {"type": "text"}:
            return "Plain text, passed on as it is."
        case _:
            message = 'must be {"type": "text"}, or {"type": "grammar", "syntax": ..., "definition": ...}'
            raise InvalidRequest(message, param="format")


def _define_search(tool: Json) -> ToolDefinition:
    match tool.get("execution"):
        case "client":
            told = str(tool.get("description") or "Searches for tools that can be loaded, and loads them.")
            schema = tool.get("parameters")
            return ToolDefinition(SEARCH, told, schema if isinstance(schema, dict) else _SEARCHES, form="tool_search")
        case None | "server":
            return ToolDefinition(
                SEARCH, "", _SEARCHES, kind="builtin", repeatable=True, effects=("read",), form="server_tool_search"
            )
        case other:
            raise InvalidRequest(f"must be `server` or `client`, not `{other!s:.80}`", param="execution")


def find_hosted_tool(tool: Json) -> str | None:
    """The built-in tool that a hosted tool of a request means, None if it means none of them."""
    match tool:
        case {"type": "code_interpreter"}:
            return "code_interpreter"
        case {"type": "shell", "environment": {"type": str(kind)}} if kind != "local":
            return "shell"
        case _:
            return None


def flatten_name(namespace: str, inner: str) -> str:
    """The model's name for a tool of a namespace, unless that is taken."""
    return inner if namespace == inner else fit_name(_join_name(namespace, inner), f"{namespace}\0{inner}")


def _join_name(namespace: str, inner: str) -> str:
    return f"{clean_name(namespace)}{'' if namespace.endswith('__') else '__'}{clean_name(inner)}"


def _name_tools(defined: Sequence[Tool], known: Sequence[Tool]) -> tuple[Tool, ...]:
    """The tools, each of a namespace under a name of its own; one that is known already under the name that it has."""
    names = map_names(known)
    taken = {tool.name for tool in (*known, *defined) if isinstance(tool, ToolDefinition) and not _is_grouped(tool)}
    taken |= set(names.values())
    named: list[Tool] = []
    for tool in defined:
        if isinstance(tool, ToolDefinition) and _is_grouped(tool):
            identity = namespace, inner = identify_tool(tool)
            if identity not in names:
                proposed = propose_names(_join_name(namespace, inner), f"{namespace}\0{inner}")
                names[identity] = next(name for name in proposed if name not in taken)
                taken.add(names[identity])
            tool = replace(tool, name=names[identity])
        named.append(tool)
    return tuple(named)


def _is_grouped(tool: ToolDefinition) -> bool:
    """Whether it is one of a namespace. A function that is deferred by itself goes by its own name."""
    return isinstance(tool.namespace, str) and (tool.namespace, tool.name) != (tool.inner, tool.inner)


def identify_tool(tool: ToolDefinition) -> Identity:
    """The namespace of a tool, empty if it has none, and its name there."""
    return (str(tool.namespace), str(tool.inner)) if _is_grouped(tool) else ("", tool.name)


def find_group(tool: ToolDefinition) -> str:
    """The namespace or the MCP server that a tool is one of, empty if it is alone."""
    return tool.server.label if isinstance(tool.server, ServerTool) else identify_tool(tool)[0]


def map_names(tools: Iterable[Tool]) -> dict[Identity, str]:
    return {identify_tool(tool): tool.name for tool in tools if isinstance(tool, ToolDefinition)}


def load_tools(tools: tuple[Tool, ...], items: Iterable[Item]) -> tuple[Tool, ...]:
    """The tools of an order, with those that its conversation brings. Raises `InvalidRequest` for one that cannot be read.

    What a search of the client has found is added; what one of ours has found must be declared still, and is shown from then on.
    """
    for item in items:
        match item:
            case Unknown({"type": "additional_tools" | "tool_search_output" as kind, "tools": [*given]}):
                tools = _add_tools(tools, given) if kind == "additional_tools" else _show_loaded(tools, identify_declared(given))
            case FunctionCallOutput(form="tool_search", tools=tuple(given)):
                tools = _show_loaded(_add_tools(tools, given), identify_declared(given))
            case FunctionCallOutput(form="server_tool_search", tools=tuple(given)):
                tools = _show_loaded(tools, identify_declared(given))
            case _:
                pass
    return _describe_search(tools)


def brings_tools(item: Item) -> bool:
    """Whether `load_tools` has to look at an item."""
    return isinstance(item, Unknown) or (type(item) is FunctionCallOutput and item.form in ("tool_search", "server_tool_search"))


def _add_tools(tools: tuple[Tool, ...], given: Sequence[Json]) -> tuple[Tool, ...]:
    try:
        found = define_tools(given, "tools", tools)
    except InvalidRequest as error:
        raise InvalidRequest(f"an item brings tools, and {error.message}", param="input") from None
    if any(isinstance(tool, Unknown) and tool.data["type"] == "mcp" for tool in found):
        raise InvalidRequest("an item brings an MCP server; declare it in `tools` instead", param="input")
    known = map_names(tools)
    others = [tool for tool in found if isinstance(tool, Unknown) and tool not in tools]
    new = [tool for tool in found if isinstance(tool, ToolDefinition) and identify_tool(tool) not in known]
    # Calls are known as the client's by `inner`: the request declares none of these tools.
    return (*tools, *others, *[tool if tool.inner is not UNSET else replace(tool, inner=tool.name) for tool in new])


def identify_declared(given: Sequence[Json]) -> frozenset[Identity]:
    """What these declarations are of, without defining them."""
    found: set[Identity] = set()
    for tool in given:
        match tool:
            case {"type": "namespace", "name": str(namespace), "tools": [*members]}:
                found |= {(namespace, str(member.get("name"))) for member in members if isinstance(member, dict)}
            case {"name": str(name)}:
                found.add(("", name))
            case _:
                pass
    return frozenset(found)


def _show_loaded(tools: tuple[Tool, ...], loaded: Collection[Identity]) -> tuple[Tool, ...]:
    return tuple(
        [
            replace(tool, is_loaded=True)
            if isinstance(tool, ToolDefinition) and tool.deferred is True and identify_tool(tool) in loaded
            else tool
            for tool in tools
        ]
    )


def _describe_search(tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
    """The tools, our search among them told what there is to be found. Raises `InvalidRequest` if what is deferred cannot be."""
    special = [tool for tool in tools if isinstance(tool, ToolDefinition) and (tool.deferred is True or tool.form is not UNSET)]
    if not special:
        return tools
    deferred = [tool for tool in special if tool.deferred is True]
    searches = [tool for tool in special if tool.form in ("tool_search", "server_tool_search")]
    if not searches and (lost := [tool for tool in deferred if not tool.is_loaded]):
        message = f"`{lost[0].name}` has `defer_loading`, and nothing can load it; add a `tool_search` to `tools`"
        raise InvalidRequest(message, param="tools")
    if not any(tool.form == "server_tool_search" for tool in searches):
        return tools
    told = f"Loads tools that you cannot call yet. There are more tools than those you see:\n{_list_deferred(tools, deferred)}"
    return tuple([replace(tool, description=told) if tool in searches and tool.kind == "builtin" else tool for tool in tools])


def _list_deferred(tools: Sequence[Tool], deferred: Sequence[ToolDefinition]) -> str:
    """Namespaces and servers with what they are about; functions that are deferred alone with their descriptions."""
    abouts = {find_group(tool): tool.about for tool in tools if isinstance(tool, ToolDefinition) and isinstance(tool.about, str)}
    lines: dict[str, str] = {}
    for tool in deferred:
        group = find_group(tool)
        lines.setdefault(group or tool.name, abouts.get(group, "") if group else tool.description)
    return "\n".join([f"- {name}: {about}" if about else f"- {name}" for name, about in lines.items()])


def show_tools(tools: tuple[Tool, ...], loaded: Collection[str]) -> tuple[Tool, ...]:
    """The tools as a backend is told of them that knows neither namespaces nor deferred tools."""
    if not any(isinstance(tool, ToolDefinition) and (tool.deferred is True or tool.about is not UNSET) for tool in tools):
        return tools
    shown: list[Tool] = []
    abouts: dict[object, str] = {}
    for tool in tools:
        if isinstance(tool, ToolDefinition):
            if isinstance(tool.about, str):
                abouts[tool.namespace] = tool.about
            if tool.deferred is True and not tool.is_loaded and tool.name not in loaded:
                continue
            if (about := abouts.pop(tool.namespace, "")) and _is_grouped(tool):
                tool = replace(tool, description=f"{tool.description}\n\n`{tool.namespace}`: {about}".strip())
        shown.append(tool)
    return tuple(shown)


def group_tools(tools: Iterable[Tool], write: Callable[[ToolDefinition], Json]) -> list[Json]:
    """The tools as they were declared: those of a namespace within it, under the names that they have there."""
    written: list[Json] = []
    groups: dict[str, Json] = {}
    for tool in tools:
        if not isinstance(tool, ToolDefinition):
            written.append(tool.data if isinstance(tool, Unknown) else {})
            continue
        namespace, inner = identify_tool(tool)
        told = write(replace(tool, name=inner))
        if tool.deferred is True:
            told = {**told, "defer_loading": True}
        if not namespace:
            written.append(told)
            continue
        if namespace not in groups:
            groups[namespace] = {"type": "namespace", "name": namespace, "description": "", "tools": []}
            written.append(groups[namespace])
        groups[namespace]["description"] = groups[namespace]["description"] or tool.about or ""
        groups[namespace]["tools"].append(told)
    return written


def declare_found(tools: Iterable[Tool], names: Collection[str]) -> tuple[Json, ...]:
    """The declarations of these tools, as a search tells them."""
    found = [tool for tool in tools if isinstance(tool, ToolDefinition) and tool.name in names]
    return tuple(group_tools(found, _declare))


def _declare(tool: ToolDefinition) -> Json:
    if tool.form == "custom":
        return {"type": "custom", "name": tool.name, "description": tool.description}
    told = {"description": tool.description, "parameters": tool.parameters, "strict": tool.strict}
    return {"type": "function", "name": tool.name, **told}


def describe_loaded(names: Sequence[str]) -> str:
    """What a search says to the model."""
    return f"Loaded, and can be called now: {', '.join(names)}." if names else "No tool fits."
