"""Animals that speak the Responses API. Shapes of events are those of OpenAI's stream, written by hand."""

from collections.abc import Sequence
from typing import ClassVar

import openai
from openai.types.responses import Response
from tests.providers.backend import DONE, sse
from tests.zoo.animal import NOON, UTC, Refusal, mentions
from tests.zoo.native_animal import NativeAnimal, Outcome, Silent

from mainspring.core.items import Json
from mainspring.ports import Provider, Tape
from mainspring.providers.responses.provider import Responses

USAGE = {"input_tokens": 20, "output_tokens": 5, "total_tokens": 25}
ITEM: Json = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "get_time", "status": "completed"}
BEGUN: Json = {**ITEM, "arguments": "", "status": "in_progress"}
CALL: Json = {**ITEM, "arguments": UTC}


def message(text: str = NOON, id: str = "msg_1") -> Json:
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}


def event(kind: str, **fields: object) -> Json:
    return {"type": f"response.{kind}", **fields}


def added(item: Json, index: int = 0) -> Json:
    return event("output_item.added", output_index=index, item=item)


def done(item: Json, index: int = 0) -> Json:
    return event("output_item.done", output_index=index, item=item)


def arguments(*pieces: str, index: int = 0, id: str = "fc_1") -> list[Json]:
    return [event("function_call_arguments.delta", output_index=index, item_id=id, delta=piece) for piece in pieces]


def completed(*output: Json, status: str = "completed", **fields: object) -> Json:
    response = {"id": "resp_1", "object": "response", "status": status, "output": list(output), "usage": USAGE, **fields}
    return event(status, response=response)


CREATED = event("created", response={"id": "resp_1", "status": "in_progress", "output": []})


class ResponsesAnimal(NativeAnimal):
    path = "/responses"

    def make_provider(self, url: str, tape: Tape | None = None) -> Provider:
        return Responses(url, tape=tape)

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return [item for item in body["input"] if item["type"] == "function_call_output"]

    def call(self) -> bytes:
        told = event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments=UTC)
        return sse(CREATED, added(BEGUN), *arguments('{"zone"', ': "UTC"}'), told, done(CALL), completed(CALL))

    def say(self, *pieces: str) -> bytes:
        begun = {**message(), "content": [], "status": "in_progress"}
        deltas = [event("output_text.delta", output_index=0, item_id="msg_1", content_index=0, delta=piece) for piece in pieces]
        whole = message("".join(pieces))
        return sse(CREATED, added(begun), *deltas, done(whole), completed(whole))


class NoItemDone(ResponsesAnimal):
    """No `output_item.done`, and the whole has an empty message instead of the call.
    https://github.com/sgl-project/sglang/issues/12652"""

    def first(self, body: Json) -> bytes:
        told = event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments=UTC)
        return sse(CREATED, added(BEGUN), *arguments(UTC), told, completed(message("", "msg_9")))


class NoOutputInTheWhole(ResponsesAnimal):
    """`response.completed` has no output and no usage. https://github.com/decolua/9router/issues/705"""

    def first(self, body: Json) -> bytes:
        bare = event("completed", response={"id": "resp_1", "status": "completed", "error": None})
        return sse(CREATED, added(BEGUN), *arguments(UTC), done(CALL), bare)


class OtherIdsInTheWhole(ResponsesAnimal):
    """The whole has the call under other ids. https://github.com/vllm-project/vllm/pull/47916"""

    def first(self, body: Json) -> bytes:
        other = {**CALL, "id": "fc_other", "call_id": "call_other"}
        return sse(CREATED, added(BEGUN), *arguments(UTC), done(CALL), completed(other))


class NoItemAdded(ResponsesAnimal):
    """Words come without an item and without places. https://github.com/Oaklight/llm-rosetta/issues/56"""

    def last(self, body: Json) -> bytes:
        return sse(CREATED, event("output_text.delta", delta="It is "), event("output_text.delta", delta="noon."), completed())


