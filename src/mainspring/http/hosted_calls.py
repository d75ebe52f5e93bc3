"""Calls that the server performs, as clients are told of them.

A `function_call` in an answer asks the client to act; every SDK takes it so. A call that the server performs itself is
therefore shown as one item that clients know as done elsewhere, the call and, once it is there, its output: a
`code_interpreter_call`, `file_search_call` or `web_search_call` if that is what was asked for, else an `mcp_call`. What is stored
and what the model sees stays call and output.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from mainspring.core.declared_tools import find_hosted_tool
from mainspring.core.history import approval_id
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    ApprovalRequest,
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    Item,
    Json,
    Part,
    ServerTool,
    Unknown,
    text_of,
)
from mainspring.core.response import Response
from mainspring.http.client_tools import parse_arguments, render_client_item
from mainspring.http.kinds import CLIENT_KINDS

SERVER_LABEL = "mainspring"
INTERPRETER: Final = "code_interpreter"
FILE_SEARCH: Final = "file_search"
WEB_SEARCH: Final = "web_search"
_INCLUDE: Final = "include_results"


class ClientTools(Struct, frozen=True):
    """Whose calls are shown as what they are, because the client acts on them: `names` are tools that it has declared by name.

    `allowed` are the tools that it lets the model call; None for all.
    """

    names: frozenset[str]
    allowed: frozenset[str] | None = None

    def has(self, call: FunctionCall) -> bool:
        """Whether this is a call that the client performs, or knows as one of its own kinds."""
        if call.form == "server_tool_search":
            return True
        if self.allowed is not None and not {call.name, call.namespace, f"{call.namespace}.{call.own_name}"} & self.allowed:
            return False
        return call.name in self.names or call.inner is not UNSET

    def add(self, name: str) -> "ClientTools":
        return ClientTools(self.names | {name}, None if self.allowed is None else self.allowed | {name})


def list_client_tools(told: Response) -> ClientTools:
    """The tools that the client performs in this response."""
    names = frozenset(
        [
            str(tool.get("name", tool.get("type")))
            for tool in told.tools
            if tool.get("type") in CLIENT_KINDS and find_hosted_tool(tool) is None
        ]
    )
    match told.tool_choice:
        case "none" | {"type": "allowed_tools", "mode": "none"}:
            return ClientTools(names, frozenset())
        case {"type": "allowed_tools", "tools": [*allowed]}:
            return ClientTools(names, frozenset([_name_allowed(tool) for tool in allowed if isinstance(tool, dict)]))
        case _:
            return ClientTools(names)


def _name_allowed(tool: Json) -> str:
    name = str(tool.get("name", tool.get("type")))
    return f"{tool['namespace']}.{name}" if tool.get("namespace") else name


def render_server_call(call: FunctionCall, output: FunctionCallOutput | None = None, status: str | None = None) -> Unknown:
    """A call of the server's, with its output if it has one."""
    ended = "incomplete" if output is None else "failed" if output.is_error is True else "completed"
    match call.form:
        case "code_interpreter":
            kind, render = "code_interpreter_call", _render_interpreter_call
        case "file_search":
            kind, render = "file_search_call", _render_search_call
        case "web_search":
            kind, render = "web_search_call", _render_web_call
        case _:
            kind, render = "mcp_call", _render_mcp_call
    return Unknown({"type": kind, "id": derive_server_id(call), "status": status or ended, **render(call, output)})


def derive_server_id(call: FunctionCall) -> str:
    return derive_id({INTERPRETER: "ci", FILE_SEARCH: "fs", WEB_SEARCH: "ws"}.get(str(call.form), "mcp"), call.id)


def _render_interpreter_call(call: FunctionCall, output: FunctionCallOutput | None) -> Json:
    return {
        "code": str(parse_arguments(call).get("code", call.arguments)),
        "container_id": call.server.label if isinstance(call.server, ServerTool) else "",
        "outputs": None if output is None else _render_outputs(output),
    }


def _render_outputs(output: FunctionCallOutput) -> list[Json]:
    if isinstance(output.output, str):
        return [{"type": "logs", "logs": output.output}]
    logs = text_of(output.output)
    images = [part.image_url for part in output.output if isinstance(part, InputImage) and part.image_url]
    return [*([{"type": "logs", "logs": logs}] if logs else []), *[{"type": "image", "url": url} for url in images]]


