"""One exchange by the Messages API of Anthropic, as far as habits show in it."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, ClassVar

import msgspec

from mainspring.core.items import Json
from mainspring.features.models.native_exchange import (
    NativeExchange,
    count,
    declare_tools,
    dict_of,
    find_place,
    hold_to,
    list_of,
    say,
    tell_history,
)
from mainspring.providers.anthropic import reply as claude


class ClaudeExchange(NativeExchange):
    standard = NativeExchange.standard | {"no arguments", "usage often"}
    finish_names: ClassVar = {**claude.FINISHES, "tool_use": "tool_calls", "pause_turn": "stop"}

    def read_request(self) -> Json:
        tools = declare_tools(self.own.get("tools"), schema="input_schema")
        form = dict_of(dict_of(self.own.get("output_config")).get("format")).get("schema")
        messages = tell_history(self.own.get("messages"), lambda block: block.get("type") == "tool_use" and block.get("id"))
        return {"tools": tools, "messages": messages, "max_tokens": self.own.get("max_tokens"), **hold_to(form)}

    @cached_property
    def kinds(self) -> dict[int, str]:
        """The kinds of the blocks by their numbers, as they were last begun."""
        return {}

    def translate(self, event: Json) -> Iterator[Json]:
        index = find_place(event, "index")
        match event:
            case {"type": "error"} | {"error": dict()}:
                yield {"error": event.get("error")}
            case {"type": "message_start", "message": {"usage": {"input_tokens": int(read)} as usage}}:
                cached = [usage.get(f"cache_{how}_input_tokens") for how in ("read", "creation")]
                yield count(sum([each for each in (read, *cached) if isinstance(each, int)]), None)
            case {"type": "content_block_start", "content_block": dict(block)}:
                self.kinds[index] = str(block.get("type"))
                yield from self._begin(index, block)
            case {"type": "content_block_delta", "delta": dict(delta)}:
                yield from self._continue(index, delta)
            case {"type": "message_delta", "delta": dict(delta)}:
                if (reason := delta.get("stop_reason")) is not None:
                    yield self.say_end(reason)
                yield count(None, dict_of(event.get("usage")).get("output_tokens"))
            case {"type": "message"}:
                for place, block in enumerate(list_of(event.get("content"))):
                    yield from self._begin(place, block)
                yield self.say_end(event.get("stop_reason") or "end_turn")

    def _begin(self, index: int, block: Json) -> Iterator[Json]:
        match block.get("type"):
            case "text":
                yield say({"content": block.get("text")})
            case "thinking":
                yield say({"reasoning_content": block.get("thinking")})
            case "tool_use":
                told = msgspec.json.encode(block["input"]).decode() if block.get("input") else ""
                function = {"name": block.get("name"), "arguments": told}
                yield say({"tool_calls": [{"index": index, "id": block.get("id"), "function": function}]})

    def _continue(self, index: int, delta: Json) -> Iterator[Json]:
        kind = self.kinds.get(index, "text")
        match delta:
            case {"type": "text_delta" | "thinking_delta"}:
                yield say({"reasoning_content" if "thinking" in (kind, delta["type"][:8]) else "content": delta.get("text")})
                yield say({"reasoning_content": delta.get("thinking")})
            case {"type": "input_json_delta"} if kind == "tool_use":
                yield say({"tool_calls": [{"index": index, "function": {"arguments": delta.get("partial_json")}}]})

    @property
    def has_end(self) -> bool:
        return any(event.get("type") in ("message_stop", "message") for event in self.events)

    @cached_property
    def blocks(self) -> list[tuple[Json, list[Json], bool]]:
        """What each block began with and what was said in it, and whether it was begun and ended, both once."""
        found: list[list[Any]] = []
        left: dict[int, list[Any]] = {}
        for event in self.events:
            index, kind = find_place(event, "index"), event.get("type")
            if kind == "content_block_start":
                is_again = index in left
                left[index] = [dict_of(event.get("content_block")), [], False, is_again]
                found.append(left[index])
            elif kind == "content_block_delta":
                if index not in left:
                    left[index] = [{}, [], False, True]
                    found.append(left[index])
                left[index][1].append(dict_of(event.get("delta")))
            elif kind == "content_block_stop" and index in left:
                left.pop(index)[2] = True
        return [(begun, told, is_ended and not is_odd) for begun, told, is_ended, is_odd in found]

    def misplaces(self) -> bool:
        fits = {"text_delta": ("text",), "thinking_delta": ("thinking",), "input_json_delta": ("tool_use", "server_tool_use")}
        pairs = [(str(begun.get("type")), str(each.get("type"))) for begun, told, _ in self.blocks if begun for each in told]
        return any(piece in fits and kind not in fits[piece] for kind, piece in pairs)

    def lacks_fields(self) -> bool:
        starts = [dict_of(event.get("message")) for event in self.events if event.get("type") == "message_start"]
        calls = [begun for begun, _, _ in self.blocks if begun.get("type") == "tool_use"]
        return any(not start.get("usage") for start in starts) or any("input" not in call for call in calls)

    def has_empty_text(self) -> bool:
        texts = [(begun, told) for begun, told, _ in self.blocks if begun.get("type") == "text"]
        return any(not begun.get("text") and not any(each.get("text") for each in told) for begun, told in texts)

    def has_unsigned_thought(self) -> bool:
        thoughts = [(begun, told) for begun, told, _ in self.blocks if begun.get("type") == "thinking"]
        return any(not begun.get("signature") and not any(each.get("signature") for each in told) for begun, told in thoughts)

    def has_unknown_event(self) -> bool:
        told = [*self.events, *(piece for _, pieces, _ in self.blocks for piece in pieces)]
        kinds = {str(each.get("type")) for each in told}
        return not kinds <= (claude.KNOWN_KINDS | {"ping", "citations_delta"})

    habits: ClassVar[Mapping[str, Callable[[Any], object]]] = {
        "arguments at the start": lambda seen: (
            seen.is_stream and any(begun.get("type") == "tool_use" and begun.get("input") for begun, _, _ in seen.blocks)
        ),
        "empty pieces": has_empty_text,
        "events without names": lambda seen: seen.is_stream and not any(line.startswith("event:") for line in seen.lines),
        "fields left out": lacks_fields,
        "parts without bounds": lambda seen: seen.has_end and not all(is_whole for _, _, is_whole in seen.blocks),
        "pieces out of place": misplaces,
        "paused turns": lambda seen: any(dict_of(event.get("delta")).get("stop_reason") == "pause_turn" for event in seen.events),
        "tools of its own": lambda seen: any("server_tool" in str(begun.get("type")) for begun, _, _ in seen.blocks),
        "unknown events": has_unknown_event,
        "unsigned thoughts": has_unsigned_thought,
    }
