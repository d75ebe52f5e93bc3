"""One exchange by another format than Chat's, told as Chat Completions would tell it, and what is odd in how it was told.

Habits that show in what was said (calls in the text, tags, odd names) are looked for once, for all formats. What belongs to a
format alone is in its `habits`; what Chat would call a habit and is the way of this format is in its `standard`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import ClassVar

from mainspring.core.items import Json
from mainspring.features.models.seen_exchange import SeenExchange
from mainspring.providers.cassette import Exchange


class NativeExchange(SeenExchange):
    """An exchange by another format than Chat's."""

    is_chat: ClassVar = False
    standard: ClassVar = frozenset(
        {"no [DONE]", "no choices first", "choice without delta", "calls lost in streams", "signed calls", "ids per piece"}
    )
    finish_names: ClassVar[Mapping[str, str]] = {}

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self.own = self.sent
        self.sent = {"stream": True, **self.read_request()}
        self.made_calls = 0

    def read_request(self) -> Json:
        """The request as Chat has it, as far as habits are seen by it."""
        raise NotImplementedError

    def translate(self, event: Json) -> Iterator[Json]:
        """What an event says, as chunks of Chat's."""
        raise NotImplementedError

    @cached_property
    def chunks(self) -> list[Json]:
        return [chunk for event in self.events for chunk in self.translate(event)]

    @property
    def is_told(self) -> bool:
        return super().is_told or (self.status < 300 and self.has_end)

    def say_end(self, reason: object) -> Json:
        """A chunk with the reason of the end. A word that this format does not have is told as one that Chat has neither."""
        known = isinstance(reason, str) and (not reason or reason in self.finish_names)
        return say(reason=self.finish_names.get(str(reason), "") if known else f"another format's {reason}")

    def make_call(self, name: object, arguments: str | Json, id: object = None) -> Json:
        """A chunk with a whole call, under an id of its own where the format needs none."""
        self.made_calls += 1
        function = {"name": name, "arguments": arguments}
        return say({"tool_calls": [{"index": self.made_calls, "id": id or f"made_{self.made_calls}", "function": function}]})


def say(delta: Json | None = None, reason: str | None = None) -> Json:
    return {"choices": [{"delta": delta or {}, "finish_reason": reason}]}


def count(read: object, written: object) -> Json:
    return {"choices": [], "usage": {"prompt_tokens": read, "completion_tokens": written}}


def declare_tools(tools: object, schema: str = "parameters") -> list[Json]:
    """Tools as Chat has them."""
    named = [tool for tool in list_of(tools) if isinstance(tool.get("name"), str)]
    return [{"type": "function", "function": {"name": tool["name"], "parameters": tool.get(schema)}} for tool in named]


def list_of(told: object) -> list[Json]:
    """The objects of a list, if it is one."""
    return [each for each in told if isinstance(each, dict)] if isinstance(told, list) else []


def find_place(event: Json, field: str) -> int:
    """The number of a part, or -1 if there is none."""
    return told if isinstance(told := event.get(field), int) else -1


def dict_of(told: object) -> Json:
    return told if isinstance(told, dict) else {}


def hold_to(schema: object) -> Json:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}} if isinstance(schema, dict) else {}


def tell_history(messages: object, id_of: Callable[[Json], object]) -> list[Json]:
    """What was sent before, with the ids of its calls."""
    told = list_of(messages)
    blocks = [list_of(message.get("content")) or [message] for message in told]
    return [
        {"content": str(message), "tool_calls": [{"id": id} for block in own if (id := id_of(block))]}
        for message, own in zip(told, blocks, strict=True)
    ]
