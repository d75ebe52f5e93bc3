"""Animals of the native formats that refuse a request, in the words of those that do."""

from collections.abc import Sequence
from typing import Any, ClassVar

from tests.zoo.animal import NOON, UTC, mentions
from tests.zoo.native_animal import Outcome
from tests.zoo.native_anthropic import ClaudeAnimal
from tests.zoo.native_gemini import GeminiAnimal
from tests.zoo.native_ollama import OllamaAnimal

from mainspring.core.items import Json

TAGGED = f'<tool_call>\n{{"name": "get_time", "arguments": {UTC}}}\n</tool_call>'
NOTE: Json = {
    "type": "function",
    "name": "note",
    "parameters": {
        "type": "object",
        "properties": {
            "text": {"type": ["string", "null"]},
            "kind": {"anyOf": [{"type": "string", "format": "uri"}, {"const": 7}]},
            "near": {"$ref": "#/$defs/place"},
        },
        "$defs": {"place": {"type": "object", "properties": {}}},
    },
    "strict": True,
}
SCHEMA: Json = {"type": "object", "properties": {"time": {"type": "string"}}, "required": ["time"], "additionalProperties": False}
FORMAT: Json = {"format": {"type": "json_schema", "name": "answer", "schema": SCHEMA}}
ANSWER = '{"time": "noon"}'


class Answering:
    """Answers with JSON if it is asked for, and calls nothing."""

    zones: ClassVar[list[str]] = []

    def first(self, body: Json) -> bytes:
        return self.say(ANSWER if mentions(body, "JSON") or mentions(body, "schema") else NOON)  # type: ignore[attr-defined, no-any-return]

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", ANSWER), outcome.response


class Thoughtful:
    """The conversation has a thought in it that its vendor has `sealed`, with a call."""

    sealed: ClassVar[str]
    request: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.request = {
            "reasoning": {"effort": "low"},
            "input": [
                {"role": "user", "content": "What time is it?"},
                {"type": "reasoning", "id": "rs_old", "summary": [], "encrypted_content": cls.sealed},
                {"type": "function_call", "id": "fc_old", "call_id": "old", "name": "get_time", "arguments": UTC},
                {"type": "function_call_output", "call_id": "old", "output": "11:00"},
                {"role": "user", "content": "And now?"},
            ],
        }

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return super().find_outputs(body)[1:]  # type: ignore[misc, no-any-return]


class ThinkLevelRefused(OllamaAnimal):
    """How hard to think cannot be said, only whether. https://github.com/musistudio/claude-code-router/issues/1093"""

    model = "gpt-oss:tuned"
    request: ClassVar = {"reasoning": {"effort": "high"}}

    def refuse(self, body: Json) -> str | None:
        return 'think value "high" is not supported for this model' if isinstance(body.get("think"), str) else None


class OldThink(OllamaAnimal):
    """An old server knows no levels. https://github.com/fgrehm/pi-ollama-cloud/issues/6"""

    model = "gpt-oss:tuned"
    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        words = "json: cannot unmarshal string into Go struct field ChatRequest.think of type bool"
        return words if isinstance(body.get("think"), str) else None


class OneTypeEach(OllamaAnimal):
    """A property may have one type only. https://github.com/ollama/ollama/issues/10328"""

    request: ClassVar = {"tools": [NOTE]}

    def refuse(self, body: Json) -> str | None:
        words = "json: cannot unmarshal array into Go struct field .tools.function.parameters.properties.type of type string"
        return words if mentions(body.get("tools"), r'"type":\[') else None


class OldFormat(Answering, OllamaAnimal):
    """An old server knows JSON, and no schemas. https://github.com/ollama/ollama/issues/7991"""

    request: ClassVar = {"text": FORMAT}

    def refuse(self, body: Json) -> str | None:
        words = "json: cannot unmarshal object into Go struct field ChatRequest.format of type string"
        return words if isinstance(body.get("format"), dict) else None


class NoThinkingLevel(GeminiAnimal):
    """How hard to think cannot be said. https://github.com/RooCodeInc/Roo-Code/issues/10700"""

    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return "Thinking level is not supported for this model." if mentions(body, "thinkingLevel") else None


