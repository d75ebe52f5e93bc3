"""What a model says that is held to the schema of `_constrained_request`: JSON in, events out, without I/O."""

import json
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mainspring.errors import BadOutput
from mainspring.events import ModelEvent, ReasoningDelta, RefusalDelta, TextDelta, TurnEnded
from mainspring.items import FunctionCall, Usage, parsed_arguments
from mainspring.providers._turn import Turn

HEAD_CHARACTERS = 100


class Answer:
    """Turns the events of the constrained model into those of the turn it means.

    `is_text` says that a reply is a string, which is streamed; otherwise it is JSON and comes whole. A call equal to `repeats` is
    swallowed, and so is the end of the turn: `is_repeated` and `usage` then say so.
    """

    def __init__(self, turn: Turn, *, is_text: bool = True, repeats: FunctionCall | None = None) -> None:
        self._turn = turn
        self._is_text = is_text
        self._repeats = repeats
        self._pieces: list[str] = []
        self._size = 0
        self._reply: JsonString | None = None
        self.is_repeated = False
        self.usage: Usage | None = None

    def take(self, event: ModelEvent) -> Sequence[ModelEvent]:
        """The events that one event of the backend gives. Raises `BadOutput` if the model kept to no schema."""
        match event:
            case TextDelta(delta=delta):
                self._feed(delta)
            case ReasoningDelta(delta=delta):
                self._turn.reasoning(delta)
            case RefusalDelta(delta=delta):
                self._turn.refusal(delta)
            case TurnEnded():
                self._end(event)
            case _:
                pass
        told = self._turn.take()
        return told[:-1] if self.is_repeated else told

    def _feed(self, delta: str) -> None:
        if self._reply is not None:
            self._turn.text(self._reply.feed(delta))
            return
        self._pieces.append(delta)
        self._size += len(delta)
        if self._is_text and self._size - len(delta) < HEAD_CHARACTERS:
            head = "".join(self._pieces)
            if found := _REPLY.match(head):
                self._reply = JsonString()
                self._turn.text(self._reply.feed(head[found.end() :]))

    def _end(self, ended: TurnEnded) -> None:
        if ended.finish == "stop" and not self._conclude():
            self.is_repeated, self.usage = True, ended.usage
        self._turn.end(ended.finish, ended.usage)

    def _conclude(self) -> bool:
        """Says what only the whole answer shows. False if it is the call that was just made."""
        if self._reply is not None:
            if not self._reply.is_over:
                raise self._unreadable("its reply breaks off")
            return True
        if not self._pieces:
            return True
        said = self._decoded()
        if said.tool is None:
            self._turn.text(msgspec.json.format(said.reply, indent=-1).decode())
        elif self._repeats is not None and _is_same(self._repeats, said):
            return False
        else:
            self._turn.call(name=said.tool, arguments=_compact(said.arguments))
        return True

    def _decoded(self) -> "_Said":
        try:
            said = _said.decode("".join(self._pieces))
        except (ValueError, RecursionError) as error:
            raise self._unreadable(str(error)) from error
        if said.tool is None and not said.reply:
            raise self._unreadable("it is neither a call nor a reply")
        return said

    def _unreadable(self, why: str) -> BadOutput:
        text = "".join(self._pieces)
        return BadOutput(
            f"the model did not keep to the schema of its answer ({why}): `{text:.200}`; "
            "does its backend honour `response_format` with a JSON schema?"
        )


class JsonString:
    """Decodes the inside of a JSON string piece by piece, up to its closing quote; what follows that is ignored.

    However the pieces are cut, they add up to the same text. Half a surrogate pair becomes U+FFFD.
    """

    __slots__ = ("_held", "is_over")

    def __init__(self) -> None:
        self._held = ""
        self.is_over = False

    def feed(self, piece: str) -> str:
        """What the pieces so far certainly say, beyond what was returned before."""
        if self.is_over:
            return ""
        written = self._held + piece
        whole, self._held = _cut(written)
        self.is_over = self._held.startswith('"')
        if "\\" not in whole:
            return whole
        text: str = json.loads(f'"{whole}"', strict=False)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _cut(written: str) -> tuple[str, str]:
    """What can be decoded already, and the rest."""
    found = _WHOLE.match(written)
    end = found.end() if found is not None else 0
    return written[:end], written[end:]


class _Said(Struct):
    tool: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    reply: msgspec.Raw = msgspec.Raw()


def _compact(arguments: msgspec.Raw) -> str:
    return msgspec.json.format(arguments, indent=-1).decode() if arguments else "{}"


def _is_same(call: FunctionCall, said: _Said) -> bool:
    try:
        return call.name == said.tool and parsed_arguments(call.arguments) == parsed_arguments(bytes(said.arguments).decode())
    except ValueError:
        return False


_HEX = "[0-9a-fA-F]"
_HIGH = rf"\\u[dD][89abAB]{_HEX}{{2}}"
# What can be decoded without knowing what follows: plain characters, pairs, a first half that no second one follows, escapes.
_WHOLE = re.compile(
    r'(?:[^"\\]++'
    rf"|{_HIGH}\\u[dD][c-fC-F]{_HEX}{{2}}"
    rf"|{_HIGH}(?=[^\\]|\\[^u]|\\u[^dD]|\\u[dD][^c-fC-F])"
    rf"|\\u(?![dD][89abAB]){_HEX}{{4}}"
    r'|\\["\\/bfnrt])*+'
)
_REPLY = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_said = msgspec.json.Decoder(_Said)
