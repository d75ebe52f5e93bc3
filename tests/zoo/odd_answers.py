"""Animals whose answers are odd in ways that no table can list: labels around calls, thoughts in tags of any name, text that
comes whole with each piece, calls that are nowhere whole."""

import json
from typing import Any, ClassVar

import openai
from openai.types.responses import Response
from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import NOON, UTC, Animal, Outcome, Talker, call, mentions, say
from tests.zoo.leaks import HERMES

from mainspring.core.items import Json

DAYS = {"type": "object", "properties": {"days": {"type": "integer"}}, "required": ["days"], "additionalProperties": False}
WAIT: dict[str, Any] = {"tools": [{"type": "function", "name": "get_time", "parameters": DAYS}]}
FINISH = sse(chunk(finish="tool_calls")) + DONE


class Broken(Animal):
    """An animal of which nothing can be had: the run fails and says why, and no tool runs."""

    zones: ClassVar[list[str]] = []

    async def ask(self, client: openai.AsyncOpenAI) -> Response:
        try:
            return await super().ask(client)
        except openai.InternalServerError:
            return Response.model_construct(status="failed")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.zones) == ("failed", [])


class CallWithLabels(Animal):
    """Quirk 80: a call is text with labels around it, as ReAct prompts ask for. https://github.com/vllm-project/vllm/issues/3584"""

    number = 80

    def first(self, body: Json) -> bytes:
        return say("Thought: I must look.\n", "Action: get_time\n", f"Action Input: {json.dumps(fill(body))}\n", "Observation:")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.zones) == ("completed", ["UTC"])
        assert outcome.response.output_text.endswith(NOON)


class TextRepeated(Animal):
    """Quirk 81: each piece has all the text so far (DashScope). https://github.com/QwenLM/qwen-code/pull/3896"""

    number = 81

    def last(self, body: Json) -> bytes:
        return say("It ", "It is ", "It is noon", NOON)


class TextRepeatedLast(Animal):
    """Quirk 81: the last piece has all the text once more; supposed, after https://github.com/QwenLM/qwen-code/pull/3896"""

    number = 81

    def last(self, body: Json) -> bytes:
        pieces = [chunk({"content": piece}) for piece in ("It ", "is ", "noon.")]
        return sse(*pieces, chunk({"content": NOON}, finish="stop")) + DONE


class TextTwice(Animal):
    """Quirk 81: all the text comes twice; supposed, after https://github.com/QwenLM/qwen-code/pull/3896"""

    number = 81

    def last(self, body: Json) -> bytes:
        return say("It is noon in Oslo.", "It is noon in Oslo.")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", "It is noon in Oslo.")


class ValuesAsText(Animal):
    """Quirk 82: numbers are text (Qwen3.5 and others). https://github.com/jjang-ai/vmlx/pull/48"""

    number = 82
    request: ClassVar[dict[str, Any]] = WAIT
    has_tools = False

    def first(self, body: Json) -> bytes:
        return call("a", json.dumps({key: str(value) for key, value in fill(body).items()}))

    def check(self, outcome: Outcome) -> None:
        (made,) = outcome.response.output
        assert made.type == "function_call"
        assert (outcome.response.status, json.loads(made.arguments)) == ("completed", {"days": 9})


class PiecesWithOtherIds(Animal):
    """Quirk 83: each piece of a call has an id of its own. https://github.com/oracle/langchain-oracle/pull/108"""

    number = 83

    def first(self, body: Json) -> bytes:
        pieces = [call_piece(0, id=f"b{place}", arguments=piece) for place, piece in enumerate(('{"zone"', ': "UTC"}'))]
        return sse(*[chunk(piece) for piece in (call_piece(0, id="a", name="get_time", arguments=""), *pieces)]) + FINISH


class PiecesWithOtherIndexes(Animal):
    """Quirk 83: each piece of a call has an index of its own; supposed, without a source."""

    number = 83

    def first(self, body: Json) -> bytes:
        pieces = [call_piece(place, arguments=piece) for place, piece in enumerate(('{"zone"', ': "UTC"}'), 1)]
        return sse(*[chunk(piece) for piece in (call_piece(0, id="a", name="get_time", arguments=""), *pieces)]) + FINISH


class CallsWithoutList(Animal):
    """Quirk 84: `tool_calls` is one call in place of a list; supposed, without a source."""

    number = 84

    def first(self, body: Json) -> bytes:
        return sse(chunk({"tool_calls": call_piece(0, id="a", name="get_time", arguments=UTC)["tool_calls"][0]})) + FINISH