class ArgumentsOnlyWhenDone(ResponsesAnimal):
    """Arguments come only when they are whole. https://github.com/lidge-jun/opencodex/pull/4652"""

    def first(self, body: Json) -> bytes:
        told = event("function_call_arguments.done", output_index=0, item_id="fc_1", arguments=UTC)
        return sse(CREATED, added(BEGUN), told, completed())


class OnlyInTheWhole(ResponsesAnimal):
    """Nothing is streamed but the whole. https://github.com/orka-agents/orka/pull/602"""

    def first(self, body: Json) -> bytes:
        return sse(CREATED, completed(CALL))

    def last(self, body: Json) -> bytes:
        return sse(CREATED, completed(message()))


class ItemIdsChange(ResponsesAnimal):
    """The id of an item is another one in each event. https://github.com/BerriAI/litellm/pull/36700"""

    def first(self, body: Json) -> bytes:
        pieces = [*arguments('{"zone"', id="fc_2"), *arguments(': "UTC"}', id="fc_3")]
        return sse(CREATED, added(BEGUN), *pieces, done({**CALL, "id": "fc_4"}), completed({**CALL, "id": "fc_5"}))


class UnknownEvents(ResponsesAnimal):
    """Events of unknown kinds and comments are between the others. https://github.com/mnfst/llm-gateway/issues/2053"""

    def first(self, body: Json) -> bytes:
        odd: Json = {"type": "keepalive", "sequence_number": 3}
        other = event("reasoning_summary_part.weird", part=[1, 2], item={"type": 3})
        return b": OPENROUTER PROCESSING\n\n" + sse(CREATED, odd, other, added(BEGUN), odd, done(CALL), completed(CALL))


class EventsOutOfOrder(ResponsesAnimal):
    """The end of the arguments comes before their pieces, and the item behind its end. https://github.com/ogx-ai/ogx/issues/5309"""

    def first(self, body: Json) -> bytes:
        return sse(CREATED, done(CALL), added(BEGUN), *arguments(UTC), completed(CALL))


class NoCompleted(ResponsesAnimal):
    """`[DONE]` comes instead of `response.completed`. https://github.com/Oaklight/llm-rosetta/issues/56"""

    def first(self, body: Json) -> bytes:
        return sse(CREATED, added(BEGUN), *arguments(UTC), done(CALL)) + DONE

    def last(self, body: Json) -> bytes:
        return sse(CREATED, done(message())) + DONE


class NoEncryptedContent(ResponsesAnimal):
    """Encrypted reasoning is refused. https://github.com/OpenHands/software-agent-sdk/pull/1208"""

    def refuse(self, body: Json) -> str | None:
        is_asked = "reasoning.encrypted_content" in body.get("include", ())
        return "Encrypted content is not supported with this model." if is_asked else None


class NoIds(ResponsesAnimal):
    """Items and calls have no ids, and all are numbered 0. https://github.com/vllm-project/vllm/issues/18412"""

    zones: ClassVar = ["UTC", "CET"]

    def first(self, body: Json) -> bytes:
        made: list[Json] = [{"type": "function_call", "name": "get_time", "arguments": zone} for zone in (UTC, '{"zone": "CET"}')]
        return sse(CREATED, *[done(item) for item in made], completed(*made))


class CutCallSaysCompleted(ResponsesAnimal):
    """A call that was cut off says that it is complete. https://github.com/vllm-project/vllm/issues/57998"""

    status = "incomplete"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        cut = {**CALL, "arguments": '{"zone": "UT'}
        reason = {"reason": "max_output_tokens"}
        return sse(CREATED, added(BEGUN), done(cut), completed(cut, status="incomplete", incomplete_details=reason))


