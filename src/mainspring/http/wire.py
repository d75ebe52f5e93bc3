"""The only place that spells, numbers and indexes wire events.

A `Wire` is fed the records of a run, each with the run as it stood after it, and makes the events that clients see. That
expansion is a function of the log alone: whoever reads a run again, from whatever point, gets the same bytes. An item's
`output_index` is its place in the final `output`, because items are entered there in the order in which they begin.
"""

import re
from collections.abc import Iterator, Sequence
from io import StringIO
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mainspring.core.drafts import item_id
from mainspring.core.events import (
    Annotated,
    ArgumentsDelta,
    Delta,
    ErrorInfo,
    ItemDone,
    ItemStarted,
    ReasoningDelta,
    Recorded,
    RefusalDelta,
    RunEnded,
    RunStarted,
    TextDelta,
    ToolProgress,
)  # fmt: skip
from mainspring.core.history import list_label
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    Item,
    Json,
    Message,
    OutputText,
    Part,
    Reasoning,
    ReasoningText,
    Refusal,
    SummaryText,
    Unknown,
    to_wire,
)  # fmt: skip
from mainspring.core.response import Response, response
from mainspring.core.run import Run
from mainspring.http.client_tools import parse_arguments, read_commands, read_custom_input, render_client_item
from mainspring.http.frame_log import FrameLog
from mainspring.http.hosted_calls import (
    INTERPRETER,
    ClientTools,
    derive_server_id,
    find_delegated,
    list_client_tools,
    merge_server_calls,
    render_server_call,
)
from mainspring.http.kinds import FORMED

_ADDRESS = re.compile(r"https?://[^\s,;'\"`)]+")


class Dialect(Struct, frozen=True):
    """How events are told. The defaults suit every client that was tried; a server or a request may choose otherwise.

    `reasoning` names the events of raw reasoning; `server_calls` says what calls look like that the server performs (`calls`);
    `requires_action` shows that status instead of `completed`; `extensions` adds our own events, which some clients refuse;
    `error_event` announces a failure before `response.failed`.
    """

    reasoning: Literal["reasoning_text", "reasoning"] = "reasoning_text"
    server_calls: Literal["mcp_call", "function_call"] = "mcp_call"
    requires_action: bool = False
    extensions: bool = False
    error_event: bool = True


def render_response(told: Response, dialect: Dialect) -> Response:
    """The Response as clients of this dialect see it."""
    status = told.status
    if status == "requires_action" and not dialect.requires_action:
        status = "completed"
    output = (
        merge_server_calls(told)
        if dialect.server_calls == "mcp_call"
        else tuple([render_client_item(item) for item in told.output])
    )
    return replace(told, status=status, output=output, error=_error(told.error) if told.error else None)


class _Part(Struct):
    """A content part being said. `head` is everything of its delta events up to the delta."""

    kind: str
    head: bytes
    said: StringIO
    notes: list[Json]
    is_closed: bool = False


class _Open(Struct):
    """An item being said: its index, and its parts by (is a summary, index). One part is closed before the next begins."""

    index: int
    parts: dict[tuple[bool, int], _Part]
    has_arguments: bool = False
    head: bytes = b""
    is_servers: bool = False
    is_formed: bool = False


