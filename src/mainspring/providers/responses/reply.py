"""What a Responses backend answers: its items, streamed or whole, as our events.

Items pass as they come, also of kinds we do not know; only ids that are missing or taken are replaced. What an item says is what
its deltas said: where a backend leaves deltas out, the whole item stands in for them, and where the two differ, what was streamed
counts.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, field
from msgspec.structs import replace

from mainspring.core import events, items
from mainspring.core.declared_tools import SEARCH, Identity, flatten_name
from mainspring.core.drafts import item_id
from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish
from mainspring.core.ids import NewId
from mainspring.core.items import Item, Json, Part
from mainspring.providers.call_draft import build_unnamed_error
from mainspring.providers.json_text import json_text
from mainspring.providers.reply import NULL, ReplyReader, read_counts
from mainspring.providers.transcript import get_text
from mainspring.providers.turn import TurnEvents

Channel = Literal["text", "refusal", "thought", "summary", "arguments"]


class ResponsesReply(ReplyReader["ResponsesTurn"]):
    """Reads the events of a Responses stream, or a whole Response."""

    chunk_name = "Responses event"
    may_be_whole = True

    def _take(self, data: bytes) -> None:
        event = self._decode(_event, data)
        kind = event.type
        if (channel := _CHANNELS.get(kind)) is not None:
            self._turn.delta(channel, event)
        elif kind == "response.output_item.added":
            self._turn.start(self._item(event.item), event.output_index)
        elif kind == "response.output_item.done":
            self._turn.finish(self._item(event.item), event.output_index)
        elif kind == "response.function_call_arguments.done":
            self._turn.complete_arguments(event)
        elif kind == "response.output_text.annotation.added":
            self._turn.annotate(event)
        elif kind in _TERMINAL:
            self._take_whole(bytes(event.response))
        elif kind == "error" or (not kind and event.error):
            raise self._failure(data)

    def _take_whole(self, data: bytes) -> None:
        """A Response, alone or in the last event: how it ended, and the items that were not streamed."""
        response = self._decode(_response, data)
        if response.error is not None or response.status in ("failed", "cancelled"):
            raise self._failure(msgspec.json.encode({"error": response.error or {}}))
        if response.status is None and response.output is None:
            raise BadOutput(f"{self._http.url} sent what is no Response: `{self._http.quote(data)}`")
        for index, raw in enumerate(response.output or ()):
            self._turn.add_missing(self._item(raw), index)
        is_filtered = (response.incomplete_details or {}).get("reason") == "content_filter"
        self._finish = "stop" if response.status != "incomplete" else "content_filter" if is_filtered else "length"
        self._usage, self.is_over = _usage_of(response.usage), True

    @property
    def said(self) -> str:
        return self._turn.said

    def _take_done(self) -> None:
        """Some gateways never send the whole: behind items that are whole, that it ends properly is enough."""
        super()._take_done()
        if self._turn.is_whole:
            self._finish = self._finish or "stop"

    def _item(self, raw: msgspec.Raw) -> "_Item":
        item = self._decode(_item, bytes(raw))
        if item.type == "tool_search_call" and item.execution == "client":
            item.type, item.name = "function_call", SEARCH
        if item.type not in ("message", "reasoning", "function_call"):
            item.data = self._decode(_object, bytes(raw))
        return item


class ResponsesTurn(TurnEvents):
    """Collects the items of one turn. `calls` and `used` are the ids that the conversation has used already, `names` our names
    for tools of namespaces."""

    def __init__(
        self,
        new_id: NewId,
        calls: Collection[str] = (),
        used: Iterable[str] = (),
        names: Mapping[Identity, str] | None = None,
    ) -> None:
        super().__init__(new_id, calls)
        self._names = names or {}
        self._item_ids = set(used)
        # Items by the backend's id and by index: gateways change the one and number all items 0 in the other.
        self._by_id: dict[str | None, _OpenItem] = {}
        self._by_index: dict[int | None, _OpenItem] = {}
        self._by_call: dict[str | None, _OpenItem] = {}
        self._items: list[_OpenItem] = []
        self._words: list[str] = []
        self._has_spoken = False

    @property
    def is_silent(self) -> bool:
        return not self._items

    @property
    def is_mute(self) -> bool:
        return not self._has_spoken

    @property
    def said(self) -> str:
        """The words of the messages that are whole, unless there are calls."""
        return "" if any(item.kind == "function_call" for item in self._items) else "".join(self._words)

    @property
    def is_worded(self) -> bool:
        return (said := self.said.strip()) != "" and not said.startswith(("{", "["))

    @property
    def is_whole(self) -> bool:
        """Something was said or called, and all of it to its end."""
        return self._has_spoken and all(item.is_done for item in self._items)

    def end(self, finish: Finish, usage: items.Usage | None) -> None:
        for left in [item for item in self._items if not item.is_done]:
            self._close(left, _Item(left.kind, status="completed" if finish == "stop" else "incomplete"))
        self._events.append(events.TurnEnded(finish, usage))

    def add_missing(self, given: "_Item", index: int) -> None:
        """An item of the whole answer, unless it was streamed to its end."""
        found = self._find_alike(given) or self._find(given, index)
        if found is None or not found.is_done:
            self.finish(given, index)
        else:
            found.is_listed = True

    def _find_alike(self, given: "_Item") -> "_OpenItem | None":
        """A call that was streamed under other ids and at another place, as gateways do it: a call is made once."""
        return next((each for each in self._items if each.is_done and not each.is_listed and each.says(given)), None)

    def delta(self, channel: Channel, event: "_ResponsesEvent") -> None:
        delta = event.delta
        if not delta or not isinstance(delta, str):
            return
        item = self._by_id.get(event.item_id) or self._by_index.get(event.output_index)
        if item is None or item.kind != _KINDS[channel]:
            # Arguments without a call have no name yet: they come once more with the whole.
            item = self.start(_Item(type=_KINDS[channel], id=event.item_id), event.output_index)
        if item is None or item.is_done:
            return
        index = (event.summary_index if channel == "summary" else event.content_index) or 0
        pieces = item.said.get((channel, index))
        if pieces is None:
            index, pieces = item.part(channel, index)
        pieces.append(delta)
        if event.logprobs and channel == "text":
            item.logprobs.setdefault(index, []).extend(event.logprobs)
            self._events.append(events.TextDelta(item.id, delta, index, tuple(event.logprobs)))
            return
        self._events.append(_delta(channel, item.id, delta, index))

    def complete_arguments(self, event: "_ResponsesEvent") -> None:
        """All arguments of a call, from a backend that leaves out pieces of them."""
        item = self._by_id.get(event.item_id) or self._by_index.get(event.output_index)
        if item is not None and item.kind == "function_call" and not item.is_done:
            whole = self._final(item, "arguments", 0, json_text(event.arguments))
            item.said["arguments", 0] = [whole]

    def annotate(self, event: "_ResponsesEvent") -> None:
        item = self._by_id.get(event.item_id) or self._by_index.get(event.output_index)
        if item is not None and not item.is_done and isinstance(event.annotation, dict):
            index = event.content_index or 0
            item.notes.setdefault(index, []).append(event.annotation)
            self._events.append(events.Annotated(item.id, event.annotation, index))

    def start(self, given: "_Item", index: int | None) -> "_OpenItem | None":
        """Begins an item, but for a call that has no name yet: that one begins when it is whole."""
        if given.type == "function_call_output" or (given.type == "function_call" and not given.name):
            return None
        known = self._find(given, index)
        return known if known is not None and self._is_begun(known, given, index) else self._open(given, index)

    def _is_begun(self, known: "_OpenItem", given: "_Item", index: int | None) -> bool:
        """Whether the beginning of an item only comes once more, or after its end."""
        if (given.call_id or known.call_id) != known.call_id or given.name != known.name:
            return False
        is_same, is_here = bool(given.id) and known is self._by_id.get(given.id), known.index == index
        if known.kind != "function_call":
            return is_same and is_here and not known.is_done
        return (is_same and bool(given.call_id)) or (is_here and (is_same or bool(given.call_id) or not known.is_done))

    def _open(self, given: "_Item", index: int | None) -> "_OpenItem":
        item = self._begin(given)
        found = _OpenItem(given.type, index, item, item_id(item), given.name, given.call_id)
        self._by_index[index] = found
        if given.id:
            self._by_id[given.id] = found
        if given.call_id:
            self._by_call[given.call_id] = found
        self._items.append(found)
        self._events.append(events.ItemStarted(found.item))
        return found

    def _begin(self, given: "_Item") -> Item:
        id = given.id or ""
        while not id or id in self._item_ids:
            id = self._new_id(_PREFIXES.get(given.type, "item"))
        self._item_ids.add(id)
        match given.type:
            case "message":
                return items.Message("assistant", id=id, status="in_progress", phase=given.phase or UNSET)
            case "reasoning":
                return items.Reasoning(id=id, status="in_progress")
            case "function_call":
                return items.FunctionCall(self._make_unique(given.call_id or ""), self._name(given), id=id, status="in_progress")
            case _:
                return self._foreign(given, id)

    def _name(self, given: "_Item") -> str:
        namespace, name = given.namespace or "", given.name or ""
        return self._names.get((namespace, name)) or (flatten_name(namespace, name) if namespace else name)

    def finish(self, given: "_Item", index: int | None) -> None:
        if given.type == "function_call_output":
            return  # Who asks the model answers its calls, each one and only once.
        found = self._find(given, index)
        if found is not None and found.is_done and self._is_repeated(found, given, index):
            return
        if found is None or found.is_done:
            if given.type == "function_call" and not given.name:
                raise build_unnamed_error(str(given.arguments))
            found = self._open(given, index)
        self._close(found, given)

    def _is_repeated(self, found: "_OpenItem", given: "_Item", index: int | None) -> bool:
        """Whether an item that is done is only said once more. Backends that number all calls 0 and give no ids make another call
        by other arguments."""
        is_same = bool(given.id) and found is self._by_id.get(given.id)
        if found.kind != "function_call":
            return is_same and found.index == index
        if (given.call_id or found.call_id) != found.call_id:
            return False
        return found.says(given) or (bool(given.call_id) and (is_same or found.index == index))

    def _find(self, given: "_Item", index: int | None) -> "_OpenItem | None":
        """The item that has begun as this one: by its id, by that of its call, or by its place if that holds one of its kind."""
        places = (self._by_id.get(given.id), self._by_call.get(given.call_id), self._by_index.get(index))
        return next((found for found in places if found is not None and found.kind == given.type), None)

    def _close(self, found: "_OpenItem", given: "_Item") -> None:
        found.is_done = True
        status: items.ItemStatus = "incomplete" if given.status == "incomplete" else "completed"
        item = found.item
        match item:
            case items.Message():
                item = replace(item, content=self._content(found, given.content or ()), status=status)
                self._words += map(get_text, item.content)
            case items.FunctionCall():
                found.arguments = self._final(found, "arguments", 0, json_text(given.arguments))
                item = replace(item, arguments=found.arguments, status=status)
            case items.Reasoning():
                item = self._thought(found, item, given, status)
            case _ if given.data:
                item = self._foreign(given, found.id)
        self._has_spoken = self._has_spoken or _says_something(item)
        self._events.append(events.ItemDone(item))

    def _content(self, found: "_OpenItem", given: Sequence["_ResponsesPart"]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for index, part in enumerate(given):
            if ("refusal", index) in found.said or (part.type == "refusal" and ("text", index) not in found.said):
                parts.append(items.Refusal(self._final(found, "refusal", index, part.refusal or "")))
                continue
            text = self._final(found, "text", index, part.text or "")
            notes = part.annotations or found.notes.pop(index, [])
            parts.append(items.OutputText(text, tuple(notes), tuple(part.logprobs or found.logprobs.get(index, []))))
        for channel, index in _list_unfinished(found):
            said = self._final(found, channel, index, None)
            notes = found.notes.pop(index, [])
            chances = found.logprobs.get(index, [])
            parts.append(items.Refusal(said) if channel == "refusal" else items.OutputText(said, tuple(notes), tuple(chances)))
        return tuple(parts)

    def _thought(self, found: "_OpenItem", item: items.Reasoning, given: "_Item", status: items.ItemStatus) -> items.Reasoning:
        content, summary = given.content or (), given.summary or ()
        raw = [self._final(found, "thought", index, part.text or "") for index, part in enumerate(content)]
        short = [self._final(found, "summary", index, part.text or "") for index, part in enumerate(summary)]
        for channel, index in _list_unfinished(found):
            (short if channel == "summary" else raw).append(self._final(found, channel, index, None))
        return replace(
            item,
            content=tuple([items.ReasoningText(text) for text in raw]) or UNSET,
            summary=tuple([items.SummaryText(text) for text in short]),
            encrypted_content=given.encrypted_content or UNSET,
            status=status,
        )

    def _final(self, found: "_OpenItem", channel: Channel, index: int, whole: str | None) -> str:
        """What a part says: the whole of it if that begins as it was streamed, and then the rest is streamed too."""
        said = "".join(found.said.pop((channel, index), ()))
        if whole is None or not whole.startswith(said):
            return said
        if rest := whole[len(said) :]:
            self._events.append(_delta(channel, found.id, rest, index))
        return whole

    def _foreign(self, given: "_Item", id: str) -> Item:
        try:
            return items.convert({**given.data, "id": id}, Item)
        except ValueError as error:
            raise BadOutput(f"the backend sent an item of type `{given.type}` that cannot be read: {error}; ask again") from error


class _OpenItem(Struct, eq=False):
    """An item being said: its pieces by channel and index."""

    kind: str
    index: int | None
    item: Item
    id: str
    name: str | None = None
    call_id: str | None = None
    arguments: str = ""
    said: dict[tuple[Channel, int], list[str]] = {}
    notes: dict[int, list[Json]] = {}
    logprobs: dict[int, list[Json]] = {}
    is_done: bool = False
    is_listed: bool = False

    def says(self, given: "_Item") -> bool:
        """Whether it is a call as the one given, whatever their ids."""
        said = (given.type, given.name, json_text(given.arguments))
        return self.kind == "function_call" and said == (self.kind, self.name, self.arguments)

    def part(self, channel: Channel, index: int) -> tuple[int, list[str]]:
        """A place for the pieces of a part, and its index: words and a refusal cannot share one."""
        index, other = max(0, index), _OTHERS.get(channel, channel)
        while other != channel and (other, index) in self.said:
            index += 1
        return index, self.said.setdefault((channel, index), [])


def _says_something(item: Item) -> bool:
    """Whether there is more in it than thoughts and empty words."""
    match item:
        case items.Message(content=content):
            return any(map(get_text, content))
        case items.Reasoning():
            return False
        case _:
            return True


def _list_unfinished(found: _OpenItem) -> list[tuple[Channel, int]]:
    """What was streamed and is not in the whole item, in its order."""
    return sorted(found.said, key=lambda place: place[1])


def _delta(channel: Channel, id: str, delta: str, index: int) -> events.Delta:
    match channel:
        case "text":
            return events.TextDelta(id, delta, index)
        case "arguments":
            return events.ArgumentsDelta(id, delta)
        case "refusal":
            return events.RefusalDelta(id, delta, index)
        case _:
            return events.ReasoningDelta(id, delta, index, summary=channel == "summary")


class _ResponsesEvent(Struct, gc=False):
    type: str = ""
    delta: object = None
    arguments: object = None
    item_id: str | None = None
    output_index: int | None = None
    content_index: int | None = None
    summary_index: int | None = None
    item: msgspec.Raw = NULL
    annotation: object = None
    logprobs: list[Json] | None = None
    response: msgspec.Raw = NULL
    error: object = None


class _ResponsesPart(Struct, gc=False):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    annotations: list[Json] | None = None
    logprobs: list[Json] | None = None


class _Item(Struct):
    """An item as it comes. `data` is all of it, for kinds that we do not know; no item has a field without a name."""

    type: str = ""
    id: str | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: object = None
    content: list[_ResponsesPart] | None = None
    summary: list[_ResponsesPart] | None = None
    encrypted_content: str | None = None
    status: str | None = None
    phase: str | None = None
    namespace: str | None = None
    execution: str | None = None
    data: Json = field(default_factory=dict, name="")


class _Response(Struct, gc=False):
    status: str | None = None
    error: object = None
    incomplete_details: Json | None = None
    output: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = NULL


def _usage_of(data: msgspec.Raw) -> items.Usage | None:
    counts = read_counts(data)
    if not counts.keys() & {"input_tokens", "output_tokens"}:
        return None
    return items.Usage(
        input_tokens=counts["input_tokens"],
        output_tokens=counts["output_tokens"],
        cached_tokens=counts["input_tokens_details.cached_tokens"],
        cache_write_tokens=counts["input_tokens_details.cache_write_tokens"],
        reasoning_tokens=counts["output_tokens_details.reasoning_tokens"],
    )


_CHANNELS: dict[str, Channel] = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "refusal",
    "response.reasoning_text.delta": "thought",
    "response.reasoning.delta": "thought",
    "response.reasoning_summary_text.delta": "summary",
    "response.function_call_arguments.delta": "arguments",
}
_KINDS = {"text": "message", "refusal": "message", "thought": "reasoning", "summary": "reasoning", "arguments": "function_call"}
_OTHERS: dict[Channel, Channel] = {"text": "refusal", "refusal": "text"}
_TERMINAL = frozenset({"response.completed", "response.incomplete", "response.failed", "response.cancelled"})
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc"}
_event = msgspec.json.Decoder(_ResponsesEvent)
_item = msgspec.json.Decoder(_Item)
_response = msgspec.json.Decoder(_Response)
_object = msgspec.json.Decoder(Json)
