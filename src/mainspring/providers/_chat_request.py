"""What a Chat Completions backend is asked: a `ModelRequest` as its JSON body."""

from collections.abc import Sequence
from typing import Final

import msgspec

from mainspring.errors import Refused
from mainspring.items import (
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
    Refusal,
    ToolDefinition,
    text_of,
)
from mainspring.loop.request import ModelRequest
from mainspring.spec import ToolChoice

OPENAI: Final = "api.openai.com"


def body_of(request: ModelRequest, host: str, *, named_outputs: bool = False) -> Json:
    """The request as JSON. Raises `Refused` for content that this wire format cannot carry."""
    body: Json = {
        "model": request.model,
        "messages": _messages(request, named_outputs),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    tools = [_tool(tool) for tool in request.tools if isinstance(tool, ToolDefinition)]
    if tools:
        body["tools"] = tools
        if (choice := _choice(request.tool_choice)) is not None:
            body["tool_choice"] = choice
        if not request.parallel_tool_calls:
            body["parallel_tool_calls"] = False
    options = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        token_limit(host): request.max_output_tokens,
        "response_format": _response_format((request.text or {}).get("format")),
        "reasoning_effort": (request.reasoning or {}).get("effort"),
    }
    body |= {name: value for name, value in options.items() if value is not None}
    return body | (request.extra or {})


def token_limit(host: str) -> str:
    """What a backend calls the bound on its output. OpenAI has renamed it, and its newer models know only the new name."""
    return "max_completion_tokens" if host == OPENAI else "max_tokens"


def _tool(tool: ToolDefinition) -> Json:
    function: Json = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters or {"type": "object", "properties": {}},
    }
    if tool.strict is not None:
        function["strict"] = tool.strict
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice) -> str | Json | None:
    """Auto is what backends do anyway, and some reject the word. What is `allowed` is the engine's business: it judges calls."""
    if choice.name is not None:
        return {"type": "function", "function": {"name": choice.name}}
    return None if choice.mode == "auto" else choice.mode


def _response_format(form: object) -> Json | None:
    match form:
        case {"type": "json_schema", **inner}:
            schema = {key: inner[key] for key in ("name", "description", "schema", "strict") if inner.get(key) is not None}
            return {"type": "json_schema", "json_schema": {"name": "answer", **schema}}
        case {"type": "json_object"}:
            return {"type": "json_object"}
        case _:
            return None


def _messages(request: ModelRequest, named_outputs: bool) -> list[Json]:
    messages: list[Json] = []
    if request.instructions:
        messages.append({"role": "system", "content": request.instructions})
    outputs = _outputs(request.items)
    turn = _Assistant()
    for position, item in enumerate(request.items):
        match item:
            case Message(role="assistant"):
                turn.texts.extend([text for text in map(_words, item.content) if text])
            case FunctionCall():
                turn.calls.append((item, outputs.get(position)))
            case Message():
                messages += turn.messages(named_outputs)
                turn = _Assistant()
                if (content := _content(item.content)) != []:
                    messages.append({"role": "user" if item.role == "user" else "system", "content": content})
            case FunctionCallOutput():
                messages += turn.messages(named_outputs)
                turn = _Assistant()
            case _:
                # Reasoning stays with the model that thought it; what we do not know, nobody can read.
                pass
    return messages + turn.messages(named_outputs)


def _outputs(items: Sequence[Item]) -> dict[int, FunctionCallOutput]:
    """The output of each call, by the call's position. Some backends use an id again in a later turn: the nearest call counts."""
    open_calls: dict[str, list[int]] = {}
    outputs: dict[int, FunctionCallOutput] = {}
    for position, item in enumerate(items):
        if isinstance(item, FunctionCall):
            open_calls.setdefault(item.call_id, []).append(position)
        elif isinstance(item, FunctionCallOutput) and (waiting := open_calls.get(item.call_id)):
            outputs[waiting.pop()] = item
    return outputs


class _Assistant:
    """What the model said in one turn, as the messages it becomes: its own, then the outputs, then what only a user may show."""

    __slots__ = ("calls", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.calls: list[tuple[FunctionCall, FunctionCallOutput | None]] = []

    def messages(self, named_outputs: bool) -> list[Json]:
        if not self.texts and not self.calls:
            return []
        message: Json = {"role": "assistant", "content": "\n".join(self.texts) if self.texts else None}
        if self.calls:
            message["tool_calls"] = [_tool_call(call) for call, _ in self.calls]
        outputs: list[Json] = []
        for call, output in self.calls:
            if output is not None:
                name = {"name": call.name} if named_outputs else {}
                outputs.append({"role": "tool", "tool_call_id": call.call_id, **name, "content": _output(output)})
        return [message, *outputs, *self._exhibits()]

    def _exhibits(self) -> list[Json]:
        """A tool message holds text only; images and files of outputs follow as a user's message that names their calls."""
        parts: list[Json] = []
        for call, output in self.calls:
            if output is not None and (shown := [part for part in output.output if isinstance(part, InputImage | InputFile)]):
                parts.append({"type": "text", "text": f"Attached by the output of `{call.name}` ({call.call_id}):"})
                parts += map(_part, shown)
        return [{"role": "user", "content": parts}] if parts else []


def _tool_call(call: FunctionCall) -> Json:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": _readable(call.arguments)}}


def _readable(arguments: str) -> str:
    """Arguments that a backend can parse, as many do: what the model botched is shown to it as such, and not as broken JSON."""
    if not arguments.strip():
        return "{}"
    try:
        _object.decode(arguments)
    except (ValueError, RecursionError):
        return msgspec.json.encode({"invalid_arguments": arguments}).decode()
    return arguments


def _output(output: FunctionCallOutput) -> str:
    text = text_of(output.output)
    if not text and not isinstance(output.output, str) and output.output:
        text = "The output is attached below."
    return f"Error: {text}" if output.is_error is True and not text.startswith("Error:") else text


def _content(parts: Sequence[Part]) -> str | list[Json]:
    match parts:
        case [InputText(text) | OutputText(text)]:
            return text
        case _:
            return [_part(part) for part in parts if isinstance(part, _SENDABLE)]


def _words(part: Part) -> str:
    """What a part of the model's own message says; a refusal is as much said as anything."""
    match part:
        case OutputText(text) | InputText(text) | Refusal(text):
            return text
        case _:
            return ""


def _part(part: Part) -> Json:
    match part:
        case InputText(text) | OutputText(text) | Refusal(text):
            return {"type": "text", "text": text}
        case InputImage(image_url=str(url)):
            return {"type": "image_url", "image_url": {"url": url, "detail": part.detail}}
        case InputFile(file_data=str(data)):
            return {"type": "file", "file": {"filename": part.filename or "file", "file_data": data}}
        case InputFile(file_id=str(file_id)):
            return {"type": "file", "file": {"file_id": file_id}}
        case InputImage():
            raise Refused("an image without `image_url` cannot be sent to a Chat Completions backend; pass a URL or a data URL")
        case _:
            raise Refused("a file by URL cannot be sent to a Chat Completions backend; pass `file_data`")


_SENDABLE = (InputText, InputImage, InputFile, OutputText, Refusal)
_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
