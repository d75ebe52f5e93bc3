"""Tells calls and control tokens that leak into a model's text from the text itself, as it comes.

Theory of operation. Text goes on at once, but for what may be the beginning of a call: that is held back as long as it may be
one. It is a call if nothing but calls follows it up to the end; so one that is quoted in prose, with a word or only a closing
quote behind it, is text again as soon as that comes. Only an answer that begins with its calls may go on to say what it waits
for. Calls in JSON alone, bare or fenced, or with labels around them, must be all of the text, and those of Python's, or in a
block that is marked as one of calls, all that follows a sentence; JSON in a block may follow a sentence that announces it. A call
that ends half is told as such. Where JSON is asked for, an answer that begins otherwise waits for its end. Tokens that end a
turn are left out where they end the text, or where another turn follows that the model has made up.
"""

import re
from collections.abc import Callable, Iterable
from itertools import chain, islice
from re import Match, Pattern
from typing import Final, NamedTuple

from mainspring.core.items import ToolDefinition
from mainspring.providers.call_draft import JsonScan
from mainspring.providers.control_tokens import (
    ALL_STOPS,
    BEFORE_STOP,
    HALF_STOP,
    OTHER_STOP,
    PAST_STOP,
    SECTIONS,
    STOP,
    STOPS,
    TOKENS,
    find_last_stops,
)
from mainspring.providers.json_answer import JsonAnswer, parse_strictly
from mainspring.providers.labelled_calls import BLOCK_LABELS, is_program, may_be_labelled, split_thought
from mainspring.providers.leaked_calls import (
    FUNCTOOLS,
    LeakedCall,
    is_cut_call,
    is_glue,
    is_unread_call,
    may_be_call,
    may_be_python_call,
    may_name_tool,
    parse_calls,
    parse_code,
    read_message,
    take_json,
)
from mainspring.providers.made_up_turns import DIALOGUE, HALF_LABEL, MADE_UP, MOST_TURN, NO_TURN, USER_TOKENS, USERS, has_turns
from mainspring.providers.thinking import CLOSING_TAGS, leave_thought

MOST_HELD: Final = 262_144


class HeldText(NamedTuple):
    """What held text has turned out to be: words, then calls, and these as they were written; or words and half a call."""

    words: str
    calls: list[LeakedCall]
    written: str = ""
    is_cut: bool = False
    thought: str | None = None
    """What was said up to there has turned out to be reasoning, this with it."""
    is_mended: bool = False
    """They are the JSON that was asked for, which had slips."""
    is_made_up: bool = False
    """Behind the words were turns that the model has made up."""


