"""Animals that speak as Claude does. Shapes of events are those of the Messages API, written by hand."""

import re
from collections.abc import Sequence
from typing import Any, ClassVar

import msgspec
from tests.zoo.animal import NOON, UTC, Refusal
from tests.zoo.native_animal import NativeAnimal, Silent

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape
from mainspring.providers.anthropic.provider import Anthropic

MESSAGE = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "content": [],
    "usage": {"input_tokens": 20, "output_tokens": 1},
}
START: Json = {"type": "message_start", "message": MESSAGE}
STOP: Json = {"type": "message_stop"}


def write(*events: Json) -> bytes:
    told = [f"event: {event['type']}\n".encode() + b"data: " + msgspec.json.encode(event) + b"\n\n" for event in events]
    return b"".join(told)


def block(index: int, begun: Json, *deltas: Json) -> list[Json]:
    pieces: list[Json] = [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
    start: Json = {"type": "content_block_start", "index": index, "content_block": begun}
    return [start, *pieces, {"type": "content_block_stop", "index": index}]


def text(*pieces: str, index: int = 0) -> list[Json]:
    return block(index, {"type": "text", "text": ""}, *[{"type": "text_delta", "text": piece} for piece in pieces])


def use(id: str | None = "toolu_1", *pieces: str, index: int = 0, **fields: object) -> list[Json]:
    begun: Json = {"type": "tool_use", "id": id, "name": "get_time", "input": {}, **fields}
    return block(index, begun, *[{"type": "input_json_delta", "partial_json": piece} for piece in pieces])


def end(reason: str | None = "end_turn") -> Json:
    return {"type": "message_delta", "delta": {"stop_reason": reason, "stop_sequence": None}, "usage": {"output_tokens": 5}}


class ClaudeAnimal(NativeAnimal):
    path = "/v1/messages"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Anthropic(url, api_key="none", tape=tape)

    def describe(self, refusal: Refusal) -> Json:
        return {"type": "error", "error": {"type": "invalid_request_error", "message": refusal.message}}

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return [block for message in body["messages"] for block in message["content"] if block["type"] == "tool_result"]

    def find_thoughts(self, body: Json) -> list[Json]:
        return [block for message in body["messages"] for block in message["content"] if block["type"] == "thinking"]

    def call(self) -> bytes:
        return write(START, *use("toolu_1", '{"zone"', ': "UTC"}'), end("tool_use"), STOP)

    def say(self, *pieces: str) -> bytes:
        return write(START, *text(*pieces), end(), STOP)


class NoMessageStop(ClaudeAnimal):
    """The stream ends behind the reason. https://github.com/MiniMax-AI/MiniMax-M2/issues/109"""

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", UTC), end("tool_use"))


class EndTurnWithCalls(ClaudeAnimal):
    """`end_turn` with a call, behind an empty text. https://github.com/BerriAI/litellm/issues/34692"""

    def first(self, body: Json) -> bytes:
        return write(START, *text(), *use("8a359e89", UTC, index=1), end("end_turn"), STOP)


class InputAtTheStart(ClaudeAnimal):
    """The arguments are whole in the beginning of the call. https://github.com/farion1231/cc-switch/pull/2557"""

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", input={"zone": "UTC"}), end("tool_use"), STOP)


class NoInputAtTheStart(ClaudeAnimal):
    """The beginning of a call has no `input`. https://github.com/ggml-org/llama.cpp/pull/22960"""

    def first(self, body: Json) -> bytes:
        begun = {"type": "tool_use", "id": "toolu_1", "name": "get_time"}
        return write(START, *block(0, begun, {"type": "input_json_delta", "partial_json": UTC}), end("tool_use"), STOP)


class NoIds(ClaudeAnimal):
    """Calls have empty ids. https://github.com/vllm-project/vllm/pull/22627"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        return write(START, *use("", UTC), *use("", '{"zone": "CET"}', index=1), end("tool_use"), STOP)


class SameIds(ClaudeAnimal):
    """Every turn calls with the same id, and ids may be used once only. https://github.com/earendil-works/pi/issues/9048"""

    zones: ClassVar = ["UTC", "CET"]

    def refuse(self, body: Json) -> str | None:
        ids = [each["id"] for message in body["messages"] for each in message["content"] if each["type"] == "tool_use"]
        return "messages: `tool_use` ids must be unique" if len(ids) != len(set(ids)) else None

    def last(self, body: Json) -> bytes:
        if len(self.find_outputs(body)) == 1:
            return write(START, *use("toolu_1", '{"zone": "CET"}'), end("tool_use"), STOP)
        return self.say(NOON)


class BlocksNumberedZero(ClaudeAnimal):
    """Every block has the number 0. https://github.com/vllm-project/vllm/pull/30010"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        return write(START, *text(""), *use("a", UTC), *use("b", '{"zone": "CET"}'), end("tool_use"), STOP)


class NoEventLines(ClaudeAnimal):
    """Events have no names, and `[DONE]` follows. https://github.com/panbanda/higgs/pull/38"""

    def first(self, body: Json) -> bytes:
        lines = [each for each in self.call().split(b"\n") if not each.startswith(b"event:")]
        return b"\n".join(lines) + b"data: [DONE]\n\n"


class Pings(ClaudeAnimal):
    """Pings and events of unknown kinds are between the others. https://github.com/anthropics/anthropic-sdk-python/pull/1380"""

    def first(self, body: Json) -> bytes:
        ping: Json = {"type": "ping"}
        odd: Json = {"type": "content_block_delta", "index": 0, "delta": {"type": "heartbeat_delta", "beat": 1}}
        return write(START, ping, *use("toolu_1", UTC)[:2], ping, odd, {"type": "notice", "text": 7}, end("tool_use"), STOP)


class SignatureOnly(ClaudeAnimal):
    """A thought has a signature and no words, and must come back. https://github.com/earendil-works/pi/issues/4003"""

    def refuse(self, body: Json) -> str | None:
        is_missing = self.find_outputs(body) and [each["signature"] for each in self.find_thoughts(body)] != ["uuid-1"]
        return "The `content[].thinking` in the thinking mode must be passed back to the API." if is_missing else None

    def first(self, body: Json) -> bytes:
        thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "signature_delta", "signature": "uuid-1"})
        return write(START, *thought, *use("toolu_1", UTC, index=1), end("tool_use"), STOP)


