"""Reasoning that comes as text, told by what stands around it: tags, or the channels of the harmony format.

No model is asked for its name: whoever begins with such a tag thinks, and whoever only writes of one does not begin with it.
"""

import re
from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from re import Match, Pattern
from typing import Final, NamedTuple

from mainspring.providers.control_tokens import ANSWER_TAGS, HEADERS, LEADING, NEXT_TURN, SECTIONS, START, WRAPPERS
from mainspring.providers.labelled_calls import MOST_THOUGHT, PAST_THOUGHT

THINK_TAGS: Final = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<thought>", "</thought>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("◁think▷", "◁/think▷"),
    ("<longcat_think>", "</longcat_think>"),
    ("<reasoning>", "</reasoning>"),
    ("[unused16]", "[unused17]"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)


class ThoughtBlock(NamedTuple):
    """Thoughts that are told as such only by what follows them: how they begin, and how they and their end look in all, which has
    one of the `marks`. The answer may end with a `closing`. What is `past`, or longer than `most`, is none."""

    head: Pattern[str]
    whole: Pattern[str]
    marks: tuple[str, ...]
    closing: str = ""
    past: Pattern[str] = re.compile("(?!)")
    most: int = 16_384


_WORDS: Final = (
    r"(?:\w+[_:-]|ant|deep)?(?:think|thinking|thoughts?|reason|reasoning|reflection|reflect|analysis|scratch_?pad|monologue|rationale"
    r"|思考|推理|deliberation|introspection|cot|chain_of_thought|brainstorm(?:ing)?|tool_(?:response|result|output)s?)(?:[_:-]\w+)?"
)
_PLAIN_WORDS: Final = r"think|thinking|thoughts?|reasoning|scratchpad|chain[_-]of[_-]thought|cot|internal[_-]monologue|思考"
_TOKEN_WORDS: Final = r"inner|think|thinking|thoughts?|reason|reasoning|analysis|cot"
BLOCKS: Final = (
    ThoughtBlock(
        re.compile(rf'<(?P<tag>{_WORDS})(?:\s[^<>\n]*)?>|<details type="reasoning"[^<>\n]*>', re.IGNORECASE),
        re.compile(
            rf"<({_WORDS}|details)(?:\s[^<>\n]*)?>(?P<thought>.*?)</\1\s?>(?! (?-i:[a-z]))\s*+(?=\S)", re.IGNORECASE | re.DOTALL
        ),
        ("</",),
    ),
    # In a block of code, in brackets, or folded.
    ThoughtBlock(
        re.compile(rf"(?P<fence>```|~~~)(?P<tag>{_PLAIN_WORDS})[ \t]*\n", re.IGNORECASE),
        re.compile(
            rf"(?P<fence>```|~~~)(?:{_PLAIN_WORDS})[ \t]*\n(?P<thought>(?:(?!```|~~~).)*?)\n?(?P=fence)\s*+(?!(?-i:[a-z]))(?=\S)",
            re.IGNORECASE | re.DOTALL,
        ),
        ("\n```", "\n~~~"),
    ),
    ThoughtBlock(
        re.compile(rf"[\[【](?P<tag>{_PLAIN_WORDS})[\]】](?![ (:\[])", re.IGNORECASE),
        re.compile(
            rf"[\[【](?P<tag>{_PLAIN_WORDS})[\]】](?P<thought>.*?)[\[【]/(?P=tag)[\]】](?! (?-i:[a-z]))\s*+(?=\S)",
            re.IGNORECASE | re.DOTALL,
        ),
        ("[/", "【/"),
        past=re.compile(r"\A.[^\]】]*.[ \t]*\n?\[(?!/)"),
    ),
    ThoughtBlock(
        re.compile(
            r"<(?P<tag>details)[^<>\n]*>\s*<summary>[^\w<]{0,8}(?P<title>Thinking|Thoughts?|Thought process"
            r"|Thought for [^<\n]{1,24}|Reasoning|Chain of thought)[^\w<]{0,8}</summary>",
            re.IGNORECASE,
        ),
        re.compile(
            r"<details[^<>\n]*>\s*<summary>[^<\n]*</summary>(?P<thought>.*?)</details>\s*+(?=\S)", re.IGNORECASE | re.DOTALL
        ),
        ("</details>",),
    ),
    # As Ollama's command shows them.
    ThoughtBlock(
        re.compile(r"Thinking\.\.\.\n"),
        re.compile(r"Thinking\.\.\.\n(?P<thought>.*?)\n\.\.\.done thinking\.\s*+(?=\S)", re.DOTALL),
        ("...done thinking.",),
    ),
    ThoughtBlock(
        re.compile(r"<\|(?:think(?:ing)?|reasoning|thought)\|>"),
        re.compile(
            r"<\|(?:think(?:ing)?|reasoning|thought)\|>(?P<thought>.*?)"
            r"(?:<\|(?:/(?:think(?:ing)?|reasoning|thought)|end_?(?:think|reasoning|thought)|(?:think|reasoning|thought)_end|answer|response)\|>|<\|end\|>(?:<\|begin\|>assistant)?(?:<\|content\|>)?)\s*+(?=[^\s<])",
            re.DOTALL,
        ),
        ("<|/", "<|end", "_end|>", "<|answer", "<|response"),
    ),
    # Tokens that are called as thoughts are, and those that were kept in reserve.
    ThoughtBlock(
        re.compile(rf"<\|(?:(?:{_TOKEN_WORDS})_(?:start|begin|prefix)|(?:begin|start)_(?:of_)?(?:{_TOKEN_WORDS}))\|>(?! )"),
        re.compile(
            rf"<\|(?:(?P<word>{_TOKEN_WORDS})_(?:start|begin|prefix)|(?:begin|start)_(?:of_)?(?P<other>{_TOKEN_WORDS}))\|>"
            r"(?P<thought>.*?)<\|(?:(?P=word)_(?:end|suffix)|end_(?:of_)?(?P=other))\|>\s*+(?=\S)",
            re.DOTALL,
        ),
        ("_end|>", "_suffix|>", "<|end_"),
    ),
    ThoughtBlock(
        re.compile(r"<unused\d+>thought\n"),
        re.compile(r"<unused\d+>thought\n(?P<thought>.*?)<unused\d+>\s*+(?=\S)", re.DOTALL),
        ("<unused",),
    ),
    # Gemma's, whose first token is lost.
    ThoughtBlock(
        re.compile("thought\n"),
        re.compile(r"thought\n(?P<thought>.*?)<channel\|>\s*+(?=\S)", re.DOTALL),
        ("<channel|>",),
    ),
    # What Granite and Apriel say around their thoughts. Anybody may say the first: only with the second there are thoughts.
    ThoughtBlock(
        re.compile("Here is my thought process:\n"),
        re.compile(r"Here is my thought process:\n(?P<thought>.*?)\nHere is my response:", re.DOTALL),
        ("\nHere is my response:",),
    ),
    ThoughtBlock(
        re.compile("Here are my reasoning steps:\n"),
        re.compile(r"Here are my reasoning steps:\n(?P<thought>.*?)\n?\[BEGIN FINAL RESPONSE\]", re.DOTALL),
        ("[BEGIN FINAL RESPONSE]",),
        "[END FINAL RESPONSE]",
    ),
    # How ReAct ends. An action before that is a call, and what follows it is made up.
    ThoughtBlock(
        re.compile(r"(?P<tag>Thought): "),
        re.compile(r"Thought: (?P<thought>(?:(?!\nAction).)*?)(?<=\n)\**Final Answer:\**\s*+(?=\S)", re.DOTALL),
        ("Final Answer:",),
        past=re.compile(rf"\n(?:\**Action|Code:|```|<code>)|{PAST_THOUGHT.pattern}"),
        most=MOST_THOUGHT,
    ),
)
CHANNELS: Final = ("<|channel|>", "<|start|>assistant")