class LeakReader:
    """Holds text back where calls of these `tools` may begin, or the turn may end. Where JSON is asked for (`is_json`), bare JSON
    is an answer, and where JavaScript `is_asked` for, a block of it is."""

    __slots__ = (
        "_answer", "_before", "_closing", "_fences", "_held", "_is_asked", "_is_idle", "_is_json", "_is_played",
        "_is_token_said", "_is_worded", "_letters", "_past", "_scan", "_size", "_tail", "_tools",
    )  # fmt: skip

    def __init__(
        self,
        tools: Iterable[ToolDefinition],
        *,
        is_json: bool = False,
        is_asked: Callable[[str | Pattern[str]], bool] = lambda word: False,
    ) -> None:
        self._is_asked = is_asked
        self._tools = {tool.name: tool for tool in tools}
        # How blocks of code begin that may hold calls.
        self._fences = (*_FENCES, *[f"```{name}\n" for name in self._tools]) if self._tools else ()
        # What follows the signs of such a block.
        self._letters = {"", *(mark[3] for mark in (*self._fences, *_JSON_FENCES))}
        self._is_json = is_json
        # A token that ends turns was let go as a word.
        self._is_token_said = False
        # The answer has several speakers.
        self._is_played = False
        # Where JSON is asked for, an answer that begins otherwise may have it in a block of code or among words. None while it
        # has not begun.
        self._is_worded: bool | None = None if is_json else False
        self._answer: JsonAnswer | None = None
        self._held: list[str] = []
        self._size = 0
        # What shows that the held text is none of what it began as; None while it has not begun.
        self._past: Pattern[str] | None = None
        # As far as the JSON of what is held was read.
        self._scan: JsonScan | None = None
        # Words have been said, and none are held.
        self._is_idle = False
        # The end of what went on, and of what is held.
        self._before = self._tail = ""
        # What closes the answer, if something has opened it.
        self._closing = ""

    @property
    def is_holding(self) -> bool:
        return bool(self._held) if self._answer is None else self._answer.is_holding

    def expect(self, closing: str) -> None:
        """The answer was opened by a tag or the header of a section; this closes it."""
        self._closing = closing

    def feed(self, delta: str) -> str:
        """The words that are certainly no call."""
        if self._answer is not None:
            return self._answer.feed(delta)
        if self._is_idle and (
            (
                "<" not in delta
                and "[" not in delta
                and "`" not in delta
                and ">" not in delta
                and "\n" not in delta
                and (self._before[-1:] != "\n" or delta[:1] not in "fAUH{")
            )
            or not (
                _MAY_BEGIN.search(delta)
                or (self._before[-1:].isspace() and _LINE_BEGINS.match(delta))
                or ("`" in delta and self._may_open_block(delta))
            )
        ):
            self._before = (self._before + delta)[-_TAIL:]
            return delta
        return self._hold(delta) if delta else ""

    def _may_open_block(self, delta: str) -> bool:
        """Whether a block of code begins behind a sentence that may hold calls."""
        bare = delta.lstrip()
        if bare.startswith("`") and self._before.rstrip()[-1:] in _PERIODS:
            return bare[3:4] in self._letters
        return _BLOCK_BEGINS.search(delta) is not None

    def end(self, said: str = "", *, has_calls: bool = False) -> HeldText:
        """What is still held, as what it is, behind what was said. Beside real calls (`has_calls`), tags that stand around calls
        are no words."""
        if self._answer is not None:
            return HeldText(self._answer.end(), [], is_mended=self._answer.is_mended)
        return self.settle(self.drop(), said, has_calls=has_calls)

    @property
    def is_answering(self) -> bool:
        """Words are held that have the JSON that was asked for."""
        return self.is_worded and (held := "".join(self._held)) != take_json(held)

    @property
    def is_worded(self) -> bool:
        """Words are held where JSON was asked for."""
        return bool(self._is_worded and self._held)

    def settle(self, held: str, said: str = "", *, has_calls: bool = False) -> HeldText:
        if not held:
            return HeldText("", [])
        found = self._find_calls(held, said, has_calls=has_calls)
        is_answer = self._is_worded and not (has_calls or found.calls or found.is_cut)
        if not is_answer or (words := take_json(found.words)) == found.words:
            return found
        return found._replace(words=words, is_mended=words not in found.words)

    def _find_calls(self, held: str, said: str, *, has_calls: bool) -> HeldText:
        is_all = not self._before.strip()
        read = 0
        for start in islice(self._list_places(held), _MOST_PLACES):
            rest = held[start:]
            read += len(rest)
            if read > _MOST_READ:
                break
            is_first = is_all and not held[:start].strip()
            is_listing = rest.startswith(("<", "[")) and _HEADER.search(said + held[:start]) is not None
            # What was struck out has the tag that ends a turn of Mistral's, and what was opened is closed.
            is_opened = any(rest.startswith(tag) and tag.replace("/", "")[:-1] in said + held[:start] for tag in _CLOSING_STOPS)
            if rest in _HALF_STOPS and len(rest) > _HALF and rest.startswith("<|"):
                return HeldText(held[:start], [])
            is_spoken = is_listing or _is_listed(rest, said + held[:start])
            is_end = not is_opened and not is_spoken and self._is_end(rest) and not self._is_asked_for(rest, held[:start])
            if is_end or (has_calls and is_glue(rest)):
                return HeldText(held[:start], [])
            body = rest.rstrip().removesuffix(self._closing) if self._closing else rest
            if _SCRIPT.match(rest) and any(map(self._is_asked, _LANGUAGES)):
                continue
            if rest.startswith("<|end|>") and (answer := leave_thought(rest)) is not None:
                calls = parse_calls(answer, self._tools) if self._tools else []
                return HeldText("" if calls else answer, calls, rest, thought=held[:start])
            if rest.startswith(USER_TOKENS) and not is_listing and self._may_be_made_up((self._before + held[:start])[-_TAIL:]):
                return HeldText(held[:start], [], is_made_up=True)
            if rest.startswith(USERS):
                return HeldText(held[:start], [], is_made_up=True) if has_turns(rest) else HeldText(held, [])
            if calls := self._parse_sections(rest) or parse_calls(body, self._tools, is_all=is_first or self._is_labelled(rest)):
                return HeldText(held[:start], list(dict.fromkeys(calls)), rest)
            if is_first and (told := self._read_first(rest)) is not None:
                return told
            if self._is_announced(held[:start]) and (told := self._read_waiting(rest, _WAITING)) is not None:
                return told._replace(words=held[:start] + told.words)
            if is_first and (stray := _STRAY.match(rest)):
                return HeldText(rest[stray.end() :], [])
            if self._is_broken_call(rest) or (self._tools and rest.strip() == _MISTRALS):
                return HeldText(held, [], is_cut=True)
        return HeldText(held, [])

    def _is_asked_for(self, tokens: str, before: str) -> bool:
        """Whether the request names the tokens that end the text, or asks for such, or one of them was said as a word before."""
        if self._closing and tokens.startswith(self._closing):
            return False
        is_said = self._is_token_said or _has_stop(before)
        return is_said or self._is_asked(TOKENS) or any(map(self._is_asked, {*STOP.findall(tokens)}))

    def _parse_sections(self, text: str) -> list[LeakedCall]:
        """The calls of a text that is nothing but sections, each with one."""
        if not self._has_sections or not text.startswith(self._closing):
            return []
        made = [parse_calls(part, self._tools, is_all=True) for part in text.split(self._closing)[1:]]
        return list(chain.from_iterable(made)) if all(made) else []

    @property
    def _has_sections(self) -> bool:
        return self._closing in _SECTION_HEADS

    def _is_broken_call(self, text: str) -> bool:
        """Whether it begins as a call, and ends within it, or is all one that cannot be read."""
        if self._find_past(text) is not _PAST or self._is_past(text):
            return False
        is_tagged = (text[:1], text.rstrip()[-1:]) in (("<", ">"), ("[", "]"))
        return is_cut_call(text, self._tools) or (is_tagged and not parse_strictly(text) and is_unread_call(text, self._tools))

    def _read_first(self, text: str) -> HeldText | None:
        """An answer that begins with a thought or with its calls, and goes on."""
        thought, action = split_thought(text)
        if thought and (calls := parse_calls(action, self._tools, is_all=True) or parse_code(action, self._tools)):
            return HeldText(thought, calls, action)
        if message := read_message(text):
            return HeldText(message, [])
        return self._read_waiting(text, _INTENT)

    def _is_announced(self, held: str = "") -> bool:
        """Whether the words before say that a call comes."""
        return _ANNOUNCED.search((self._before + held)[-_TAIL:]) is not None

    def _read_waiting(self, text: str, intent: Pattern[str]) -> HeldText | None:
        """Calls, and words that tell what the model waits for."""
        if (past := _find_words(text, _begin_scan(text))) is None or not intent.match(text, past.end() - 1):
            return None
        calls = parse_calls(text[: past.end() - 1], self._tools, is_all=self._is_labelled(text))
        words = text[past.end() - 1 : find_last_stops(text)]
        return HeldText(words, list(dict.fromkeys(calls)), text) if calls else None

    def find_announced(self, said: str) -> list[LeakedCall]:
        """The call that ends what was said, on lines of its own, if the words before it announce it. They have been told by then,
        as text; it is made all the same."""
        head, gap, last = said.rstrip().rpartition("\n\n")
        is_call = bool(gap) and bool(self._tools) and last.endswith((")", "}", ">")) and not self._is_json
        before = f"{head[-_TAIL:]}\n\n"
        is_call = is_call and _ANNOUNCED.search(before) is not None and _EXPLAINED.search(before) is None
        return parse_calls(last, self._tools, is_all=True) if is_call else []

    def drop(self) -> str:
        """What is still held, as it came."""
        if self._answer is not None:
            return self._answer.drop()
        held = "".join(self._held)
        self._held, self._size, self._tail, self._past, self._scan = [], 0, "", None, None
        return held

    def _is_end(self, text: str) -> bool:
        """Whether nothing but the end of the turn follows."""
        closing = self._closing
        if closing and text.startswith(closing):
            text = text[len(closing) :]
            return not text.strip() or ALL_STOPS.match(text) is not None
        return ALL_STOPS.match(text) is not None

    def _hold(self, delta: str) -> str:
        if self._is_worded is None and delta.lstrip().startswith(("{", "[")):
            self._answer, self._is_worded = JsonAnswer(), False
            return self._answer.feed(delta)
        self._held.append(delta)
        self._size += len(delta)
        self._tail = (self._tail + delta)[-_TAIL:]
        if self._is_worded is None and delta.strip():
            self._is_worded = True
        if self._is_worded and self._size <= MOST_HELD:
            return ""
        if self._past is NO_TURN:
            held = "".join(self._held)
            self._past = _NEVER if has_turns(held) and held.rstrip() not in USERS else NO_TURN
            if self._past is NO_TURN and (self._size > MOST_TURN or NO_TURN.search(held)):
                self._is_played = True
                return self._release()
            return ""
        if self._past is not None:
            is_past = self._size > MOST_HELD or (self._is_past_now(self._past) and not self._may_go_on())
            return self._release() if is_past else ""
        return self._release(start=0)

    def _is_past_now(self, past: Pattern[str]) -> bool:
        """Whether what was held last shows that it is no call."""
        if past is not _PAST or past.search(self._tail) is None:
            return past.search(self._tail) is not None
        held = "".join(self._held)
        self._scan = self._scan or _begin_scan(held)
        return _find_words(held, self._scan) is not None

    def _may_go_on(self) -> bool:
        """Whether an answer that has begun with its calls, or announced them, may say what it waits for."""
        is_said, text = self._before.strip() != "", "".join(self._held)
        if (
            self._past is not _PAST
            or (past := _find_words(text, _begin_scan(text))) is None
            or not parse_calls(text[: past.end() - 1], self._tools, is_all=self._is_labelled(text))
        ):
            return False
        if HALF_LABEL.fullmatch(text, past.end() - 1):
            return True
        if is_said and not self._is_announced():
            return False
        if (_WAITING if is_said else _INTENT).match(text, past.end() - 1):
            self._past = _NEVER
            return True
        return len(text) - past.end() < _INTENT_CHARS

    def _release(self, start: int = 1) -> str:
        """Lets go of all before the next place, from `start` on, where a call may begin."""
        held = self.drop()
        listed = islice(self._list_places(held), _MOST_PLACES)
        places = (place for place in listed if place >= start and not (start and self._is_past(held[place:])))
        place = next(places, len(held))
        if len(held) - place > MOST_HELD:
            place = len(held)
        said, rest = held[:place], held[place:]
        if said:
            self._is_token_said = self._is_token_said or _has_stop(said)
            self._before = (self._before + said)[-_TAIL:]
        self._is_idle = not rest and not self._before.isspace() and not self._has_sections
        if rest:
            self._held, self._size, self._tail = [rest], len(rest), rest[-_TAIL:]
            self._past = self._find_past(rest)
        return said

    def _is_past(self, text: str) -> bool:
        past = self._find_past(text)
        return past is not None and (_find_words(text, _begin_scan(text)) if past is _PAST else past.search(text)) is not None

    def _find_past(self, text: str) -> Pattern[str] | None:
        if self._has_sections and _begins(text, (self._closing,)):
            return _NEVER
        folded = text[:_LONGEST].lower()
        if text.startswith("{") and self._before.strip():
            return _PAST_VALUE if may_name_tool(text, self._tools) else None
        head = text[:_MOST_LABEL]
        if len(text) < _MOST_LABEL and text.startswith(self._fences) and is_program(f"{head}.") and not is_program(head):
            return None  # its first sign tells
        if (
            folded.startswith(_MARKS)
            or (text.startswith(self._fences) and not is_program(head))
            or _SPACED.match(folded)
            or may_name_tool(text, self._tools)
        ):
            return _PAST
        if _is_action(text) and may_be_labelled(text, self._tools):
            return _PAST_VALUE
        may_be = may_be_call(text.lstrip(), self._tools) if self._tools and not self._before.strip() else False
        if may_be is not False:
            return _PAST_VALUE if may_be else None
        if text.startswith(CLOSING_TAGS):
            return _PAST_THOUGHT
        if text.startswith(USER_TOKENS) and self._may_be_made_up(self._before):
            return _NEVER
        if text.startswith(USERS):
            return _NEVER if has_turns(text) and text.rstrip() not in USERS else NO_TURN
        if STOP.match(text) or (self._closing and text.startswith(self._closing)):
            return PAST_STOP if not self._closing else _PAST_CLOSING
        return None

    def _list_places(self, text: str) -> Iterable[int]:
        """Where in the text a call may begin or the turn end, now or with what is still to come."""
        blank = len(text) - len(text.lstrip())
        is_first = bool(self._tools) and not self._is_json and not self._before.strip()
        if is_first and may_be_call(text[blank:], self._tools) is not False:
            yield blank
        first = [0] if _FIRST_SIGN.match(text) else []
        signs = _SECTION_SIGNS if self._has_sections else _SIGNS
        for place in chain(first, (sign.end() - 1 for sign in islice(signs.finditer(text), _MOST_SIGNS))):
            before = (self._before + text[max(0, place - _TAIL) : place])[-_TAIL:]
            if self._may_begin(text, place, before):
                yield place

    def _may_begin(self, text: str, place: int, before: str) -> bool:
        rest = text[place : place + _LONGEST]
        if (self._may_end(rest) and BEFORE_STOP.search(before)) or _begins(rest, CLOSING_TAGS):
            return True
        if _begins(rest, USER_TOKENS) and before[-1:] not in (" ", "\t", "") and self._may_be_made_up(before):
            return True
        if rest[0] in "UH":
            return before.rstrip(" \t").endswith("\n") and _begins(rest, USERS) and self._may_be_made_up(before)
        if not self._tools:
            return False
        folded = rest.lower()
        if _begins(rest, _LABELS):
            is_behind = (_SENTENCE if rest[0] == "A" else _ENDED).search(before) is not None and _EXPLAINED.search(before) is None
            return is_behind and may_be_labelled(text[place:], self._tools) is not False
        if folded.startswith(_MARKS) or folded in _HALF_MARKS or _SPACED.match(folded) or _HALF_SPACED.fullmatch(folded):
            return _LEAD.search(before) is not None and _EXPLAINED.search(before) is None
        if rest[0] == "`" and before.rstrip()[-1:] not in _PERIODS:
            return False
        if (rest[0] == "{" or _begins(rest, _JSON_FENCES)) and _ANNOUNCED.search(before) is not None:
            if _EXPLAINED.search(before):
                return False
            return may_name_tool(text[place:], self._tools) is not False
        if rest[0] == "`" and is_program(text[place : place + _MOST_LABEL]):
            return False
        is_meant = (not before.strip() and not self._is_json) or _ANNOUNCED.search(before) is not None
        if (not is_meant and _SENTENCE.search(before) is None) or _EXPLAINED.search(before):
            return False
        if _begins(rest, self._fences if is_meant else _FENCES):
            return True
        return rest[0] == "[" and may_be_python_call(text[place:], self._tools) is not False

    def _may_be_made_up(self, before: str) -> bool:
        """Whether a user's turn behind these words would be made up: they are an answer, and nobody speaks of a dialogue."""
        if self._is_played or self._is_json:
            return False
        self._is_played = (
            not before.rstrip().endswith(_ENDS_OF_SENTENCES)
            or (len(before) < _TAIL and _ONE_WORD.fullmatch(before) is not None)
            or "<|" in before
            or _ROLE.search(before) is not None
            or DIALOGUE.search(before) is not None
            or before.rstrip().endswith((" so.", " this."))
            or _EXPLAINED.search(before) is not None
            or self._is_asked(DIALOGUE)
        )
        return not self._is_played

    def _is_labelled(self, text: str) -> bool:
        """Whether it begins as a call whose labels tell that nothing else follows."""
        return _is_action(text) or text.startswith(self._fences)

    def _may_end(self, rest: str) -> bool:
        if self._closing and _begins(rest, (self._closing,)):
            return True
        return rest.startswith(STOPS) or rest in _HALF_STOPS or HALF_STOP.match(rest) is not None