class UnsignedThoughtMustReturn(ClaudeAnimal):
    """A thought has no signature, and must come back all the same. https://github.com/borawong/AiMaMi/issues/10"""

    def refuse(self, body: Json) -> str | None:
        is_missing = self.find_outputs(body) and [each["thinking"] for each in self.find_thoughts(body)] != ["High sun."]
        words = "thinking is enabled but reasoning_content is missing in assistant tool call message at index 1"
        return words if is_missing else None

    def first(self, body: Json) -> bytes:
        thought = block(0, {"type": "thinking", "thinking": ""}, {"type": "thinking_delta", "thinking": "High sun."})
        return write(START, *thought, *use("toolu_1", UTC, index=1), end("tool_use"), STOP)


class CallAsText(ClaudeAnimal):
    """A server without a parser leaves the call of its model in the text. https://github.com/earendil-works/pi/issues/9614"""

    def first(self, body: Json) -> bytes:
        return self.say("<tool_call>\n", '{"name": "get_time", "argu', 'ments": {"zone": "UTC"}}', "\n</tool_call>")


class EmptyTextRefused(ClaudeAnimal):
    """An empty text in the history is refused. https://github.com/AnswerDotAI/fastllm/issues/44"""

    def refuse(self, body: Json) -> str | None:
        texts = [each["text"] for message in body["messages"] for each in message["content"] if each["type"] == "text"]
        return "messages: text content blocks must be non-empty" if not all(texts) else None

    def first(self, body: Json) -> bytes:
        return write(START, *text(""), *use("toolu_1", UTC, index=1), end("tool_use"), STOP)


class OverloadedWithinTheStream(Silent, ClaudeAnimal):
    """It is overloaded after 200. https://github.com/anthropics/anthropic-sdk-typescript/issues/454"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return write(START, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


class CallsWithoutCalls(Silent, ClaudeAnimal):
    """It stops for tools and calls none. https://github.com/earendil-works/pi/issues/9681"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return write(START, end("tool_use"), STOP)