class AlwaysThinking(GeminiAnimal):
    """It cannot but think. https://github.com/vercel/ai/issues/8027"""

    model = "gemini-2.5-flash-tuned"
    request: ClassVar = {"reasoning": {"effort": "none"}}

    def refuse(self, body: Json) -> str | None:
        words = "Budget 0 is invalid. This model only works in thinking mode."
        return words if mentions(body, '"thinkingBudget":0') else None


class FullObjects(GeminiAnimal):
    """Objects must have properties. https://github.com/pydantic/pydantic-ai/pull/1998"""

    def refuse(self, body: Json) -> str | None:
        words = "tools[0].function_declarations[1].parameters.properties: should be non-empty for OBJECT type"
        return words if mentions(body.get("tools"), r'"properties":\{\}') else None


class OneTypeEachHere(GeminiAnimal):
    """A property may have one type only. https://github.com/aoci-spec/aoci-code/issues/61"""

    request: ClassVar = {"tools": [NOTE]}

    def refuse(self, body: Json) -> str | None:
        where = "tools[0].function_declarations[0].parameters.properties[0].value"
        words = (
            f"Invalid JSON payload received. Unknown name \"type\" at '{where}': Proto field is not repeating, cannot start list."
        )
        return words if mentions(body.get("tools"), r'"type":\[') else None


class TypesWanted(GeminiAnimal):
    """Each part of a schema must say its type. https://github.com/brightwave-inc/tidebreak/pull/1537"""

    request: ClassVar = {"tools": [NOTE]}

    def refuse(self, body: Json) -> str | None:
        words = "`note` functionDeclaration `parameters.kind` schema didn't specify the schema type field."
        return words if mentions(body.get("tools"), "anyOf") else None


class NoReferences(GeminiAnimal):
    """References within schemas are refused. https://github.com/su-kaka/gcli2api/pull/374"""

    request: ClassVar = {"tools": [NOTE]}

    def refuse(self, body: Json) -> str | None:
        words = "tools[0].function_declarations[0].parameters: reference to undefined schema at properties.near"
        return words if mentions(body.get("tools"), r"\$ref") else None


class GemmaWithoutTools(GeminiAnimal):
    """A model knows no tools. https://github.com/livekit/agents/pull/7080"""

    model = "gemma-3-27b-it"

    def refuse(self, body: Json) -> str | None:
        return "Function calling is not enabled for models/gemma-3-27b-it" if "tools" in body else None

    def first(self, body: Json) -> bytes:
        if mentions(body, "12:00"):
            return self.say(NOON)
        return self.say(TAGGED if mentions(body, "Tells the time in a zone.") else "I cannot know that.")


class GemmaWithoutSystem(GeminiAnimal):
    """A model has no instructions. https://github.com/livekit/agents/pull/7080"""

    request: ClassVar = {"instructions": "Be brief."}

    def refuse(self, body: Json) -> str | None:
        if "systemInstruction" in body:
            return "Developer instruction is not enabled for models/gemma-3-27b-it"
        return None if mentions(body, "Be brief.") else "Where are my instructions?"


class NoJsonMode(Answering, GeminiAnimal):
    """A model cannot be held to JSON. https://github.com/livekit/agents/pull/7080"""

    request: ClassVar = {"text": FORMAT}

    def refuse(self, body: Json) -> str | None:
        return "JSON mode is not enabled for models/gemma-3-27b-it" if mentions(body, "responseMimeType") else None


class NoJsonBesideTools(Answering, GeminiAnimal):
    """A model cannot be held to JSON where there are tools. https://github.com/google/adk-python/issues/5054"""

    request: ClassVar = {"text": FORMAT}

    def refuse(self, body: Json) -> str | None:
        words = "Function calling with a response mime type: 'application/json' is unsupported"
        return words if mentions(body, "responseMimeType") and "tools" in body else None


class StaleSignature(Thoughtful, GeminiAnimal):
    """A signature is refused that was good once. https://github.com/lbjlaq/Antigravity-Manager/issues/938"""

    sealed = "mainspring.gemini.call.b2xk"

    def refuse(self, body: Json) -> str | None:
        return "Thought signature is not valid." if mentions(body, '"b2xk"') else None