class TagSplitter:
    """Tells reasoning from text by its tags, however the pieces are cut. Only a text that begins with a tag has reasoning, or one
    that `is_begun`: the prompt has opened it. The header of the turn and what opens an answer are left out; a plain tag around
    the answer is kept if it `is_asked` for."""

    __slots__ = (
        "_channels", "_close", "_has_thought", "_held", "_is_asked", "_is_begun", "_is_fresh", "_is_nested", "_open",
        "_place", "_rounds", "_tail", "closing",
    )  # fmt: skip

    def __init__(self, *, is_begun: bool = False, is_asked: Callable[[str | Pattern[str]], bool] = lambda tag: True) -> None:
        self._is_begun, self._is_asked = is_begun, is_asked
        self._close: tuple[str, ...] = ()
        # The tag that has opened the thoughts, the end of these, and whether they have opened others within.
        self._open = self._tail = ""
        self._is_nested = False
        # How often it has thought once more.
        self._rounds = 0
        self._channels: ChannelSplitter | None = None
        self._place = "before"
        self._held = ""
        self._is_fresh = self._has_thought = False
        self.closing = ""
        """What closes the answer, if something has opened it."""

    def note_thought(self) -> None:
        """Thoughts have come in a field of their own."""
        self._has_thought = True

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        """What the piece adds: whether it is reasoning, and the words."""
        held, self._held = self._held + delta, ""
        if self._channels is None and self._place == "before":
            held = yield from self._begin(held)
        if self._channels is not None:
            yield from self._channels.feed(held)
            return
        if self._place == "within":
            thought, tag, said = _cut_at(held, self._close)
            may_close = not tag and _MAY_CLOSE.search(thought, max(0, len(thought) - _LONGEST_END))
            kept = _overlap_any(thought, self._close) if may_close else 0
            self._held = thought[len(thought) - kept :]
            self._note_nested(thought[: len(thought) - kept])
            yield True, self._trim(thought[: len(thought) - kept])
            if not tag:
                return
            held = self._enter("between" if self._is_nested else "after", said)
        if self._place == "between":
            held = yield from self._leave_nested(held)
        if self._place == "after" and self._is_fresh and not self.closing and self._rounds < _MOST_ROUNDS:
            if opened := _find_start(held.lstrip(), () if not self._has_thought else _CLOSINGS):
                # It thinks once more.
                self._close = (_CLOSINGS[opened],)
                self._rounds += 1
                rest = self._enter("within", held.lstrip()[len(opened) :])
                yield from self.feed(rest)
                return
            held = self._drop_opening(held)
        if self._place == "after":
            yield False, self._trim(held)

    def _note_nested(self, thought: str) -> None:
        """Whether thoughts open others, which are closed on their own. Whoever speaks of the tag goes on with a space."""
        text = self._tail + thought
        if self._open and self._open in text and not self._is_nested:
            nested = re.compile(rf"\S\s*{re.escape(self._open)}(?=\n|[^\s`'\"<.,;:)])")
            self._is_nested = nested.search(text) is not None
        self._tail = text[-_LONGEST_END:]

    def _leave_nested(self, held: str) -> Generator[tuple[bool, str], None, str]:
        """Thoughts that went on behind those within them, if their end comes, and what is left. Without it these are words."""
        tag = re.escape(self._close[0])
        closed = re.search(rf"(?<=[^\s`'\"(]){tag}(?![ `'\".,;:)])|(?<=\n){tag}", held)
        if closed is not None:
            yield True, held[: closed.start()]
            return self._enter("after", held[closed.end() :])
        if len(held) < _MOST_HELD:
            self._held = held
            return ""
        self._place = "after"
        return held

    def _begin(self, held: str) -> Generator[tuple[bool, str], None, str]:
        """Decides what the text begins as, as soon as that can be told. Returns what is left of it."""
        begun = held.lstrip().lstrip(_INVISIBLE).lstrip()
        if begun and begun[0] not in _FIRST and not self._is_begun and not _ANY_TAG.search(begun):
            self._place = "after"
            return held
        if begun.startswith(START) and (is_token := is_start(begun)) is not False and not self._is_asked(START):
            self._held = held if is_token is None else ""
            return (yield from self._begin(_STARTS.sub("", begun))) if is_token else ""
        while header := find_header(begun):
            held = begun = begun[len(header) :].lstrip()
            self.closing = SECTIONS.get(header, "")
        if opening := _LOST_START.match(begun):
            self._channels = ChannelSplitter()
            return _LOST_STARTS[opening[0]] + begun
        if _SURELY_LOST.match(begun):
            self._channels = LostChannelSplitter()
            return begun
        if self._may_open(begun):
            self._held = held
            return ""
        if begun.startswith(CHANNELS):
            self._channels = ChannelSplitter()
            return begun
        if (block := self._find_block(begun)) is not None:
            whole = block.whole.match(begun) if any(mark in begun for mark in block.marks) else None
            is_none = len(begun) >= block.most or (whole is None and block.past.search(begun) is not None)
            if (whole is None or _HALF_TAG.fullmatch(begun, whole.end())) and not is_none:
                self._held = held
                return ""
            if whole is not None and not _IS_XML.match(begun, whole.end()):
                self.closing = block.closing
                yield True, whole["thought"].strip()
                return self._enter("after", begun[whole.end() :])
        opened = _find_start(begun, _CLOSINGS)
        if opened == _PLAIN and self._is_asked(opened):
            opened = ""
        if not opened and (tag := _OTHER_CASE.match(begun)):
            opened = tag[0]
        if self._has_thought and begun.startswith(_ENDS):
            # They came in a field of their own, but for the tag.
            end = _find_start(begun, _ENDS)
            return self._enter("after", begun[len(end) :])
        if not opened and (closed := find_unopened(begun)):
            yield True, closed.thought
            return self._enter("after", begun[closed.end :])
        if opened or self._is_begun:
            # A tag is closed as it was opened, in whatever case.
            self._close, self._open = (_CLOSINGS.get(opened, f"</{opened[1:]}"),) if opened else _ENDS, opened
            return self._enter("within", begun[len(opened) :])
        self._place, self._is_fresh = "after", self._find_opening(begun) != ""
        return held

    def break_off(self) -> Iterator[tuple[bool, str]]:
        """A call follows: thoughts that are told by what comes behind them are thoughts here, too."""
        begun = self._held.lstrip().lstrip(_INVISIBLE).lstrip() if self._place == "before" else ""
        block = self._find_block(begun) if begun and self._channels is None else None
        whole = None if block is None else block.whole.match(f"{begun}.")
        if whole is not None and whole.end() == len(begun):
            self._held = self._enter("after", "")
            yield True, whole["thought"].strip()

    def _find_block(self, begun: str) -> ThoughtBlock | None:
        for block in BLOCKS:
            if head := block.head.match(begun):
                tag = head.groupdict().get("tag")
                # What people ask for, they name.
                named = "Final Answer" if tag == "Thought" else head[0].strip() if begun[0] != "<" else f"<{tag}>"
                title = head.groupdict().get("title") or (tag if begun[0] != "<" else None)
                is_wanted = tag and (self._is_asked(named) or (title and self._is_asked(_find_titles(title))))
                is_plain = _find_start(begun, _CLOSINGS) or is_wanted
                return None if is_plain else block
        return None

    def _may_open(self, begun: str) -> bool:
        """Whether more of the text is to come before it can be told what it begins as."""
        if _HALF_TAG.fullmatch(begun) or (_STRIPPED.match(begun) and len(begun) < _MOST_HELD):
            return True
        openings = (*CHANNELS, *_LOST_STARTS, "</think>\n", *_SPOKEN, *_CLOSINGS, *(ANSWER_TAGS if self._has_thought else ()))
        folded = begun.lower()
        if any(len(begun) < len(opening) and opening.lower().startswith(folded) for opening in openings):
            return True
        if any(len(begun) <= len(header) and header.startswith(begun) for header in (*HEADERS, *WRAPPERS)):
            return True
        behind = begun[len(header) :] if (header := _find_start(begun, HEADERS)) else ""
        return behind != "" and len(behind) < _MOST_BEHIND and not behind.strip(" `")

    def _drop_opening(self, held: str) -> str:
        """The text without the tag or token that opens the answer behind thoughts."""
        begun = held.lstrip()
        if opening := self._find_opening(begun):
            self.closing = {**WRAPPERS, **ANSWER_TAGS}[opening]
            return begun[len(opening) :]
        if begun and any(opening.startswith(begun) for opening in (*WRAPPERS, *ANSWER_TAGS, *_CLOSINGS)):
            self._held = held
            return ""
        return held

    def _find_opening(self, begun: str) -> str:
        opening = _find_start(begun, (*WRAPPERS, *ANSWER_TAGS))
        is_kept = opening in ANSWER_TAGS and (not self._has_thought or self._is_asked(opening))
        # Whoever speaks of a token goes on with a space.
        is_kept = is_kept or (not self._has_thought and begun[len(opening) :].startswith(" "))
        return "" if is_kept else opening

    @property
    def has_channels(self) -> bool:
        return self._channels is not None

    @property
    def is_past(self) -> bool:
        """Only words can follow."""
        return self._place == "after" and not self._is_fresh

    @property
    def is_holding(self) -> bool:
        """Words are held back."""
        return bool(self._held) and self._place != "within"

    def end(self) -> Iterator[tuple[bool, str]]:
        """What was held back because it might have been the beginning of a tag."""
        held, self._held = self._held, ""
        if self._place == "before" and is_start(begun := held.lstrip()) is None and not self._is_asked(START):
            yield from self.feed(_STARTS.sub("", begun))
            held, self._held = self._held, ""
        if self._place == "before" and (channels := mark_channels(held)):
            self._channels = ChannelSplitter()
            yield from self._channels.feed(channels)
        held = held.lstrip("\n") if self._place == "between" else held
        yield from [(self._place == "within", held)] if self._channels is None else self._channels.end()

    def _enter(self, place: str, rest: str) -> str:
        self._place, self._is_fresh, self._has_thought = place, True, True
        return rest

    def _trim(self, text: str) -> str:
        """The text without the line breaks directly behind a tag."""
        if self._is_fresh:
            text = text.lstrip("\n")
            self._is_fresh = not text
        return text