def _begin_scan(text: str) -> JsonScan | None:
    """Where the JSON of a call begins, if it is one."""
    opened = _BEFORE_OBJECT.match(text)
    return None if opened is None else JsonScan(opened.end())


def _find_words(text: str, scan: JsonScan | None) -> Match[str] | None:
    """Where words follow a call that is closed. What looks so within a string of its JSON is part of an argument, and what is
    made up behind the call has none."""
    for past in _PAST.finditer(text, 0 if scan is None else scan.at):
        if scan is not None:
            scan.advance(text, past.start())
        if scan is None or not scan.is_inside:
            is_made_up = any(MADE_UP.match(text, closed.end()) for closed in _CLOSED.finditer(text, 0, past.end()))
            return None if is_made_up else past
    return None


def _is_listed(tokens: str, before: str) -> bool:
    """Whether the text speaks of tokens: one that no table has ends it behind others."""
    others = {*OTHER_STOP.findall(tokens)} - {*STOPS}
    return bool(others) and ("<|" in before or len(others) > 1)


def _has_stop(text: str) -> bool:
    """Whether one of the tokens that end turns is in it. What opens an answer is none."""
    return any(stop in STOPS for stop in STOP.findall(text))


def _is_action(text: str) -> bool:
    return text.startswith(_LABELS)


