"""Animals that refuse what others take."""

import re
from typing import Any, ClassVar

from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import (
    CET,
    NOON,
    UTC,
    Animal,
    Learner,
    Outcome,
    Refusal,
    Talker,
    assistants,
    call,
    call_ids,
    mentions,
    outputs,
    say,
)

from mainspring.core.items import Json

SCHEMA: Json = {
    "type": "object",
    "properties": {"hour": {"type": "integer"}},
    "required": ["hour"],
    "additionalProperties": False,
}
HISTORY: list[Json] = [
    {"role": "user", "content": "What time is it in Oslo?"},
    {"type": "function_call", "call_id": "functions.get_time:0", "name": "get_time", "arguments": '{"zone": "CET"}'},
    {"type": "function_call_output", "call_id": "functions.get_time:0", "output": "13:00"},
    {"role": "assistant", "content": "It is one."},
    {"role": "user", "content": "And in London?"},
]


class NoStreamOptions(Talker):
    """Quirk 48: `stream_options` is refused (strict gateways). https://github.com/gonka-ai/gonka/pull/1177"""

    number = 48

    def refuse(self, body: Json) -> str | None:
        return "Unknown field: stream_options" if "stream_options" in body else None


class NoParallelSwitch(Talker):
    """Quirk 49: `parallel_tool_calls` is refused (Bedrock). https://github.com/anthropics/anthropic-sdk-python/issues/739"""

    number = 49
    request: ClassVar[dict[str, Any]] = {"parallel_tool_calls": False}

    def refuse(self, body: Json) -> str | None:
        return "Extra inputs are not permitted: parallel_tool_calls" if "parallel_tool_calls" in body else None


class NoMetadata(Talker):
    """Quirk 50: `store` and `metadata` are refused (Groq, Cerebras). https://github.com/livekit/agents/pull/1276"""

    number = 50
    request: ClassVar[dict[str, Any]] = {"store": True, "metadata": {"team": "clock"}}

    def refuse(self, body: Json) -> str | None:
        return "property 'store' is unsupported" if body.keys() & {"store", "metadata"} else None


class NoForcedCall(Animal):
    """Quirk 51: `tool_choice: required` is refused (Kimi and DeepSeek while they think).
    https://github.com/QwenLM/qwen-code/issues/7659"""

    number = 51
    request: ClassVar[dict[str, Any]] = {"tool_choice": "required"}

    def refuse(self, body: Json) -> str | None:
        forced = body.get("tool_choice") == "required"
        return "tool_choice 'required' is incompatible with thinking enabled" if forced else None


class NoNullContent(Animal):
    """Quirk 52: `content: null` beside calls is refused (LM Studio). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/261"""

    number = 52

    def refuse(self, body: Json) -> str | None:
        is_null = any(message.get("content") is None for message in body["messages"])
        return "Invalid 'content': 'content' objects must be strings" if is_null else None


class NoEmptyContent(Animal):
    """Quirk 53: `content: ""` is refused (Anthropic proxies). https://github.com/spring-projects/spring-ai/pull/5510"""

    number = 53

    def refuse(self, body: Json) -> str | None:
        is_empty = any(message.get("content") == "" for message in body["messages"])
        return "messages: text content blocks must be non-empty" if is_empty else None


class NineLetterIds(Talker):
    """Quirk 54: call ids must be nine letters or digits (Mistral). https://github.com/anomalyco/opencode/issues/1680"""

    number = 54
    request: ClassVar[dict[str, Any]] = {"input": HISTORY}

    def refuse(self, body: Json) -> str | None:
        ids = [*call_ids(body), *[output["tool_call_id"] for output in outputs(body)]]
        odd = [id for id in ids if not re.fullmatch("[A-Za-z0-9]{9}", id)]
        return f"Tool call id was {odd[0]} but must be a-z, A-Z, 0-9, with a length of 9." if odd else None


class PlainIds(Talker):
    """Quirk 55: call ids must fit `^[a-zA-Z0-9_-]+$` (Anthropic behind a gateway). https://github.com/earendil-works/pi/issues/9048"""

    number = 55
    request: ClassVar[dict[str, Any]] = {"input": HISTORY}

    def refuse(self, body: Json) -> str | None:
        odd = [id for id in call_ids(body) if not re.fullmatch("[a-zA-Z0-9_-]+", id)]
        return "tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'" if odd else None


class NoMaxTokens(Talker):
    """Quirk 57: `max_tokens` is refused (Azure's reasoning models). https://github.com/anomalyco/opencode/issues/37964"""

    number = 57
    request: ClassVar[dict[str, Any]] = {"max_output_tokens": 500}

    def refuse(self, body: Json) -> str | None:
        told = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
        return told if "max_tokens" in body else None


