"""A client that trusts nothing: it checks every event of a stream against the grammar and rebuilds the Response from them."""

import json
from collections.abc import Sequence
from typing import Any

Json = dict[str, Any]

TERMINAL = {"response.completed", "response.failed", "response.incomplete"}
_TEXT = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.reasoning": "text",
    "response.reasoning_summary_text": "text",
}


def events_of(stream: bytes) -> list[Json]:
    """The events of a whole stream, which must end in `[DONE]`; each names its type twice, alike."""
    blocks = stream.decode().split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], "a stream ends in [DONE]"
    events = []
    for block in blocks[:-2]:
        if block.startswith(": "):
            continue
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        events.append(event)
    return events


_PERFORMED = tuple([f"response.{kind}." for kind in ("mcp_call", "mcp_list_tools", "code_interpreter_call", "file_search_call")])


class Linter:
    """Feeds on events in order; `rebuilt` is the Response that they add up to."""

    def __init__(self, first: int = 0) -> None:
        self._next = first
        self._seen: list[str] = []
        self._items: dict[int, Json] = {}
        self._open: dict[int, Json] = {}
        self._parts: dict[tuple[int, bool, int], Json] = {}
        self._arguments: dict[int, str] = {}
        self._commands: dict[int, list[str]] = {}
        self._final: Json | None = None
        self._id: str | None = None

    def feed(self, event: Json) -> None:
        kind = event["type"]
        assert event["sequence_number"] == self._next, "numbers go up by one"
        assert self._final is None, f"{kind} follows the end"
        self._next += 1
        self._seen.append(kind)
        if "response" in event:
            self._lifecycle(kind, event["response"])
        elif kind == "response.output_item.added":
            self._item_added(event)
        elif kind == "response.output_item.done":
            self._item_done(event)
        elif kind.endswith("_part.added"):
            self._part_added(event)
        elif kind.endswith("_part.done"):
            self._part_done(event)
        elif kind.startswith(("response.function_call_arguments", "response.mcp_call_arguments")):
            self._argument(kind, event)
        elif kind.startswith("response.custom_tool_call_input."):
            self._argument(kind, {**event, "arguments": event.get("input")})
        elif kind.startswith("response.shell_call_command."):
            self._command(kind, event)
        elif kind.startswith("response.code_interpreter_call_code."):
            self._argument(kind, {**event, "arguments": event.get("code")})
        elif kind.startswith(_PERFORMED):
            assert self._open[event["output_index"]]["id"] == event["item_id"]
        elif kind == "response.output_text.annotation.added":
            part = self._part(event)
            assert event["annotation_index"] == len(part["annotations"])
            part["annotations"].append(event["annotation"])
        elif kind.rpartition(".")[0] in _TEXT:
            self._text(kind, event)
        else:
            assert kind == "error" or kind.startswith("mainspring:"), f"{kind} is unknown to clients"

    def _lifecycle(self, kind: str, response: Json) -> None:
        self._id = self._id or response["id"]
        assert response["id"] == self._id, "the id never changes"
        if kind in TERMINAL:
            assert not self._open, "every item is closed before the end"
            self._final = response
            return
        order = [name for name in self._seen if name in ("response.created", "response.queued", "response.in_progress")]
        assert order == ["response.created", "response.in_progress"][: len(order)] or (
            order == ["response.created", "response.queued", "response.in_progress"][: len(order)]
        )
        assert len(self._seen) <= len(order), "the response is announced before anything in it"
        assert response["output"] == []
        assert response["usage"] is None

    def _item_added(self, event: Json) -> None:
        index = event["output_index"]
        assert index == len(self._items), "an item's index is its place"
        item = event["item"]
        assert item["id"] not in [known["id"] for known in self._items.values()]
        self._items[index] = self._open[index] = item
        if item["type"] == "message":
            assert item["content"] == []
            assert item["status"] == "in_progress"
        if item["type"] == "function_call":
            assert item["arguments"] == ""

    def _item_done(self, event: Json) -> None:
        index, item = event["output_index"], event["item"]
        begun = self._open.pop(index)
        assert (item["id"], item["type"]) == (begun["id"], begun["type"])
        assert item.get("status") != "in_progress"
        assert not [key for key in self._parts if key[0] == index and not self._parts[key].get("closed")]
        if item["type"] in ("function_call", "mcp_call"):
            assert self._arguments.pop(index, item["arguments"]) == item["arguments"]
        if item["type"] == "custom_tool_call":
            assert self._arguments.pop(index, item["input"]) == item["input"]
        if item["type"] == "code_interpreter_call":
            assert self._arguments.pop(index, item["code"]) == item["code"]
        if item["type"] == "shell_call":
            assert self._commands.pop(index, []) == item["action"]["commands"]
        for is_summary, field in ((False, "content"), (True, "summary")):
            told = [self._parts[key]["part"] for key in sorted(self._parts) if key[0] == index and key[1] is is_summary]
            if item["type"] in ("message", "reasoning"):
                assert told == list(item.get(field) or []), "an item holds the parts that were streamed"
        self._items[index] = item

    def _part_added(self, event: Json) -> None:
        key = self._key(event)
        assert key not in self._parts
        assert key[0] in self._open
        assert all(part.get("closed") for known, part in self._parts.items() if known[0] == key[0]), "one part at a time"
        assert key[2] == sum(known[:2] == key[:2] for known in self._parts), "parts are numbered in order"
        self._parts[key] = {"text": "", "annotations": [], "said": False}

    def _text(self, kind: str, event: Json) -> None:
        part = self._part(event)
        if kind.endswith(".delta"):
            part["text"] += event["delta"]
        else:
            assert event[_TEXT[kind.rpartition(".")[0]]] == part["text"], "the whole text is what the deltas said"
            part["said"] = True

    def _part_done(self, event: Json) -> None:
        part = self._part(event)
        assert part["said"], "the text is finished before its part"
        told = event["part"]
        assert told.get("text", told.get("refusal")) == part["text"]
        assert list(told.get("annotations", [])) == part["annotations"]
        part["closed"], part["part"] = True, told

    def _argument(self, kind: str, event: Json) -> None:
        index = event["output_index"]
        assert self._open[index]["id"] == event["item_id"]
        if kind.endswith(".delta"):
            self._arguments[index] = self._arguments.get(index, "") + event["delta"]
        else:
            assert event["arguments"] == self._arguments.setdefault(index, ""), "the arguments are what the deltas said"

    def _command(self, kind: str, event: Json) -> None:
        commands = self._commands.setdefault(event["output_index"], [])
        if kind.endswith(".added"):
            assert event["command_index"] == len(commands)
            commands.append(event["command"])
        elif kind.endswith(".delta"):
            commands[event["command_index"]] += event["delta"]
        else:
            assert event["command"] == commands[event["command_index"]]

    def _key(self, event: Json) -> tuple[int, bool, int]:
        is_summary = "summary_index" in event
        assert self._open[event["output_index"]]["id"] == event["item_id"]
        return event["output_index"], is_summary, event["summary_index" if is_summary else "content_index"]

    def _part(self, event: Json) -> Json:
        part = self._parts[self._key(event)]
        assert not part.get("closed"), "nothing is said in a closed part"
        return part

    @property
    def rebuilt(self) -> Json:
        """The Response that the events add up to: the last one announced, with the items that were streamed."""
        assert self._final is not None, "the stream has no end"
        return {**self._final, "output": [self._items[index] for index in sorted(self._items)]}


def linted(events: Sequence[Json]) -> Json:
    """Checks a whole stream and returns the Response rebuilt from it, which is the one its last event carries."""
    linter = Linter()
    for event in events:
        linter.feed(event)
    assert linter.rebuilt == events[-1]["response"], "the items streamed are the output"
    return linter.rebuilt
