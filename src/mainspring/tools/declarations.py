"""What a tool's definition declares about a call: whose it is, and which arguments are commands, paths or URLs; its effects are
read in `core.effects`.

Policies judge a tool by these declarations alone. They are fields of its definition and not part of its schema, so that an
untrusted schema cannot vouch for its own tool, and no model sees them.
"""

import re
import shlex
from functools import lru_cache

from msgspec import Struct

from mainspring.core.effects import read_operation
from mainspring.core.items import Json, Purpose, ServerTool, ToolDefinition
from mainspring.core.items import parse_arguments as parsed
from mainspring.core.normal_form import normalize
from mainspring.core.run import Call, Run

# Every policy wants the same arguments, and they may be as long as a file. Nobody changes what this returns.
parsed_arguments = lru_cache(maxsize=16)(parsed)


class NamedCall(Struct, frozen=True):
    """A call by the names of its tool, the model's first. `operation` is empty if the tool has none, and None if the call does
    not tell."""

    names: tuple[str, ...]
    operation: str | None


def name_call(call: Call, run: Run) -> NamedCall | None:
    """The call as rules name it; None if there is no such tool."""
    tool = run.spec.tool(call.item.name)
    if tool is None:
        return None
    try:
        operation = read_operation(tool, parsed_arguments(call.item.arguments))
    except ValueError:
        operation = None
    return NamedCall((tool.name, *list_other_names(tool)), operation)


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """A pattern for names, in which `*` and `?` stand for any text and any character."""
    signs = {"*": ".*", "?": "."}
    return re.compile("".join([signs.get(sign) or re.escape(sign) for sign in pattern]), re.DOTALL)


@lru_cache(maxsize=1024)
def fold_name(name: str) -> str:
    """The name without what makes two spellings of it differ: case, form, blanks around it."""
    return normalize("NFKC", name).casefold().strip()


def find_served_tool(call: Call, run: Run) -> ToolDefinition | None:
    """The tool of this call if it is performed here; None if it is the client's own to perform, or nobody's."""
    tool = run.spec.tool(call.item.name)
    return None if tool is None or tool.kind == "function" else tool


def list_other_names(tool: ToolDefinition) -> tuple[str, ...]:
    """What a tool of an MCP server is called besides what the model calls it, which depends on the names of other tools: what is
    said against the tool by any of its names holds."""
    if tool.kind != "mcp" or not isinstance(whose := tool.server, ServerTool):
        return ()
    return whose.name, f"{whose.label}__{whose.name}", f"{whose.label}.{whose.name}"


def read_texts(tool: ToolDefinition, arguments: Json, purpose: Purpose) -> list[str]:
    """The arguments declared to be for this purpose. A list is one command, as its words, but many paths or URLs.

    Raises `ValueError` naming a parameter that holds neither text nor a list of texts.
    """
    found: list[str] = []
    for name, declared in tool.purposes.items():
        if declared != purpose or (value := arguments.get(name)) is None:
            continue
        many = value if isinstance(value, list) else [value]
        if not all(isinstance(text, str) for text in many):
            raise ValueError(f"`{name}` must be text")
        found += [shlex.join(many)] if purpose == "command" and isinstance(value, list) else many
    return found