class EmptyWhole(Silent, ResponsesAnimal):
    """It completes without having said anything. https://github.com/Oaklight/llm-rosetta/issues/56"""

    code = "provider_bad_output"

    def first(self, body: Json) -> bytes:
        return sse(CREATED, completed())


class EmptyMessage(ResponsesAnimal):
    """Its message is empty. https://github.com/sgl-project/sglang/issues/12653"""

    status = "failed"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return sse(CREATED, completed(message("")))


class FailedWithinTheStream(Silent, ResponsesAnimal):
    """It fails after 200. https://github.com/damianvtran/local-operator/pull/223"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        error = {"code": "server_error", "message": "The model crashed."}
        return sse(CREATED, completed(status="failed", error=error))


class NoEnd(Silent, ResponsesAnimal):
    """The stream ends without a last event. https://github.com/open-learning-exchange/planet/pull/10281"""

    code = "provider_unavailable"

    def first(self, body: Json) -> bytes:
        return sse(CREATED)


class NoStore(ResponsesAnimal):
    """`store` and `include` are not known. https://github.com/livekit/agents/pull/1276"""

    def refuse(self, body: Json) -> str | None:
        unknown = [name for name in ("store", "include") if name in body]
        return f"Unknown parameter: '{unknown[0]}'." if unknown else None


class ThoughtsAsText(ResponsesAnimal):
    """Thoughts are left in the text. https://github.com/vllm-project/vllm/issues/27703"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        return self.say("<think>", "High sun.", "</think>", NOON)


class CallAsText(ResponsesAnimal):
    """The call is left in the text. https://github.com/vllm-project/vllm/issues/27703"""

    status = "failed"
    zones: ClassVar = []

    def first(self, body: Json) -> bytes:
        return self.say("<tool_call>\n", f'{{"name": "get_time", "arguments": {UTC}}}', "\n</tool_call>")


class CallBehindWords(CallAsText):
    """The call is left in the text, behind words and in tags of a namespace. https://github.com/vllm-project/vllm/issues/27703"""

    def first(self, body: Json) -> bytes:
        return self.say("I look.\n<acme:", f'tool_call>{{"name": "get_time", "arguments": {UTC}}}', "\n</acme:tool_call>")


class CallInASection(CallAsText):
    """The call is left in the text, behind a section of words. https://github.com/MeetKai/functionary"""

    def first(self, body: Json) -> bytes:
        return self.say(">>>all\nI look.\n", ">>>get_time\n", UTC)


class RareTemperature(ResponsesAnimal):
    """A temperature is refused in the words of Claude's API, which https://github.com/BerriAI/litellm speaks for."""

    zones: ClassVar = []
    request: ClassVar = {"temperature": 0.3}

    def refuse(self, body: Json) -> str | None:
        return "`temperature` is deprecated for this model." if "temperature" in body else None

    def first(self, body: Json) -> bytes:
        return self.say(NOON)


class EncryptedOnlyInTheWhole(ResponsesAnimal):
    """Encrypted reasoning is only in the whole, and calls must not come without it. https://github.com/earendil-works/pi/pull/4256"""

    def refuse(self, body: Json) -> str | None:
        kinds = [item["type"] for item in body["input"]]
        made = next((item for item in body["input"] if item["type"] == "function_call"), None)
        if made is None or "id" not in made or any(item.get("encrypted_content") == "gAAA" for item in body["input"]):
            return None
        words = "of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."
        return f"Item 'fc_1' {words} {kinds}"

    def first(self, body: Json) -> bytes:
        thought: Json = {"type": "reasoning", "id": "rs_1", "summary": []}
        call = [added(BEGUN, 1), *arguments(UTC, index=1), done(CALL, 1)]
        return sse(CREATED, added(thought), done(thought), *call, completed({**thought, "encrypted_content": "gAAA"}, CALL))


