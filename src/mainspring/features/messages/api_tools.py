"""Tools that the Messages API brings, which requests declare by a dated type, without a schema.

Only Anthropic's models know them by heart, so every model is told their schemas. The client performs the calls of `bash`, of the
text editor and of the memory. Searches of the web are performed by the server. All tools are shown to the model, so a tool that
searches for tools has nothing to do.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.http.ignored import IgnoredFields

SEARCH: Final = "web_search"
_WEB_SEARCH: Final = re.compile(r"web_search_\d{8}", re.ASCII)
_WEB_FETCH: Final = re.compile(r"web_fetch_\d{8}", re.ASCII)
_NEEDLESS: Final = re.compile(r"tool_search_tool_(?:regex|bm25)_\d{8}", re.ASCII)


def _text(description: str) -> Json:
    return {"type": "string", "description": description}


def _schema(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


_SHELL: Final[Json] = {
    "description": "Runs a command in a shell that stays open: its folder, variables and background processes are kept.",
    "input_schema": _schema(
        {
            "command": _text("The command. Needed, unless the shell is restarted."),
            "restart": {"type": "boolean", "description": "Starts the shell anew instead."},
        }
    ),
}


def _make_editor(
    commands: Sequence[str],
    told: str,
    *,
    inserted: str = "insert_text",
    required: Sequence[str] = ("command", "path"),
    **more: Json,
) -> Json:
    """A tool that works on files by commands; `inserted` is what it calls the text that is inserted."""
    properties: Json = {
        "command": {"type": "string", "enum": list(commands), "description": "What to do."},
        "path": _text("Where the file or folder is."),
        "file_text": _text("For `create`: all that the file is to hold."),
        "old_str": _text("For `str_replace`: the text to replace, which must be in the file exactly once."),
        "new_str": _text("For `str_replace`: what stands in its place; nothing if left out."),
        "insert_line": {"type": "integer", "description": "For `insert`: the line behind which to insert, 0 for the beginning."},
        inserted: _text("For `insert`: the text." if inserted != "new_str" else "For `str_replace` and `insert`: the new text."),
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "For `view` of a file: its first and last line, -1 for the end.",
        },
        **more,
    }
    return {"description": told, "input_schema": _schema(properties, *required)}


_EDITS: Final = ("view", "create", "str_replace", "insert")
_EDITOR: Final = "Views, creates and changes files. `view` shows a file with the numbers of its lines, or what is in a folder."
_OLD_EDITOR: Final = _make_editor((*_EDITS, "undo_edit"), _EDITOR, inserted="new_str")
_MEMORY: Final = _make_editor(
    (*_EDITS, "delete", "rename"),
    "Keeps notes in files below /memories, which are still there in later conversations. Look there before you begin.",
    required=("command",),  # `rename` names two paths, and no `path`
    old_path=_text("For `rename`: the file."),
    new_path=_text("For `rename`: its new name."),
)
CLIENT_TOOLS: Final[Mapping[str, Json]] = {
    "bash_20241022": {"name": "bash", **_SHELL},
    "bash_20250124": {"name": "bash", **_SHELL},
    "text_editor_20241022": {"name": "str_replace_editor", **_OLD_EDITOR},
    "text_editor_20250124": {"name": "str_replace_editor", **_OLD_EDITOR},
    "text_editor_20250429": {"name": "str_replace_based_edit_tool", **_make_editor(_EDITS, _EDITOR, inserted="new_str")},
    "text_editor_20250728": {"name": "str_replace_based_edit_tool", **_make_editor(_EDITS, _EDITOR)},
    "memory_20250818": {"name": "memory", **_MEMORY},
}
"""What is told of the tools that the client performs."""

_FIELDS: Final = {"type", "name", "cache_control"}
_SEARCH_FIELDS: Final = {*_FIELDS, "allowed_domains", "user_location"}


def define_api_tools(tools: Sequence[Json], ignored: IgnoredFields) -> list[Json]:
    """The tools, those that the API brings with what a model must know of them. Raises `InvalidRequest`."""
    has_search = any(_WEB_SEARCH.fullmatch(str(tool.get("type"))) for tool in tools)
    made: list[Json] = []
    for number, tool in enumerate(tools):
        param, kind = f"tools[{number}]", str(tool.get("type"))
        if (known := CLIENT_TOOLS.get(kind)) is not None:
            ignored.compare(param, tool, _FIELDS)
            made.append(dict(known))
        elif _WEB_SEARCH.fullmatch(kind):
            made.append(_flatten_search(tool, param, ignored))
        elif _NEEDLESS.fullmatch(kind):
            ignored.add(param)
        elif not _WEB_FETCH.fullmatch(kind):
            made.append(tool)
        elif not has_search:
            told = f"{param}.type: pages are opened by the web search; declare a tool of type `web_search_20250305`"
            raise InvalidRequest(told, param=f"{param}.type", code="unsupported_value")
    return made


def _flatten_search(tool: Json, param: str, ignored: IgnoredFields) -> Json:
    if tool.get("blocked_domains"):
        told = f"{param}.blocked_domains cannot be honoured by every search service; send `allowed_domains`"
        raise InvalidRequest(told, param=f"{param}.blocked_domains", code="unsupported_value")
    ignored.compare(param, {name: value for name, value in tool.items() if name != "blocked_domains"}, _SEARCH_FIELDS)
    allowed, location = tool.get("allowed_domains"), tool.get("user_location")
    filters = {"filters": {"allowed_domains": allowed}} if allowed else {}
    return {"type": SEARCH, **filters, **({"user_location": location} if location else {})}
