"""Animals whose calls come as text, or get lost."""

from tests.providers.backend import DONE, chunk, sse
from tests.zoo.animal import UTC, Animal, Outcome, Talker, say

from mainspring.core.items import Json


class HermesCallAsText(Animal):
    """Quirk 16: a call is text in `<tool_call>` tags (vLLM without a parser); own measurement with Qwen2.5-Coder."""

    number = 16

    def first(self, body: Json) -> bytes:
        return say("<tool_call>\n", f'{{"name": "get_time", "arguments": {UTC}}}', "\n</tool_call>")


class QwenXmlCallAsText(Animal):
    """Quirk 17: a call is text in XML (LM Studio, Qwen3-Coder). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2115"""

    number = 17

    def first(self, body: Json) -> bytes:
        return say("<tool_call>\n<function=get_time>\n", "<parameter=zone>\nUTC\n</parameter>\n", "</function>\n</tool_call>")


class FencedCallAsText(Animal):
    """Quirk 18: a call is JSON in a fenced block; own measurement with small coding models."""

    number = 18

    def first(self, body: Json) -> bytes:
        return say("```json\n", f'{{"name": "get_time", "arguments": {UTC}}}', "\n```")


class BareCallAsText(Animal):
    """Quirk 19: a call is bare JSON (llama3.1 on Ollama). https://github.com/BerriAI/litellm/issues/12481"""

    number = 19

    def first(self, body: Json) -> bytes:
        return say(f'{{"name": "get_time", "parameters": {UTC}}}')


class HarmonyChannels(Animal):
    """Quirk 20: harmony's channels are in the text (mlx-lm, Ollama). https://github.com/ml-explore/mlx-lm/pull/1867"""

    number = 20

    def first(self, body: Json) -> bytes:
        thought = "<|channel|>analysis<|message|>I must look.<|end|><|start|>assistant"
        return say(thought, "<|channel|>commentary to=functions.get_time <|constrain|>json<|message|>", UTC, "<|call|>")

    def last(self, body: Json) -> bytes:
        return say("<|channel|>final<|message|>", "It is noon.", "<|return|>")


class CallWithinReasoning(Animal):
    """Quirk 21: the call is inside the reasoning (Qwen3.5 and Nemotron on vLLM). https://github.com/vllm-project/vllm/pull/55759"""

    number = 21

    def first(self, body: Json) -> bytes:
        leaked = f'I must look.\n<tool_call>\n{{"name": "get_time", "arguments": {UTC}}}\n</tool_call>'
        return sse(chunk({"reasoning_content": leaked}), chunk(finish="stop")) + DONE


class CallsOnlyUnstreamed(Animal):
    """Quirk 22: calls get lost when streamed, and are there when not (Ollama). https://github.com/ollama/ollama/issues/9632"""

    number = 22

    def first(self, body: Json) -> bytes | Json:
        if body.get("stream"):
            return say("")
        made = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": UTC}}
        message = {"role": "assistant", "content": None, "tool_calls": [made]}
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


QUOTE = f'To ask for the time, a model writes `<tool_call>{{"name": "get_time", "arguments": {UTC}}}</tool_call>`. I need not.'


class QuotedCall(Talker):
    """Quirk 16: an answer that only quotes a call in its prose is no call; own measurement, the twin of the others."""

    number = 16

    def last(self, body: Json) -> bytes:
        return say(QUOTE)

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text, outcome.zones) == ("completed", QUOTE, [])