class StaleReasoning(ResponsesAnimal):
    """Reasoning that was encrypted for another account is refused. https://github.com/openai/codex/issues/8145"""

    request: ClassVar = {
        "input": [
            {"role": "user", "content": "What time is it?"},
            {"type": "reasoning", "id": "rs_old", "summary": [], "encrypted_content": "gAAAold"},
            {"type": "function_call", "id": "fc_old", "call_id": "old", "name": "get_time", "arguments": UTC},
            {"type": "function_call_output", "call_id": "old", "output": "11:00"},
            {"role": "user", "content": "And now?"},
        ]
    }

    def refuse(self, body: Json) -> str | None:
        is_old = any(item.get("encrypted_content") == "gAAAold" for item in body["input"])
        return "The encrypted content gAAA...old could not be verified." if is_old else None

    def find_outputs(self, body: Json) -> Sequence[Json]:
        return super().find_outputs(body)[1:]


class OnlyAuto(ResponsesAnimal):
    """Calls cannot be forced. https://github.com/vllm-project/vllm/issues/23227"""

    request: ClassVar = {"tool_choice": "required"}

    def refuse(self, body: Json) -> str | None:
        is_forced = body.get("tool_choice", "auto") != "auto"
        return "Only 'auto' tool_choice is supported in response API with Harmony" if is_forced else None

    def first(self, body: Json) -> bytes:
        return self.call() if mentions(body, "Answer by calling") else self.say("No.")