class ChannelSplitter:
    """Reads the channels of harmony, whose control tokens should have stayed with the server: analysis is reasoning, the final
    channel is text. A message to a function is handed on as text in the one form of a call that says the same."""

    __slots__ = ("_header", "_held", "_is_thought", "_recipient")

    def __init__(self) -> None:
        self._held = ""
        # None within a message.
        self._header: str | None = ""
        self._is_thought = False
        self._recipient = ""

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        held = self._held + delta
        place = 0
        for token in _TOKEN.finditer(held):
            yield from self._tell(held[place : token.start()])
            yield from self._turn_to(token[0])
            place = token.end()
        held = held[place:]
        kept = _HALF_TOKEN.search(held)
        cut = len(held) if kept is None else kept.start()
        self._held = held[cut:]
        yield from self._tell(held[:cut])

    def end(self) -> Iterator[tuple[bool, str]]:
        yield from self._tell(self._held)
        yield from self._close_call()
        self._held = ""

    def _tell(self, words: str) -> Iterator[tuple[bool, str]]:
        if self._header is None:
            yield self._is_thought, words
        else:
            self._header = (self._header + words)[-_MOST_HEADER:]

    def _turn_to(self, token: str) -> Iterator[tuple[bool, str]]:
        if token == "<|message|>":
            header, self._header = self._header or "", None
            recipient = _RECIPIENT.search(header)
            self._recipient = recipient[1] if recipient else ""
            self._is_thought = "analysis" in header and not self._recipient
            if self._recipient:
                yield False, f"\n<function={self._recipient}>"
        elif token != "<|constrain|>":
            yield from self._close_call()
            # A header may name its recipient before its channel.
            self._header = f"{self._header} " if self._header and token == "<|channel|>" else ""

    def _close_call(self) -> Iterator[tuple[bool, str]]:
        if self._header is None and self._recipient:
            self._recipient = ""
            yield False, "</function>"


