"""The only place that spells the messages of the Messages API, its events and its errors.

A message is a row of blocks: thoughts with their signatures, texts, and at the end the calls that the client is to perform. They
are told then, each whole, because until the end a policy may deny them, and whoever sees a call performs it. What the server's
own tools do is not told, unless the client sends `Mainspring-Extensions: on`: then it is told as calls of MCP servers are. What
`search_blocks` spells, searches of the web, is told to every client that has declared them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec
from msgspec import Struct

from mainspring.core.errors import MainspringError
from mainspring.core.events import (
    Delta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from mainspring.core.ids import derive_id
from mainspring.core.items import FunctionCall, Item, Json, Message, OutputText, Reasoning, Refusal, Unknown, to_wire
from mainspring.core.response import Response, response
from mainspring.core.run import Run
from mainspring.core.tokens import estimate
from mainspring.features.messages.search_blocks import (
    count_searches,
    find_texts,
    is_search,
    list_cited,
    render_search,
    shows_searches,
)
from mainspring.http.answer_log import AnswerLog
from mainspring.http.client_tools import parse_arguments
from mainspring.http.faults import Fault, wrap_for_messages
from mainspring.http.hosted_calls import SERVER_LABEL
from mainspring.http.plain_answers import describe_waiting, find_client_calls, list_messages, list_thoughts, waits_with_words
from mainspring.http.wire import Dialect, render_response

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"]
PING: Final = b'event: ping\ndata: {"type":"ping"}\n\n'


class MessagesDialect(Struct, frozen=True):
    """`extensions` adds the calls that the server performs."""

    extensions: bool = False


class MessageUsage(Struct, frozen=True):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens_details: Json | None = None
    server_tool_use: Json | None = None


class AssistantMessage(Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: tuple[Json, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage = MessageUsage()


class CountedTokens(Struct, frozen=True):
    input_tokens: int


def render_message(told: Response, dialect: MessagesDialect) -> AssistantMessage:
    """The run as one message."""
    shown, said = _list_shown(told, dialect), list_messages(told)
    texts = find_texts(shown)
    blocks = [block for item in shown if not isinstance(item, Message) or item in said for block in _render_item(item, texts)]
    blocks += [_text(words) for words in describe_waiting(told)]
    blocks += [_render_call(call) for call in find_client_calls(told)]
    return AssistantMessage(
        id=derive_id("msg", told.id),
        model=told.model,
        content=tuple(blocks),
        stop_reason=_find_stop(told),
        stop_sequence=told.stop_sequence or None,
        usage=_render_usage(told.usage, shown),
    )


def _list_shown(told: Response, dialect: MessagesDialect) -> Sequence[Item]:
    """The output as far as the client wants to know of it."""
    if dialect.extensions:
        return render_response(told, _PLAIN).output
    if not shows_searches(told.tools):
        return [item for item in told.output if not isinstance(item, Unknown)]
    return [item for item in render_response(told, _PLAIN).output if not isinstance(item, Unknown) or is_search(item)]


def _render_item(item: Item, texts: Mapping[str, str]) -> Iterator[Json]:
    """Its blocks. `texts` says what the pages say that it may cite."""
    match item:
        case Message():
            for part in _list_said(item):
                if text := _read_words(part):
                    cited = list_cited(part, texts) if texts and isinstance(part, OutputText) else []
                    yield {**_text(text), "citations": cited} if cited else _text(text)
        case Reasoning():
            yield from _render_thought(item)
        case Unknown({"type": "web_search_call"}):
            yield from render_search(item.data)
        case Unknown({"type": "mcp_call" | "code_interpreter_call" | "file_search_call"}):
            yield from _render_server_call(item.data)
        case _:
            pass


def _read_words(part: OutputText | Refusal) -> str:
    return part.text if isinstance(part, OutputText) else part.refusal


def _list_said(item: Message) -> list[OutputText | Refusal]:
    return [part for part in item.content if isinstance(part, OutputText | Refusal)]


def _render_thought(item: Reasoning) -> Iterator[Json]:
    sealed = item.encrypted_content or ""
    thoughts = [text for _, text in list_thoughts(item)]
    for number, text in enumerate(thoughts):
        yield {"type": "thinking", "thinking": text, "signature": sealed if number == len(thoughts) - 1 else ""}
    if sealed and not thoughts:
        yield {"type": "redacted_thinking", "data": sealed}


def _render_call(call: FunctionCall) -> Json:
    return {"type": "tool_use", "id": call.call_id, "name": call.own_name, "input": parse_arguments(call)}


def _render_server_call(call: Json) -> Iterator[Json]:
    """A call that the server has performed, and its result, if it has one."""
    id = derive_id("mcptoolu", str(call["id"]))
    if call["type"] == "code_interpreter_call":
        name, label, given = "code_interpreter", SERVER_LABEL, {"code": call["code"]}
        said: object = "".join([str(part.get("logs", "")) for part in call["outputs"] or ()])
    elif call["type"] == "file_search_call":
        name, label, given, said = "file_search", SERVER_LABEL, {"queries": call["queries"]}, ""
    else:
        name, label, said = call["name"], call["server_label"], call["output"]
        given = parse_arguments(FunctionCall("", name, call["arguments"]))
    yield {"type": "mcp_tool_use", "id": id, "name": name, "server_name": label, "input": given}
    match call.get("error"):
        case {"content": [{"text": str(text)}, *_]}:
            said = text
    if call["status"] != "incomplete":
        content = [{"type": "text", "text": str(said or "")}]
        yield {"type": "mcp_tool_result", "tool_use_id": id, "is_error": call["status"] == "failed", "content": content}


def _find_stop(told: Response) -> StopReason:
    if find_client_calls(told):
        return "tool_use"
    reason = (told.incomplete_details or {}).get("reason")
    is_refused = any(isinstance(part, Refusal) for item in told.output if isinstance(item, Message) for part in item.content)
    if reason == "content_filter" or (is_refused and told.status == "completed"):
        return "refusal"
    if told.status == "incomplete":
        return "max_tokens"
    return "stop_sequence" if told.stop_sequence else "end_turn"


def _render_usage(usage: Json | None, shown: Sequence[Item]) -> MessageUsage:
    """Tokens that a cache held or took in are counted apart here."""
    searched = count_searches(shown)
    if usage is None:
        return MessageUsage(server_tool_use=searched)
    details = usage["input_tokens_details"]
    cached, written = details["cached_tokens"], details["cache_write_tokens"]
    plain = max(usage["input_tokens"] - cached - written, 0)
    thinking = {"thinking_tokens": usage["output_tokens_details"]["reasoning_tokens"]}
    return MessageUsage(plain, usage["output_tokens"], written, cached, thinking, searched)


class MessagesWire(AnswerLog[MessagesDialect]):
    """The events of one run."""

    def reset(self) -> None:
        super().reset()
        self._count = 0
        self._open: object = None
        """The part whose block is open; one block is closed before the next begins."""
        self._text_head = b""
        self._said: set[object] = set()
        self._told: set[str] = set()
        self._is_searching = False
        self._texts: dict[str, str] = {}
        """What the pages say that were found."""

    def _tell_delta(self, event: Delta) -> None:
        match event:
            case TextDelta(id_, delta, index) | RefusalDelta(id_, delta, index) if not self._waits:
                self._say(("text", id_, index), delta)
            case ReasoningDelta(id_, delta, index, summary):
                self._think((id_, summary, index), delta)
            case _:
                pass

    def _say(self, key: object, text: str) -> None:
        if not text:
            return
        if self._open != key:
            self._open_block(key, _text(""))
            start = {"type": "content_block_delta", "index": self._count, "delta": {"type": "text_delta"}}
            self._text_head = b"event: content_block_delta\ndata: " + _encode(start)[:-2] + b',"text":'
        self.frames.append(self._text_head + _encode(text) + b"}}\n\n")

    def _cite(self, key: object, part: OutputText) -> None:
        for citation in list_cited(part, self._texts) if self._open == key else ():
            self._tell_part({"type": "citations_delta", "citation": citation})

    def _think(self, key: object, text: str) -> None:
        if not text:
            return
        if self._open != key:
            self._open_block(key, {"type": "thinking", "thinking": "", "signature": ""})
        self._tell_part({"type": "thinking_delta", "thinking": text})

    def _finish(self, item: Item) -> None:
        """Tells what of an item came without deltas, and the signature of a thought."""
        match item:
            case Message():
                for index, part in enumerate(item.content):
                    if isinstance(part, OutputText | Refusal) and (key := ("text", item.id, index)) not in self._said:
                        self._say(key, _read_words(part))
                    if self._texts and isinstance(part, OutputText):
                        self._cite(("text", item.id, index), part)
            case Reasoning():
                thoughts = [*list_thoughts(item)]
                for thought, text in thoughts:
                    if thought not in self._said:
                        self._think(thought, text)
                if sealed := item.encrypted_content:
                    if thoughts and self._open == thoughts[-1][0]:
                        self._tell_part({"type": "signature_delta", "signature": sealed})
                    else:
                        self._tell_block({"type": "redacted_thinking", "data": sealed})
            case _:
                return
        self._close_block()

    # Blocks.

    def _open_block(self, key: object, block: Json) -> None:
        self._close_block()
        self._open = key
        self._said.add(key)
        self._tell("content_block_start", {"index": self._count, "content_block": block})

    def _tell_part(self, delta: Json) -> None:
        self._tell("content_block_delta", {"index": self._count, "delta": delta})

    def _close_block(self) -> None:
        if self._open is not None:
            self._open = None
            self._tell("content_block_stop", {"index": self._count})
            self._count += 1

    def _tell_block(self, block: Json) -> None:
        """A block that comes whole."""
        given = block.get("input")
        self._open_block(("whole", self._count), block if given is None else {**block, "input": {}})
        if given is not None:
            self._tell_part({"type": "input_json_delta", "partial_json": _encode(given).decode()})
        self._close_block()

    # The message.

    def _begin(self, run: Run) -> None:
        spec = run.spec
        self._waits = waits_with_words(spec)
        self._is_searching = shows_searches(spec.echo.get("tools", ()))
        usage = MessageUsage(estimate(spec.input, spec.instructions, spec.tools), 1)
        begun = AssistantMessage(id=derive_id("msg", spec.id), model=spec.model, usage=usage)
        self._tell("message_start", {"message": begun})
        self.frames.append(PING)

    def _fail(self, failure: Fault) -> None:
        self.frames.append(render_failure(failure))

    def _complete(self, told: Response) -> None:
        for words in describe_waiting(told):
            self._say(words, words)
        self._close_block()
        for call in find_client_calls(told):
            self._tell_block(_render_call(call))
        ended = {"stop_reason": _find_stop(told), "stop_sequence": told.stop_sequence or None}
        self._tell("message_delta", {"delta": ended, "usage": _render_usage(told.usage, _list_shown(told, self.dialect))})
        self._tell("message_stop", {})

    def _tell_server_calls(self, run: Run) -> None:
        if not (self.dialect.extensions or self._is_searching):
            return
        shown = _list_shown(response(run), self.dialect)
        self._texts = find_texts(shown)
        for item in shown:
            if isinstance(item, Unknown) and str(item.data.get("id")) not in self._told:
                self._told.add(str(item.data.get("id")))
                for block in _render_item(item, self._texts):
                    self._tell_block(block)

    def _tell(self, kind: str, body: Json) -> None:
        self.frames.append(_make_event(kind, body))


def render_failure(error: Fault | MainspringError) -> bytes:
    """The event that ends a stream without an answer."""
    return _make_event("error", wrap_for_messages(error))


def _make_event(kind: str, body: Json) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), _encode({"type": kind, **body}))


def _text(text: str) -> Json:
    return {"type": "text", "text": text}


_PLAIN: Final = Dialect()
_encode = msgspec.json.Encoder(enc_hook=to_wire).encode
