"""What a model on Bedrock is asked: a `ModelRequest` as the body of Converse.

Converse is the Messages API in other words, with the same rules of order. So the body is built as for Claude, whatever the model,
and then spelled anew. What the profile says a model does not take is left out or said in words.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from mainspring.core.errors import Refused
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.adapted_request import RULES, adapt_request
from mainspring.providers.anthropic import request as messages_api
from mainspring.providers.anthropic.claude_models import Family, find_family
from mainspring.providers.json_text import drop_none, merge_extra
from mainspring.providers.profiles import NEUTRAL, ModelProfile, RefusalRule
from mainspring.providers.transcript import shorten_id

VENDOR: Final = "bedrock"
REFUSALS: Final = (
    *(
        RefusalRule(field, value, re.compile(words, re.IGNORECASE))
        for field, value, words in (
            ("tool_choice", "auto", r"toolChoice|tool_choice"),
            ("tools", False, r"support tool use(?! in streaming)"),
            ("user_after_output", False, r"tool result blocks cannot be provided in the same turn"),
            ("cache_marks", False, r"\bcachePoint\b|not allow prompt caching"),
            ("seals", False, r"invalid .?signature.? in .?thinking"),
            ("system", "user", r"support (the )?system\b"),
            ("temperature", False, r"\btemperature\b"),
            ("top_p", False, r"\btop_?p\b"),
            ("reasoning_effort", False, r"thinking|reasoning_?(config|effort|mode)|extraneous key"),
        )
    ),
    # Some know tools where they do not stream, and say so in much the same words.
    *[rule for rule in RULES if rule.field != "tools"],
)
UNPROFILED: Final = re.compile("inference profile", re.IGNORECASE)
UNSTREAMED: Final = re.compile(r"support tool use in streaming", re.IGNORECASE)


def build_body(request: ModelRequest, profile: ModelProfile = NEUTRAL) -> Json:
    """The request as JSON. Raises `Refused` for content that this wire format cannot carry."""
    family = _find_family(request.model)
    request = adapt_request(request, profile)
    asked = replace(request, extra=None)
    told = messages_api.build_body(asked, family, name_vendor(request.model))
    can_cache = family.thinking is not None and profile.cache_marks
    messages = [_write_message(message, can_cache) for message in told["messages"]]
    if not profile.user_after_output:
        messages = list(_part_outputs(messages))
    words = [text["text"] for text in told.get("system", ())]
    tools = _tool_config(told, messages, words)
    if tools and can_cache:
        tools["tools"].append(_CACHE)
    limits = {
        "maxTokens": request.max_output_tokens and told["max_tokens"],
        "temperature": told.get("temperature"),
        "topP": told.get("top_p"),
        "stopSequences": told.get("stop_sequences"),
    }
    body = {
        "messages": messages,
        "system": [{"text": text} for text in words] + ([_CACHE] if words and can_cache else []),
        "toolConfig": tools,
        "inferenceConfig": drop_none(limits),
        "additionalModelRequestFields": _extra_fields(request, told),
    }
    return merge_extra({name: value for name, value in body.items() if value}, request.extra)


def name_vendor(model: str) -> str:
    """Whom signatures belong to: of the models on Bedrock, no maker's knows those of another's."""
    found = _MAKERS.search(model)
    return f"{VENDOR}-{found[1] if found else 'other'}"


def is_claude(model: str) -> bool:
    return "claude" in model.lower()


def _find_family(model: str) -> Family:
    """What the model differs in. Converse holds no answer to a schema that all models take: it is asked for in words."""
    return replace(find_family(model), structures=False) if is_claude(model) else _OTHER


def _tool_config(told: Json, messages: list[Json], words: list[str]) -> Json:
    """The tools. Where the conversation has calls in it, Bedrock wants tools, also where none may be called: then words forbid
    it."""
    used = {block["toolUse"]["name"] for message in messages for block in message["content"] if "toolUse" in block}
    choice = told.get("tool_choice", {"type": "auto"})
    is_forbidden = choice["type"] == "none" or not told.get("tools")
    if is_forbidden and not used:
        return {}
    if is_forbidden:
        words.append("Do not call a tool now. Answer in words.")
    known = told.get("tools") or [{"name": name, "input_schema": {"type": "object"}} for name in sorted(used)]
    tools = [_tool(tool) for tool in known]
    forced = {"any": {"any": {}}, "tool": {"tool": {"name": choice.get("name")}}}.get(choice["type"])
    return {"tools": tools} if forced is None else {"tools": tools, "toolChoice": forced}


def _tool(tool: Json) -> Json:
    spec = {"name": tool["name"], "description": tool.get("description"), "inputSchema": {"json": tool["input_schema"]}}
    return {"toolSpec": drop_none(spec)}


def _extra_fields(request: ModelRequest, told: Json) -> Json:
    """How hard to think, which each maker spells in its own way, and what only Claude knows."""
    if is_claude(request.model):
        fields = {"thinking": told.get("thinking"), "output_config": told.get("output_config")}
        if (choice := told.get("tool_choice", {})).get("disable_parallel_tool_use"):
            fields["tool_choice"] = choice
        return drop_none(fields)
    effort = (request.reasoning or {}).get("effort")
    level = {"minimal": "low", "xhigh": "high", "max": "high"}.get(effort or "", effort)
    if level is None or level == "none":
        return {}
    if "nova-2" in request.model:
        return {"reasoningConfig": {"type": "enabled", "maxReasoningEffort": level}}
    return {"reasoning_effort": level} if "gpt-oss" in request.model else {}


def _write_message(message: Json, can_cache: bool) -> Json:
    content = list(_write_blocks(message["content"]))
    if can_cache and any("cache_control" in block for block in message["content"]):
        content.append(_CACHE)
    if any("document" in block for block in content) and not any("text" in block for block in content):
        # A document is not taken without words beside it.
        content.append({"text": "(a document)"})
    return {"role": message["role"], "content": content}


def _part_outputs(messages: Sequence[Json]) -> Iterator[Json]:
    """Has the model speak between the outputs of tools and what the user says behind them."""
    for message in messages:
        outputs = [block for block in message["content"] if "toolResult" in block]
        rest = [block for block in message["content"] if "toolResult" not in block]
        if not outputs or all("cachePoint" in block for block in rest):
            yield message
            continue
        yield {"role": "user", "content": outputs}
        yield {"role": "assistant", "content": [{"text": "I have the output."}]}
        yield {"role": "user", "content": rest}


def _write_blocks(blocks: Sequence[Json]) -> Iterator[Json]:
    documents = 0
    for block in blocks:
        match block:
            case {"type": "text", "text": text}:
                yield {"text": text}
            case {"type": "thinking", "thinking": thought, "signature": signature}:
                yield {"reasoningContent": {"reasoningText": {"text": thought, "signature": signature}}}
            case {"type": "redacted_thinking", "data": data}:
                yield {"reasoningContent": {"redactedContent": data}}
            case {"type": "tool_use", "id": id, "name": name, "input": arguments}:
                yield {"toolUse": {"toolUseId": shorten_id(id, 64), "name": name[:64], "input": arguments}}
            case {"type": "tool_result", "tool_use_id": id}:
                said = list(_write_blocks(block.get("content") or ())) or [{"text": "(nothing)"}]
                status = {"status": "error"} if block.get("is_error") else {}
                yield {"toolResult": {"toolUseId": shorten_id(id, 64), "content": said, **status}}
            case {"type": "image", "source": {"type": "base64", "media_type": mime, "data": data}}:
                yield {"image": {"format": mime.removeprefix("image/"), "source": {"bytes": data}}}
            case {"type": "document", "source": source}:
                documents += 1
                yield {"document": _write_document(source, block.get("title", ""), documents)}
            case _:
                raise Refused("Bedrock takes images and files only as data URLs; pass their content")


def _write_document(source: Json, title: str, number: int) -> Json:
    """The name may have few characters, and must differ from those of others in the message."""
    name = " ".join(_ODD.sub(" ", title.rpartition(".")[0] or title).split())[:100]
    match source:
        case {"type": "base64", "data": data}:
            content, form = data, "pdf"
        case {"type": "text", "data": text}:
            content, form = b64encode(text.encode()).decode(), "txt"
        case _:
            raise Refused("Bedrock takes files only with their content; pass `file_data`")
    return {"format": form, "name": f"{name or 'document'} {number}", "source": {"bytes": content}}


_CACHE: Final[Json] = {"cachePoint": {"type": "default"}}
_OTHER: Final = Family("", None, 8_192, None, efforts=(), rest=None, samples=True, structures=False)
_MAKERS: Final = re.compile(
    r"(?:^|[./])(ai21|amazon|anthropic|cohere|deepseek|google|meta|minimax|mistral|moonshot|nvidia|openai|qwen|writer|zai)\."
)
_ODD: Final = re.compile(r"[^a-zA-Z0-9\s()\[\]-]+")
