"""One exchange with a Chat Completions backend, as far as habits show in it."""

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from mainspring.core.items import Json, ToolDefinition
from mainspring.providers.cassette import Exchange
from mainspring.providers.leak_reader import LeakReader


class SeenExchange:
    """One exchange, as far as habits show in it."""

    mime: ClassVar[str] = "text/event-stream"
    is_chat: ClassVar[bool] = True
    standard: ClassVar[frozenset[str]] = frozenset({"no end"})
    """What is no habit by this format, or has another name."""
    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {}
    """The habits that only this format can have."""

    def __init__(self, exchange: Exchange) -> None:
        self.sent: Json = exchange.body or {}
        self.status = exchange.status
        self.is_cut = exchange.is_cut
        self.data = b"".join([piece.data for piece in exchange.pieces])
        self.raw = self.data.decode(errors="replace")
        self.is_stream = exchange.headers.get("Content-Type", "").startswith(self.mime)
        self.lines = [line.rstrip("\r") for line in self.raw.split("\n")] if self.is_stream else []

    @cached_property
    def events(self) -> list[Json]:
        """The objects that came, also in an array."""
        told = [line[5:].strip() for line in self.lines if line.startswith("data:")] if self.is_stream else [self.raw]
        found = [each for event in map(decode, told) for each in (event if isinstance(event, list) else [event])]
        return [each for each in found if isinstance(each, dict)]

    @cached_property
    def chunks(self) -> list[Json]:
        """What came, as Chat Completions has it."""
        return self.events

    @property
    def has_end(self) -> bool:
        """Whether the event came that is the last by the format."""
        return "[DONE]" in self.raw

    @property
    def is_told(self) -> bool:
        """Whether it is an answer that was read as far as it went."""
        return self.status < 300 and (not self.is_cut or self.has_failed)

    @cached_property
    def choices(self) -> list[Json]:
        return [choice for chunk in self.chunks for choice in chunk.get("choices") or () if isinstance(choice, dict)]

    @cached_property
    def deltas(self) -> list[Json]:
        told = [choice.get("delta") or choice.get("message") for choice in self.choices]
        return [delta for delta in told if isinstance(delta, dict)]

    @cached_property
    def pieces(self) -> list[Json]:
        told = [calls for delta in self.deltas if isinstance(calls := delta.get("tool_calls"), list)]
        return [_keep_plain(piece) for calls in told for piece in calls if isinstance(piece, dict)]

    @cached_property
    def calls(self) -> list[list[Json]]:
        """The pieces of each call. Another id or another index begins another call, and so does a name where neither is told."""
        calls: list[list[Json]] = []
        for piece in self.pieces:
            last = calls[-1][0] if calls else {}
            is_other = piece.get("index") != last.get("index") or (piece.get("id") or last.get("id")) != last.get("id")
            if not calls or is_other or (piece.get("index") is None and find_function(piece).get("name")):
                calls.append([])
            calls[-1].append(piece)
        return calls

    @cached_property
    def arguments(self) -> list[str]:
        """What the arguments of each call are in all, as far as they are text."""
        told = [[find_function(piece).get("arguments") for piece in call] for call in self.calls]
        return ["".join([piece for piece in pieces if isinstance(piece, str)]) for pieces in told]

    @cached_property
    def text(self) -> str:
        return self._join("content")

    @cached_property
    def thoughts(self) -> str:
        return self._join("reasoning_content") + self._join("reasoning")

    @cached_property
    def finishes(self) -> list[str]:
        return [reason for choice in self.choices if isinstance(reason := choice.get("finish_reason"), str)]

    @property
    def has_failed(self) -> bool:
        return any(is_error(chunk.get("error")) for chunk in self.chunks)

    @property
    def tools(self) -> list[str]:
        return [tool["function"]["name"] for tool in self.sent.get("tools", ())]

    @cached_property
    def definitions(self) -> dict[str, ToolDefinition]:
        functions = [tool["function"] for tool in self.sent.get("tools", ())]
        return {each["name"]: ToolDefinition(each["name"], "", each.get("parameters")) for each in functions}

    def can_have(self, name: str) -> bool:
        """Whether this is a habit by the format, and not its way."""
        return name not in self.standard or name in self.habits

    def names_tool(self, text: str) -> bool:
        return any(name in text for name in self.tools)

    @cached_property
    def made(self) -> list[tuple[str, str]]:
        """The name and the arguments of each call, as far as they are text."""
        names = ["".join([str(find_function(piece).get("name") or "") for piece in call]) for call in self.calls]
        return list(zip(names, self.arguments, strict=True))

    @cached_property
    def has_leaked_call(self) -> bool:
        """Whether a call is read from the text, and is not only told of there."""
        reader = LeakReader(self.definitions.values())
        said = reader.feed(self.text)
        return bool(reader.end(said).calls or reader.find_announced(said))

    def list_properties(self, name: str) -> list[str]:
        functions = [tool["function"] for tool in self.sent.get("tools", ())]
        found = [(each.get("parameters") or {}).get("properties") for each in functions if each["name"] == name]
        return list(found[0] or ()) if found else []

    def _join(self, field: str) -> str:
        return "".join([said for delta in self.deltas if isinstance(said := delta.get(field), str)])


def decode(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return None


def is_error(told: object) -> bool:
    """Whether an error says anything, and is not a code of 0 without words."""
    return any(told.values()) if isinstance(told, dict) else bool(told)


def _keep_plain(piece: Json) -> Json:
    """The piece without an id or an index that could be none."""
    return {key: told for key, told in piece.items() if key not in ("id", "index") or isinstance(told, str | int | None)}


def find_function(piece: Json) -> Json:
    told = piece.get("function")
    return told if isinstance(told, dict) else {}
