"""The kinds of tools, items and content parts that a request may hold, with the fields that are read of each.

What is not here is refused, unless the backend of the model passes it on (`passthrough` of `ports.ModelFeature`). A feature that
performs another kind of tool adds its row to `TOOL_KINDS`, and an order step that puts its definitions in the place of it.
"""

from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import fields

from mainspring.core.items import ITEMS, PARTS, ApprovalResponse, SummaryText
from mainspring.ports import ModelFeature


class ToolKind(Struct, frozen=True):
    """`performer` is who performs its calls: the client, or the server, where an order step sees to it. `fields` are those of its
    declaration; None if whoever performs it checks them itself. `feature` is what it needs, if not every server has it."""

    performer: Literal["client", "server"]
    fields: frozenset[str] | None = frozenset()
    feature: ModelFeature | None = None


def _names(*names: str) -> frozenset[str]:
    return frozenset({"type", *names})


def _read_names(struct: type) -> frozenset[str]:
    return _names(*[field.encode_name for field in fields(struct)])


FORMED: Final = ("code_interpreter", "file_search", "web_search")
"""The forms whose calls are items of their own kind, which the server performs."""
WEB_SEARCHES: Final = ("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11")
_WEB_SEARCH: Final = ToolKind(
    "server",
    _names("filters", "user_location", "search_context_size", "external_web_access", "search_content_types"),
    "web_search",
)
TOOL_KINDS: Final[dict[str, ToolKind]] = {
    "function": ToolKind("client", _names("name", "description", "parameters", "strict", "defer_loading")),
    "custom": ToolKind("client", _names("name", "description", "format", "defer_loading")),
    # In a container, the server performs it.
    "shell": ToolKind("client", _names("environment")),
    "local_shell": ToolKind("client", _names()),
    "apply_patch": ToolKind("client", _names()),
    "code_interpreter": ToolKind("server", _names("container")),
    "file_search": ToolKind("server", _names("vector_store_ids", "max_num_results", "filters", "ranking_options")),
    **dict.fromkeys(WEB_SEARCHES, _WEB_SEARCH),
    "mcp": ToolKind("server", None),
    "namespace": ToolKind("client", _names("name", "description", "tools")),
    # Unless it says `client`, the server performs it.
    "tool_search": ToolKind("client", _names("description", "execution", "parameters")),
}
CLIENT_KINDS: Final = frozenset([name for name, kind in TOOL_KINDS.items() if kind.performer == "client"])

TRIGGER: Final = "compaction_trigger"
"""An item that asks for something and is kept nowhere."""

_CALL: Final = _names("id", "call_id", "status")

ITEM_KINDS: Final[dict[str, frozenset[str]]] = {
    **{name: _read_names(struct) for name, struct in ITEMS.items()},
    # What the engine keeps with an answer is no business of clients.
    "mcp_approval_response": _read_names(ApprovalResponse) - {"kept"},
    "custom_tool_call": _CALL | {"name", "input", "namespace"},
    "custom_tool_call_output": _CALL | {"output"},
    "shell_call": _CALL | {"action", "environment"},
    "shell_call_output": _CALL | {"output", "max_output_length"},
    "local_shell_call": _CALL | {"action"},
    "local_shell_call_output": _CALL | {"output"},
    "apply_patch_call": _CALL | {"operation"},
    "apply_patch_call_output": _CALL | {"output"},
    "tool_search_call": _CALL | {"arguments", "execution"},
    "tool_search_output": _CALL | {"tools", "execution"},
    "additional_tools": _names("id", "role", "tools"),
    "mcp_call": _names("id", "server_label", "name", "arguments", "output", "error", "status", "approval_request_id"),
    "mcp_list_tools": _names("id", "server_label", "tools", "error"),
    "code_interpreter_call": _names("id", "code", "container_id", "outputs", "status"),
    "file_search_call": _names("id", "queries", "results", "status"),
    "web_search_call": _names("id", "action", "results", "status"),
    "compaction": _names("id", "encrypted_content"),
    TRIGGER: _names("id"),
    "item_reference": _names("id"),
}
PART_KINDS: Final[dict[str, frozenset[str]]] = {
    **{name: _read_names(struct) for name, struct in PARTS.items()},
    "summary_text": _read_names(SummaryText),
    "reasoning_text": _read_names(SummaryText),
    "input_audio": _names("input_audio"),
}
