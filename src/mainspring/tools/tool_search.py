"""The search for tools that are deferred: the model names what it needs, and is shown those tools from its next turn on.

A path names a namespace, an MCP server or a tool and loads all of it. A query is compared, word by word, with what tools are
called and said to do; words that few tools have count more.
"""

import re
from collections import Counter
from collections.abc import Sequence
from math import log
from typing import Final

from mainspring.core.declared_tools import describe_loaded, find_group
from mainspring.core.items import ToolDefinition, ToolKind
from mainspring.ports import CallContext, ToolCall, ToolResult

MOST_FOUND: Final = 8
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")


class ToolSearch:
    """Performs searches among the deferred tools of the run that asks."""

    kind: ToolKind = "builtin"

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.form == "server_tool_search"

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        assert context.runs is not None, "calls are performed by an engine"
        tools = (await context.runs.attach(context.run_id)).run.spec.tools
        deferred = [tool for tool in tools if isinstance(tool, ToolDefinition) and tool.deferred is True]
        names = find_tools(deferred, call.parsed.get("paths") or (), call.parsed.get("query") or "")
        return ToolResult(call.id, describe_loaded(names), data={"loaded": names})


def find_tools(tools: Sequence[ToolDefinition], paths: Sequence[str], query: str) -> list[str]:
    """The names of the tools that these paths name, and of those that fit the query best."""
    named = [tool.name for tool in tools if not {tool.name, find_group(tool), _path_of(tool)}.isdisjoint(paths)]
    return list(dict.fromkeys([*named, *_rank(tools, query)]))


def _path_of(tool: ToolDefinition) -> str:
    return f"{tool.namespace}.{tool.inner}"


def _rank(tools: Sequence[ToolDefinition], query: str) -> list[str]:
    said = {tool.name: _words(f"{find_group(tool)} {tool.name} {tool.description}") for tool in tools}
    common = Counter([word for words in said.values() for word in words])
    scores = {name: sum([log(1 + len(said) / common[word]) for word in _words(query) & words]) for name, words in said.items()}
    return sorted([name for name, score in scores.items() if score], key=lambda name: -scores[name])[:MOST_FOUND]


def _words(text: str) -> set[str]:
    """The words of a text or a name, in one form for one and many."""
    return {word.rstrip("s") if len(word) > 3 else word for word in map(str.lower, _WORD.findall(text))}