class NoReason(Silent, ClaudeAnimal):
    """The stream ends before it says why. https://github.com/MiniMax-AI/MiniMax-M2/issues/109"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return write(START)


class CutCall(ClaudeAnimal):
    """The stream ends within a call. https://github.com/MiniMax-AI/MiniMax-M2/issues/109"""

    status = "failed"
    zones: ClassVar[Any] = []

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", '{"zone": "U')[:2])


class ReasonOfAnotherFormat(ClaudeAnimal):
    """The answer was cut off, and the reason is a word of another format. https://github.com/BerriAI/litellm/issues/34692"""

    status = "incomplete"

    def last(self, body: Json) -> bytes:
        return write(START, *text("It is"), end("length"), STOP)


class NoArguments(ClaudeAnimal):
    """A call without arguments has one empty piece of them. https://github.com/BerriAI/litellm/issues/29286"""

    zones: ClassVar = ["here"]

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", "", name="now"), end("tool_use"), STOP)


class WordsAsArguments(ClaudeAnimal):
    """Empty pieces of arguments come in a block of text. https://github.com/BerriAI/litellm/issues/29286"""

    def last(self, body: Json) -> bytes:
        empty: Json = {"type": "input_json_delta", "partial_json": ""}
        pieces: list[Json] = [empty, {"type": "text_delta", "text": NOON}, empty]
        return write(START, *block(0, {"type": "text", "text": ""}, *pieces), end(), STOP)


class NoUsageAtTheStart(ClaudeAnimal):
    """The message begins with nothing in it. https://github.com/mlx-node/mlx-node/pull/45"""

    def first(self, body: Json) -> bytes:
        bare: Json = {"type": "message_start", "message": {"id": "m", "role": "assistant", "usage": None, "content": None}}
        return write(bare, *use("toolu_1", UTC), end("tool_use"), STOP)

    def last(self, body: Json) -> bytes:
        done: Json = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}}
        return write({"type": "message_start"}, *text(NOON), done, STOP)


class NoBlockStart(ClaudeAnimal):
    """Words come without the start of their block. https://github.com/ggml-org/llama.cpp/pull/18551"""

    def last(self, body: Json) -> bytes:
        return write(START, text(NOON)[1], end(), STOP)


class BlocksBegunAgain(ClaudeAnimal):
    """Each piece begins its block anew. https://github.com/ggml-org/llama.cpp/pull/18551"""

    def last(self, body: Json) -> bytes:
        begun, piece, other, stop = text("It is ", "noon.")
        return write(START, begun, piece, begun, other, stop, end(), STOP)


class NoBlockStop(ClaudeAnimal):
    """Blocks have no end. https://github.com/MiniMax-AI/MiniMax-M2/issues/109"""

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", UTC)[:2], end("tool_use"), STOP)


class WholeMessage(ClaudeAnimal):
    """It does not stream. https://github.com/BerriAI/litellm/issues/25561"""

    mime = "application/json"

    def first(self, body: Json) -> bytes:
        made: Json = {"type": "tool_use", "id": "toolu_1", "name": "get_time", "input": {"zone": "UTC"}}
        return msgspec.json.encode({**MESSAGE, "content": [made], "stop_reason": "tool_use"})

    def last(self, body: Json) -> bytes:
        return msgspec.json.encode({**MESSAGE, "content": [{"type": "text", "text": NOON}], "stop_reason": "end_turn"})


class SealedThoughts(ClaudeAnimal):
    """Signed and hidden thoughts must come back as they were, and first. https://github.com/anthropics/claude-code/issues/13201"""

    def refuse(self, body: Json) -> str | None:
        if not self.find_outputs(body):
            return None
        said = next(message["content"] for message in body["messages"] if message["role"] == "assistant")
        thoughts = [{key: value for key, value in each.items() if key != "cache_control"} for each in said[:2]]
        signed: Json = {"type": "thinking", "thinking": "High sun.", "signature": "c2ln"}
        is_same = thoughts == [signed, {"type": "redacted_thinking", "data": "aGlkZGVu"}]
        return None if is_same else "messages.1.content.0: `thinking` blocks in the latest assistant message cannot be modified."

    def first(self, body: Json) -> bytes:
        deltas: list[Json] = [{"type": "thinking_delta", "thinking": "High"}, {"type": "thinking_delta", "thinking": " sun."}]
        thought = block(
            0, {"type": "thinking", "thinking": "", "signature": ""}, *deltas, {"type": "signature_delta", "signature": "c2ln"}
        )
        hidden = block(1, {"type": "redacted_thinking", "data": "aGlkZGVu"})
        return write(START, *thought, *hidden, *use("toolu_1", UTC, index=2), end("tool_use"), STOP)


