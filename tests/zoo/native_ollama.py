"""Animals that speak as Ollama does. Shapes of lines are those of its `/api/chat`, written by hand."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
from tests.zoo.animal import NOON, Refusal
from tests.zoo.native_animal import NativeAnimal, Outcome, Silent

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape
from mainspring.providers.ollama.provider import Ollama

CALL: Json = {"function": {"name": "get_time", "arguments": {"zone": "UTC"}}}


def line(message: Json | None = None, *, done: bool = False, **fields: object) -> bytes:
    told = {"role": "assistant", "content": "", **(message or {})}
    return (
        msgspec.json.encode({"model": "m", "created_at": "2026-01-01T00:00:00Z", "message": told, "done": done, **fields}) + b"\n"
    )


def end(reason: str | None = "stop", message: Json | None = None, **fields: object) -> bytes:
    why = {} if reason is None else {"done_reason": reason}
    return line(message, done=True, **{**why, "prompt_eval_count": 20, "eval_count": 5, **fields})


class OllamaAnimal(NativeAnimal):
    path = "/api/chat"
    mime = "application/x-ndjson"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Ollama(url, tape=tape)

    def describe(self, refusal: Refusal) -> Json:
        return {"error": refusal.message}

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return [message for message in body["messages"] if message["role"] == "tool"]

    def call(self) -> bytes:
        return line({"tool_calls": [CALL]}) + end()

    def say(self, *pieces: str) -> bytes:
        return b"".join([line({"content": piece}) for piece in pieces]) + end()


class CallsWithoutIds(OllamaAnimal):
    """Parallel calls of one tool have no ids. https://github.com/deepset-ai/haystack-core-integrations/pull/1906"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        other = {"function": {"name": "get_time", "arguments": {"zone": "CET"}}}
        return line({"tool_calls": [CALL, other]}) + end()


class CallInTheLastLine(OllamaAnimal):
    """The call is in the line that says `done`. https://github.com/QuantumNous/new-api/issues/7252"""

    def first(self, body: Json) -> bytes:
        return end(message={"tool_calls": [CALL]})


class ReasonBeforeTheEnd(OllamaAnimal):
    """`done_reason: tool_calls` on a line that is not the last. https://github.com/kooshi/llama-swappo/pull/13"""

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": [CALL]}, done_reason="tool_calls") + end("tool_calls")


class ArgumentsAsText(OllamaAnimal):
    """Arguments are JSON text, as elsewhere. https://github.com/BerriAI/litellm/pull/37792"""

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": [{"function": {"name": "get_time", "arguments": '{"zone": "UTC"}'}}]}) + end()


class CallAsText(OllamaAnimal):
    """The call is JSON in the content, when streamed. https://github.com/ollama/ollama-python/issues/279"""

    def first(self, body: Json) -> bytes:
        return self.say('{"na', 'me": "get_time", "parameters": ', '{"zone": "UTC"}}')


class CallWithinThinking(OllamaAnimal):
    """The call is among the thoughts, and nothing else is said. https://github.com/ollama/ollama/issues/10976"""

    def first(self, body: Json) -> bytes:
        thought = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
        return line({"thinking": "I need the time.\n"}) + line({"thinking": thought}) + end()


class ThinkTags(OllamaAnimal):
    """Thoughts come as tags in the content. https://github.com/pydantic/pydantic-ai/issues/2284"""

    def last(self, body: Json) -> bytes:
        return self.say("<think>", "High sun.", "</think>\n\n", NOON)


class NoTools(OllamaAnimal):
    """The model cannot call tools, and says so. https://github.com/Pasta-Devs/Marinara-Engine/issues/1704"""

    zones: ClassVar = []

    def refuse(self, body: Json) -> str | None:
        return "registry.ollama.ai/library/m does not support tools" if "tools" in body else None

    def first(self, body: Json) -> bytes:
        return self.say(NOON)


class ToolsInWords(OllamaAnimal):
    """The model's template knows no tools, but the model can call them if it is told how.
    https://github.com/Pasta-Devs/Marinara-Engine/issues/1704"""

    def refuse(self, body: Json) -> str | None:
        return NoTools().refuse(body)

    def first(self, body: Json) -> bytes:
        told = str(body["messages"])
        if "12:00" in told:
            return self.say(NOON)
        call = '<tool_call>\n{"name": "get_time", "arguments": {"zone": "UTC"}}\n</tool_call>'
        return self.say(call if "Tells the time in a zone." in told else "I cannot know that.")