class Wire(FrameLog[Dialect]):
    """The wire events of one run."""

    def reset(self) -> None:
        super().reset()
        self._count = 0
        self._entries = 0
        self._open: dict[str, _Open] = {}
        self._waiting: dict[str, tuple[int, FunctionCall]] = {}
        self._held: list[tuple[Recorded, Run]] = []
        self._asked: dict[str, FunctionCall] = {}
        self._clients: ClientTools | None = None
        self._is_running = False
        self._text: tuple[str, int, _Part] | None = None
        """The part of which the last record was a text delta, with its item and its index: the next one goes on with it."""

    def add(self, record: Recorded, run: Run) -> None:
        """Tells what this record adds; `run` is the run after it."""
        self._text = None
        if self._held or (type(record.event) is ItemStarted and self._is_servers(record.event.item)):
            self._held.append((record, run))
            self._release(run)
        else:
            self._tell_record(record, run)
        self.ends.append(self._dropped + len(self.frames))

    def add_delta(self, record: Recorded) -> bool:
        event, text = record.event, self._text
        if text is not None and type(event) is TextDelta and event.item_id == text[0] and event.index == text[1]:
            text[2].said.write(event.delta)
            end = b',"logprobs":[],"sequence_number":%d}\n\n' % (self._dropped + len(self.frames))
            self.frames.append(text[2].head + _encode(event.delta) + end)
        elif self._held:
            self._held.append((record, self._held[-1][1]))
        else:
            self._tell_delta(event)  # type: ignore[arg-type]
        self.ends.append(self._dropped + len(self.frames))
        return True

    def _release(self, run: Run) -> None:
        """Tells what was held back, once it is known of every call of the turn whether a person is asked about it: then the
        request is told instead of the call. From a server's call on, everything is held, because indexes go by order."""
        if run.in_turn or any(call.verdict is None and call.output is None for call in run.calls):
            return
        asked = {call.item.id: call.item for call in run.calls if call.verdict == "ask"}
        self._asked |= {call.call_id: replace(call, approval=msgspec.UNSET) for call in asked.values()}
        held, self._held = self._held, []
        for record, then in held:
            match record.event:
                case ItemStarted(item) | ItemDone(item) if item_id(item) in asked:
                    pass
                case ArgumentsDelta(id_) if id_ in asked:
                    pass
                case _:
                    self._tell_record(record, then)

    def _is_servers(self, item: Item) -> bool:
        return isinstance(item, FunctionCall) and self._clients is not None and not self._clients.has(item)

    def _tell_record(self, record: Recorded, run: Run) -> None:
        event = record.event
        match event:
            case TextDelta() | ArgumentsDelta() | ReasoningDelta() | RefusalDelta():
                self._tell_delta(event)
            case ItemStarted(item):
                self._begin(item)
            case ItemDone(item):
                self._finish(item)
            case Annotated(id_, annotation, index):
                self._annotate(id_, index, annotation)
            case RunStarted():
                self._tell_created(run)
            case ToolProgress(call_id, text) if self.dialect.extensions:
                self._tell("mainspring:tool_progress", {"call_id": call_id, "text": text})
            case _:
                self._tell_entries(run)
                if isinstance(event, RunEnded):
                    self._tell_end(run)

    def _tell_delta(self, event: Delta) -> None:
        match event:
            case TextDelta(id_, delta, index):
                self._delta(id_, (False, index), "output_text", delta, event.logprobs or ())
            case ArgumentsDelta(id_, delta):
                self._arguments(id_, delta)
            case ReasoningDelta(id_, delta, index, summary):
                self._delta(id_, (summary, index), "summary_text" if summary else "reasoning_text", delta)
            case RefusalDelta(id_, delta, index):
                self._delta(id_, (False, index), "refusal", delta)

    # The response itself.

    def _tell_created(self, run: Run) -> None:
        self._entries = run.base
        began = response(run)
        if self.dialect.server_calls == "mcp_call":
            self._clients = list_client_tools(began)
        status = "queued" if run.spec.background else "in_progress"
        body = {"response": replace(render_response(began, self.dialect), status=status, output=())}
        self._tell("response.created", body)
        if run.spec.background:
            self._tell("response.queued", body)
        else:
            self._running(run)

    def _running(self, run: Run) -> None:
        self._is_running = True
        now = replace(render_response(response(run), self.dialect), status="in_progress", output=())
        self._tell("response.in_progress", {"response": now})

    def _tell_end(self, run: Run) -> None:
        made = response(run)
        for index, call in self._waiting.values():
            self._tell("response.output_item.done", {"output_index": index, "item": render_server_call(call)})
        for call in find_delegated(made, [call for _, call in self._waiting.values()]):
            self._clients = self._clients and self._clients.add(call.name)
            self._begin(call)
            self._finish(call)
        told = render_response(made, self.dialect)
        match run.status:
            case "completed" | "requires_action":
                kind = "response.completed"
            case "incomplete":
                kind = "response.incomplete"
            case _:
                kind = "response.failed"
        if run.status == "failed" and self.dialect.error_event and run.error is not None:
            flat = {"code": run.error.code, "message": hide_addresses(run.error.message), "param": None}
            self._tell("error", {**flat, "error": {"type": classify_error(run.error), **flat}})
        self._tell(kind, {"response": told})

    def _tell_entries(self, run: Run) -> None:
        """Whatever has entered the transcript since: items of a turn that were never finished, and what tools returned."""
        if not self._is_running and (run.status == "in_progress" or self._entries < len(run.transcript)):
            self._running(run)
        while self._entries < len(run.transcript):
            entry = run.transcript[self._entries]
            self._entries += 1
            if entry.origin == "model":
                if isinstance(entry.item, FunctionCall) and entry.item.approval is not msgspec.UNSET:
                    self._begin(entry.item)
                if item_id(entry.item) in self._open:
                    self._finish(entry.item)
            elif entry.origin == "tool":
                self._tell_returned(entry.item)

    # Items.

    def _begin(self, item: Item) -> None:
        opened = _Open(self._count, {})
        self._count += 1
        self._open[item_id(item)] = opened
        if isinstance(item, FunctionCall) and self._is_servers(item):
            opened.is_servers = True
            opened.is_formed = item.form in FORMED
            begun = render_server_call(replace(item, arguments=""), status="in_progress")
            self._tell("response.output_item.added", {"output_index": opened.index, "item": begun})
            where = {"item_id": derive_server_id(item), "output_index": opened.index}
            self._tell(f"response.{begun.data['type']}.in_progress", where)
            opened.head = self._head("response.mcp_call_arguments.delta", derive_server_id(item), opened.index)
            return
        self._tell("response.output_item.added", {"output_index": opened.index, "item": render_client_item(_announce(item))})
        if isinstance(item, FunctionCall):
            opened.is_formed = item.form is not msgspec.UNSET
            opened.head = self._head("response.function_call_arguments.delta", item.id, opened.index)

    def _finish(self, item: Item) -> None:
        opened = self._open[item_id(item)]
        match item:
            case FunctionCall() if opened.is_servers:
                self._tell_call(opened, item)
                return
            case FunctionCall() if opened.is_formed:
                self._tell_formed(opened, item)
            case FunctionCall():
                if item.arguments and not opened.has_arguments:
                    self._arguments(item.id, item.arguments)
                body = {"item_id": item.id, "output_index": opened.index, "name": item.own_name, "arguments": item.arguments}
                self._tell("response.function_call_arguments.done", body)
            case Message() | Reasoning():
                for key, part in _parts(item):
                    if key not in opened.parts:
                        self._open_part(item.id, opened, key, _kind(part))
                        if text := _text(part):
                            self._delta(item.id, key, _kind(part), text)
                    if not opened.parts[key].is_closed:
                        for note in part.annotations[len(opened.parts[key].notes) :] if isinstance(part, OutputText) else ():
                            self._annotate(item.id, key[1], note)
                        self._close_part(item.id, opened, key, part)
            case _:
                pass
        del self._open[item_id(item)]
        self._tell("response.output_item.done", {"output_index": opened.index, "item": render_client_item(item)})

    def _tell_formed(self, opened: _Open, call: FunctionCall) -> None:
        """What a call of the client's own kind says, told once all of it is there: arguments are JSON, these events are not."""
        if call.form == "custom":
            where = {"item_id": call.id, "output_index": opened.index}
            if given := read_custom_input(call):
                self._tell("response.custom_tool_call_input.delta", {**where, "delta": given})
            self._tell("response.custom_tool_call_input.done", {**where, "input": given})
        elif call.form == "shell":
            for number, command in enumerate(read_commands(parse_arguments(call))):
                where = {"output_index": opened.index, "command_index": number}
                self._tell("response.shell_call_command.added", {**where, "command": ""})
                self._tell("response.shell_call_command.delta", {**where, "delta": command})
                self._tell("response.shell_call_command.done", {**where, "command": command})

    def _tell_call(self, opened: _Open, call: FunctionCall) -> None:
        """The model has made a call that the server performs; its item stays open until the output is there."""
        where = {"item_id": derive_server_id(call), "output_index": opened.index}
        if call.form == INTERPRETER:
            code = str(render_server_call(call).data["code"])
            self._tell("response.code_interpreter_call_code.delta", {**where, "delta": code})
            self._tell("response.code_interpreter_call_code.done", {**where, "code": code})
        elif call.form not in FORMED:
            if call.arguments and not opened.has_arguments:
                self._arguments(call.id, call.arguments)
            self._tell("response.mcp_call_arguments.done", {**where, "arguments": call.arguments})
        del self._open[call.id]
        if call.status == "completed":
            self._waiting[call.call_id] = opened.index, call
            if call.form in FORMED:
                doing = "interpreting" if call.form == INTERPRETER else "searching"
                self._tell(f"response.{call.form}_call.{doing}", where)
        else:
            self._tell("response.output_item.done", {"output_index": opened.index, "item": render_server_call(call)})

    def _tell_returned(self, item: Item) -> None:
        """Something a tool brought: the output that a server's call waits for, or an item of its own."""
        if isinstance(item, FunctionCallOutput) and (asked := self._asked.pop(item.call_id, None)) is not None:
            self._begin(asked)
            self._finish(asked)
        if not isinstance(item, FunctionCallOutput) or item.call_id not in self._waiting:
            self._whole(item)
            return
        index, call = self._waiting.pop(item.call_id)
        told = render_server_call(call, item)
        # There is no event for one of these that failed; its item says so.
        ended = f"{call.form}_call.completed" if call.form in FORMED else f"mcp_call.{told.data['status']}"
        self._tell(f"response.{ended}", {"item_id": derive_server_id(call), "output_index": index})
        self._tell("response.output_item.done", {"output_index": index, "item": told})

    def _whole(self, item: Item) -> None:
        """An item that comes at once."""
        index = self._count
        self._count += 1
        told = {"output_index": index, "item": render_client_item(item)}
        if isinstance(item, Unknown) and list_label(item) is not None:
            where = {"item_id": item.data.get("id"), "output_index": index}
            self._tell("response.output_item.added", {**told, "item": Unknown({**item.data, "tools": []})})
            self._tell("response.mcp_list_tools.in_progress", where)
            self._tell(f"response.mcp_list_tools.{'failed' if item.data.get('error') else 'completed'}", where)
        else:
            self._tell("response.output_item.added", told)
        self._tell("response.output_item.done", told)

    # Parts.

    def _open_part(self, id_: str, opened: _Open, key: tuple[bool, int], kind: str) -> _Part:
        for earlier, unfinished in opened.parts.items():
            if not unfinished.is_closed:
                self._close_part(id_, opened, earlier, _build_part(unfinished))
        is_summary, index = key
        where = {"item_id": id_, "output_index": opened.index, "summary_index" if is_summary else "content_index": index}
        self._tell(f"{self._part_name(is_summary)}.added", {**where, "part": _EMPTY.get(kind, {"type": kind})})
        head = self._head(f"response.{self._delta_name(kind)}.delta", id_, opened.index, is_summary, index)
        opened.parts[key] = part = _Part(kind, head, StringIO(), [])
        return part

    def _close_part(self, id_: str, opened: _Open, key: tuple[bool, int], part: Part | SummaryText | ReasoningText) -> None:
        opened.parts[key].is_closed = True
        is_summary, index = key
        where = {"item_id": id_, "output_index": opened.index, "summary_index" if is_summary else "content_index": index}
        kind = _kind(part)
        if kind in _EMPTY:
            said: Json = {"refusal" if kind == "refusal" else "text": _text(part)}
            if kind == "output_text":
                said["logprobs"] = part.logprobs if isinstance(part, OutputText) else ()
            self._tell(f"response.{self._delta_name(kind)}.done", {**where, **said})
        self._tell(f"{self._part_name(is_summary)}.done", {**where, "part": part})

    def _delta(self, id_: str, key: tuple[bool, int], kind: str, delta: str, logprobs: tuple[Json, ...] = ()) -> None:
        opened = self._open[id_]
        part = opened.parts.get(key) or self._open_part(id_, opened, key, kind)
        if kind == "output_text":
            self._text = id_, key[1], part
        part.said.write(delta)
        chances = b',"logprobs":' + (_encode(logprobs) if logprobs else b"[]") if kind == "output_text" else b""
        end = b',"sequence_number":%d}\n\n' % (self._dropped + len(self.frames))
        self.frames.append(part.head + _encode(delta) + chances + end)

    def _arguments(self, id_: str, delta: str) -> None:
        opened = self._open[id_]
        opened.has_arguments = True
        if opened.is_formed:
            return
        end = b',"sequence_number":%d}\n\n' % (self._dropped + len(self.frames))
        self.frames.append(opened.head + _encode(delta) + end)

    def _annotate(self, id_: str, index: int, annotation: Json) -> None:
        opened = self._open[id_]
        part = opened.parts.get((False, index)) or self._open_part(id_, opened, (False, index), "output_text")
        where = {"item_id": id_, "output_index": opened.index, "content_index": index, "annotation_index": len(part.notes)}
        part.notes.append(annotation)
        self._tell("response.output_text.annotation.added", {**where, "annotation": annotation})

    # Bytes.

    def _tell(self, kind: str, body: Json) -> None:
        data = _encode({"type": kind, **body, "sequence_number": self._dropped + len(self.frames)})
        self.frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))

    def _head(self, kind: str, id_: str, output_index: int, is_summary: bool = False, index: int | None = None) -> bytes:
        body: Json = {"type": kind, "item_id": id_, "output_index": output_index}
        if index is not None:
            body["summary_index" if is_summary else "content_index"] = index
        return b'event: %b\ndata: %b,"delta":' % (kind.encode(), _encode(body)[:-1])

    def _part_name(self, is_summary: bool) -> str:
        return "response.reasoning_summary_part" if is_summary else "response.content_part"

    def _delta_name(self, kind: str) -> str:
        if kind == "reasoning_text":
            return self.dialect.reasoning
        return "reasoning_summary_text" if kind == "summary_text" else kind