class NoFormat(ResponsesAnimal):
    """A format is refused. https://github.com/Blaizzy/mlx-vlm/pull/1070"""

    zones: ClassVar = []
    request: ClassVar = {"text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}}

    def refuse(self, body: Json) -> str | None:
        return "Unknown parameter: 'text.format'." if "text" in body else None

    def first(self, body: Json) -> bytes:
        return self.say('{"time": ', '"noon"}') if mentions(body, "JSON") else self.say(NOON)

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", '{"time": "noon"}'), outcome.response


class NoLimit(Silent, ResponsesAnimal):
    """A bound on the output is refused: nobody may drop that. https://github.com/openai/codex/issues/26173"""

    code = "invalid_prompt"
    words = "Unsupported parameter: max_output_tokens"
    request: ClassVar = {"max_output_tokens": 500}

    def refuse(self, body: Json) -> Refusal | None:
        return Refusal("Unsupported parameter: max_output_tokens") if "max_output_tokens" in body else None

    def describe(self, refusal: Refusal) -> Json:
        return {"detail": refusal.message}


class InstructionsWanted(Silent, ResponsesAnimal):
    """It wants instructions where there are none. https://github.com/tinyhumansai/openhuman/issues/3201"""

    code = "invalid_prompt"
    words = "Instructions are required"

    def refuse(self, body: Json) -> Refusal | None:
        return Refusal("Instructions are required") if not body.get("instructions") else None

    def describe(self, refusal: Refusal) -> Json:
        return {"detail": refusal.message}


class NoPhase(ResponsesAnimal):
    """Fields of items are refused that it does not know. https://github.com/BerriAI/litellm/issues/13420"""

    request: ClassVar = {
        "input": [
            {"role": "user", "content": "Hello."},
            {
                "type": "message",
                "role": "assistant",
                "phase": "final_answer",
                "content": [{"type": "output_text", "text": "Hello."}],
            },
            {"role": "user", "content": "What time is it?"},
        ]
    }

    def refuse(self, body: Json) -> str | None:
        return "Unknown parameter: 'input[1].phase'." if mentions(body["input"], "phase") else None


class FailsBehindWords(ResponsesAnimal):
    """It fails in the middle of its words. https://github.com/Wei-Shaw/sub2api/issues/3038"""

    status = "failed"

    def last(self, body: Json) -> bytes:
        error = {"code": "upstream_error", "message": "Upstream request failed"}
        return sse(CREATED, event("output_text.delta", delta="It is"), completed(status="failed", error=error))


class ErrorEvent(Silent, ResponsesAnimal):
    """An event is an error, with its words at the top. https://github.com/damianvtran/local-operator/pull/223"""

    code = "rate_limit_exceeded"

    def first(self, body: Json) -> bytes:
        return sse(CREATED, {"type": "error", "code": "rate_limit_exceeded", "message": "Rate limit reached", "param": None})


class EncryptedThoughtsReturn(ResponsesAnimal):
    """Encrypted reasoning must come back in front of its call. https://github.com/0xPlaygrounds/rig/issues/751"""

    def refuse(self, body: Json) -> str | None:
        kinds = [item["type"] for item in body["input"]]
        is_missing = self.find_outputs(body) and kinds[1:3] != ["reasoning", "function_call"]
        return (
            "Item 'fc_1' of type 'function_call' was provided without its required 'reasoning' item: 'rs_1'."
            if is_missing
            else None
        )

    def first(self, body: Json) -> bytes:
        thought: Json = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
        call = [added(BEGUN, 1), *arguments(UTC, index=1), done(CALL, 1)]
        return sse(CREATED, added(thought), done(thought), *call, completed(thought, CALL))


class IncompleteForFilter(ResponsesAnimal):
    """A filter stops its words. https://github.com/langchain-ai/langchain/issues/33840"""

    status = "incomplete"

    def last(self, body: Json) -> bytes:
        cut = {**message("It is"), "status": "incomplete"}
        return sse(CREATED, done(cut), completed(cut, status="incomplete", incomplete_details={"reason": "content_filter"}))


class UnknownItem(ResponsesAnimal):
    """An item of a kind that nobody knows comes before the call. https://github.com/openai/codex/issues/46470"""

    def first(self, body: Json) -> bytes:
        odd: Json = {"type": "crystal_ball_call", "id": "cb_1", "status": "completed", "vision": {"sun": "high"}}
        call = [added(BEGUN, 1), *arguments(UTC, index=1), done(CALL, 1)]
        return sse(CREATED, added(odd), done(odd), *call, completed(odd, CALL))


class QueuedFirst(ResponsesAnimal):
    """It waits in a queue first. https://github.com/openai/codex/issues/46470"""

    def last(self, body: Json) -> bytes:
        waiting = [event(kind, response={"id": "resp_1", "status": kind, "output": []}) for kind in ("queued", "in_progress")]
        return sse(*waiting) + self.say(NOON)


class ArgumentsAsObject(ResponsesAnimal):
    """Arguments are an object. https://github.com/BerriAI/litellm/issues/13420"""

    def first(self, body: Json) -> bytes:
        made = {**CALL, "arguments": {"zone": "UTC"}}
        return sse(CREATED, added(BEGUN), done(made), completed(made))


class SameCallTwice(ResponsesAnimal):
    """A call is done twice. https://github.com/ogx-ai/ogx/issues/5309"""

    def first(self, body: Json) -> bytes:
        return sse(CREATED, added(BEGUN), *arguments(UTC), done(CALL), done(CALL), completed(CALL))


class FormatIgnored(ResponsesAnimal):
    """A schema is dropped without a word: the first answer is none, the next is. https://github.com/ggml-org/llama.cpp/issues/19051"""

    zones: ClassVar = []
    request: ClassVar = {"text": {"format": {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}}}

    async def ask(self, client: openai.AsyncOpenAI, *, streamed: bool = False) -> Response:
        if not self.asked:
            first = await super().ask(client)
            assert first.error is not None
            assert (first.error.model_extra or {})["reason"] == "provider_invalid_output", first.error
        return await super().ask(client, streamed=streamed)

    def first(self, body: Json) -> bytes:
        return self.say('{"time": ', '"noon"}') if mentions(body, "Answer with JSON") else self.say(NOON)

    def check(self, outcome: Outcome) -> None:
        assert (outcome.response.status, outcome.response.output_text) == ("completed", '{"time": "noon"}'), outcome.response