class CallsWithinText(Animal):
    """Quirk 84: `tool_calls` is JSON in a text; supposed, without a source."""

    number = 84

    def first(self, body: Json) -> bytes:
        made = call_piece(0, id="a", name="get_time", arguments=UTC)["tool_calls"]
        return sse(chunk({"tool_calls": json.dumps(made)})) + FINISH


class CallAsPart(Animal):
    """Quirk 84: a call is a part of the content, as Claude writes it, through a gateway; supposed, without a source."""

    number = 84

    def first(self, body: Json) -> bytes:
        part = {"type": "tool_use", "id": "a", "name": "get_time", "input": {"zone": "UTC"}}
        return sse(chunk({"content": [part]})) + FINISH


class FunctionAsText(Animal):
    """Quirk 84: the function of a call is its name alone, and the arguments stand beside it; supposed, without a source."""

    number = 84

    def first(self, body: Json) -> bytes:
        return sse(chunk({"tool_calls": [{"index": 0, "id": "a", "function": "get_time", "arguments": UTC}]})) + FINISH


class ParametersForArguments(Animal):
    """Quirk 84: the arguments of a call are its `parameters`; supposed, without a source, after how Llama writes calls."""

    number = 84

    def first(self, body: Json) -> bytes:
        made = {"index": 0, "id": "a", "function": {"name": "get_time", "parameters": {"zone": "UTC"}}}
        return sse(chunk({"tool_calls": [made]})) + FINISH


class MessageInTheLastPiece(Animal):
    """Quirk 84: pieces are empty, and the last has the whole message; supposed, without a source."""

    number = 84

    def first(self, body: Json) -> bytes:
        last = chunk({}, finish="tool_calls")
        last["choices"][0]["message"] = {"role": "assistant", **call_piece(0, id="a", name="get_time", arguments=UTC)}
        return sse(chunk({}), last) + DONE


class AnnouncedPython(Animal):
    """Quirk 80: a call of Python's stands behind the sentence that announces it; supposed, without a source."""

    number = 80

    def first(self, body: Json) -> bytes:
        given = ", ".join([f"{key}={value!r}" for key, value in fill(body).items()])
        return say("I will look it up.\n\n", f"get_time({given})")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.zones) == ("completed", ["UTC"])
        assert outcome.response.output_text.endswith(NOON)


class UnreadableCall(Broken):
    """Quirk 88: a call in tags is in no language that can be read; supposed, without a source."""

    number = 88

    def first(self, body: Json) -> bytes:
        return say("<tool_call>\nname: get_time\narguments:\n", *[f"  {key}: UTC\n" for key in fill(body)], "</tool_call>")


class ContentAsObject(Animal):
    """Quirk 85: the content is one part in place of text; supposed, without a source."""

    number = 85

    def last(self, body: Json) -> bytes:
        return sse(chunk({"content": {"type": "text", "text": NOON}}), chunk(finish="stop")) + DONE


class EmptyCallBeside(Animal):
    """Quirk 86: a call without a name comes beside the real one. https://github.com/lidge-jun/opencodex/pull/1754"""

    number = 86

    def first(self, body: Json) -> bytes:
        made = call_piece(0, id="a", name="get_time", arguments=UTC)
        return sse(chunk(made), chunk(call_piece(1, id="b", name=None, arguments=None))) + FINISH


class BlankAnswer(Broken):
    """Quirk 87: an answer is nothing but a line break; supposed, without a source."""

    number = 87

    def first(self, body: Json) -> bytes:
        return say("\n")

    def last(self, body: Json) -> bytes:
        return say("\n")


class HalfCall(Broken):
    """Quirk 88: the arguments of a call end half, and nobody says so. https://github.com/vllm-project/vllm/pull/46303"""

    number = 88
    request: ClassVar[dict[str, Any]] = WAIT
    has_tools = False

    def first(self, body: Json) -> bytes:
        return call("a", '{"days": 1, "cit')


class HalfCallAsText(Broken):
    """Quirk 88: a call in text ends half. https://github.com/NousResearch/hermes-agent/issues/7680"""

    number = 88

    def first(self, body: Json) -> bytes:
        return say(HERMES[:40])