def extract_data(frame: bytes) -> bytes:
    """The JSON of a server-sent event, as a WebSocket carries it."""
    return frame[frame.index(b"data: ") + 6 : -2]


def add_ignored(data: bytes, paths: Sequence[str]) -> bytes:
    """An event that also says what was ignored of the request that it answers."""
    return data[:-1] + b',"mainspring_ignored":' + _encode(paths) + b"}"


def hide_addresses(message: str) -> str:
    """A message without the addresses of what is behind the server, which are nobody's business."""
    return _ADDRESS.sub("the backend", message)


def classify_error(error: ErrorInfo) -> str:
    match error.code:
        case "rate_limit_exceeded":
            return "too_many_requests"
        case "invalid_prompt" | "context_length_exceeded" | "model_not_found":
            return "invalid_request_error"
        case code if code.startswith("provider_"):
            return "model_error"
        case _:
            return "server_error"


# The error codes of a Response are a closed set for strict clients; the precise code goes beside it.
_KNOWN_CODES = frozenset({"server_error", "rate_limit_exceeded", "invalid_prompt"})


def _error(error: Json) -> Json:
    code = str(error["code"])
    known = code if code in _KNOWN_CODES else "server_error"
    return {
        "code": known,
        "message": hide_addresses(str(error["message"])),
        "type": classify_error(ErrorInfo(code, "")),
        "reason": code,
    }