class LostChannelSplitter(ChannelSplitter):
    """Reads the channels of harmony where the server has left out its tokens, and only their words are there."""

    __slots__ = ("_is_begun", "_tail")

    def __init__(self) -> None:
        super().__init__()
        self._tail = ""
        self._is_begun = False

    def feed(self, delta: str) -> Iterator[tuple[bool, str]]:
        text = self._tail + delta
        kept = _HALF_LOST.search(text)
        cut = len(text) if kept is None else kept.start()
        self._tail = text[cut:]
        yield from super().feed(self._mark(text[:cut]))

    def end(self) -> Iterator[tuple[bool, str]]:
        yield from super().feed(self._mark(self._tail))
        self._tail = ""
        yield from super().end()

    def _mark(self, text: str) -> str:
        if not self._is_begun and text:
            self._is_begun = True
            text = _BEGUN_LOST.sub(r"assistant\1", text)
        return _LOST.sub(_write_channel, text)


def leave_thought(text: str) -> str | None:
    """What follows thoughts whose channel ends in the text, with messages to functions as the calls that they are; None if no
    channel begins there."""
    if not _NEXT_CHANNEL.match(text):
        return None
    splitter = ChannelSplitter()
    return "".join([words for is_thought, words in (*splitter.feed(text), *splitter.end()) if not is_thought])