class NameWithinArguments(Animal):
    """Quirk 72: a call has no name, and its arguments are all of the call; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        return call("a", json.dumps({"name": "get_time", "arguments": fill(body)}), name="")


class NameWithArguments(Animal):
    """Quirk 72: the name of a call is all of the call; supposed, without a source."""

    number = 72

    def first(self, body: Json) -> bytes:
        given = ", ".join([f"{key}={value!r}" for key, value in fill(body).items()])
        return call("a", "{}", name=f"get_time({given})")


class ArgumentsAsParameters(Animal):
    """Quirk 12: arguments are XML; supposed, after the parsers of Qwen3-Coder. https://github.com/ggml-org/llama.cpp/pull/16932"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", *[f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in fill(body).items()])


class ThoughtsInOtherTags(Talker):
    """Quirk 23: thoughts are in a tag of the model's own; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<scratch", "pad>High ", "sun.</scratchpad>\n", NOON)


class ThoughtsWithAttributes(Talker):
    """Quirk 23: the tag of the thoughts says how long they took, as web interfaces keep them; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say('<think duration="3">\n', "High sun.\n</think>\n", NOON)


class ThoughtsClosedOtherwise(Talker):
    """Quirk 23: another tag closes the thoughts than the one that opened them; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<think>\nHigh sun.\n", "</thinking>\n\n", NOON)


class ThoughtsBehindNothing(Talker):
    """Quirk 23: a space of no width stands before the tag of the thoughts; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("\u200b", "<think>High sun.</think>", NOON)


class ThoughtsTwice(Talker):
    """Quirk 23: thoughts come in two blocks, one after the other; supposed, without a source."""

    number = 23

    def last(self, body: Json) -> bytes:
        return say("<think>\nHigh sun.\n</think>\n\n", "<think>\nVery high.\n</think>\n\n", NOON)


class ThoughtsOfApriel(Talker):
    """Quirk 23: thoughts and answer have headings (Apriel). https://huggingface.co/ServiceNow-AI/Apriel-1.5-15b-Thinker"""

    number = 23

    def last(self, body: Json) -> bytes:
        return say(
            "Here are my reasoning steps:\n", "High sun.\n[BEGIN FINAL ", f"RESPONSE]\n{NOON}\n[END FINAL RESPONSE]\n<|end|>"
        )

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text.strip()) == ("completed", NOON)


class ChannelsWithoutTokens(Talker):
    """Quirk 20: the channels of harmony have lost their tokens; supposed, after https://github.com/cuga-project/cuga-agent/issues/557"""

    number = 20

    def last(self, body: Json) -> bytes:
        return say("analysisHigh ", "sun.assistant", f"final{NOON}")


class StopTokenOfNobody(Talker):
    """Quirk 77: a token ends the answer that no table has. https://github.com/cuga-project/cuga-agent/issues/557"""

    number = 77

    def last(self, body: Json) -> bytes:
        return say(NOON, "<|reserved_", "special_token_5|>")


class TagOfACallLast(Talker):
    """Quirk 77: the tag that closes a call ends the answer; supposed, without a source."""

    number = 77

    def last(self, body: Json) -> bytes:
        return say(NOON, "\n</tool_call>")

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text.strip()) == ("completed", NOON)


class ToolsInWords(Animal):
    """Quirk 71: the server refuses tools, and the model can call them all the same if it is told how (vLLM without
    `--enable-auto-tool-choice`). https://github.com/sgl-project/sglang/issues/7082"""

    number = 71

    def refuse(self, body: Json) -> str | None:
        words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
        return words if "tools" in body or mentions(body["messages"], "tool_calls") else None

    def first(self, body: Json) -> bytes:
        if mentions(body["messages"], "12:00"):
            return say(NOON)
        return say(HERMES) if mentions(body["messages"][0], "<tool_call>.*get_time") else say("I cannot know that.")


class LinesOfReturns(Talker):
    """Quirk 89: lines end in carriage returns alone; supposed, after the standard of event streams.
    https://html.spec.whatwg.org/multipage/server-sent-events.html"""

    number = 89

    def last(self, body: Json) -> bytes:
        return say(NOON).replace(b"\n", b"\r")


class FieldTwice(Talker):
    """Quirk 89: a proxy puts `data:` before lines that have it; supposed, without a source."""

    number = 89

    def last(self, body: Json) -> bytes:
        return say("It is ", "noon.").replace(b"data: {", b"data: data: {")


def fill(body: Json) -> Json:
    """Arguments that fit the first tool that is offered."""
    values = {"string": "UTC", "integer": 9, "number": 9, "boolean": True, "array": [], "object": {}}
    schema = body["tools"][0]["function"]["parameters"]
    return {name: values[each.get("type", "string")] for name, each in schema["properties"].items()}