class EndWithAnError(OllamaAnimal):
    """The reason of the end is an error, behind words. https://github.com/ollama/ollama/issues/12064"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return line({"content": "It is"}) + end("error")


class NoThinking(OllamaAnimal):
    """The model cannot think, and says so. https://github.com/ollama/ollama/issues/10976"""

    request: ClassVar = {"reasoning": {"effort": "low"}}

    def refuse(self, body: Json) -> str | None:
        return '"m" does not support thinking' if "think" in body else None


class NoReason(OllamaAnimal):
    """The last line has no `done_reason`, as old servers and imitators leave it out. https://github.com/ollama/ollama/issues/4357"""

    def last(self, body: Json) -> bytes:
        return line({"content": NOON}) + end(None)


class ErrorWithinTheStream(Silent, OllamaAnimal):
    """The server cannot parse what its model called, after 200. https://github.com/ollama/ollama/issues/12064"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return line({"thinking": ""}) + b'{"error":"error parsing tool call: raw=\'{\\"zone\\": U\', err=invalid character"}\n'


class EmptyAnswer(Silent, OllamaAnimal):
    """Asked with tools, it says nothing at all. https://github.com/ollama/ollama/issues/10899"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return line() + end()


class NoRoom(OllamaAnimal):
    """It stops at its length before it has said anything. https://github.com/pfrankov/obsidian-ai-providers/pull/28"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return end("length")


class PromptCut(OllamaAnimal):
    """It reads 4,096 tokens of a long prompt, and says nothing of it. https://github.com/ollama/ollama/issues/4967"""

    status = "failed"
    zones: ClassVar = []
    request: ClassVar = {"input": "What time is it? " * 6000}

    def first(self, body: Json) -> bytes:
        return line({"content": NOON}) + end(prompt_eval_count=min(4095, len(str(body)) // 4))

    last = first


class NoEnd(Silent, OllamaAnimal):
    """The stream ends before a line says `done`. https://github.com/ollama/ollama/issues/12064"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return line()


class OnlyLoaded(Silent, OllamaAnimal):
    """It loads the model instead of answering. https://github.com/ollama/ollama/blob/main/docs/api.md"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return end("load")


class BusyLoading(Silent, OllamaAnimal):
    """Its queue is full. https://github.com/ollama/ollama/blob/main/docs/faq.md"""

    code = "provider_unavailable"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("server busy, please try again. maximum pending requests exceeded", 503)


class ObjectsWithoutLineBreaks(OllamaAnimal):
    """Objects follow one another on one line. https://github.com/langchain-ai/langchainjs/pull/3241"""

    def first(self, body: Json) -> bytes:
        return self.call().replace(b"\n", b"")

    def last(self, body: Json) -> bytes:
        return self.say("It ", "is ", "noon.").replace(b"\n", b"")


class LinesInPieces(OllamaAnimal):
    """A line comes in pieces. https://github.com/technovangelist/ollama-node/issues/3"""

    def first(self, body: Json) -> list[bytes]:
        return [self.call()[at : at + 7] for at in range(0, len(self.call()), 7)]


class LastLineWithoutBreak(OllamaAnimal):
    """Nothing follows the last object, not even a line break. https://github.com/langchain-ai/langchainjs/pull/3241"""

    def last(self, body: Json) -> bytes:
        return self.say(NOON).rstrip()


class NoMessageAtTheEnd(OllamaAnimal):
    """The line that says `done` has no message. https://github.com/ollama/ollama/issues/1728"""

    def last(self, body: Json) -> bytes:
        return line({"content": NOON}) + b'{"model":"m","done":true,"done_reason":"stop"}\n'


class HalfCallAtItsLength(OllamaAnimal):
    """It stops at its length within a call that it left in the text. https://github.com/langchain-ai/langchain/issues/34790"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return line({"content": '{"name": "get_time", "arguments": {"zo'}) + end("length")


class ErrorBehindWords(OllamaAnimal):
    """The runner dies in the middle of its words, after 200. https://github.com/ollama/ollama/issues/12064"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return line({"content": "It is"}) + b'{"error":"an error was encountered while running the model: CUDA error"}\n'


class NoEndBehindWords(OllamaAnimal):
    """The stream ends behind words, before a line says `done`. https://github.com/ollama/ollama/issues/12064"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return line({"content": "It is"})


class NullArguments(OllamaAnimal):
    """A call without arguments has `null`. https://github.com/ollama/ollama/issues/10328"""

    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": [{"function": {"name": "now", "arguments": None}}]}) + end()


class IndexedCalls(OllamaAnimal):
    """Calls have ids, and an index within the function. https://github.com/ollama/ollama/issues/12677"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        made = [
            {"id": f"call_{zone}", "function": {"index": index, "name": "get_time", "arguments": {"zone": zone}}}
            for index, zone in enumerate(("UTC", "CET"))
        ]
        return b"".join([line({"tool_calls": [each]}) for each in made]) + end()


class IdsMustReturn(OllamaAnimal):
    """Ids of calls must come back with their outputs. https://github.com/kenlasko/monize/pull/408"""

    def refuse(self, body: Json) -> str | None:
        made = [call.get("id") for message in body["messages"] for call in message.get("tool_calls", ())]
        back = [message.get("tool_call_id") for message in self.find_outputs(body)]
        return f"Unexpected tool call id {back} in tool results" if made != back or None in made else None

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": [{"id": "call_x", **CALL}]}) + end()


class UnopenedThought(OllamaAnimal):
    """Only the end of its thoughts is marked. https://github.com/vllm-project/vllm/issues/14429"""

    def last(self, body: Json) -> bytes:
        return self.say("High", " sun.", "</think>", "\n\n", NOON)

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "completed", outcome.response
        assert outcome.response.output_text.endswith(NOON)
        assert outcome.zones == self.zones


class CachedPrompt(OllamaAnimal):
    """What is cached is not counted. https://github.com/ollama/ollama/issues/2068"""

    request: ClassVar = {"input": "What time is it? " * 2000}

    def last(self, body: Json) -> bytes:
        return line({"content": NOON}) + end(prompt_eval_count=1)


class NoCounts(OllamaAnimal):
    """Nothing is counted. https://github.com/ollama/ollama/issues/3427"""

    def last(self, body: Json) -> bytes:
        return line({"content": NOON}) + line(done=True, done_reason="stop")


class NotPulled(Silent, OllamaAnimal):
    """The model is not there. https://github.com/CrestApps/CrestApps.Core/issues/142"""

    code = "model_not_found"
    words = "ollama pull nobody-knows-me"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("model 'nobody-knows-me' not found", 404)


class NotPulledOld(NotPulled):
    """The model is not there, in other words. https://github.com/FlowiseAI/Flowise/issues/2335"""

    def refuse(self, body: Json) -> Refusal:
        return Refusal("model 'nobody-knows-me' not found, try pulling it first", 404)


class NoMemory(Silent, OllamaAnimal):
    """The model is larger than the memory. https://github.com/ollama/ollama/issues/12064"""

    code = "provider_unavailable"
    words = "more system memory"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("model requires more system memory (5.6 GiB) than is available (3.1 GiB)", 500)


class SignIn(Silent, OllamaAnimal):
    """A model of the cloud wants an account. https://github.com/decolua/9router/issues/370"""

    code = "provider_unauthorized"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("unauthorized", 401)


class UnknownTool(OllamaAnimal):
    """It calls what there is not. https://github.com/ollama/ollama/issues/10976"""

    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": [{"function": {"name": "weather", "arguments": {}}}]}) + end()


class EmptyCalls(OllamaAnimal):
    """Lines of words have empty lists of calls, and a call without a name comes beside a real one.
    https://github.com/BerriAI/litellm/issues/29286"""

    def first(self, body: Json) -> bytes:
        return line({"tool_calls": []}) + line({"tool_calls": [{"function": {"name": "", "arguments": {}}}, CALL]}) + end()


class CallsTwice(OllamaAnimal):
    """A call comes once more in the line that says `done`. https://github.com/QuantumNous/new-api/issues/7252"""

    def first(self, body: Json) -> bytes:
        made = {"tool_calls": [{"id": "call_x", **CALL}]}
        return line(made) + end(message=made)