def read_channels(thought: str) -> str:
    """Thoughts that go on in channels of harmony, a message to a function as the call that it is."""
    begun = _GOES_ON.search(thought)
    if begun is None or _ADDRESSED.search(thought, begun.end()) is None:
        return thought
    splitter = ChannelSplitter()
    told = [*splitter.feed(thought[begun.start() :]), *splitter.end()]
    return thought[: begun.start()] + "".join([words for is_thought, words in told if not is_thought])


def _find_titles(title: str) -> Pattern[str]:
    """How a request speaks of a block, a fold or a section of this name."""
    name = rf"\b{re.escape(title)}\b"
    part = (
        r"\b(?:code|blocks?|fences?|folds?|sections?|labell?(?:s|ed)?|brackets?|headings?|headers?|summar(?:y|ies)|titles?"
        r"|called|named)\b"
    )
    return re.compile(rf"{name}[^.!?\n]{{0,40}}{part}|{part}[^.!?\n]{{0,40}}{name}", re.IGNORECASE)


def _write_channel(lost: Match[str]) -> str:
    return f"<|channel|>{lost[1] or 'commentary'}{lost[2] or lost[3] or ''}<|message|>"


def mark_channels(text: str) -> str:
    """The channels of harmony with their tokens, where a text has lost these; nothing if it is none."""
    marked, count = _LOST.subn(_write_channel, text.lstrip())
    return marked if count and marked.startswith("<|channel|>") and _ANSWERED.search(marked) else ""


