"""One model turn, from a vendor's deltas to our events.

Theory of operation. A reader reports what arrived (`text`, `reasoning`, `refusal`, `call`, ...) and hands on what `take`
returns; `end` closes what is still open. Ids are made here, so a vendor's missing or repeated ids do no harm. A reasoning item
closes as soon as anything else arrives, the message when a call begins, and calls at the end of the turn, because pieces of
parallel calls may alternate. Text after later reasoning still belongs to the one message. Items begin in the order in which the
backend first mentions them; calls also end in that order.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from re import Pattern
from typing import Final, Literal

from msgspec import UNSET, Struct, UnsetType

from mainspring.core import events, items
from mainspring.core.errors import BadOutput
from mainspring.core.events import Finish, ModelEvent
from mainspring.core.ids import NewId
from mainspring.core.items import Json
from mainspring.core.model_request import MOST_ITEMS, Items
from mainspring.providers.argument_types import list_types
from mainspring.providers.call_draft import CallDraft, Index, build_unnamed_error, is_json
from mainspring.providers.called_names import find_tool_name
from mainspring.providers.leak_reader import MOST_HELD, HeldText, LeakReader
from mainspring.providers.leaked_calls import LeakedCall, parse_calls
from mainspring.providers.thinking import CLOSING_TAGS, TagSplitter, find_answer, find_unopened, read_channels

MOST_READ: Final = 1024 * 1024


class TurnEvents(ABC):
    """The events of one turn until they are handed on. `taken` are call ids that the conversation has used already."""

    def __init__(self, new_id: NewId, taken: Collection[str] = ()) -> None:
        self._new_id = new_id
        self._taken = taken
        self._given: set[str] = set()
        self._events: list[ModelEvent] = []
        self.notes: list[items.Adaptation] = []
        """What was done so that the turn could be had and read."""
        self.stop_sequence: str | UnsetType = UNSET
        """The text that the backend says it has ended the answer before."""

    def take(self) -> list[ModelEvent]:
        """The events since the last time."""
        told, self._events = self._events, []
        return told

    @property
    @abstractmethod
    def is_silent(self) -> bool:
        """Nothing has been said so far."""

    has_closed_thought: bool = False
    """The tag that closes thoughts was found in the words, and none that opens them. The words before it are apart."""

    @property
    def has_unopened_thought(self) -> bool:
        """What was told as words has turned out to be reasoning, which the prompt had opened."""
        return False

    @property
    def is_unclosed(self) -> bool:
        """What came as text was taken for reasoning that the prompt had opened, and nothing has closed it."""
        return False

    @property
    @abstractmethod
    def is_worded(self) -> bool:
        """The words so far, told or held back, are not JSON, and there are no calls."""

    @property
    @abstractmethod
    def is_mute(self) -> bool:
        """No words have been said and no calls made: at most there are thoughts."""

    @abstractmethod
    def end(self, finish: Finish, usage: items.Usage | None) -> None:
        """Closes every item and the turn."""

    def _make_unique(self, call_id: str) -> str:
        while not call_id or call_id in self._taken or call_id in self._given:
            call_id = self._new_id("call")
        self._given.add(call_id)
        return call_id


class TurnBuilder(TurnEvents):
    """Builds the events of one turn.

    `thinks` says that reasoning may come as text, in tags, `is_begun` that the text begins within it. `tools` are those there
    are, `leaks` finds their calls in text. A tag around the answer is kept if it `is_asked` for. Where JSON is asked for
    (`is_json`), it may have come as reasoning.
    """

    def __init__(
        self,
        new_id: NewId,
        taken: Collection[str] = (),
        *,
        thinks: bool = False,
        is_begun: bool = False,
        tools: Iterable[items.ToolDefinition] = (),
        leaks: LeakReader | None = None,
        is_json: bool = False,
        is_asked: Callable[[str | Pattern[str]], bool] = lambda tag: True,
    ) -> None:
        super().__init__(new_id, taken)
        self._tools = {tool.name: tool for tool in tools}
        self._reasoning: _ReasoningDraft | None = None
        self._message: _MessageDraft | None = None
        self._calls: list[CallDraft] = []
        # By (index, vendor id). An empty id leads to the latest call with that index, no index to the latest with that id.
        self._known: dict[tuple[Index | None, str], CallDraft] = {}
        self._last: _ReasoningDraft | _MessageDraft | CallDraft | None = None
        self._blank: list[str] = []
        # Those of words that are held back, because they are blank or may be a tag.
        self._logprobs: list[Json] = []
        self._tagged = TagSplitter(is_begun=is_begun, is_asked=is_asked) if thinks else None
        self._is_asked = is_asked
        self._thinks, self._is_begun, self._has_text = thinks, is_begun, False
        self._leaks = leaks
        self._beside: list[HeldText] = []
        self._is_json = is_json
        self._has_spoken = False
        # One tag is looked at: thoughts that are closed have no more of them.
        self._may_close = thinks

    @property
    def is_silent(self) -> bool:
        """Nothing has been said so far."""
        return self._last is None

    @property
    def is_mute(self) -> bool:
        return not self._has_spoken and not self._calls

    @property
    def has_calls(self) -> bool:
        return bool(self._calls)

    @property
    def is_holding(self) -> bool:
        """Words are held back that may be something else."""
        return (self._leaks is not None and self._leaks.is_holding) or (self._tagged is not None and self._tagged.is_holding)

    @property
    def has_answer(self) -> bool:
        """Words have been said or calls made, and no call is half."""
        is_said = self._message is not None or self.is_holding or not _NULLS.isdisjoint(self._blank)
        return (is_said or bool(self._calls)) and not any(call.is_half for call in self._calls)

    @property
    def said(self) -> str:
        """The words so far."""
        parts = [] if self._message is None else self._message.parts
        return "".join([piece for part in parts if part.kind == "text" for piece in part.pieces])

    @property
    def has_unopened_thought(self) -> bool:
        return self._thinks and len(said := self.said) <= MOST_READ and find_unopened(said) is not None

    @property
    def is_unclosed(self) -> bool:
        return self._is_begun and self._has_text and self._tagged is not None

    @property
    def is_answering(self) -> bool:
        """What is held back has the JSON that was asked for."""
        return self._leaks is not None and self._leaks.is_answering

    @property
    def is_worded(self) -> bool:
        is_held = self._leaks is not None and self._leaks.is_worded
        is_said = (said := self.said.strip()) != "" and not said.startswith(("{", "["))
        return not self._calls and (is_said or (is_held and not self.is_answering))

    def text(self, delta: str, logprobs: Sequence[Json] = ()) -> None:
        if logprobs:
            self._logprobs += logprobs
        if len(delta) > MOST_READ:
            self._tell_unread(delta)
            return
        if self._tagged is None:
            words, message = delta if self._leaks is None else self._leaks.feed(delta), self._message
            is_new = words is delta
            if is_new and words and message is not None and self._last is message and message.is_text and not self._logprobs:
                # The token path: more of the text that was said last.
                message.parts[-1].pieces.append(words)
                self._events.append(events.TextDelta(message.id, words, len(message.parts) - 1))
            else:
                self._say(words)
            return
        if self._is_begun and self._last is not None and not self._has_text:
            # It came in a field of its own.
            self._tagged, self._is_begun = TagSplitter(is_asked=self._is_asked), False
        if self._reasoning is not None and not self._has_text:
            self._tagged.note_thought()
        self._has_text = True
        self._split(self._tagged.feed(delta))
        if self._tagged.is_past:
            self._tagged = None

    def _tell_unread(self, delta: str) -> None:
        """A piece that is longer than any thought or call is words: to find out what else is in it takes long."""
        if self._tagged is not None:
            self._split(self._tagged.end())
            self._tagged = None
        self._say(delta if self._leaks is None else self._leaks.drop() + delta)

    def _split(self, told: Iterable[tuple[bool, str]]) -> None:
        for is_thought, words in told:
            if is_thought:
                self._note_recovered("reasoning", "reasoning came as text between tags")
                self.reasoning(words)
            elif self._leaks is None:
                self._say(words)
            else:
                if self._tagged is not None and self._tagged.closing:
                    self._leaks.expect(self._tagged.closing)
                self._say(self._leaks.feed(words))

    def _say(self, delta: str) -> None:
        if not delta:
            return
        if self._message is None and (delta.isspace() or delta in _NULLS):
            # Models put line breaks or `null` around their calls; they are worth a message only if words follow.
            self._blank.append(delta)
            return
        if self._may_close and "</" in delta and any(tag in delta for tag in CLOSING_TAGS):
            self._may_close = False
            delta = self._close_thought(delta)
            if not delta:
                return
        message = self._speaking()
        if self._blank:
            delta = "".join([*self._blank, delta])
            self._blank = []
        self._tell_text(message, delta)

    def _close_thought(self, delta: str) -> str:
        """Tells the words before a tag that closes thoughts, which nothing has opened, as such, or ends the message that has them
        if they were told. Returns the words behind it; all of them if the tag is spoken of."""
        said = f"{self.said}{''.join(self._blank)}"
        closed = find_unopened(said + delta) if len(said) <= MOST_READ else None
        if closed is None or len(closed.thought) < len(said):
            return delta
        self.has_closed_thought = True
        self._note_recovered("reasoning", "only the end of the reasoning was marked")
        if self._message is None:
            self.reasoning(closed.thought)
            self._blank = []
        else:
            if thought := closed.thought[len(said) :]:
                self._tell_text(self._message, thought)
            self._close_message(phase="commentary")
        return (said + delta)[closed.end :].lstrip()

    def _tell_text(self, message: "_MessageDraft", delta: str) -> None:
        index = message.piece("text", delta)
        if not self._logprobs:
            self._events.append(events.TextDelta(message.id, delta, index))
            return
        logprobs, self._logprobs = tuple(self._logprobs), []
        message.parts[index].logprobs += logprobs
        self._events.append(events.TextDelta(message.id, delta, index, logprobs))

    def refusal(self, delta: str) -> None:
        if delta:
            message = self._speaking()
            self._events.append(events.RefusalDelta(message.id, delta, message.piece("refusal", delta)))

    def annotation(self, annotation: Json) -> None:
        """A note on the text so far."""
        message = self._speaking()
        self._events.append(events.Annotated(message.id, annotation, message.note(annotation)))

    def reasoning(self, delta: str) -> None:
        if not delta:
            return
        self._logprobs = []
        thought = self._last = self._thinking()
        thought.pieces.append(delta)
        self._events.append(events.ReasoningDelta(thought.id, delta))

    def seal(self, content: str) -> None:
        """Attaches what the vendor wants back to the reasoning so far, or to an empty reasoning item, and closes it."""
        self._thinking().sealed = content
        self._close_reasoning()

    def call(
        self, *, index: Index | None = None, id: str = "", name: str = "", arguments: str = "", is_beside: bool = False
    ) -> None:
        """A piece of a call, which is found by index, by id, or else is the latest.

        `is_beside` says that it came in one chunk with another piece of the same index and id.
        """
        if not (id or name or arguments):
            return
        if name and name not in self._tools:
            name = self._find_name(name)
        call = self._known.get((index, id))
        if call is None or name:
            call = call or self._find(index, id, name, arguments)
            if call is not None and call.is_repeated(id, name, arguments):
                return
            if call is None or not (call.goes_on(name, arguments) or call.is_continued(index, id, name, arguments, is_beside)):
                if len(self._calls) > MOST_ITEMS:  # the engine refuses the turn for those that it has
                    return
                self._settle()
                self._close_message()
                call = CallDraft(id, index, original=self._find_original(index, id, name))
                self._calls.append(call)
            self._known[index, id] = self._known[None, id] = call
        self._known[index, ""] = self._known[None, ""] = call
        self._last = call
        if not call.vendor_id:
            call.vendor_id = id
        if name and name != call.name:
            self._name(call, name)
        if arguments:
            call.add(arguments)
        if call.original is not None and not call.may_repeat(call.original):
            call.original = None
            self._begin(call)
        if call.id and (piece := call.take()):
            self._events.append(events.ArgumentsDelta(call.id, piece))

    def end(self, finish: Finish, usage: items.Usage | None) -> None:
        """Closes every item and the turn. A turn that was cut off leaves its last item incomplete.

        Raises `BadOutput` if the model called a tool without saying which.
        """
        is_cut = finish != "stop"
        if self._tagged is not None:
            self._split(self._tagged.end())
        if not is_cut:
            self._recover()
        elif self._leaks is not None:
            self._say(self._leaks.drop())
        if self._blank and not self._calls:
            is_word = self._has_spoken or not _NULLS.isdisjoint(self._blank)
            self._tell_text(self._speaking(), "".join(self._blank))
            self._has_spoken = is_word
        self._close_reasoning(is_cut=is_cut and self._last is self._reasoning)
        self._close_message(is_cut=is_cut and self._last is self._message)
        is_named = any(call.name for call in self._calls)
        for call in self._calls:
            if not call.id and not is_cut and call.original is None:
                self._find_meant(call)
            if call.name:
                self._end_call(call, is_cut=is_cut)
            elif not is_cut and (call.pieces or call.vendor_id) and not (is_named and call.arguments.strip() in _NOTHING):
                raise build_unnamed_error(call.arguments)
        self._tell_beside()
        self._events.append(events.TurnEnded(finish, usage, stop_sequence=self.stop_sequence))

    def _end_call(self, call: CallDraft, *, is_cut: bool) -> None:
        if call.original is not None:
            if is_cut or call.original.makes(call.name, call.arguments):
                self._note_recovered("calls", "a call came again under another id")
                return
            self._begin(call)
        if call.name not in self._tools:
            call.name = find_tool_name(self._find_name(call.name), self._tools)
        came = call.arguments
        if piece := call.settle(is_cut=is_cut):
            self._events.append(events.ArgumentsDelta(call.id, piece))
        if call.arguments != came:
            self._note_recovered("arguments", "arguments came in an odd form")
        # Whoever performs it here tells the model what is wrong; a client would be left with it.
        is_own = call.tool is not None and call.tool.kind == "function" and call.tool.form is UNSET
        if is_own and not is_cut and call.is_half:
            raise BadOutput(f"the model called `{call.name}` with arguments that are no JSON: `{call.arguments:.200}`; ask again")
        self._events.append(events.ItemDone(call.build(is_cut and (call is self._last or call.is_half))))

    def _find_meant(self, call: CallDraft) -> None:
        """A call without the name of a tool may have it in its arguments, or its arguments in its name."""
        written = call.arguments if call.arguments.strip() not in _NOTHING else call.name
        made = parse_calls(written, self._tools, is_all=True)
        if made:
            self._note_recovered("tool_name", "a call had its name and its arguments in one place")
            call.name, call.tool = made[0].name, self._tools[made[0].name]
            call.pieces, call.size, call.rest = [made[0].arguments], len(made[0].arguments), made[0].arguments
        if call.name:
            self._begin(call)
        for number, other in enumerate(made[1:]):
            # As OpenAI's models wrap calls that are to be made at once.
            self.call(index=f"{call.index}_{number}", name=other.name, arguments=other.arguments)

    def _find_name(self, name: str) -> str:
        """The name of the tool that is meant. What may be the first piece of a name waits for the others."""
        if any(known.startswith(name) for known in self._tools) or _CALLED.search(name):
            return name
        meant = find_tool_name(name, self._tools)
        if meant != name:
            self._note_recovered("tool_name", "a tool's name came in another form")
        return meant

    def _find_original(self, index: Index | None, id: str, name: str) -> CallDraft | None:
        """The call that one with the same index may repeat under another id, unless it came in the same chunk; or one with the
        same id at another index: ids tell calls apart."""
        if not id or not name:
            return None
        if (same := self._known.get((None, id))) is not None and same.name == name and same.is_whole:
            return same
        begun = [event.item for event in self._events if isinstance(event, events.ItemStarted)]
        fresh = {item.id for item in begun if isinstance(item, items.FunctionCall)}
        told = [call for call in self._calls if call.index == index and call.vendor_id and call.id not in fresh]
        return next((call for call in reversed(told) if call.name == name and call.is_whole), None)

    def _settle(self) -> None:
        """A real call begins: what was held back because it might be a call is one beside it, or words; thoughts that are whole
        are thoughts."""
        if self._tagged is not None:
            self._split(self._tagged.break_off())
        if self._leaks is not None and self._leaks.is_holding:
            held = self._leaks.end(self.said, has_calls=True)
            self._say(held.words)
            if held.calls:
                self._beside.append(held)

    def _recover(self) -> None:
        """Tells what is held back at the end because it might be a call: it is one if the turn has no other. A turn that has only
        thought may have its calls, or the JSON that it was asked for, among its thoughts."""
        calls: list[LeakedCall] = []
        leaks = self._leaks
        if leaks is not None:
            held = leaks.end(self.said if leaks.is_holding else "", has_calls=self.has_calls)
            if held.thought is not None:
                self._say(held.thought)
                self._close_message(phase="commentary")
            self._say(held.words)
            calls = held.calls
            if held.is_mended:
                self._note_recovered("text", "the JSON that was asked for had slips")
            if held.is_made_up:
                self._note_recovered("text", "the model went on behind its answer with turns that it made up")
            if held.is_cut and not self._calls:
                raise BadOutput("the model wrote a call of a tool as text that ends half or cannot be read; ask again")
            if self._calls and calls:
                self._beside.append(held)
                return
        if self._reasoning is not None and self._message is None and not self._calls:
            thought = "".join(self._reasoning.pieces)
            calls = calls or (
                leaks.settle(read_channels(thought)).calls if leaks is not None and len(thought) <= MOST_HELD else []
            )
            if self._is_begun and self._tagged is not None and not calls:
                # It has not thought this time: these are its words.
                self._say(thought)
            if not calls and (answer := find_answer(thought)):
                self._say(answer)
            if not calls and self._is_json and thought.lstrip().startswith(("{", "[")) and is_json(thought):
                self._say(thought)
        if leaks is not None and not calls and not self._calls and self._message is not None:
            calls = leaks.find_announced(self.said)
        if calls:
            self.notes.append(items.Adaptation("recovered", "calls", len(calls), "calls came as text"))
        for number, call in enumerate(calls):
            self._logprobs = []
            self.call(index=f"leaked_{number}", name=call.name, arguments=call.arguments)

    def _tell_beside(self) -> None:
        """Calls that stand in the text beside real ones are those once more, or else words."""
        for held in self._beside:
            if all(any(made.makes(call.name, call.arguments) for made in self._calls) for call in held.calls):
                self._note_recovered("calls", "calls came as text, too")
            else:
                self._say(held.written)
                self._close_message()

    def _note_recovered(self, what: str, why: str) -> None:
        """Once a turn."""
        note = items.Adaptation("recovered", what, True, why)
        if note not in self.notes:
            self.notes.append(note)

    def _thinking(self) -> "_ReasoningDraft":
        if self._reasoning is None:
            self._reasoning = _ReasoningDraft(self._new_id("rs"))
            self._events.append(events.ItemStarted(items.Reasoning(id=self._reasoning.id, status="in_progress")))
        return self._reasoning

    def _speaking(self) -> "_MessageDraft":
        if self._reasoning is not None:
            self._close_reasoning()
        message = self._message
        if message is None:
            message = self._message = _MessageDraft(self._new_id("msg"))
            self._has_spoken = True
            self._events.append(events.ItemStarted(items.Message(role="assistant", id=message.id, status="in_progress")))
        self._last = message
        return message

    def _close_reasoning(self, *, is_cut: bool = False) -> None:
        if self._reasoning is not None:
            self._events.append(events.ItemDone(self._reasoning.build(is_cut)))
            self._reasoning = None

    def _close_message(self, *, is_cut: bool = False, phase: str | UnsetType = UNSET) -> None:
        self._blank = []
        self._close_reasoning()
        if self._message is not None:
            self._events.append(events.ItemDone(self._message.build(is_cut, phase)))
            self._message = None

    def _find(self, index: Index | None, id: str, name: str, arguments: str) -> CallDraft | None:
        """The call of a piece whose index and id together lead to none."""
        if index is None:
            # A new id is a new call.
            return None
        latest = self._known.get((index, ""))
        if latest is not None:
            # The same index with another id is another call, unless it only goes on; an id that only comes later is not.
            is_new = latest.vendor_id and (name or not latest.is_open) and not latest.goes_on(name, arguments)
            return None if is_new else latest
        # A piece without a name is no beginning: the call was begun without an index.
        started = None if name else self._known.get((None, id))
        return started if started is not None and (started.index is None or started.is_open) else None

    def _name(self, call: CallDraft, name: str) -> None:
        if call.name:
            if not call.pieces:
                # Some tell the name from its beginning each time.
                is_more = name.startswith(call.name) and name in self._tools
                call.name = name if is_more else call.name + name
            return
        call.name = name
        call.tool = self._tools.get(name)
        call.types = list_types(call.tool) or None
        # What is no tool's name may be found in the arguments.
        if call.original is None and (not self._tools or any(known.startswith(name) for known in self._tools)):
            for earlier in self._calls:
                if earlier.name and not earlier.id and earlier.original is None and earlier is not call:
                    self._find_meant(earlier)
            self._begin(call)

    def _begin(self, call: CallDraft) -> None:
        call.id = self._new_id("fc")
        call.call_id = self._make_unique(call.vendor_id)
        self._events.append(events.ItemStarted(items.FunctionCall(call.call_id, call.name, id=call.id, status="in_progress")))


class _ReasoningDraft(Struct, eq=False):
    id: str
    pieces: list[str] = []
    sealed: str | UnsetType = UNSET

    def build(self, is_cut: bool) -> items.Reasoning:
        content = (items.ReasoningText("".join(self.pieces)),) if self.pieces else UNSET
        return items.Reasoning(id=self.id, content=content, encrypted_content=self.sealed, status=_status(is_cut))


class _MessageDraft(Struct, eq=False):
    """A message: parts of text and refusal, each a list of pieces."""

    id: str
    parts: list["_PartDraft"] = []

    def piece(self, kind: Literal["text", "refusal"], delta: str) -> int:
        """Adds a piece and returns the index of its part."""
        if not self.parts or self.parts[-1].kind != kind:
            self.parts.append(_PartDraft(kind))
        self.parts[-1].pieces.append(delta)
        return len(self.parts) - 1

    @property
    def is_text(self) -> bool:
        return bool(self.parts) and self.parts[-1].kind == "text"

    def note(self, annotation: Json) -> int:
        index = self.piece("text", "")
        self.parts[index].notes.append(annotation)
        return index

    def build(self, is_cut: bool, phase: str | UnsetType) -> items.Message:
        parts = tuple([part.build() for part in self.parts])
        return items.Message("assistant", parts, id=self.id, status=_status(is_cut), phase=phase)


class _PartDraft(Struct, eq=False):
    kind: Literal["text", "refusal"]
    pieces: list[str] = []
    notes: list[Json] = []
    logprobs: list[Json] = []

    def build(self) -> items.Part:
        said = "".join(self.pieces)
        if self.kind == "refusal":
            return items.Refusal(said)
        return items.OutputText(said, tuple(self.notes), tuple(self.logprobs))


def list_call_ids(history: Sequence[items.Item]) -> Collection[str]:
    """The call ids that a conversation has used."""
    if isinstance(history, Items) and (prefix := history.prefix) is not None:
        return prefix.call_ids
    return {item.call_id for item in history if isinstance(item, items.FunctionCall)}


def _status(is_cut: bool) -> items.ItemStatus:
    return "incomplete" if is_cut else "completed"


_NOTHING: Final = ("", "{}", "null")
_NULLS: Final = frozenset({"null", "None"})
# A name with arguments in its brackets.
_CALLED: Final = re.compile(r"\(\s*[^\s)]")
