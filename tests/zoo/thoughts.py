"""Animals that think in odd places, or want their thoughts back."""

import json
from typing import Any, ClassVar

from openai import AsyncOpenAI
from openai.types.responses import Response, ResponseOutputMessage, ResponseOutputText
from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import NOON, UTC, Animal, Outcome, Talker, assistants, mentions, outputs, say

from mainspring.core.items import Json
from mainspring.providers.chat.request import name_origin
from mainspring.providers.transcript import seal


class ThinkTags(Talker):
    """Quirk 23: a model nobody knows thinks in `<think>` tags. https://github.com/vllm-project/vllm/issues/27703"""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<think>", "The sun is high.", "</think>\n\n", "It is noon.")


class UnopenedThinker(Talker):
    """An animal whose thoughts are told as words the first time, before the tag that closes them comes: they are a message of
    their own then. The next time they are reasoning."""

    async def ask(self, client: AsyncOpenAI) -> Response:
        first = await super().ask(client)
        told = [(item.phase, item.content[0]) for item in first.output if isinstance(item, ResponseOutputMessage)]
        words = [(phase, part.text.strip()) for phase, part in told if isinstance(part, ResponseOutputText)]
        assert (first.status, words) == ("completed", [("commentary", "The sun is high."), (None, NOON)])
        return await super().ask(client)


class ThinkTagNeverOpened(UnopenedThinker):
    """Quirk 24: the thinking is closed and never opened (R1-style templates).
    https://github.com/vllm-project/vllm/issues/14429"""

    number = 24

    def last(self, body: Json) -> bytes:
        return say("The sun is high.", "</think>\n\n", "It is noon.")

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert [item.type for item in outcome.response.output] == ["reasoning", "message"]


class ThinkTagWithinALine(UnopenedThinker):
    """Quirk 24: the tag that closes the thoughts stands within a line, and is Seed's; supposed, without a source."""

    number = 24

    def last(self, body: Json) -> bytes:
        return say("The sun is high.", "</seed:", "think>", "It is noon.")


class ThinkTagSometimes(UnopenedThinker):
    """Quirk 24: the thinking is closed and never opened, but the model does not always think (R1-style templates).
    https://github.com/vllm-project/vllm/issues/14429"""

    number = 24

    def __init__(self) -> None:
        self.turns = 0

    def last(self, body: Json) -> bytes:
        self.turns += 1
        return say("The sun is high.", "</think>\n\n", "It is noon.") if self.turns == 1 else say("It ", "is noon.")


class ThinkTagClosesFirst(Talker):
    """Quirk 24: the words begin with the tag that closes the thoughts, which came before (R1-style templates).
    https://github.com/vllm-project/vllm/issues/14429"""

    number = 24

    def last(self, body: Json) -> bytes:
        words = [chunk({"content": piece}) for piece in ("</thi", "nk>", "\n\n", "It is noon.")]
        return sse(chunk({"reasoning_content": "The sun is high."}), *words, chunk(finish="stop")) + DONE


class ThinkTagNeverOpenedWhole(Talker):
    """Quirk 24: the thinking is closed and never opened, in an answer that comes whole (R1-style templates).
    https://github.com/vllm-project/vllm/issues/14429"""

    number = 24

    def last(self, body: Json) -> Json:
        message = {"role": "assistant", "content": "The sun is high.\n</think>\n\nIt is noon."}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}


class ReasoningField(Talker):
    """Quirk 25: `reasoning` instead of `reasoning_content` (vLLM from 0.16, Ollama).
    https://github.com/vllm-project/vllm/pull/50624"""

    number = 25

    def last(self, body: Json) -> bytes:
        return sse(chunk({"reasoning": "The sun is high."}), chunk({"content": "It is noon."}), chunk(finish="stop")) + DONE

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert outcome.response.output[0].type == "reasoning"


class ReasoningMustReturn(Animal):
    """Quirk 26: reasoning must come back with calls (DeepSeek V4 behind aliases). https://github.com/earendil-works/pi/issues/3636"""

    number = 26

    def refuse(self, body: Json) -> str | None:
        if outputs(body) and assistants(body)[0].get("reasoning_content") != "I must look.":
            return "The `reasoning_content` in the thinking mode must be passed back to the API."
        return None

    def first(self, body: Json) -> bytes:
        made = call_piece(0, id="a", name="get_time", arguments=UTC)
        return sse(chunk({"reasoning_content": "I must look."}), chunk(made), chunk(finish="tool_calls")) + DONE


class SignatureMustReturn(Animal):
    """Quirk 27: a call's `thought_signature` must come back (Gemini 3). https://github.com/BerriAI/litellm/issues/16893"""

    number = 27
    extra: ClassVar[Json] = {"google": {"thought_signature": "c2lnbmF0dXJl"}}

    def refuse(self, body: Json) -> str | None:
        if outputs(body) and assistants(body)[0]["tool_calls"][0].get("extra_content") != self.extra:
            return "Function call is missing a thought_signature in functionCall parts."
        return None

    def first(self, body: Json) -> bytes:
        made = call_piece(0, id="a", name="get_time", arguments=UTC)
        made["tool_calls"][0]["extra_content"] = self.extra
        return sse(chunk(made), chunk(finish="tool_calls")) + DONE


class DetailsMustReturn(Animal):
    """Quirk 27: encrypted `reasoning_details` must come back with the calls they led to, as they were (OpenRouter).
    https://openrouter.ai/docs/guides/best-practices/reasoning-tokens"""

    number = 27
    sealed: ClassVar[Json] = {"type": "reasoning.encrypted", "format": "google-gemini-v1", "index": 0}

    def refuse(self, body: Json) -> str | None:
        if outputs(body) and assistants(body)[0].get("reasoning_details") != [{**self.sealed, "data": "c2VhbGVk"}]:
            return "reasoning_details must be passed back unmodified"
        return None

    def first(self, body: Json) -> bytes:
        details = [chunk({"reasoning_details": [{**self.sealed, "data": data}]}) for data in ("c2Vh", "bGVk")]
        made = call_piece(0, id="a", name="get_time", arguments=UTC)
        return sse(*details, chunk(made), chunk(finish="tool_calls")) + DONE


class ForeignSignature(Talker):
    """Quirk 28: signatures of another vendor are refused, after a switch. https://github.com/earendil-works/pi/issues/9048"""

    number = 28
    request: ClassVar[dict[str, Any]] = {
        "input": [
            {"role": "user", "content": "What time is it in Oslo?"},
            {"type": "reasoning", "summary": [], "encrypted_content": seal(name_origin("gemini.example.org"), '{"google": {}}')},
            {"type": "function_call", "call_id": "a", "name": "get_time", "arguments": '{"zone": "CET"}'},
            {"type": "function_call_output", "call_id": "a", "output": "13:00"},
        ]
    }

    def refuse(self, body: Json) -> str | None:
        return "extra_content: Invalid signature" if mentions(body, "extra_content") else None


class JsonWithinReasoning(Talker):
    """Quirk 29: guided JSON lands in the reasoning (vLLM with a reasoning parser).
    https://github.com/vllm-project/vllm/issues/16182"""

    number = 29
    request: ClassVar[dict[str, Any]] = {
        "text": {
            "format": {
                "type": "json_schema",
                "name": "time",
                "schema": {"type": "object", "properties": {"hour": {"type": "integer"}}, "required": ["hour"]},
            }
        }
    }

    def last(self, body: Json) -> bytes:
        return sse(chunk({"reasoning_content": '{"hour": 12}'}), chunk(finish="stop")) + DONE

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "completed"
        assert json.loads(outcome.response.output_text) == {"hour": 12}