def find_header(text: str) -> str:
    """The header of a turn that a text begins with. Whoever speaks of one goes on with a space or a quote, or behind a word with
    another that begins no sentence; a prompt of Python's has another behind it."""
    header = _find_start(text, HEADERS)
    # Behind a line break, a space speaks of nothing.
    behind = text[len(header) :].lstrip(" ") if header.endswith("\n") else text[len(header) :]
    follows = behind[:1]
    if not header and (leading := LEADING.match(text)):
        return leading[0]
    if header in _LINES and not _SAID.match(text, len(header)):
        return ""
    is_said = follows.strip(" `'\">") or behind.startswith("```")
    return header if is_said and not (header[:1].isalpha() and follows.islower()) else ""


def is_start(text: str) -> bool | None:
    """Whether an answer begins with the token that begins a text, and none that strikes words out or that is spoken of; None if
    it cannot be told yet, and is one if nothing follows."""
    if text.startswith(START) and not text[len(START) :].strip():
        return None
    if not text.startswith(START) or _SPOKEN_OF.match(text, len(START)):
        return False
    struck, closed, rest = text[len(START) :].partition("</s>")
    if closed:
        rest = rest.strip()
        return None if _NEXT_START.startswith(rest) else NEXT_TURN.match(rest.removeprefix(START)) is not None
    return True if len(text) > _MOST_STRUCK or "\n\n" in struck.strip() else None


def find_answer(thought: str) -> str:
    """What follows thoughts that another tag has closed than the one that opened them, or an answer in its tags within them."""
    if (last := _LAST_ANSWER.search(thought)) is not None:
        return last[1]
    closed = _OTHER_END.search(thought)
    return thought[closed.end() :] if closed else ""


class UnopenedThought(NamedTuple):
    """Thoughts, and where the answer behind them begins."""

    thought: str
    end: int


def find_unopened(text: str) -> UnopenedThought | None:
    """Thoughts that the prompt has opened, with the tag that closes them: the only one, neither in code nor behind a colon. It
    ends a line, or stands between two sentences: whoever speaks of a tag has it within one."""
    tags = [*islice(_ANY_TAG.finditer(text), 2)]
    if len(tags) != 1 or (closed := _CLOSED.match(text, tags[0].start())) is None:
        return None
    thought = text[: closed.start()]
    is_shown = thought.count("```") % 2 or thought.rstrip().endswith(("`", ":"))
    return None if is_shown else UnopenedThought(thought, closed.end())


def _find_start(text: str, openings: Iterable[str]) -> str:
    """The opening that the text begins with."""
    return next((opening for opening in openings if text.startswith(opening)), "")


def _cut_at(text: str, tags: tuple[str, ...]) -> tuple[str, str, str]:
    """What is before the first of the tags, the tag, and what is behind it."""
    if len(tags) == 1:
        return text.partition(tags[0])
    found = [(text.find(tag), tag) for tag in tags if tag in text]
    return text.partition(min(found)[1]) if found else (text, "", "")