class NoTemperature(Talker):
    """Quirk 58: `temperature` is refused (reasoning models). https://github.com/chatboxai/chatbox/issues/2378"""

    number = 58
    request: ClassVar[dict[str, Any]] = {"temperature": 0.2}

    def refuse(self, body: Json) -> str | None:
        told = "Unsupported value: 'temperature' does not support 0.2 with this model. Only the default (1) value is supported."
        return told if "temperature" in body else None


class NoEffort(Talker):
    """Quirk 59: `reasoning_effort` is refused; code read in pi's `thinkingFormat`, which has eleven spellings."""

    number = 59
    request: ClassVar[dict[str, Any]] = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return "Unrecognized request argument supplied: reasoning_effort" if "reasoning_effort" in body else None


class OnlyStreams(Talker):
    """Quirk 60: thinking works only when streamed (Qwen on DashScope). https://github.com/langchain4j/langchain4j/issues/3974"""

    number = 60

    def refuse(self, body: Json) -> str | None:
        return None if body.get("stream") else "parameter.enable_thinking must be set to false for non-streaming calls"


class NoFormatWithTools(Animal):
    """Quirk 61: `response_format` is refused beside tools (Groq, llama.cpp). https://github.com/vllm-project/vllm/issues/16880"""

    number = 61
    request: ClassVar[dict[str, Any]] = {"text": {"format": {"type": "json_schema", "name": "time", "schema": SCHEMA}}}

    def refuse(self, body: Json) -> str | None:
        both = "response_format" in body and "tools" in body
        return "json mode cannot be combined with tool/function calling" if both else None

    def last(self, body: Json) -> bytes:
        return say('{"hour": 12}')

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", '{"hour": 12}')


class NoJsonObject(Talker):
    """Quirk 62: `json_object` is refused (LM Studio). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/189"""

    number = 62
    request: ClassVar[dict[str, Any]] = {"text": {"format": {"type": "json_object"}}, "input": "Tell the hour as JSON."}
    has_tools = False

    def refuse(self, body: Json) -> str | None:
        is_plain = (body.get("response_format") or {}).get("type") == "json_object"
        return "'response_format.type' must be 'json_schema' or 'text'" if is_plain else None

    def last(self, body: Json) -> bytes:
        return say('{"hour": 12}')

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", '{"hour": 12}')


class SchemaDropped(Learner):
    """Quirk 63: a schema is dropped without a word when its grammar fails (llama.cpp).
    https://github.com/ggml-org/llama.cpp/issues/19051"""

    number = 63
    code = "provider_invalid_output"
    has_tools = False
    request: ClassVar[dict[str, Any]] = {"text": {"format": {"type": "json_schema", "name": "time", "schema": SCHEMA}}}

    def last(self, body: Json) -> bytes:
        return say('{"hour": 12}') if mentions(body["messages"], "JSON Schema") else say("It is noon.")

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "completed"
        assert outcome.response.output_text == '{"hour": 12}'


class NoManySchemas(Animal):
    """Quirk 64: schemas of tools that are large together are refused (llama.cpp).
    https://github.com/ggml-org/llama.cpp/issues/25895"""

    number = 64

    def refuse(self, body: Json) -> str | None:
        tools = body.get("tools", ())
        size = max([len(str(tool["function"]["parameters"])) for tool in tools], default=0)
        if size > 40:
            return "Failed to initialize samplers: failed to parse grammar"
        assert all("JSON Schema" in tool["function"]["description"] for tool in tools), "the model must know the parameters"
        return None


class NoLongDescriptions(Animal):
    """Quirk 65: the text of a description crashes the grammar, within the answer (llama.cpp).
    https://github.com/ggml-org/llama.cpp/issues/27619"""

    number = 65
    request: ClassVar[dict[str, Any]] = {
        "tools": [
            {
                "type": "function",
                "name": "look",
                "description": "Looks around.\n\n<function>Use it with care!</function>",
                "parameters": {"type": "object", "properties": {"at": {"type": "string", "description": "Where; optional."}}},
            }
        ]
    }

    def first(self, body: Json) -> bytes:
        if mentions(body["tools"], "care|optional"):
            return sse({"error": {"code": 500, "message": "Unexpected empty grammar stack after accepting piece: <function"}})
        return call("call_1", UTC)


class NoClosedObjects(Animal):
    """Quirk 66: words of JSON Schema are refused (Gemini, Vertex). https://github.com/danny-avila/LibreChat/pull/13850"""

    number = 66

    def refuse(self, body: Json) -> str | None:
        told = "Invalid JSON payload received. Unknown name \"additionalProperties\" at 'tools[0].function.parameters'"
        return told if mentions(body, "additionalProperties") else None