def _render_search_call(call: FunctionCall, output: FunctionCallOutput | None) -> Json:
    queries = parse_arguments(call).get("queries")
    return {
        "queries": [str(query) for query in queries] if isinstance(queries, list) else [],
        "results": _find_shown(call, output),
    }


def show_results(told: Response, forms: Collection[str]) -> Response:
    """With the results of searches of these forms, whether or not they were asked for when they were made."""
    output = [_show_found(item) if isinstance(item, FunctionCall) and item.form in forms else item for item in told.output]
    return replace(told, output=tuple(output)) if forms else told


def _show_found(call: FunctionCall) -> FunctionCall:
    if not isinstance(call.server, ServerTool):
        return call
    wanted = {**_decode(call.server.at or ""), _INCLUDE: True}
    return replace(call, server=replace(call.server, at=msgspec.json.encode(wanted).decode()))


def _find_shown(call: FunctionCall, output: FunctionCallOutput | None) -> list[Json] | None:
    """The results of a search, None if its client does not want to see them."""
    wanted = call.server.at if isinstance(call.server, ServerTool) else "{}"
    is_shown = output is not None and _decode(wanted).get(_INCLUDE) is True
    return _decode(output.output).get("results", []) if is_shown and output is not None else None


def _render_web_call(call: FunctionCall, output: FunctionCallOutput | None) -> Json:
    given, shown = parse_arguments(call), _find_shown(call, output)
    results = {} if shown is None else {"results": shown}
    if url := given.get("url"):
        opened: Json = {"type": "open_page", "url": str(url)}
        pattern = given.get("pattern")
        return {"action": {**opened, "type": "find_in_page", "pattern": str(pattern)} if pattern else opened, **results}
    queries = [str(query) for query in given["queries"]] if isinstance(given.get("queries"), list) else []
    found = [] if output is None else _decode(output.output).get("results", [])
    sources = [{"type": "url", "url": str(page["url"])} for page in found if "url" in page]
    action = {"type": "search", "query": queries[0] if queries else "", "queries": queries, "sources": sources}
    return {"action": action, **results}


def _decode(text: str | Sequence[Part]) -> Json:
    """The object that a text is, an empty one if it is none."""
    try:
        return msgspec.json.decode(text, type=Json) if isinstance(text, str) else {}
    except (ValueError, RecursionError):
        return {}


def _render_mcp_call(call: FunctionCall, output: FunctionCallOutput | None) -> Json:
    failed = output is not None and output.is_error is True
    whose = call.server if isinstance(call.server, ServerTool) else ServerTool(SERVER_LABEL, call.name)
    item: Json = {
        "server_label": whose.label,
        "name": whose.name,
        "arguments": call.arguments,
        "output": None if output is None or failed else _render_text(output.output),
    }
    if call.approval is not UNSET:
        item["approval_request_id"] = call.approval
    if failed and output is not None:
        item["error"] = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text_of(output.output)}]}
    return item


def _render_text(output: str | Sequence[Part]) -> str:
    """The output as text, which is all that this item can hold; what else the model was given is named."""
    if isinstance(output, str):
        return output
    return "\n".join([text for text in (text_of(output), *map(_describe_part, output)) if text])


def _describe_part(part: Part) -> str:
    match part:
        case InputImage(image_url=str(url)) | InputFile(file_data=str(url)):
            name = part.filename if isinstance(part, InputFile) and isinstance(part.filename, str) else "image"
            kind, _, data = url.removeprefix("data:").partition(";base64,")
            return f"[{name}: {kind}, {len(data) * 3 // 4} bytes]"
        case _:
            return ""


def merge_server_calls(told: Response) -> tuple[Item, ...]:
    """The output as clients see it: server-run calls as one item each, at the place of the call. A call that a person is asked
    about is told by the request alone, unless the run has ended without waiting: then the call says so behind it."""
    clients = list_client_tools(told)
    # One that asks something itself had begun, and been told, before.
    asked = {item.id for item in told.output if isinstance(item, ApprovalRequest) and item.elicitation is UNSET}
    items: list[Item] = []
    open_calls: dict[str, tuple[int, FunctionCall]] = {}
    for item in told.output:
        match item:
            case FunctionCall() if not clients.has(item):
                place = len(items)
                if approval_id(item) in asked:
                    place = -1
                else:
                    items.append(render_server_call(item))
                if item.status == "completed":
                    open_calls[item.call_id] = place, item
            case FunctionCallOutput() if item.call_id in open_calls:
                place, call = open_calls.pop(item.call_id)
                if place < 0:
                    items.append(render_server_call(call, item))
                else:
                    items[place] = render_server_call(call, item)
            case _:
                items.append(render_client_item(item))
    return (*items, *find_delegated(told, [call for _, call in open_calls.values()]))