def _announce(item: Item) -> Item:
    """The item as it is announced: what is known of it, and nothing said yet."""
    match item:
        case Message():
            return replace(item, content=(), status="in_progress")
        case FunctionCall():
            return replace(item, arguments="", status="in_progress")
        case Reasoning():
            return replace(item, summary=(), content=msgspec.UNSET, status="in_progress")
        case _:
            return item


def _parts(item: Message | Reasoning) -> Iterator[tuple[tuple[bool, int], Part | SummaryText | ReasoningText]]:
    if isinstance(item, Message):
        for index, part in enumerate(item.content):
            yield (False, index), part
        return
    for index, summary in enumerate(item.summary):
        yield (True, index), summary
    for index, raw in enumerate(item.content if isinstance(item.content, tuple) else ()):
        yield (False, index), raw


def _build_part(part: _Part) -> Part | SummaryText | ReasoningText:
    text = part.said.getvalue()
    match part.kind:
        case "refusal":
            return Refusal(text)
        case "summary_text":
            return SummaryText(text)
        case "reasoning_text":
            return ReasoningText(text)
        case _:
            return OutputText(text, annotations=tuple(part.notes))


def _kind(part: Part | SummaryText | ReasoningText) -> str:
    match part:
        case OutputText():
            return "output_text"
        case Refusal():
            return "refusal"
        case SummaryText():
            return "summary_text"
        case ReasoningText():
            return "reasoning_text"
        case _:
            return "other"


def _text(part: Part | SummaryText | ReasoningText) -> str:
    match part:
        case OutputText(text) | SummaryText(text) | ReasoningText(text):
            return text
        case Refusal(refusal):
            return refusal
        case _:
            return ""


_EMPTY: dict[str, Json] = {
    "output_text": {"type": "output_text", "text": "", "annotations": [], "logprobs": []},
    "refusal": {"type": "refusal", "refusal": ""},
    "summary_text": {"type": "summary_text", "text": ""},
    "reasoning_text": {"type": "reasoning_text", "text": ""},
}
_encode = msgspec.json.Encoder(enc_hook=to_wire).encode
