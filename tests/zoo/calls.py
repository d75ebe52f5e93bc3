"""Animals that make calls in odd shapes."""

from typing import ClassVar

from tests.providers.backend import DONE, call_piece, chunk, sse
from tests.zoo.animal import CET, UTC, Animal, call, outputs, say

from mainspring.core.items import Json

FINISH = sse(chunk(finish="tool_calls")) + DONE


class CallsWithoutIndex(Animal):
    """Quirk 1: parallel calls have no `index` (Ollama). https://github.com/ollama/ollama/issues/7881"""

    number = 1
    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        made = [call_piece(None, id=id, name="get_time", arguments=zone) for id, zone in (("a", UTC), ("b", CET))]
        return sse(*map(chunk, made)) + FINISH


class CallsNumberedZero(Animal):
    """Quirk 2: every parallel call has `index: 0` (SGLang, lmdeploy). https://github.com/InternLM/lmdeploy/issues/3412"""

    number = 2
    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        made = [call_piece(0, id=id, name="get_time", arguments=zone) for id, zone in (("a", UTC), ("b", CET))]
        return sse(*map(chunk, made)) + FINISH


class CallWithoutId(Animal):
    """Quirk 3: streamed calls have no `id` (vLLM). https://github.com/vllm-project/vllm/issues/18412"""

    number = 3

    def first(self, body: Json) -> bytes:
        return call(None, UTC)


class CallWithEmptyIds(Animal):
    """Quirk 4: later pieces have `id: ""` (vLLM). https://github.com/InternLM/lmdeploy/issues/3412"""

    number = 4

    def first(self, body: Json) -> bytes:
        begun = call_piece(0, id="a", name="get_time", arguments="")
        return sse(chunk(begun), *[chunk(call_piece(0, id="", arguments=piece)) for piece in ('{"zone"', ': "UTC"}')]) + FINISH


class SameIdInEveryTurn(Animal):
    """Quirk 5: every turn has the same call id (TGI, SGLang).
    https://github.com/huggingface/text-generation-inference/issues/2136"""

    number = 5
    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        return call("0", UTC)

    def last(self, body: Json) -> bytes:
        return call("0", CET) if len(outputs(body)) == 1 else say("It is noon.")


class ArgumentsAsObject(Animal):
    """Quirk 6: arguments are an object (TGI, MiniMax). https://github.com/huggingface/text-generation-inference/issues/2136"""

    number = 6

    def first(self, body: Json) -> bytes:
        return sse(chunk(call_piece(0, id="a", name="get_time", arguments={"zone": "UTC"}))) + FINISH


class ArgumentsEncodedTwice(Animal):
    """Quirk 7: arguments are JSON in JSON. https://github.com/tailcallhq/forgecode/pull/2764"""

    number = 7

    def first(self, body: Json) -> bytes:
        return call("a", '"{\\"zone\\": ', '\\"UTC\\"}"')


class ArgumentsCumulative(Animal):
    """Quirk 8: each piece of the arguments repeats all before it (Qianfan).
    https://github.com/NousResearch/hermes-agent/pull/35718"""

    number = 8

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone"', '{"zone": "U', UTC)


class NameInEveryPiece(Animal):
    """Quirk 9: the tool's name comes with every piece; own measurement of small servers."""

    number = 9

    def first(self, body: Json) -> bytes:
        made = [call_piece(0, id="a", name="get_time", arguments=piece) for piece in ('{"zone"', ': "UTC"}')]
        return sse(*map(chunk, made)) + FINISH


class NoArguments(Animal):
    """Quirk 10: arguments of a tool without parameters are empty (vLLM, Mistral).
    https://github.com/vllm-project/vllm/issues/40147"""

    number = 10
    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return call("a", name="now")


class NullArguments(Animal):
    """Quirk 11: arguments of a tool without parameters are `null`; code read in several adapters."""

    number = 11
    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return call("a", "null", name="now")


class ArgumentsInProse(Animal):
    """Quirk 12: words or tags stand around the arguments (small models on vLLM).
    https://github.com/vllm-project/vllm/issues/14429"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", "```json\n", UTC, "\n```</tool_call>")


class ArgumentsWithTagBehind(Animal):
    """Quirk 12: a tag stands behind the arguments (small models on vLLM). https://github.com/vllm-project/vllm/issues/14429"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": ', '"UTC"}</tool_call>')


class ArgumentsWithPiecesOfTagBehind(Animal):
    """Quirk 12: a tag stands behind the arguments, in pieces. https://github.com/vllm-project/vllm/issues/14429"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", '{"zone": "UTC"', "}</", "tool", "_call", ">")


class ArgumentsWithWordsBehind(Animal):
    """Quirk 12: words follow the arguments (small models on vLLM). https://github.com/vllm-project/vllm/issues/14429"""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", UTC, "\n", "I wait", " for it.")


class ArgumentsInPython(Animal):
    """Quirk 12: arguments are an object of Python's; own measurement of small models."""

    number = 12

    def first(self, body: Json) -> bytes:
        return call("a", "{'zone'", ": 'UTC'}")


class ArgumentsTwice(Animal):
    """Quirk 8: the arguments come twice in one piece; code read in several adapters."""

    number = 8

    def first(self, body: Json) -> bytes:
        return call("a", UTC + UTC)


class OldFunctionCall(Animal):
    """Quirk 13: `function_call` instead of `tool_calls` (old servers).
    https://platform.openai.com/docs/api-reference/chat/create"""

    number = 13

    def first(self, body: Json) -> bytes:
        begun = {"function_call": {"name": "get_time", "arguments": ""}}
        return sse(chunk(begun), chunk({"function_call": {"arguments": UTC}}), chunk(finish="function_call")) + DONE


class NameWithTokens(Animal):
    """Quirk 14: control tokens are part of the tool's name (gpt-oss on vLLM). https://github.com/vllm-project/vllm/issues/32587"""

    number = 14

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name="get_time<|channel|>commentary")


class NameWithPrefix(Animal):
    """Quirk 15: the tool's name has the prefix `default_api:` (Gemini). https://github.com/BerriAI/litellm/issues/16893"""

    number = 15

    def first(self, body: Json) -> bytes:
        return call("a", UTC, name="default_api:get_time")


class IdsToTheLetter(Animal):
    """Quirk 56: call ids must come back as they were (Kimi K2). https://github.com/sgl-project/sglang/issues/10600"""

    number = 56

    def refuse(self, body: Json) -> str | None:
        back = [output["tool_call_id"] for output in outputs(body)]
        return "unknown tool_call_id" if back not in ([], ["functions.get_time:0"]) else None

    def first(self, body: Json) -> bytes:
        return call("functions.get_time:0", UTC)