def find_delegated(told: Response, calls: Sequence[FunctionCall]) -> list[FunctionCall]:
    """Those of the server's calls that it handed to the client in the end; the client is asked like for any of its own."""
    wanted = {stub.get("call_id") for stub in told.required_input or ()}
    return [call for call in calls if call.call_id in wanted]


def split_server_call(item: Item) -> tuple[Item, ...]:
    """A call of the server's that a client sends back, as the call and the output that it stands for; other items as they are."""
    if not isinstance(item, Unknown) or item.data.get("type") not in ("mcp_call", "code_interpreter_call", "file_search_call"):
        return (item,)
    data = item.data
    if data["type"] == "file_search_call":
        return _split_search_call(data)
    if data["type"] == "code_interpreter_call":
        return _split_interpreter_call(data)
    suffix = str(data.get("id", "")).removeprefix("mcp_")
    name, label = str(data.get("name", "")), str(data.get("server_label", ""))
    whose = UNSET if label == SERVER_LABEL else ServerTool(label, name)
    call = FunctionCall(f"call_{suffix}", name, str(data.get("arguments") or "{}"), id=f"fc_{suffix}", server=whose)
    match data.get("error"):
        case {"content": [*parts]}:
            text = "".join([str(part.get("text", "")) for part in parts if isinstance(part, dict)])
            return call, FunctionCallOutput(call.call_id, text, id=f"fco_{suffix}", is_error=True)
        case _:
            return call, FunctionCallOutput(call.call_id, str(data.get("output") or ""), id=f"fco_{suffix}")


def _split_search_call(data: Json) -> tuple[Item, ...]:
    """Without its results, the model is told only what was searched for."""
    suffix = str(data.get("id", "")).removeprefix("fs_")
    given = msgspec.json.encode({"queries": data.get("queries") or []}).decode()
    whose = ServerTool(FILE_SEARCH, FILE_SEARCH)
    call = FunctionCall(f"call_{suffix}", FILE_SEARCH, given, id=f"fc_{suffix}", form=FILE_SEARCH, server=whose)
    said = msgspec.json.encode({"results": data.get("results") or []}).decode()
    return call, FunctionCallOutput(call.call_id, said, id=f"fco_{suffix}", form=FILE_SEARCH)


def split_web_call(item: Item) -> tuple[Item, ...]:
    """A `web_search_call`, as the call and the output that it stands for; other items as they are. The model is told what it
    has done, and what was found, and what it has read only if the client kept the `results`."""
    if not isinstance(item, Unknown) or item.data.get("type") != "web_search_call":
        return (item,)
    action = item.data.get("action")
    done: Json = action if isinstance(action, dict) else {}
    if url := done.get("url"):
        given: Json = {"url": url, **({"pattern": done["pattern"]} if done.get("pattern") else {})}
        found = [{"url": url}]
    else:
        given = {"queries": done.get("queries") or [done.get("query") or ""]}
        found = [{"url": str(page["url"])} for page in done.get("sources") or () if isinstance(page, dict) and "url" in page]
    suffix = str(item.data.get("id", "")).removeprefix("ws_")
    encoded, whose = msgspec.json.encode(given).decode(), ServerTool(WEB_SEARCH, WEB_SEARCH)
    call = FunctionCall(f"call_{suffix}", WEB_SEARCH, encoded, id=f"fc_{suffix}", form=WEB_SEARCH, server=whose)
    said = msgspec.json.encode({"results": item.data.get("results") or found}).decode()
    return call, FunctionCallOutput(call.call_id, said, id=f"fco_{suffix}", form=WEB_SEARCH)


def _split_interpreter_call(data: Json) -> tuple[Item, ...]:
    suffix = str(data.get("id", "")).removeprefix("ci_")
    given = msgspec.json.encode({"code": str(data.get("code") or "")}).decode()
    whose = ServerTool(str(data.get("container_id", "")), INTERPRETER)
    call = FunctionCall(f"call_{suffix}", INTERPRETER, given, id=f"fc_{suffix}", form=INTERPRETER, server=whose)
    logs = [str(part.get("logs", "")) for part in data.get("outputs") or () if isinstance(part, dict) and "logs" in part]
    return call, FunctionCallOutput(call.call_id, "".join(logs), id=f"fco_{suffix}", form=INTERPRETER)
