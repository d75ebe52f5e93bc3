"""Animals that begin, break up or end their streams in odd ways, or fail within them."""

from typing import Any, ClassVar

from tests.providers.backend import DONE, chunk, sse, usage_chunk
from tests.zoo.animal import NOON, UTC, Animal, Failing, Outcome, Talker, call, say

from mainspring.core.items import Json

SAID, STOP = chunk({"content": NOON}), chunk(finish="stop")


class StopWithCalls(Animal):
    """Quirk 30: `finish_reason: stop` with calls (Gemini, SGLang). https://github.com/sgl-project/sglang/issues/2877"""

    number = 30

    def first(self, body: Json) -> bytes:
        return call("a", UTC, finish="stop")


class EmptyFinish(Talker):
    """Quirk 31: `finish_reason: ""` in each piece (Ollama). https://github.com/ollama/ollama/issues/4357"""

    number = 31

    def last(self, body: Json) -> bytes:
        return sse(chunk({"content": "It is"}, finish=""), chunk({"content": " noon."}, finish=""), STOP) + DONE


class NoFinish(Talker):
    """Quirk 32: no `finish_reason` at all (Gemini, proxies). https://github.com/jakobdylanc/llmcord/issues/84"""

    number = 32

    def last(self, body: Json) -> bytes:
        return sse(SAID) + DONE


class NoFinishWithCall(Animal):
    """Quirk 32: no `finish_reason` behind a call. https://github.com/open-learning-exchange/planet/pull/10281"""

    number = 32

    def first(self, body: Json) -> bytes:
        return call("a", UTC).replace(b'"finish_reason":"tool_calls"', b'"finish_reason":null')


class FinishTwice(Talker):
    """Quirk 33: `finish_reason` comes twice (SGLang). https://github.com/sgl-project/sglang/pull/8417"""

    number = 33

    def last(self, body: Json) -> bytes:
        return sse(SAID, STOP, STOP) + DONE


class VendorWords(Animal):
    """Quirk 34: `tool_use` and `end_turn` as reasons (proxies). https://github.com/BerriAI/litellm/issues/12481"""

    number = 34

    def first(self, body: Json) -> bytes:
        return call("a", UTC, finish="tool_use")

    def last(self, body: Json) -> bytes:
        return say(NOON, finish="end_turn")


class NoDone(Talker):
    """Quirk 35: no `[DONE]`. https://github.com/open-learning-exchange/planet/pull/10281"""

    number = 35

    def last(self, body: Json) -> bytes:
        return sse(SAID, STOP)


class Comments(Talker):
    """Quirk 36: comment lines (OpenRouter). https://github.com/deepnoodle-ai/dive/pull/206"""

    number = 36

    def last(self, body: Json) -> bytes:
        comment = b": OPENROUTER PROCESSING\n\n"
        return comment + sse(SAID) + comment + sse(STOP) + DONE


class BareColons(Talker):
    """Quirk 37: a bare `:` now and then (llama.cpp from b9478). https://github.com/ollama/ollama/pull/16443"""

    number = 37

    def last(self, body: Json) -> bytes:
        return b":\n\n" + sse(SAID) + b":\n\n" + sse(STOP) + DONE


class EmptyData(Talker):
    """Quirk 38: empty `data:` lines (proxies). https://github.com/netease-lcap/wave-agent/pull/1326"""

    number = 38

    def last(self, body: Json) -> bytes:
        return b"data:\n\n" + sse(SAID) + b"data: \n\n" + sse(STOP) + DONE


class NullData(Talker):
    """Quirk 38: `data: null` lines; supposed, without a source."""

    number = 38

    def last(self, body: Json) -> bytes:
        return b"data: null\n\n" + sse(SAID) + b"data: null\n\n" + sse(STOP) + DONE


class TextOfCompletions(Talker):
    """Quirk 40: words come as `text`, as from the older endpoint; supposed, without a source."""

    number = 40

    def last(self, body: Json) -> bytes:
        choices = [{"index": 0, "text": "It is noon.", "finish_reason": None}, {"index": 0, "text": "", "finish_reason": "stop"}]
        return sse(*[{"object": "text_completion", "choices": [choice]} for choice in choices]) + DONE


class NoChoicesFirst(Talker):
    """Quirk 39: the first piece has no choices (Azure). https://github.com/Azure/azure-sdk-for-go/issues/21086"""

    number = 39

    def last(self, body: Json) -> bytes:
        return sse({"id": "", "choices": [], "prompt_filter_results": [{"prompt_index": 0}]}, SAID, STOP) + DONE


