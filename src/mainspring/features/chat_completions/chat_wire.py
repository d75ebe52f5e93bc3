"""The only place that spells chat completions and their chunks.

A run may think, speak and call tools many times; a chat completion is one message. What is said in several turns is told as one
text, with an empty line between, and thoughts likewise. The server's own calls are not told, unless the client asks for it with
`Mainspring-Extensions: on`: then `mainspring_output` has the items as a response would.

The client's calls are told at the end, each whole: until then a policy may deny them, and whoever sees a call performs it.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mainspring.core.errors import MainspringError
from mainspring.core.events import (
    Delta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from mainspring.core.ids import derive_id
from mainspring.core.items import FunctionCall, Item, Json, Message, OutputText, Reasoning, Refusal, to_wire
from mainspring.core.response import Response, response
from mainspring.core.run import Run
from mainspring.features.chat_completions.messages import OUTPUT
from mainspring.http.answer_log import AnswerLog
from mainspring.http.client_tools import read_custom_input
from mainspring.http.faults import Fault, render_error
from mainspring.http.plain_answers import describe_waiting, find_client_calls, list_messages, list_thoughts, waits_with_words
from mainspring.http.wire import Dialect, render_response

GAP = "\n\n"
Channel = Literal["content", "refusal", "reasoning_content"]
FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class ChatDialect(Struct, frozen=True):
    """`usage` adds a last chunk with what was used, `extensions` the items of the run."""

    usage: bool = False
    extensions: bool = False


class ChatMessage(Struct, frozen=True, kw_only=True):
    role: str = "assistant"
    content: str | None = None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[Json, ...] | UnsetType = UNSET
    annotations: tuple[Json, ...] = ()
    mainspring_output: tuple[Item, ...] | UnsetType = UNSET


class ChatChoice(Struct, frozen=True):
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: Json | None = None
    index: int = 0


class ChatCompletion(Struct, frozen=True, kw_only=True):
    id: str
    object: str = "chat.completion"
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Json | None = None
    service_tier: str = "default"
    system_fingerprint: str | None = None
    metadata: dict[str, str] = {}


def render_completion(told: Response, dialect: ChatDialect) -> ChatCompletion:
    """The run as a chat completion."""
    messages = list_messages(told)
    thoughts = [text for item in told.output if isinstance(item, Reasoning) for _, text in list_thoughts(item)]
    calls = tuple([render_call(call) for call in find_client_calls(told)])
    refused = [part.refusal for item in messages for part in item.content if isinstance(part, Refusal)]
    likely = [entry for item in messages for part in item.content if isinstance(part, OutputText) for entry in part.logprobs]
    message = ChatMessage(
        content=GAP.join([*[item.text for item in messages if item.text], *describe_waiting(told)]) or None,
        refusal=GAP.join(refused) or None,
        reasoning_content=GAP.join(thoughts) or UNSET,
        tool_calls=calls or UNSET,
        annotations=tuple(_list_citations(messages)),
        mainspring_output=render_response(told, _EXTENDED).output if dialect.extensions else UNSET,
    )
    choice = ChatChoice(message, find_finish(told), {"content": likely, "refusal": None} if likely else None)
    return ChatCompletion(
        id=derive_id("chatcmpl", told.id),
        created=told.created_at,
        model=told.model,
        choices=(choice,),
        usage=_render_usage(told.usage),
        metadata=told.metadata,
    )


def find_finish(told: Response) -> FinishReason:
    if find_client_calls(told):
        return "tool_calls"
    if told.status == "incomplete":
        return "content_filter" if (told.incomplete_details or {}).get("reason") == "content_filter" else "length"
    return "stop"


def _list_citations(messages: list[Message]) -> Iterator[Json]:
    """The links in the text, by their places in all of it."""
    start = 0
    for message in [message for message in messages if message.text]:
        for part in [part for part in message.content if isinstance(part, OutputText)]:
            for note in part.annotations:
                match note:
                    case {"type": "url_citation", "start_index": int(first), "end_index": int(last), **rest}:
                        rest = {"url": rest.get("url", ""), "title": rest.get("title") or ""}
                        cited = {"start_index": start + first, "end_index": start + last, **rest}
                        yield {"type": "url_citation", "url_citation": cited}
            start += len(part.text)
        start += len(GAP)


def render_call(call: FunctionCall) -> Json:
    if call.form == "custom":
        return {"id": call.call_id, "type": "custom", "custom": {"name": call.own_name, "input": read_custom_input(call)}}
    return {"id": call.call_id, "type": "function", "function": {"name": call.own_name, "arguments": call.arguments}}


def _render_usage(usage: Json | None) -> Json | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage["input_tokens"],
        "completion_tokens": usage["output_tokens"],
        "total_tokens": usage["total_tokens"],
        "prompt_tokens_details": {**usage["input_tokens_details"], "audio_tokens": 0},
        "completion_tokens_details": {
            **usage["output_tokens_details"],
            "audio_tokens": 0,
            "accepted_prediction_tokens": 0,
            "rejected_prediction_tokens": 0,
        },
        **({"estimated": True} if usage.get("estimated") else {}),
    }


def render_failure(error: Fault | MainspringError) -> bytes:
    """The event that ends a stream without an answer."""
    return b"data: " + _encode({"error": render_error(error)}) + b"\n\n"


class ChatWire(AnswerLog[ChatDialect]):
    """The chunks of one run."""

    def reset(self) -> None:
        super().reset()
        self._head = self._text_head = b""
        self._tail = b',"logprobs":null,"finish_reason":null}]' + (b',"usage":null}\n\n' if self.dialect.usage else b"}\n\n")
        self._last: dict[Channel, object] = {}
        """What was said last in each channel: an empty line stands before something else."""
        self._said: set[object] = set()
        self._told = 0

    def _tell_delta(self, event: Delta) -> None:
        match event:
            case TextDelta(id_, delta, index) if not self._waits:
                self._say("content", id_, ("text", id_, index), delta, event.logprobs or ())
            case ReasoningDelta(id_, delta, index, summary):
                key = (id_, summary, index)
                self._say("reasoning_content", key, key, delta)
            case RefusalDelta(id_, delta, index) if not self._waits:
                self._say("refusal", ("refusal", id_, index), ("refusal", id_, index), delta)
            case _:
                pass

    def _finish(self, item: Item) -> None:
        """Tells what of an item came without deltas."""
        match item:
            case Message():
                for index, part in enumerate(item.content):
                    if isinstance(part, OutputText) and ("text", item.id, index) not in self._said:
                        self._say("content", item.id, ("text", item.id, index), part.text, part.logprobs)
                    elif isinstance(part, Refusal) and (key := ("refusal", item.id, index)) not in self._said:
                        self._say("refusal", key, key, part.refusal)
            case Reasoning():
                for thought, text in list_thoughts(item):
                    if thought not in self._said:
                        self._say("reasoning_content", thought, thought, text)
            case _:
                pass

    def _say(self, channel: Channel, whole: object, key: object, text: str, logprobs: tuple[Json, ...] = ()) -> None:
        """A piece of the part `key`, which is of the `whole` that no empty line divides."""
        if not text:
            return
        if self._last.get(channel, whole) != whole:
            text = GAP + text
        self._last[channel] = whole
        self._said.add(key)
        if channel == "content" and not logprobs:
            self.frames.append(self._text_head + _encode(text) + b"}" + self._tail)
        else:
            self._tell({channel: text}, logprobs={"content": logprobs, "refusal": None} if logprobs else None)

    def _begin(self, run: Run) -> None:
        self._waits = waits_with_words(run.spec)
        fields = {
            "id": derive_id("chatcmpl", run.spec.id),
            "object": "chat.completion.chunk",
            "created": int(run.started_at),
            "model": run.spec.model,
            "service_tier": "default",
            "system_fingerprint": None,
        }
        self._head = b"data: " + _encode(fields)[:-1]
        self._text_head = self._head + b',"choices":[{"index":0,"delta":{"content":'
        self._tell({"role": "assistant", "content": ""})

    def _fail(self, failure: Fault) -> None:
        self.frames.append(render_failure(failure))

    def _complete(self, told: Response) -> None:
        ended = render_completion(told, ChatDialect())
        for words in describe_waiting(told):
            self._say("content", words, words, words)
        choice = ended.choices[0]
        for number, call in enumerate(choice.message.tool_calls or ()):
            self._tell({"tool_calls": [{"index": number, **call}]})
        self._tell({"annotations": choice.message.annotations} if choice.message.annotations else {}, finish=choice.finish_reason)
        if self.dialect.usage:
            self.frames.append(self._head + b',"choices":[],"usage":' + _encode(ended.usage) + b"}\n\n")

    def _tell_server_calls(self, run: Run) -> None:
        if not self.dialect.extensions:
            return
        output = render_response(response(run), _EXTENDED).output
        if fresh := output[self._told :]:
            self._told = len(output)
            rest = b"}\n\n" if not self.dialect.usage else b',"usage":null}\n\n'
            self.frames.append(self._head + b',"choices":[],"%b":' % OUTPUT.encode() + _encode(fresh) + rest)

    def _tell(self, delta: Json, *, logprobs: Json | None = None, finish: FinishReason | None = None) -> None:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        rest = b',"usage":null}\n\n' if self.dialect.usage else b"}\n\n"
        self.frames.append(self._head + b',"choices":[' + _encode(choice) + b"]" + rest)


_EXTENDED = Dialect()
_encode = msgspec.json.Encoder(enc_hook=to_wire).encode