def _overlap_any(text: str, tags: tuple[str, ...]) -> int:
    return max([_overlap(text, tag) for tag in tags])


def _overlap(text: str, tag: str) -> int:
    """How many characters at the end of the text may be the beginning of the tag."""
    return next((size for size in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:size])), 0)


_ENDS: Final = ("</think>", "</thinking>", "[/THINK]", "</seed:think>", "◁/think▷", "</longcat_think>")
_END: Final = f"(?:{'|'.join(map(re.escape, _ENDS))})"
CLOSING_TAGS: Final = ("</think>", "</thinking>", "</seed:think>")
"""Those that models write which did not open their thoughts."""
_MOST_BEHIND: Final = 8
_LINES: Final = ("all\n", "assistant\n", "model\n")
# A sentence, which a list of words does not go on with.
_SAID: Final = re.compile(r"(?![a-z])[^\W\d_]\S* \S|[^\W\x00-\u024f]")
_NEXT_START: Final = f"{START}[INST]"
_STARTS: Final = re.compile(rf"(?:{START}\s*+)++")
_MOST_STRUCK: Final = 500
# Whoever speaks of a token goes on in the line, with a word that begins no sentence.
_SPOKEN_OF: Final = re.compile(r"[ `'\"](?![A-Z])")
_NEXT_CHANNEL: Final = re.compile(r"<\|end\|>\s*<\|start\|>assistant[^<]{0,80}<\|channel\|>")
_GOES_ON: Final = re.compile(r"<\|(?:end|start|channel)\|>")
_ADDRESSED: Final = re.compile(r"\bto=")
_MAY_CLOSE: Final = re.compile(r"[<\[◁]")
_LONGEST_END: Final = 24
_ANY_TAG: Final = re.compile(r"</?(?:\w+[:_])?think(?:ing)?[\s>]|\[/?THINK\]|◁/?think▷")
_SENTENCE_END: Final = "[.!?…。！？]"  # noqa: RUF001
_CLOSED: Final = re.compile(
    rf"{_END}[ \t]*\n"
    rf"|(?:(?<={_SENTENCE_END})|(?<={_SENTENCE_END}[ \n])|(?<=\n)){_END}[ \t]*(?=[^\s\x21-\x2f\x3a-\x40a-z]|\*\*)"
)
_OTHER_END: Final = re.compile(
    r"(?:</(?:think(?:ing)?|thoughts?|reasoning)>|<\|/?(?:end_?)?(?:think|thinking|thought|reasoning)\|>|\[/?THINK\])\s*(?=\S)",
    re.IGNORECASE,
)
_LAST_ANSWER: Final = re.compile(r"<answer>(.*)</answer>\s*\Z", re.DOTALL)
_MOST_HEADER: Final = 500
_TOKEN: Final = re.compile(r"<\|(?:start|channel|constrain|message|end|return|call)\|>")
_HALF_TOKEN: Final = re.compile(r"<(?:\|(?:[a-z]{1,9}\|?)?)?\Z")
_RECIPIENT: Final = re.compile(r"\bto=(?:functions\.)?([\w.:-]+)")
_CLOSINGS: Final = dict(THINK_TAGS)
# Reka's, which people ask for, too.
_PLAIN: Final = "<reasoning>"
_OTHER_CASE: Final = re.compile("<(?:think|thinking|thought)>", re.IGNORECASE)
_MOST_HELD: Final = 16_384
# Whoever thinks anew so often without a word between only repeats the tags.
_MOST_ROUNDS: Final = 64
_INVISIBLE: Final = "\u200b\u2060\ufeff"
_SPOKEN: Final = (
    "Thought: ", "**Thought:** ", "thought\n", "Here is my thought process:\n",
    "Here are my reasoning steps:\n", "Thinking...\n", "<|think|>", "<|thinking|>", "analysis",
    "assistantanalysis", "assistantcommentary", "assistantfinal", "commentary to=",
)  # fmt: skip
_HALF_TAG: Final = re.compile(
    r"(?:```|~~~|`{1,2}|~{1,2})[\w-]{0,20}[ \t]*|[\[【][\w-]{0,20}[\]】]?|"
    r"<details[^<>\n]{0,80}>\s{0,8}(?:<(?:summary>?[^<\n]{0,60}|[summary]*))?|"
    r"<details[^<>\n]{0,80}>\s{0,8}<summary>[^<\n]{0,60}</?[summary]*|"
    r"analysis(?:[ \n](?:[TUWIN][a-z]{0,6}(?: [a-z]{0,8})?)?|[tuwin][a-z]{0,6}(?: [a-z]{0,8})?)|"
    r"<[\w:-]{0,40}(?:\s[^<>\n]{0,200})?|analysis|commentary to=[\w.]* ?[a-z]{0,4}|<\|[a-z_]{0,32}\|?|<unused\d+>[a-z]{0,7}"
    r"|(?:all|assistant|model)\n(?:[A-Z]\S{0,20} ?)?|\[/I?N?S?T?"
    r"|\[/INST\]\s*|</(?:s>?)?\s*|(?:<[\w|]{0,24}>\s*){0,3}<[\w|]{0,24}>?(?:[a-z]{0,9}|assistant<[\w|]{0,24})\s*|assistant<[\w|]{0,24}>?\s*"
)
# An element that is no answer: what stands before it is part of a document.
_IS_XML: Final = re.compile(
    r"<(?!answer|response|final_answer|output|think|tool|function|invoke|code)[a-z]\w*[ >]", re.IGNORECASE
)
# How harmony looks whose tokens are lost.
_STRIPPED: Final = re.compile(
    r"analysis(?=[^\sa-z_.,:;(){}\[\]=-])|assistant(?:analysis|commentary|final)|commentary to=[\w.]+ ?(?:json|code|\{)"
)
# A channel whose tokens are lost, with whom it is for, which may stand before it.
_LOST: Final = re.compile(
    r"(?:\A|assistant[ \n]?|(?=commentary to=))(analysis|commentary|final)"
    r"((?: to=[\w.:-]++)?(?: ?(?:<\|constrain\|>)?(?:json|code)(?=\s*\{))?)\n*+(?=\S)"
    r"|assistant( to=[\w.:-]++)(?: ?(?:commentary|analysis))?(?: ?(?:<\|constrain\|>)?(?:json|code)(?=\s*\{))?"
)
_HALF_LOST: Final = re.compile(
    rf"(?:{'|'.join([word[:size] for word in ('assistant', 'commentary') for size in range(1, len(word))])}"
    r"|(?:assistant[ \n]?[a-z]{0,10}|commentary)(?: (?:t|to|to=[\w.:-]*)?)?(?: ?(?:commentary|analysis)?)?"
    r"(?: ?(?:<[a-z|>]{0,12})?[a-z]{0,4})?\s*)\Z"
)
# How an answer begins that surely is one of harmony's without tokens: with a channel, and the words that thoughts begin with.
_SURELY_LOST: Final = re.compile(
    r"(?:assistant)?(?:analysis|commentary)(?-i:The|Th?ey|User|We|I|Need|Let|This|It|Just|Simple|Okay|OK|So|First|Now|There|You|To|What|Looks?)"
    r"(?=[ ,.:'\u2019])"
    r"|analysis(?:[ \n](?=(?-i:[TUWIN]))|(?=(?-i:[tuwin])))"
    r"(?:the user\b|user\b|we (?:need|have|should|must|can)\b|i (?:need|should)\b|need to\b)"
    r"|assistant(?:analysis|commentary|final)(?=(?-i:[^\sa-z_.,:;(){}\[\]=-]|\n+[A-Z]))",
    re.IGNORECASE,
)
_BEGUN_LOST: Final = re.compile(r"\A(?:assistant)?(analysis|commentary|final)[ \n]*")
_LOST_STARTS: Final = {
    "assistant<|channel|>": "<|start|>", "analysis<|message|>": "<|channel|>", "final<|message|>": "<|channel|>",
    "commentary<|message|>": "<|channel|>",
}  # fmt: skip
_LOST_START: Final = re.compile("|".join(map(re.escape, _LOST_STARTS)))
_ANSWERED: Final = re.compile(r"<\|channel\|>(?:final|\w+ to=)")
_FIRST: Final = frozenset(
    [opening[0] for opening in (*CHANNELS, *_CLOSINGS, *HEADERS, *WRAPPERS, *_SPOKEN, "analysis", "commentary", *"`~【")]
)