class NoDelta(Talker):
    """Quirk 40: a choice without a delta (Azure's asynchronous filter). https://github.com/microsoft/autogen/issues/6465"""

    number = 40

    def last(self, body: Json) -> bytes:
        filtered = {"choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"start_offset": 0}}]}
        return sse(SAID, filtered, STOP, filtered) + DONE


class WholeAnswer(Animal):
    """Quirk 41: whole JSON although a stream was asked for. https://github.com/earendil-works/pi/pull/1125"""

    number = 41

    def first(self, body: Json) -> Json:
        made = {"id": "a", "type": "function", "function": {"name": "get_time", "arguments": UTC}}
        return self._whole({"role": "assistant", "content": None, "tool_calls": [made]}, "tool_calls")

    def last(self, body: Json) -> Json:
        return self._whole({"role": "assistant", "content": NOON}, "stop")

    def _whole(self, message: Json, reason: str) -> Json:
        return {"object": "chat.completion", "choices": [{"index": 0, "message": message, "finish_reason": reason}]}


class ErrorWithinStream(Failing):
    """Quirk 42: an error inside a stream that began well (OpenRouter). https://github.com/damianvtran/local-operator/pull/223"""

    number = 42

    def last(self, body: Json) -> bytes:
        return b": OPENROUTER PROCESSING\n\n" + sse({"error": {"code": 502, "message": "out of memory"}, "choices": []})


class ErrorAsAnswer(Failing):
    """Quirk 43: status 200 with an error in its body (LM Studio). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2322"""

    number = 43

    def last(self, body: Json) -> Json:
        return {"error": {"message": "out of memory", "type": "server_error"}}


class ErrorAsEvent(Failing):
    """Quirk 43: status 200 and an `error` event (LM Studio). https://github.com/lmstudio-ai/lmstudio-bug-tracker/issues/2322"""

    number = 43

    def last(self, body: Json) -> bytes:
        return b'event: error\ndata: {"error": {"message": "out of memory"}}\n\n'


class PromptCutSilently(Talker):
    """Quirk 44: a long prompt is cut without a word; only the usage tells (Ollama). https://github.com/ollama/ollama/issues/4967"""

    number = 44
    request: ClassVar[dict[str, Any]] = {"input": "The password is Zanzibar. " + "tick tock " * 12_000}

    def last(self, body: Json) -> bytes:
        return sse(SAID, STOP, usage_chunk(4096, 5)) + DONE

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "failed"
        assert outcome.response.error is not None
        assert outcome.response.error.model_extra is not None
        assert outcome.response.error.model_extra["reason"] == "context_length_exceeded"
        assert "num_ctx" in outcome.response.error.message


class AnswerCutSilently(Talker):
    """Quirk 45: an answer stops for its length because the context is full (Ollama).
    https://github.com/pfrankov/obsidian-ai-providers/pull/28"""

    number = 45
    request: ClassVar[dict[str, Any]] = {"input": "tick tock " * 1_600, "max_output_tokens": 1000}

    def last(self, body: Json) -> bytes:
        if len(str(body["messages"])) < 9_000:
            return say(NOON)
        return sse(SAID, chunk(finish="length"), usage_chunk(4_079, 17)) + DONE

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.status == "failed"
        assert outcome.response.error is not None
        assert (outcome.response.error.model_extra or {})["reason"] == "context_length_exceeded"
        assert "num_ctx" in outcome.response.error.message
        (note,) = outcome.trace.execution[-1].adaptations
        assert (note.kind, note.field, note.value) == ("learned", "window", 4_096)


class NoUsage(Talker):
    """Quirk 46: usage never comes; code read in pi's `supportsUsageInStreaming`."""

    number = 46

    def last(self, body: Json) -> bytes:
        return sse(SAID, STOP) + DONE

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert outcome.response.usage is not None
        assert outcome.response.usage.output_tokens > 0
        assert outcome.response.usage.model_extra == {"estimated": True}


class UsageWithinChoice(Talker):
    """Quirk 98: usage is within the choice (Moonshot); code read."""

    number = 98

    def last(self, body: Json) -> bytes:
        counts = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
        return sse(SAID, {"choices": [{**STOP["choices"][0], "usage": counts}]}) + DONE

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert outcome.response.usage is not None
        assert (outcome.response.usage.input_tokens, outcome.response.usage.output_tokens) == (20, 5)


class NoEmptyLines(Talker):
    """Quirk 99: events follow one another without an empty line; supposed, without a source."""

    number = 99

    def last(self, body: Json) -> bytes:
        return (sse(SAID, STOP) + DONE).replace(b"\n\n", b"\n")


class MessagesForDeltas(Talker):
    """Quirk 106: pieces are called `message`, as a whole answer is; supposed, without a source."""

    number = 106

    def last(self, body: Json) -> bytes:
        pieces = [
            {"choices": [{"index": 0, "message": {"role": "assistant", "content": piece}}]} for piece in ("It is", " noon.")
        ]
        return sse(*pieces, STOP) + DONE


class HalfCharacters(Talker):
    """Quirk 107: a character outside the basic plane comes as two halves, in two pieces (tokens of bytes);
    supposed, without a source."""

    number = 107

    def last(self, body: Json) -> bytes:
        return say("It is noon. ", "S", "s", " ", "S", "s", " So.").replace(b'"S"', rb'"\ud83c"').replace(b'"s"', rb'"\udf1e"')

    def check(self, outcome: Outcome) -> None:
        assert outcome.response.output_text == f"{NOON} \N{SUN WITH FACE} \N{SUN WITH FACE} So."


class ErrorOfNothing(Talker):
    """Quirk 108: each piece has an error of code 0, without words; supposed, without a source."""

    number = 108

    def last(self, body: Json) -> bytes:
        return sse(*[{**piece, "error": {"code": 0, "message": ""}} for piece in (SAID, STOP)]) + DONE


class UsageInEveryPiece(Talker):
    """Quirk 47: usage comes with each piece, and only the last is right (vLLM). https://github.com/gonka-ai/gonka/pull/1177"""

    number = 47

    def last(self, body: Json) -> bytes:
        wrong = {"usage": {"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}}
        return sse({**SAID, **wrong}, {**STOP, **wrong}, usage_chunk(20, 5)) + DONE

    def check(self, outcome: Outcome) -> None:
        super().check(outcome)
        assert outcome.response.usage is not None
        assert (outcome.response.usage.input_tokens, outcome.response.usage.output_tokens) == (20, 5)
