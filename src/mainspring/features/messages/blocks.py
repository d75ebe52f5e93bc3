"""The messages of the Messages API, as the items that they stand for.

A message is blocks. Those of the user are one message, but for results of tools, which are outputs of their own. Those of the
assistant are what it thought, said and called. The signature of a thought is what our item keeps for the vendor that thought it.
"""

from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from mainspring.core.errors import InvalidRequest
from mainspring.core.ids import derive_id
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Unknown,
    text_of,
)
from mainspring.definitions.parsed_file import hint
from mainspring.features.messages.search_blocks import RESULTS, USE, read_search
from mainspring.http.ignored import IgnoredFields

_FIELDS: Final = {
    "text": {"text", "citations"},
    "image": {"source"},
    "document": {"source", "title", "context"},
    "search_result": {"source", "title", "content"},
    "tool_reference": {"tool_name"},
    "tool_result": {"tool_use_id", "content", "is_error"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
    "tool_use": {"id", "name", "input", "caller"},
    "mcp_tool_use": {"id", "name", "server_name", "input"},
    "mcp_tool_result": {"tool_use_id", "content", "is_error"},
    USE: {"id", "name", "input", "caller"},
    **{kind: {"tool_use_id", "content", "caller"} for kind in RESULTS},
}
_GIVEN: Final = ("text", "image", "document", "search_result")
_ALLOWED: Final = {
    "user": (*_GIVEN, "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use", "mcp_tool_use", "mcp_tool_result", USE, *RESULTS),
    "system": ("text",),
}


class BlockReader:
    """Reads messages. `places` says of each item which message it is of."""

    def __init__(self, ignored: IgnoredFields, places: list[str]) -> None:
        self._ignored, self._places = ignored, places

    def read(self, messages: Sequence[Json]) -> tuple[Item, ...]:
        """Raises `InvalidRequest` that names the block at fault."""
        items: list[Item] = []
        for number, message in enumerate(messages):
            place, role = f"messages[{number}]", message.get("role")
            if not isinstance(role, str) or role not in _ALLOWED:
                raise _refuse(f"{place}.role", f"must be who speaks; {hint(str(role)[:80], list(_ALLOWED))}", "invalid_value")
            self._ignored.compare(place, message, {"role", "content"})
            blocks = self.list_blocks(message.get("content"), f"{place}.content", _ALLOWED[role])
            made = list(self._read_assistant(blocks) if role == "assistant" else self._read_input(role, blocks))
            items += made
            self._places += [place] * len(made)
        return tuple(items)

    def list_blocks(self, content: object, place: str, allowed: Sequence[str]) -> list[tuple[Json, str]]:
        """The blocks of a content, each with its place."""
        if isinstance(content, str):
            return [({"type": "text", "text": content}, place)]
        if not isinstance(content, list):
            raise _refuse(place, "must be text, or a list of blocks", "invalid_type")
        blocks: list[tuple[Json, str]] = []
        for number, block in enumerate(content):
            where = f"{place}[{number}]"
            kind = block.get("type") if isinstance(block, dict) else None
            if not isinstance(kind, str) or kind not in allowed:
                known = hint(str(kind)[:80], list(allowed))
                raise _refuse(f"{where}.type", f"cannot be `{str(kind)[:80]}` here; {known}", "invalid_value")
            self._ignored.compare(where, block, _FIELDS[kind] | {"type", "cache_control"})
            blocks.append((block, where))
        return blocks

    def _read_input(self, role: str, blocks: Sequence[tuple[Json, str]]) -> Iterator[Item]:
        parts: list[Part] = []
        for block, place in blocks:
            if block["type"] != "tool_result":
                parts += self.read_parts(block, place)
                continue
            if parts:
                yield Message("user", tuple(parts))
                parts = []
            yield self._read_result(block, place)
        if parts:
            yield Message("system" if role == "system" else "user", tuple(parts))

    def _read_result(self, block: Json, place: str) -> FunctionCallOutput:
        if not isinstance(id := block.get("tool_use_id"), str) or not id:
            raise _refuse(f"{place}.tool_use_id", "is missing; name the call that this is the result of", _MISSING)
        blocks = self.list_blocks(block.get("content") or "", f"{place}.content", (*_GIVEN, "tool_reference"))
        parts = tuple([part for inner, where in blocks for part in self.read_parts(inner, where)])
        is_plain = all(isinstance(part, InputText) for part in parts)
        is_error = block.get("is_error") is True or msgspec.UNSET
        return FunctionCallOutput(id, text_of(parts) if is_plain else parts, is_error=is_error)

    def read_parts(self, block: Json, place: str) -> Iterator[Part]:
        """What a block of the user's stands for. Raises `InvalidRequest`."""
        match block:
            case {"type": "text", "text": str(text)}:
                if text:
                    yield InputText(text)
            case {"type": "image", "source": dict(source)}:
                yield _read_image(source, f"{place}.source")
            case {"type": "document", "source": dict(source)}:
                yield from self._read_document(block, source, place)
            case {"type": "search_result", "content": content, "title": str(title), "source": str(source)}:
                found = self.list_blocks(content, f"{place}.content", ("text",))
                said = [part for each, where in found for part in self.read_parts(each, where)]
                yield InputText(f"{title} ({source})\n{text_of(said)}")
            case {"type": "tool_reference", "tool_name": str(name)}:
                # It is declared among the tools, deferred or not, and the model is shown all of them.
                yield InputText(f"The tool `{name}` is loaded.")
            case {"type": kind}:
                raise _refuse(place, f"has not what a block of type `{kind}` needs", "invalid_type")

    def _read_document(self, block: Json, source: Json, place: str) -> Iterator[Part]:
        title = found if isinstance(found := block.get("title"), str) else None
        if isinstance(context := block.get("context"), str) and context:
            yield InputText(f"[about the document that follows]\n{context}")
        if source.get("type") != "content":
            yield _read_file(source, title, f"{place}.source")
            return
        if title:
            yield InputText(f"[file {title}]")
        for inner, where in self.list_blocks(source.get("content"), f"{place}.source.content", ("text", "image")):
            yield from self.read_parts(inner, where)

    def _read_assistant(self, blocks: Sequence[tuple[Json, str]]) -> Iterator[Item]:
        kinds = ("mcp_tool_use", USE)
        uses = {block.get("id") for block, _ in blocks if block["type"] in kinds and isinstance(block.get("id"), str)}
        # Each is of one call, and is read once: it may be long, and calls with the same id may be many.
        results = {id: (block, place) for block, place in blocks if isinstance(id := block.get("tool_use_id"), str)}
        for block, place in blocks:
            match block:
                case {"type": "text", "text": str(text)}:
                    if text:
                        yield Message("assistant", (OutputText(text),))
                case {"type": "thinking", "thinking": str(thought)} if isinstance(block.get("signature"), str | None):
                    signature = block.get("signature") or msgspec.UNSET
                    yield Reasoning(content=(ReasoningText(thought),) if thought else msgspec.UNSET, encrypted_content=signature)
                case {"type": "redacted_thinking", "data": str(data)}:
                    yield Reasoning(encrypted_content=data)
                case {"type": "tool_use", "id": str(id), "name": str(name), "input": dict(given)}:
                    yield FunctionCall(id, name, msgspec.json.encode(given).decode())
                case {"type": "mcp_tool_use", "id": str(id)}:
                    yield self._read_server_call(block, *results.pop(id, (_UNFINISHED, place)))
                case {"type": "server_tool_use", "id": str(id), "name": "web_search" | "web_fetch"}:
                    yield read_search(block, results.pop(id, (_UNFINISHED, place))[0])
                case {"type": kind, "tool_use_id": str(id)} if id in uses and kind in ("mcp_tool_result", *RESULTS):
                    pass  # which is read with its call
                case {"type": kind}:
                    raise _refuse(place, f"has not what a block of type `{kind}` needs", "invalid_type")

    def _read_server_call(self, use: Json, result: Json, place: str) -> Item:
        """What a tool of the server's did, as clients with `Mainspring-Extensions: on` are told."""
        blocks = self.list_blocks(result.get("content") or "", f"{place}.content", ("text",))
        said = text_of([part for block, where in blocks for part in self.read_parts(block, where)])
        call: Json = {
            "type": "mcp_call",
            "id": derive_id("mcp", use["id"]),
            "server_label": str(use.get("server_name", "")),
            "name": str(use.get("name", "")),
            "arguments": msgspec.json.encode(use.get("input") or {}).decode(),
        }
        failed = {"error": {"content": [{"type": "text", "text": said}]}}
        return Unknown({**call, **(failed if result.get("is_error") is True else {"output": said})})


def _read_image(source: Json, place: str) -> InputImage:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return InputImage(f"data:{kind};base64,{data}")
        case {"type": "url", "url": str(url)}:
            return InputImage(url)
        case {"type": "file", "file_id": str(file_id)}:
            return InputImage(file_id=file_id)
        case _:
            raise _refuse(place, "must be `base64` with `media_type` and `data`, a `url`, or a `file`", "invalid_value")


def _read_file(source: Json, title: str | None, place: str) -> InputFile:
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data)}:
            return InputFile(title or "document.pdf", f"data:{kind};base64,{data}")
        case {"type": "text", "data": str(text)}:
            return InputFile(title or "document.txt", f"data:text/plain;base64,{b64encode(text.encode()).decode()}")
        case {"type": "url", "url": str(url)}:
            return InputFile(title or msgspec.UNSET, file_url=url)
        case {"type": "file", "file_id": str(file_id)}:
            return InputFile(title or msgspec.UNSET, file_id=file_id)
        case _:
            told = "must be `base64` with `media_type` and `data`, `text`, `content`, a `url`, or a `file`"
            raise _refuse(place, told, "invalid_value")


_MISSING: Final = "missing_required_parameter"
_UNFINISHED: Final[Json] = {"content": "the call has no result", "is_error": True}


def _refuse(param: str, told: str, code: str) -> InvalidRequest:
    return InvalidRequest(f"{param} {told}", param=param, code=code)