class NoStrict(Animal):
    """Quirk 67: `strict` is refused (Cerebras). https://github.com/RooCodeInc/Roo-Code/issues/10334"""

    number = 67
    request: ClassVar[dict[str, Any]] = {
        "tools": [
            {
                "type": "function",
                "name": "look_up",
                "strict": True,
                "parameters": {"type": "object", "properties": {}, "required": [], "additionalProperties": False},
            }
        ]
    }

    def refuse(self, body: Json) -> str | None:
        return "tools.0.function.strict: Extra inputs are not permitted" if mentions(body, '"strict"') else None


class OneSystemMessage(Talker):
    """Quirk 68: one system message, and only in front (Gemma 3, Qwen). https://github.com/suitenumerique/conversations/issues/197"""

    number = 68
    request: ClassVar[dict[str, Any]] = {
        "instructions": "Be brief.",
        "input": [
            {"role": "developer", "content": "Speak plainly."},
            {"role": "user", "content": "Hello"},
            {"role": "developer", "content": "Be kind."},
            {"role": "user", "content": "What time is it?"},
        ],
    }

    def refuse(self, body: Json) -> Refusal | None:
        odd = [place for place, message in enumerate(body["messages"]) if place and message["role"] == "system"]
        return Refusal("System message must be at the beginning.", 500) if odd else None


class NoDeveloper(Talker):
    """Quirk 69: the role `developer` is refused (DeepInfra, GLM). https://github.com/earendil-works/pi/pull/1578"""

    number = 69
    request: ClassVar[dict[str, Any]] = {
        "input": [{"role": "developer", "content": "Speak plainly."}, {"role": "user", "content": "What time is it?"}]
    }

    def refuse(self, body: Json) -> str | None:
        return "unknown role: developer" if mentions(body["messages"][0], "developer") else None


class ToolsWithHistory(Talker):
    """Quirk 70: a history of calls without tools is refused (Bedrock, LiteLLM). https://github.com/patriceckhart/zot/pull/18"""

    number = 70
    has_tools = False
    request: ClassVar[dict[str, Any]] = {"input": HISTORY}

    def refuse(self, body: Json) -> str | None:
        has_calls = any(message.get("tool_calls") for message in assistants(body))
        return (
            "The toolConfig field must be defined when using toolUse content blocks."
            if has_calls and "tools" not in body
            else None
        )


class NoTools(Talker):
    """Quirk 71: the model cannot call tools and says so (Ollama). https://github.com/Pasta-Devs/Marinara-Engine/issues/1704"""

    number = 71

    def refuse(self, body: Json) -> str | None:
        return "registry.ollama.ai/library/x:latest does not support tools" if "tools" in body else None


class NoNamesOnOutputs(Animal):
    """Quirk 50: fields of messages that the standard does not have are refused (Groq). https://github.com/livekit/agents/pull/1276"""

    number = 50

    def refuse(self, body: Json) -> str | None:
        return "'messages.2' : property 'name' is unsupported" if any("name" in output for output in outputs(body)) else None

    def first(self, body: Json) -> bytes:
        return call("call_1", UTC)


class OneCallAtATime(Animal):
    """Quirk 105: the template takes one call in a turn of the history (Llama 3). https://github.com/unslothai/unsloth/pull/7426"""

    number = 105
    zones: ClassVar = ["UTC", "CET"]

    def refuse(self, body: Json) -> Refusal | None:
        has_two = any(len(message.get("tool_calls") or ()) > 1 for message in assistants(body))
        told = [message["role"] for message in body["messages"][1:]]
        assert has_two or told in ([], ["assistant", "tool"] * 2)
        return Refusal("This model only supports single tool-calls at once!", 500) if has_two else None

    def first(self, body: Json) -> bytes:
        made = [call_piece(0, id="a", name="get_time", arguments=UTC), call_piece(1, id="b", name="get_time", arguments=CET)]
        return sse(*map(chunk, made), chunk(finish="tool_calls")) + DONE


class NoStreamsWithTools(Animal):
    """Quirk 90: a stream is refused where there are tools; supposed, without a source, as servers on grammars say it."""

    number = 90

    def refuse(self, body: Json) -> str | None:
        return "Streaming is not supported when tools are used" if body.get("stream") and "tools" in body else None

    def first(self, body: Json) -> Json:
        return answer_whole({"content": None, **call_piece(0, id="a", name="get_time", arguments=UTC)}, "tool_calls")

    def last(self, body: Json) -> bytes | Json:
        return say(NOON) if body.get("stream") else answer_whole({"content": NOON}, "stop")


class NoStreams(Talker):
    """Quirk 97: streams are refused, whatever is asked (OpenAI, of an organization that is not verified); code read."""

    number = 97
    has_tools = False

    def refuse(self, body: Json) -> str | None:
        return "Your organization must be verified to stream this model." if body["stream"] else None

    def last(self, body: Json) -> Json:
        return answer_whole({"content": NOON}, "stop")


def answer_whole(message: Json, finish: str) -> Json:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    return {"object": "chat.completion", "choices": [choice]}
