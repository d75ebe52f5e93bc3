"""What Ollama is asked: a `ModelRequest` as the body of `/api/chat`.

Arguments are objects, calls have no ids, an output names its tool.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import UNSET

from mainspring.core.drafts import words
from mainspring.core.errors import Refused
from mainspring.core.items import InputFile, InputImage, InputText, Item, Json, Part, Reasoning, ToolDefinition
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.providers import transcript
from mainspring.providers.adapted_request import adapt_request
from mainspring.providers.json_text import drop_none, json_text, merge_extra
from mainspring.providers.media import EmbeddedFile, list_readable, parse_data_url, read_attachment
from mainspring.providers.profiles import ModelProfile, find_profile
from mainspring.providers.transcript import InputTurn, ModelTurn


def build_body(request: ModelRequest, num_ctx: int | None = None, profile: ModelProfile | None = None) -> Json:
    """The request as JSON, as the model takes it. Raises `Refused` for content that this wire format cannot carry."""
    profile = profile or find_profile(request.model)
    request = adapt_request(request, profile)
    tools = list(map(_tool, transcript.list_functions(request))) if request.tool_choice.mode != "none" else []
    form = transcript.find_schema(request)
    rules = [request.instructions or "", *(_wishes(request.tool_choice, form) if tools else ())]
    sampling = {
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stop": list(request.stop) or None,
        "seed": request.seed,
    }
    options = {"num_ctx": num_ctx, "num_predict": request.max_output_tokens, **sampling}
    fields = {
        "tools": tools or None,
        "format": None if tools or form is None else form or "json",
        "think": _think(profile, request.reasoning),
        "options": drop_none(options) or None,
    }
    messages = _messages(rules, request.items, has_ids=profile.call_ids)
    body: Json = {"model": request.model, "messages": messages, "stream": True, **drop_none(fields)}
    return merge_extra(body, request.extra)


def _wishes(choice: ToolChoice, form: Json | None) -> Iterator[str]:
    """What a model with tools can only be asked for: Ollama cannot force a call, and one held to a format could make none."""
    if choice.name is not None:
        yield f"Answer by calling the tool `{choice.name}`."
    elif choice.mode == "required":
        yield "Answer by calling one of the tools."
    if form is not None:
        yield f"Answer with JSON only, by this JSON Schema: {json_text(form)}" if form else "Answer with JSON only."


def _tool(tool: ToolDefinition) -> Json:
    """Ollama reads the parameters into types of its own: properties are objects, never just true."""
    parameters = {"type": "object", "properties": {}, **(tool.parameters or {})}
    if isinstance(properties := parameters["properties"], dict):
        parameters["properties"] = {name: part if isinstance(part, dict) else {} for name, part in properties.items()}
    return {"type": "function", "function": {"name": tool.name, "description": tool.description, "parameters": parameters}}


def _think(profile: ModelProfile, reasoning: Json | None) -> bool | str | None:
    """Most models think or do not; some always do, at one of three levels."""
    effort = (reasoning or {}).get("effort")
    if effort is None:
        return None
    if profile.effort == "level":
        return _LEVELS.get(effort, "high")
    return bool(effort != "none")


def _messages(rules: Sequence[str], items: Sequence[Item], *, has_ids: bool) -> list[Json]:
    messages: list[Json] = []
    if any(rules):
        messages.append({"role": "system", "content": "\n\n".join(filter(None, rules))})
    for turn in transcript.list_turns(items):
        match turn:
            case InputTurn(role, parts):
                if (message := _write_input(role, parts)) is not None:
                    messages.append(message)
            case ModelTurn() if not turn.is_mute:
                messages += _write_turn(turn, has_ids=has_ids)
    if all(message["role"] == "system" for message in messages):
        # Asked nothing, Ollama only loads the model.
        messages.append({"role": "user", "content": transcript.FILLER})
    return messages


def _write_input(role: str, parts: Sequence[Part]) -> Json | None:
    texts = [text for text in map(_read_out, parts) if text]
    images = [_image(part) for part in parts if isinstance(part, InputImage)]
    if not texts and not images:
        return None
    return {"role": role, "content": "\n".join(texts)} | ({"images": images} if images else {})


def _write_turn(turn: ModelTurn, *, has_ids: bool) -> list[Json]:
    """What the model said in one turn, then the outputs in the order of their calls, then what only a user may show."""
    texts = turn.texts
    # What another vendor has sealed is no thought of a model here.
    open_thoughts = [item for item in turn.items if isinstance(item, Reasoning) and item.encrypted_content in (None, UNSET)]
    message: Json = {"role": "assistant", "content": "\n".join(texts)}
    if thought := "".join([word for item in open_thoughts for word in words(item)]):
        message["thinking"] = thought
    if turn.calls:
        calls = [(called.call, transcript.parse_call_arguments(called.call)) for called in turn.calls]
        message["tool_calls"] = [
            {"function": {"name": call.name, "arguments": arguments}} | ({"id": call.call_id} if has_ids else {})
            for call, arguments in calls
        ]
    messages = [message] if texts or turn.calls else []
    for called in turn.calls:
        output = {"role": "tool", "tool_name": called.call.name, "content": called.output_text}
        messages.append(output | ({"tool_call_id": called.call.call_id} if has_ids else {}))
    return messages + _exhibits(turn)


def _exhibits(turn: ModelTurn) -> list[Json]:
    """Models look at images of a user's only; those of an output follow as such, under the name of its tool."""
    shown = [(called.call.name, list_readable(called.attachments, _is_text)) for called in turn.calls if called.attachments]
    exhibits = [_write_input("user", [InputText(f"Attached by the output of `{name}`:"), *parts]) for name, parts in shown]
    return [message for message in exhibits if message is not None]


def _is_text(file: EmbeddedFile) -> bool:
    return file.text() is not None


def _read_out(part: Part) -> str:
    """What a part says; a file that is text is read out."""
    if not isinstance(part, InputFile):
        return transcript.get_text(part)
    file = read_attachment(part)
    content = None if file is None else file.text()
    if content is None:
        raise Refused(f"the file `{part.filename or 'file'}` cannot be sent to Ollama; pass text as `file_data`, or images")
    return f"{part.filename or 'file'}:\n{content}"


def _image(image: InputImage) -> str:
    found = parse_data_url(image.image_url or "")
    if found is None:
        where = image.image_url or image.file_id or "none"
        raise Refused(f"the image `{where:.200}` cannot be sent to Ollama, which fetches nothing; pass it as a data URL")
    return found.data


_LEVELS: Final = {"none": "low", "minimal": "low", "low": "low", "medium": "medium"}
