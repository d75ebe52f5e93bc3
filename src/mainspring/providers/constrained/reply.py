"""What a model says that is held to the schema of `constrained.request`: JSON in, events out, without I/O."""

import json
import re
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.core.events import ModelEvent, ReasoningDelta, RefusalDelta, TextDelta, TurnEnded
from mainspring.core.items import FunctionCall, ToolDefinition, Usage, parse_arguments
from mainspring.providers.constrained.grammar_schema import find_flaw
from mainspring.providers.constrained.request import Misfit
from mainspring.providers.turn import TurnBuilder

HEAD_CHARACTERS = 100


class ConstrainedReply:
    """Turns the events of the constrained model into those of the turn it means.

    `is_text` says that a reply is a string, which is streamed; otherwise it is JSON and comes whole. Nothing is told before it is
    known to count: a call equal to `repeats`, or one that does not fit one of the `tools`, is swallowed with all of its turn.
    `is_repeated` and `misfit` then say so, and `usage` what it has cost.
    """

    def __init__(
        self, turn: TurnBuilder, tools: Sequence[ToolDefinition], *, is_text: bool = True, repeats: FunctionCall | None = None
    ) -> None:
        self._turn = turn
        self._tools = {tool.name: tool for tool in tools}
        self._is_text = is_text
        self._repeats = repeats
        self._pieces: list[str] = []
        self._size = 0
        self._reply: JsonString | None = None
        self._counts = False
        self.is_repeated = False
        self.misfit: Misfit | None = None
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
        return self._turn.take() if self._counts else ()

    def _feed(self, delta: str) -> None:
        if self._reply is not None:
            self._turn.text(self._reply.feed(delta))
            return
        self._pieces.append(delta)
        self._size += len(delta)
        if self._is_text and self._size - len(delta) < HEAD_CHARACTERS:
            head = "".join(self._pieces)
            if found := _REPLY.match(head):
                self._reply, self._counts = JsonString(), True
                self._turn.text(self._reply.feed(head[found.end() :]))

    def _end(self, ended: TurnEnded) -> None:
        self.usage = ended.usage
        if ended.finish == "stop":
            self._conclude()
        if not self.is_repeated and self.misfit is None:
            self._counts = True
            self._turn.end(ended.finish, ended.usage)

    def _conclude(self) -> None:
        """Says what only the whole answer shows."""
        if self._reply is not None:
            if not self._reply.is_over:
                raise self._unreadable("its reply breaks off")
        elif self._pieces:
            said = self._decode()
            if said.tool is None:
                self._turn.text(msgspec.json.format(said.reply, indent=-1).decode())
            elif self._repeats is not None and _is_same(self._repeats, said):
                self.is_repeated = True
            else:
                arguments = msgspec.json.format(said.arguments, indent=-1).decode() if said.arguments else "{}"
                tool = self._tools.get(said.tool)
                flaw = f"there is no tool `{said.tool}`" if tool is None else find_flaw(tool, arguments)
                if flaw is None:
                    self._turn.call(name=said.tool, arguments=arguments)
                else:
                    self.misfit = Misfit(said.tool, "".join(self._pieces), flaw)

    def _decode(self) -> "_Said":
        try:
            said = _said.decode("".join(self._pieces))
        except (ValueError, RecursionError) as error:
            raise self._unreadable(str(error)) from error
        if said.tool is None and not said.reply:
            raise self._unreadable("it is neither a call nor a reply")
        return said

    def _unreadable(self, why: str) -> BadOutput:
        said = f"the model did not keep to the schema of its answer ({why}): `{''.join(self._pieces):.200}`"
        return BadOutput(f"{said}; does its backend honour `response_format` with a JSON schema?")


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
        decodable = _WHOLE.match(written)
        end = decodable.end() if decodable is not None else 0
        whole, self._held = written[:end], written[end:]
        self.is_over = self._held.startswith('"')
        if "\\" not in whole:
            return whole
        text: str = json.loads(f'"{whole}"', strict=False)
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class _Said(Struct):
    tool: str | None = None
    arguments: msgspec.Raw = msgspec.Raw()
    reply: msgspec.Raw = msgspec.Raw()


def _is_same(call: FunctionCall, said: _Said) -> bool:
    try:
        return call.name == said.tool and parse_arguments(call.arguments) == parse_arguments(bytes(said.arguments).decode())
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
    r'|\\["\\/bfnrt])*'
)
_REPLY = re.compile(r'\s*\{\s*"reply"\s*:\s*"')
_said = msgspec.json.Decoder(_Said)