class NoCacheMarks(ClaudeAnimal):
    """Marks for the cache are refused. https://github.com/earendil-works/pi/issues/7938"""

    def refuse(self, body: Json) -> str | None:
        return "tools.1.cache_control: Extra inputs are not permitted" if mentions(body, "cache_control") else None


class NoOutputConfig(ClaudeAnimal):
    """The effort has no place. https://github.com/anthropics/claude-code/issues/37746"""

    model = "claude-opus-4-6"
    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return "output_config: Extra inputs are not permitted" if "output_config" in body else None


class NoOutputFormat(Answering, ClaudeAnimal):
    """The format of the answer has no place. https://github.com/anthropics/claude-code/issues/37746"""

    model = "claude-opus-4-6"
    request: ClassVar = {"text": FORMAT}

    def refuse(self, body: Json) -> str | None:
        return "output_config.format: Extra inputs are not permitted" if mentions(body, "output_config") else None


class StaleThought(Thoughtful, ClaudeAnimal):
    """A signature is refused that was good once. https://github.com/anthropics/anthropic-sdk-python/issues/1598"""

    model = "claude-sonnet-4-5"
    sealed = 'mainspring.anthropic.{"type":"thinking","thinking":"Hm.","signature":"b2xk"}'

    def refuse(self, body: Json) -> str | None:
        return "messages.1.content.0: Invalid `signature` in `thinking` block" if mentions(body, "b2xk") else None


class NoThinking(ClaudeAnimal):
    """It cannot be told to think. https://github.com/lbjlaq/Antigravity-Manager/issues/139"""

    model = "claude-next"
    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return "adaptive thinking is not supported on this model" if "thinking" in body else None


class NoForcedCall(ClaudeAnimal):
    """Calls cannot be forced. https://github.com/mastra-ai/mastra/issues/7507"""

    request: ClassVar = {"tool_choice": "required"}

    def refuse(self, body: Json) -> str | None:
        words = 'tool_choice: type "any" is not supported for this model.'
        return words if body.get("tool_choice", {}).get("type") in ("any", "tool") else None

    def first(self, body: Json) -> bytes:
        return self.call() if mentions(body, "calling one of the tools") else self.say("No.")


class NoStrictTools(ClaudeAnimal):
    """`strict` of a tool is not known. https://github.com/anthropics/claude-code/issues/37746"""

    model = "claude-opus-4-6"
    request: ClassVar = {
        "tools": [{"type": "function", "name": "note", "strict": True, "parameters": SCHEMA}],
    }

    def refuse(self, body: Json) -> str | None:
        return "tools.2.custom.strict: Extra inputs are not permitted" if mentions(body.get("tools"), '"strict"') else None


class NoParser(ClaudeAnimal):
    """The server has no parser for calls. https://github.com/runpod-workers/worker-vllm/issues/113"""

    def refuse(self, body: Json) -> str | None:
        words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        return words if "tools" in body else None

    def first(self, body: Json) -> bytes:
        if mentions(body, "12:00"):
            return self.say(NOON)
        return self.say(TAGGED if mentions(body, "Tells the time in a zone.") else "I cannot know that.")


class OneCallAtATime(ClaudeAnimal):
    """It cannot be told to make one call at a time. https://github.com/anthropics/anthropic-sdk-python/issues/739"""

    request: ClassVar = {"parallel_tool_calls": False}

    def refuse(self, body: Json) -> str | None:
        words = "tool_choice.auto.disable_parallel_tool_use: Extra inputs are not permitted"
        return words if mentions(body, "disable_parallel_tool_use") else None


class SmallOutput(ClaudeAnimal):
    """The answer may be 8,192 tokens long, and nobody knows its name. https://github.com/BerriAI/litellm/issues/8964"""

    model = "claude-next"

    def refuse(self, body: Json) -> str | None:
        words = f"max_tokens: {body['max_tokens']} > 8192, which is the maximum allowed number of output tokens for claude-next"
        return words if body["max_tokens"] > 8192 else None