def _begins(rest: str, marks: tuple[str, ...]) -> bool:
    """Whether the text begins with a mark, or may with what is still to come."""
    return rest.startswith(marks) or any(mark.startswith(rest) for mark in marks)


_TAIL: Final = 200
_SCRIPT: Final = re.compile(r"```(?:js|ts|java|type)", re.IGNORECASE)
_LANGUAGES: Final = ("JavaScript", "Javascript", "javascript", "TypeScript", "Typescript", "typescript", "Node")
_MOST_PLACES: Final = 16
# How many signs in one piece of text are looked at; behind so many that begin nothing there are words.
_MOST_SIGNS: Final = 4_096
# How many characters are read in all as what begins at those places.
_MOST_READ: Final = 2 * MOST_HELD
# In lower case.
_MARKS: Final = (
    "<tool_call>", "<tool_calls>", "<toolcall>", "<function_call>", "<function_calls>", "<functioncall>", "<minimax:tool_call>",
    "<function=", "<function name=", "<invoke name=", "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call|>",
    "<\uff5ctool▁calls▁begin\uff5c>", "<\uff5ctool▁call▁begin\uff5c>", "<|python_tag|>", "[tool_calls]", "[tool_request]",
    "<|tool_call>", "<|tool_call_start|>", "<start_function_call>", "<\uff5cdsml\uff5cfunction_calls>", "<tools>",
    "<\uff5cdsml\uff5cinvoke name=", "<seed:tool_call>", "<|action_start|>", "<|start_action|>", "<tool_use>", "<tool_code>",
    "<|tools_prefix|>", "<longcat_tool_call>", "<\uff5ctool_calls_begin\uff5c>", "</tool_call>", FUNCTOOLS,
    "<|python_start|>", "<|tool_call_section_begin|>", "<antml:function_calls>", "<antml:invoke name=",
    "<\uff5cdsml\uff5ctool_calls>", "<|dsml|function_calls>",
    "<|dsml|tool_calls>", "<|dsml|invoke name=", "<|tool▁calls▁begin|>", "<|tool▁call▁begin|>",
    "<|tool_calls|>", "<|tool_call:begin|>", "<tool>",
    "<use_mcp_tool>", "<execute_tool>", "<tool_call ", "[tool_call]", "[unused11]", "<<function>>",
    "<|tool_calls_section_end|>", "function call<|role_sep|>", "function<\uff5c", "<tool name=",
    "<tool-call>", "<api_call>", "<use_tool>", "<fn>",
)  # fmt: skip
# The same in a namespace, whatever it is called, and what may become one of them.
_SPACED: Final = re.compile(r"<[a-z]\w{0,15}:(?:tool_calls?>|function_?calls?>|function_call name=|invoke name=)")
_HALF_SPACED: Final = re.compile(r"<[a-z]\w{0,15}(?::(?:\w{0,14}|(?:invoke|function_call)(?: n?a?m?e?)?))?")
_FENCES: Final = tuple([f"```{label}\n" for label in BLOCK_LABELS])
# So much shows whether a block of code is a program.
_MOST_LABEL: Final = 80
_JSON_FENCES: Final = ("```json\n", "```\n")
_HALF_MARKS: Final = frozenset([mark[:size] for mark in _MARKS for size in range(1, len(mark))])
# From so many characters on, half a token is one that was cut.
_HALF: Final = 4
_HALF_STOPS: Final = frozenset([stop[:size] for stop in STOPS for size in range(1, len(stop))])
_LONGEST: Final = max(map(len, (*_MARKS, *STOPS)))
# Each alternative begins with one character, and the search is ten times as fast.
_SIGNS: Final = re.compile(r"<|\[|`|\n(?:f(?=u|\Z)|A(?=c|\Z)|U(?=s|S|\Z)|H(?=u|U|\Z)|\{)|>(?<![^\s.!?…:>]>)(?=>>\w|>{0,2}\Z)")
_SECTION_HEADS: Final = frozenset(SECTIONS.values())
_SECTION_SIGNS: Final = re.compile(rf"{_SIGNS.pattern}|>(?=>>|>?\Z)")
_FIRST_SIGN: Final = re.compile(r"f(?=u|\Z)|A(?=c|\Z)|U(?=s|S|\Z)|H(?=u|U|\Z)|\{")
# What calls begin with, whose labels tell that nothing else follows.
_LABELS: Final = ("Action:", ">>>", "<|from|>assistant", "<|recipient|>")
# How what has no mark begins a line.
_LINE: Final = r"f(?:\Z|u)|a(?:\Z|c(?:\Z|t))|u(?:\Z|s(?:\Z|e))|h(?:\Z|u(?:\Z|m))|\[|\{"
# How the marks and the tokens begin, or what may still become such a beginning.
_MAY_BEGIN: Final = re.compile(
    r"<(?:\Z|t(?:\Z|[ou])|f(?:\Z|[un])|i(?:\Z|[nm])|a(?:\Z|[np])|m(?:\Z|i)|s(?:\Z|[etp>])|l(?:\Z|o)|e(?:\Z|[nox])|u(?:\Z|[ns])|p(?:\Z|a)|r(?:\Z|e)"
    r"|/(?:\Z|[tsarfol])|[|\uff5c\[<]|\w{1,16}(?:\Z|:))"
    r"|\[(?:\Z|[TUEI/|])|>(?<![^\s.!?…:>]>)(?:>>\w|>{0,2}\Z)"
    rf"|\n(?:{_LINE})",
    re.IGNORECASE,
)
_LINE_BEGINS: Final = re.compile(_LINE, re.IGNORECASE)
# What may stand before a call: nothing, a line or a sentence of its own.
_LEAD: Final = re.compile(r"(?:\A|\n|[.!?…>:])\s*\Z")
_BLOCK_BEGINS: Final = re.compile(r"[.!?…:>][ \t]*\n\s*`")
_PERIODS: Final = ".!?…:>"
_ENDS_OF_SENTENCES: Final = tuple(".!?…。！？\"')]*")  # noqa: RUF001
# `Sure.` is no answer: it leads to one.
_ONE_WORD: Final = re.compile(r"\s*\S{1,12}\s*")
_ROLE: Final = re.compile(r"(?:\A|\n)[ \t]*(?:User|Human|Assistant|AI|Bot|USER|HUMAN|ASSISTANT|System|Tool)[ \t]*:")
_ENDED: Final = re.compile(r"(?:\A|[.!?…])\s*\Z")
_SENTENCE: Final = re.compile(r"[.!?…>][ \t]*\n\s*\Z")
_MISTRALS: Final = "[TOOL_CALLS]"
# Mistral's token before words, where it calls nothing.
_HEADER: Final = re.compile(r"<\|(?:im_start|start_header_id|user|system)|<start_of_turn>|\[INST\]")
_STRAY: Final = re.compile(r"\[TOOL_CALLS\]\s*(?=[A-Z][^\[\]{}]*\Z)")
_WORD: Final = r"[^\s<\[{,;`]"
# A call that is closed, and then words.
_PAST: Final = re.compile(
    r"(?:</(?:\w+:)?(?:tool_calls?|function|invoke|function_calls?|toolcall|tools|tool|execute_tool|use_mcp_tool|tool_use|tool_code|longcat_tool_call"
    r"|tool-call|api_call|use_tool|fn)>|(?<!im)_end\|>"
    r"|▁end\uff5c>|<tool_call\|>|<end_function_call>|</\uff5cDSML\uff5c\w+>|\[END_TOOL_REQUEST\]|\n```\s)\s*+"
    rf"{_WORD}",
    re.IGNORECASE,
)
_CLOSED: Final = re.compile(rf"{_PAST.pattern.removesuffix(_WORD)}", re.IGNORECASE)
# The tags and the name before the JSON of a call.
_BEFORE_OBJECT: Final = re.compile(r"(?:<[^<>{}]*+>|\[\w++\]|[\w.:-]++|[\s\[`])*+(?=\{)")
# A value that is closed, and then a sentence. JSON has no line breaks in its strings.
_PAST_VALUE: Final = re.compile(r"[})\]](?:\n?`{3})?[ \t]*\n\s*(?!Observation)[A-Z][\w'\u2019]*(?:[ ,][^:{}]){1}[^:{}]{12}")
# The tag that closes thoughts, and what tells whether it is spoken of.
_PAST_THOUGHT: Final = re.compile(rf"(?:{'|'.join(CLOSING_TAGS)})[ \t]*[^ \t]")
_NEVER: Final = re.compile(r"(?!)")
# What a model says while it waits, or before it calls.
_INTENT: Final = re.compile(
    r"I\b|Let\b|We\b|One moment|Please\b|Now\b|Once\b|Hold\b|Just\b|Ok\b|Okay\b|Wait|[A-Z][a-z]+ing\b|Ich\b|Je\b|Voy\b|我|让我"
)
# The same behind a call that words have announced.
_WAITING: Final = re.compile(
    r"(?:I(?:['\u2019]ll| will|['\u2019]m| am)|Let me|One moment|Please wait|Hold on|Just a|Once (?:I|it|the|we))\b"
)
_INTENT_CHARS: Final = 24
_ANNOUNCED: Final = re.compile(
    r"(?:\A|[.!?,:\n]\s*)(?:I(?:['\u2019]| wi)ll|I(?:['\u2019]m| am) going to"
    r"|I (?:need|have) to|I should|I must|Let me|Let['\u2019]s|We need to"
    r"|Checking|Looking|Fetching|Calling|Retrieving|Querying|One moment|Just a (?:moment|second)|Hold on)\b"
    r"(?![^.!?\n]*\b(?:show|example|sample|writ|explain|describ|demonstrat|illustrat|format|spell|sketch|outline|walk you|quot"
    r"|put it|typ(?:e|ing) (?:it|this|that)|would))[^.!?\n]*[.!?…:][ \t]*\n\s*\Z",
    re.IGNORECASE,
)
# A sentence that speaks of how calls are written: what follows it is shown, not made.
_EXPLAINED: Final = re.compile(
    r"(?:\b(?:looks? like|like (?:this|so)|as follows|for (?:example|instance)|an example|a sample"
    r"|the (?:format|syntax|notation|template)|spell (?:it|this|that) out|illustrate|type (?:it|this|that) out|sketch"
    r"|walk you through|how (?:I|you|one|we|to) (?:would |could )?(?:ask|call|write|put|say))"
    r"|\blet['\u2019]s (?:look at|see|examine|inspect) (?:the|an?|its) (?:\w+ )?(?:answer|reply|response|request|payload|message)"
    r"|(?:\A|\n)\W*(?:examples?|samples?))\b[^.!?:\n]*[.!?…:]?\s*\Z",
    re.IGNORECASE,
)
_CLOSING_STOPS: Final = ("</s>", "</tool_call>")
_PAST_CLOSING: Final = re.compile(rf"(?:</\w+>\s*+[^\s<\[])|{PAST_STOP.pattern}")
