"""Tells calls that leak into a model's text from the text itself, as it comes.

Theory of operation. Text goes on at once, but for what may be the beginning of a call: that is held back as long as it may be
one. It is a call if nothing but calls follows it up to the end; so one that is quoted in prose, with a word or only a closing
quote behind it, is text again as soon as that comes. Calls in JSON alone, bare or fenced, must be all of the text.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from mainspring.core.items import ToolDefinition
from mainspring.providers.leaked_calls import LeakedCall, may_name_tool, parse_calls

MOST_HELD: Final = 262_144


class HeldText(NamedTuple):
    """What held text has turned out to be: words, then calls."""

    words: str
    calls: list[LeakedCall]


class LeakReader:
    """Holds text back where calls of these `tools` may begin. Where JSON is asked for (`is_json`), bare JSON is an answer."""

    __slots__ = ("_before", "_held", "_is_idle", "_is_json", "_is_open", "_size", "_tail", "_tools")

    def __init__(self, tools: Iterable[ToolDefinition], *, is_json: bool = False) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._is_json = is_json
        self._held: list[str] = []
        self._size = 0
        self._is_open = False
        # Words have been said, and none are held.
        self._is_idle = False
        # The end of what went on, and of what is held.
        self._before = self._tail = ""

    @property
    def is_holding(self) -> bool:
        return bool(self._held)

    def feed(self, delta: str) -> str:
        """The words that are certainly no call."""
        if self._is_idle and (("<" not in delta and "[" not in delta) or not _MAY_BEGIN.search(delta)):
            self._before = (self._before + delta)[-_TAIL:] if delta.isspace() else delta
            return delta
        return self._hold(delta) if delta else ""

    def end(self) -> HeldText:
        """What is still held, as what it is."""
        return self.settle(self.drop())

    def settle(self, held: str) -> HeldText:
        if not held:
            return HeldText("", [])
        for start, _ in zip(self._list_places(held), range(_MOST_PLACES), strict=False):
            if calls := parse_calls(held[start:], self._tools):
                return HeldText(held[:start], calls)
        return HeldText(held, [])

    def drop(self) -> str:
        """What is still held, as it came."""
        held = "".join(self._held)
        self._held, self._size, self._tail, self._is_open = [], 0, "", False
        return held

    def _hold(self, delta: str) -> str:
        self._held.append(delta)
        self._size += len(delta)
        self._tail = (self._tail + delta)[-_TAIL:]
        if self._is_open:
            return self._release() if self._size > MOST_HELD or _PAST.search(self._tail) else ""
        return self._release(start=0)

    def _release(self, start: int = 1) -> str:
        """Lets go of all before the next place, from `start` on, where a call may begin."""
        held = self.drop()
        place = next((place for place in self._list_places(held) if place >= start), len(held))
        if len(held) - place > MOST_HELD:
            place = len(held)
        said, rest = held[:place], held[place:]
        if said:
            self._before = (self._before + said)[-_TAIL:]
        self._is_idle = not rest and not self._before.isspace()
        if rest:
            self._held, self._size, self._tail = [rest], len(rest), rest[-_TAIL:]
            self._is_open = rest.startswith(_MARKS) or may_name_tool(rest, self._tools) is True
        return said

    def _list_places(self, text: str) -> Iterable[int]:
        """Where in the text a call may begin, now or with what is still to come."""
        blank = len(text) - len(text.lstrip())
        may_be_json = not self._before.strip() and not self._is_json and text.startswith(_JSON_SIGNS, blank)
        if may_be_json and may_name_tool(text[blank:], self._tools) is not False:
            yield blank
        for sign in _SIGNS.finditer(text):
            place = sign.start()
            rest = text[place : place + _LONGEST]
            begins = rest.startswith(_MARKS) or any(mark.startswith(rest) for mark in _MARKS)
            if begins and _LEAD.search((self._before + text[max(0, place - _TAIL) : place])[-_TAIL:]):
                yield place


_TAIL: Final = 200
_MOST_PLACES: Final = 16
_JSON_SIGNS: Final = ("{", "[", "`")
_MARKS: Final = (
    "<tool_call>", "<tool_calls>", "<toolcall>", "<function_call>", "<function_calls>", "<functioncall>", "<minimax:tool_call>",
    "<function=", "<function name=", "<invoke name=", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call|>",
    "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>", "<|python_tag|>", "[TOOL_CALLS]",
    "<|tool_call>", "<|tool_call_start|>", "<start_function_call>", "<\uff5cDSML\uff5cfunction_calls>", "<tools>",
    "<\uff5cDSML\uff5cinvoke name=", "<seed:tool_call>", "<TOOLCALL>", "<|action_start|>", "<|START_ACTION|>",
    "<|tools_prefix|>", "<longcat_tool_call>", "<\uff5ctool_calls_begin\uff5c>",
)  # fmt: skip
_LONGEST: Final = max(map(len, _MARKS))
_SIGNS: Final = re.compile(r"[<\[]")
# How the marks begin, or what may still become such a beginning.
_MAY_BEGIN: Final = re.compile(
    r"<(?:\Z|t(?:\Z|o)|f(?:\Z|u)|i(?:\Z|n)|m(?:\Z|i)|s(?:\Z|[et])|l(?:\Z|o)|T(?:\Z|O)|[|\uff5c])|\[(?:\Z|T)"
)
# What may stand before a call: nothing, a line or a sentence of its own.
_LEAD: Final = re.compile(r"(?:\A|\n|[.!?…>])\s*\Z")
# A call that is closed, and then words.
_PAST: Final = re.compile(
    r"(?:</(?:tool_call|function|invoke|function_calls?|toolcall|tools|seed:tool_call|TOOLCALL|longcat_tool_call)>|_end\|>|▁end\uff5c>"
    r"|<tool_call\|>|<end_function_call>|</\uff5cDSML\uff5c\w+>|\n```\s)\s*+[^\s<\[{,;]"
)