class PausedTurn(ClaudeAnimal):
    """It pauses behind half of its words, and goes on if it gets them back. https://github.com/anthropics/anthropic-sdk-python/pull/1380"""

    def last(self, body: Json) -> bytes:
        if body["messages"][-1]["role"] == "assistant":
            return self.say("noon.")
        return write(START, *text("It is "), end("pause_turn"), STOP)


class Refusing(ClaudeAnimal):
    """It refuses within its words. https://github.com/anthropics/claude-code/issues/37746"""

    status = "incomplete"

    def last(self, body: Json) -> bytes:
        return write(START, *text("I can"), end("refusal"), STOP)


class CutWithinACall(ClaudeAnimal):
    """It is out of room within a call. https://github.com/earendil-works/pi/issues/9897"""

    status = "incomplete"
    zones: ClassVar[Any] = []

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", '{"zone": "U'), end("max_tokens"), STOP)


class OverloadedBehindWords(ClaudeAnimal):
    """It is overloaded in the middle of its words. https://github.com/anthropics/anthropic-sdk-typescript/issues/454"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return write(START, *text("It is")[:2], {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})


class RateLimitWithinTheStream(Silent, ClaudeAnimal):
    """Its limit is reached after 200. https://github.com/anthropics/anthropic-sdk-typescript/issues/454"""

    code = "rate_limit_exceeded"

    def first(self, body: Json) -> bytes:
        return write(
            START, {"type": "error", "error": {"type": "rate_limit_error", "message": "Number of requests has exceeded"}}
        )


class OverloadedStatus(Silent, ClaudeAnimal):
    """It is overloaded, and says so by a status of its own. https://github.com/anthropics/anthropic-sdk-typescript/issues/454"""

    code = "provider_unavailable"

    def refuse(self, body: Json) -> Refusal:
        return Refusal("Overloaded", 529)


class ThoughtWithoutItsType(ClaudeAnimal):
    """A thought has its words as text. https://github.com/agentjido/req_llm/issues/626"""

    def last(self, body: Json) -> bytes:
        thought = block(0, {"type": "thinking"}, {"type": "text_delta", "text": "High sun."})
        return write(START, *thought, *text(NOON, index=1), end(), STOP)


class EndReasonTwice(ClaudeAnimal):
    """The end comes once more, with another reason. https://github.com/BerriAI/litellm/issues/34692"""

    def first(self, body: Json) -> bytes:
        return write(START, *use("toolu_1", UTC), end("tool_use"), end("end_turn"), STOP)


class IdsOfAnotherVendor(ClaudeAnimal):
    """Ids have signs in them that it refuses itself. https://github.com/earendil-works/pi/issues/9048"""

    def refuse(self, body: Json) -> str | None:
        ids = [each["id"] for message in body["messages"] for each in message["content"] if each["type"] == "tool_use"]
        back = [each["tool_use_id"] for each in self.find_outputs(body)]
        words = "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
        return words if ids != back or not all(re.fullmatch("[a-zA-Z0-9_-]+", id) for id in ids) else None

    def first(self, body: Json) -> bytes:
        return write(START, *use("functions.get_time:0", UTC), end("tool_use"), STOP)


class ServerTools(ClaudeAnimal):
    """A tool of the server's own is called, and its result is a block, too. https://github.com/langchain-ai/langchain/issues/34406"""

    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        made = block(
            0,
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            {"type": "input_json_delta", "partial_json": '{"query": "x"}'},
        )
        told = block(
            1,
            {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [{"type": "web_search_result", "url": "https://x"}],
            },
        )
        return write(START, *made, *told, *text(NOON, index=2), end(), STOP)
