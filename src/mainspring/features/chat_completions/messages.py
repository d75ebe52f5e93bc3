"""The messages of a chat, as the items that they stand for.

A message of the assistant is several items: what it thought, what it said, what it called. One that has `mainspring_output`, as
clients with `Mainspring-Extensions: on` are given it, is exactly the items in there: what the server's tools did is not lost.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from mainspring.core.errors import InvalidRequest
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
    Refusal,
    Unknown,
    convert,
)
from mainspring.definitions.parsed_file import hint
from mainspring.http.ignored import IgnoredFields

OUTPUT: Final = "mainspring_output"

_FIELDS: Final = {
    "system": {"role", "content"},
    "developer": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "refusal", "tool_calls", "reasoning_content", "reasoning", "annotations", OUTPUT},
    "tool": {"role", "content", "tool_call_id"},
}
_USERS: Final = ("text", "image_url", "input_audio", "file")
_FILE: Final = ("filename", "file_data", "file_id")


class MessageReader:
    """Reads messages. `places` says of each item which message it is of."""

    def __init__(self, ignored: IgnoredFields, places: list[str]) -> None:
        self._ignored, self.places = ignored, places

    def read(self, messages: Sequence[Json]) -> tuple[Item, ...]:
        """Raises `InvalidRequest` that names the part at fault."""
        items: list[Item] = []
        for number, message in enumerate(messages):
            place = f"messages[{number}]"
            made = list(self._read_message(message, place))
            items += made
            self.places += [place] * len(made)
        return tuple(items)

    def _read_message(self, message: Json, place: str) -> Iterator[Item]:
        role = message.get("role")
        if role == "function":
            raise _refuse(
                f"{place}.role", "results of `functions` are not taken; declare `tools`, and send results with the role `tool`"
            )
        if not isinstance(role, str) or role not in _FIELDS:
            raise _refuse(
                f"{place}.role", f"must be the role of who speaks; {hint(str(role)[:80], list(_FIELDS))}", "invalid_value"
            )
        self._ignored.compare(place, message, _FIELDS[role])
        match role:
            case "assistant":
                yield from self._read_assistant(message, place)
            case "tool":
                id = message.get("tool_call_id")
                if not isinstance(id, str) or not id:
                    told = "is missing; name the call that this is the result of"
                    raise _refuse(f"{place}.tool_call_id", told, "missing_required_parameter")
                parts = self._read_parts(message.get("content"), f"{place}.content", _USERS)
                is_plain = all(isinstance(part, InputText) for part in parts)
                yield FunctionCallOutput(
                    id, "".join([part.text for part in parts if isinstance(part, InputText)]) if is_plain else parts
                )
            case "user" | "system" | "developer":
                allowed = _USERS if role == "user" else ("text",)
                yield Message(role, self._read_parts(message.get("content"), f"{place}.content", allowed))

    def _read_assistant(self, message: Json, place: str) -> Iterator[Item]:
        if message.get("function_call") is not None:
            raise _refuse(
                f"{place}.function_call", "is not taken; send the call in `tool_calls`, and its result with the role `tool`"
            )
        if message.get("audio") is not None:
            raise _refuse(f"{place}.audio", "refers to sound that is kept nowhere; send what was said as `content`")
        if (output := message.get(OUTPUT)) is not None:
            try:
                yield from convert(output, tuple[Item, ...])
            except msgspec.ValidationError as error:
                raise _refuse(f"{place}.{OUTPUT}", f"must be what an answer had there: {error}", "invalid_type") from None
            return
        thought = message.get("reasoning_content") or message.get("reasoning")
        if isinstance(thought, str) and thought:
            yield Reasoning(content=(ReasoningText(thought),))
        said: list[Part] = []
        for part in self._read_parts(message.get("content") or [], f"{place}.content", ("text", "refusal")):
            said.append(OutputText(part.text) if isinstance(part, InputText) else part)
        if isinstance(refusal := message.get("refusal"), str) and refusal:
            said.append(Refusal(refusal))
        if said:
            yield Message("assistant", tuple(said))
        calls = message.get("tool_calls") or []
        if not isinstance(calls, list):
            raise _refuse(f"{place}.tool_calls", "must be a list of calls", "invalid_type")
        for number, call in enumerate(calls):
            yield _read_call(call, f"{place}.tool_calls[{number}]")

    def _read_parts(self, content: object, place: str, allowed: Sequence[str]) -> tuple[Part, ...]:
        if isinstance(content, str):
            return (InputText(content),)
        if not isinstance(content, list):
            raise _refuse(place, "must be text, or a list of parts", "invalid_type")
        parts = tuple([_read_part(part, f"{place}[{number}]", allowed) for number, part in enumerate(content)])
        for number, part in enumerate(content):
            self._ignored.compare(f"{place}[{number}]", part, {"type", part["type"]})
        return parts


def _read_call(call: object, place: str) -> Item:
    match call:
        case {"id": str(id), "type": "custom", "custom": {"name": str(name), "input": str(given)}}:
            return Unknown({"type": "custom_tool_call", "call_id": id, "name": name, "input": given})
        case {"id": str(id), "function": {"name": str(name), "arguments": str() | None as arguments}}:
            return FunctionCall(id, name, arguments or "")
        case {"id": str(id), "function": {"name": str(name)} as function} if "arguments" not in function:
            return FunctionCall(id, name)
        case _:
            shape = '{"id", "type": "function", "function": {"name", "arguments"}}, the arguments as text'
            raise _refuse(place, f"must be {shape}", "invalid_type")


def _read_part(part: object, place: str, allowed: Sequence[str]) -> Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in allowed:
        known = hint(str(kind)[:80], list(allowed))
        raise _refuse(f"{place}.type", f"cannot be `{str(kind)[:80]}` here; {known}", "invalid_value")
    match part:
        case {"type": "text", "text": str(text)}:
            return InputText(text)
        case {"type": "refusal", "refusal": str(text)}:
            return Refusal(text)
        case {"type": "image_url", "image_url": {"url": str(url), **rest}} if isinstance(rest.get("detail"), str | None):
            return InputImage(url, str(rest.get("detail") or "auto"))
        case {"type": "input_audio", "input_audio": {"data": str(), "format": str()} as sound}:
            return Unknown({"type": "input_audio", "input_audio": sound})
        case {"type": "file", "file": dict(file)} if file.get("file_data") or file.get("file_id"):
            named = {name: value for name in _FILE if (value := file.get(name))}
            if all(isinstance(value, str) for value in named.values()):
                return InputFile(**named)
    raise _refuse(place, f"has not what a part of type `{kind}` needs", "invalid_type")


def _refuse(param: str, told: str, code: str = "unsupported_value") -> InvalidRequest:
    return InvalidRequest(f"{param} {told}", param=param, code=code)
