"""A call while its pieces come: whose they are, what of the arguments can be told at once, and what they mean in the end.

Theory of operation. Arguments go on as they come, but for what may have to be read otherwise: arguments that begin as no object
or within something around them, and what follows a slip. That waits until the call is whole. Then it is told as what it can only
mean, if that goes on as the arguments were told so far; else as it came, and the model is told that it is no JSON.
"""

import json
import re
from contextlib import suppress
from re import Match
from typing import Final

import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput
from mainspring.core.items import FunctionCall, Json, ToolDefinition
from mainspring.providers.argument_types import are_right, fit_arguments, list_properties
from mainspring.providers.json_text import may_be_wrapped, read_arguments
from mainspring.providers.labelled_calls import read_words
from mainspring.providers.leaked_calls import read_parameters

Index = int | float | str

MOST_HELD: Final = 65_536


class JsonScan(Struct, eq=False):
    """Tells strings and braces of a text that grows, each place read once: whether the place `at` is within a string, how many
    braces are open there, and where the first one was closed, if it was."""

    at: int = 0
    is_inside: bool = False
    depth: int = 0
    end: int = 0

    def advance(self, text: str, to: int) -> None:
        """Reads on up to this place."""
        while self.at < to:
            if self.is_inside:
                rest = _WITHIN_STRING.match(text, self.at, to)
                self.at = self.at if rest is None else rest.end()
                if self.at == to or text[self.at] == "\\":
                    return  # the string goes on, or the character is half
                self.at, self.is_inside = self.at + 1, False
            sign = _STRUCTURE.search(text, self.at, to)
            if sign is None:
                self.at = to
                return
            self.at, self.is_inside = sign.end(), sign[0] == '"'
            self.depth += (sign[0] == "{") - (sign[0] == "}")
            if sign[0] == "}" and self.depth == 0 and not self.end:
                self.end = self.at


class CallDraft(Struct, eq=False):
    """A call. It gets our ids with its name; until then its pieces wait. One that may only repeat its `original` waits, too."""

    vendor_id: str
    index: Index | None
    name: str = ""
    id: str = ""
    call_id: str = ""
    tool: ToolDefinition | None = None
    types: dict[str, set[str]] | None = None
    """The arguments that may not have any type, and those they may have."""
    original: "CallDraft | None" = None
    pieces: list[str] = []
    size: int = 0
    rest: str = ""
    """What was not told yet, of arguments that are told as they come."""
    told: int = 0
    right: int = 0
    """The size at which all of them were found right."""
    is_held: bool = False
    is_repeating: bool = False
    """A piece has repeated all before it."""
    is_behind_brace: bool = False
    """What has come ends with a brace, but for blanks."""
    behind: str = ""
    """What has followed the whole object, as far as it may be another one."""
    scan: JsonScan = msgspec.field(default_factory=JsonScan)
    """As far as slips were looked for."""
    extent: JsonScan = msgspec.field(default_factory=JsonScan)
    """As far as the end of the object was."""
    is_object: bool | None = None
    """Whether what the first closed brace ends is JSON; None while none is closed."""

    def add(self, arguments: str) -> None:
        """Adds a piece of the arguments. What follows a whole object is none of it, unless that is empty or another follows."""
        if self.pieces and len(arguments) >= self.size and arguments.startswith(self.pieces[0]):
            # Some backends repeat all before it with each piece. JSON goes on as it began only where a value is to come.
            said = self.arguments
            is_said = (said == "{" or len(said) > 2) and said.startswith("{") and arguments.startswith(said)
            if is_said and (self.is_repeating or not _BEFORE_VALUE.search(said)):
                arguments, self.is_repeating = arguments[len(said) :], True
        if not self.told and self.size < _MOST_BLANK and (empty := _EMPTY.match(self.arguments + arguments)):
            arguments = (self.arguments + arguments)[empty.end() :]
            self.pieces, self.size, self.rest, self.is_object = [], 0, "", None
            self.scan, self.extent = JsonScan(), JsonScan()
        if self.size < MOST_HELD and (self.told or not self.is_held) and self._may_be_past(arguments):
            arguments = self._cut(arguments)
        if arguments:
            self.pieces.append(arguments)
            self.size += len(arguments)
            if bare := arguments.rstrip():
                self.is_behind_brace = bare[-1] == "}"
            if not self.is_held:
                self.rest += arguments

    def take(self) -> str:
        """What of the arguments can be told, and was not."""
        rest = self.rest
        if self.told and rest and (_SIGN if self.types is None else _SIGN_OR_VALUE).search(rest) is None:
            # The token path: more of what was told.
            self.told, self.rest = self.size, ""
            return rest
        if self.size > MOST_HELD:
            left, self.is_held = self.arguments[self.told :] if self.is_held else rest, False
            return self._tell(left)
        if not rest or self.is_held:
            return ""
        if not self.told and self.tool is not None and len(rest) == self.size and are_right(rest, self.tool):
            self.right = self.size
            return self._tell(rest)
        if not self.told and self._may_be_odd():
            return ""
        odd = self._find_odd(rest)
        odd = self._find_word(rest, len(rest) if odd is None else odd.start()) or odd
        if odd is None:
            return self._tell(rest)
        self.is_held = any(odd.groups()) or odd[0].endswith('"')
        return self._tell(rest[: odd.start()])

    def _find_word(self, rest: str, end: int) -> Match[str] | None:
        """Where a value of another type stands, or may, than its key may have, before the `end`."""
        if not (types := self.types) or (first := _BEFORE_WORD.search(rest, 0, end)) is None:
            return None
        # The key is in one of the last pieces: to join all of them takes long.
        last = "".join(self.pieces[-_KEY_PIECES:])
        last = last if len(last) > len(rest) else self.arguments
        for found in _BEFORE_WORD.finditer(rest, first.start(), end):
            place = len(last) - len(rest) + found.start()
            key = _KEY.search(last, max(0, place - _KEY_CHARS), place)
            if key is not None and key[1] in types and types[key[1]].isdisjoint(_KINDS.get(found[1], ())):
                return found
        return None

    def settle(self, *, is_cut: bool) -> str:
        """What is left to tell at the end, as what it can only mean; of a call that was cut off, as it came."""
        whole = self.arguments
        if not is_cut and self._is_glued(whole):
            self.pieces, self.size = [whole, self.behind], len(whole) + len(self.behind)
            return self._tell(self.arguments[self.told :])
        meant = whole if is_cut or not whole.strip() else self._find_meant(whole)
        if meant != whole and meant.startswith(whole[: self.told]):
            self.pieces, self.size = [meant], len(meant)
        return self._tell(self.arguments[self.told :])

    def _is_glued(self, whole: str) -> bool:
        """Whether another object follows: the arguments of two calls, one of which has lost its name, so that nobody can tell."""
        behind = self.behind.strip()
        if not behind.startswith("{") or not is_json(whole):
            return False
        with suppress(ValueError, RecursionError):
            other, _ = _decoder.raw_decode(behind)
            return bool(other) and other != _decode(whole)
        return False

    def _find_meant(self, whole: str) -> str:
        if self.tool is not None and (self.right == len(whole) or are_right(whole, self.tool)):
            return whole
        meant = read_arguments(whole, self.name, self.properties)
        if self.tool is None:
            return meant
        if meant.lstrip().startswith("<"):
            meant = read_parameters(meant, self.tool)
        elif not meant.lstrip().startswith(("{", "[")):
            meant = read_words(meant, self.tool)
        return fit_arguments(meant, self.tool)

    @property
    def properties(self) -> Json:
        return list_properties(self.tool)

    def _tell(self, piece: str) -> str:
        self.told += len(piece)
        self.rest = self.rest[len(piece) :]
        return piece

    def _find_odd(self, rest: str) -> Match[str] | None:
        """The first token for a quote in the rest, slip outside of strings or line break within one, or what may become one of
        them."""
        whole = ""
        for odd in _ODD.finditer(rest):
            if not odd[1] and not odd[2]:
                return odd
            whole = whole or self.arguments
            self.scan.advance(whole, self.size - len(rest) + odd.start())
            if _RAW.search(odd[0]) or odd[0][0] == "\\" if self.scan.is_inside else odd[1]:
                return odd
        return None

    def _cut(self, piece: str) -> str:
        """The piece without what follows the object that it completes, or that is complete."""
        scan = self.extent
        if self.is_object is None:
            whole = self.arguments + piece
            scan.advance(whole, len(whole))
            if not scan.end:
                return piece
            self.is_object = is_json(whole[: scan.end])
        if not self.is_object:
            return piece
        self.extent = JsonScan(scan.end, end=scan.end)
        kept = max(0, scan.end - self.size)
        if len(self.behind) < MOST_HELD:
            self.behind += piece[kept:]
        return piece[:kept]

    def _may_be_odd(self) -> bool:
        """Whether the beginning cannot be told yet, or not before the end."""
        head = self.arguments.lstrip()
        self.is_held = bool(head) and (not head.startswith("{") or _ODD_KEY.match(head) is not None)
        if not head or self.is_held:
            return True
        wrapped = may_be_wrapped(head, self.name, self.properties)
        self.is_held = wrapped is True
        return wrapped is not False

    def _may_be_past(self, piece: str) -> bool:
        """Whether the piece has a brace, or follows one, behind which JSON does not go on like this. Code in a string may."""
        if "}" in piece and _BEHIND.search(piece):
            return True
        return self.is_behind_brace and not piece.lstrip().startswith((",", "]"))

    @property
    def arguments(self) -> str:
        return "".join(self.pieces)

    def is_continued(self, index: Index | None, id: str, name: str, arguments: str, is_beside: bool) -> bool:
        """Whether a piece that leads here continues this call. Backends that number all calls 0, or none, and give no ids begin
        another call by naming a tool when the arguments so far are complete, or beside a call that has none."""
        if not name or not self.name:
            return True
        if index is None and name != self.name:
            return False
        if self.is_whole:
            # Those that give ids may say name and id once more at the end.
            return bool(self.vendor_id) and name == self.name and not arguments.strip()
        return bool(id or self.pieces) or not is_beside

    def goes_on(self, name: str, arguments: str) -> bool:
        """Whether a piece of another id that names this tool goes on with half an object: no other call begins so."""
        return bool(name) and name == self.name and self.is_half and _BEGINS_NONE.match(arguments) is not None

    @property
    def is_whole(self) -> bool:
        """The arguments so far are a JSON object. The first check is cheap, for backends that name the tool in each piece."""
        return bool(self.pieces) and self.pieces[-1].rstrip().endswith("}") and is_json(self.arguments)

    @property
    def is_open(self) -> bool:
        """A tool is named, and its arguments are not whole."""
        return bool(self.name) and not self.is_whole

    @property
    def is_half(self) -> bool:
        return bool(self.pieces) and not is_json(self.arguments)

    def is_repeated(self, id: str, name: str, arguments: str) -> bool:
        """Whether a piece only repeats this complete call. Who gives ids would have given another call another one."""
        return bool(name and self.vendor_id) and id in ("", self.vendor_id) and self.makes(name, arguments)

    def makes(self, name: str, arguments: str) -> bool:
        """Whether this is a whole call of that tool with these arguments, however they are written."""
        if name != self.name or not self.is_whole:
            return False
        if arguments == self.arguments:
            return True
        is_short = len(arguments) <= MOST_HELD and self.size <= MOST_HELD
        return is_short and is_json(arguments) and bool(_decode(arguments) == _decode(self.arguments))

    def may_repeat(self, original: "CallDraft") -> bool:
        """Whether what has come so far is how the other call begins."""
        return self.name == original.name and original.arguments.startswith(self.arguments)

    def build(self, is_cut: bool) -> FunctionCall:
        return FunctionCall(self.call_id, self.name, self.arguments, id=self.id, status="incomplete" if is_cut else "completed")


def build_unnamed_error(arguments: str) -> BadOutput:
    return BadOutput(f"the model called a tool without naming it, with arguments `{arguments:.200}`; ask again")


def is_json(text: str) -> bool:
    """Whether it is JSON. The values of a long text are not made."""
    try:
        _decode(text) if len(text) <= MOST_HELD else _decode(text, type=msgspec.Raw)
    except (ValueError, RecursionError):
        return False
    return True


_decode: Final = msgspec.json.decode
_decoder: Final = json.JSONDecoder()
_BEGINS_NONE: Final = re.compile(r"\s*[^\s{]")
_MOST_BLANK: Final = 20
_WITHIN_STRING: Final = re.compile(r'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
_STRUCTURE: Final = re.compile(r'["{}]')
_ODD_KEY: Final = re.compile(r'\{\s*[^\s"}]')
_BEFORE_VALUE: Final = re.compile(r"[:\[,]\s*\Z")
_EMPTY: Final = re.compile(r"\s*\{\s*\}\s*(?=\{)")
_BEHIND: Final = re.compile(r"\}\s*[^\s,\]:\"\\]")
_SIGN: Final = re.compile(r"[<,TFN\x00-\x1f]|\\(?:'|\Z)")
_SIGN_OR_VALUE: Final = re.compile(r"[<,TFN:\x00-\x1f]|\\(?:'|\Z)")
_BEFORE_WORD: Final = re.compile(r'(?:(?<=["\s])|\A):\s*(?:(["\d\[{tfn\'-])|\Z)')
# The types of a value that begins with this sign.
_KINDS: Final = {
    **dict.fromkeys("-0123456789", ("integer", "number")),
    **dict.fromkeys("tf", ("boolean",)),
    '"': ("string",), "[": ("array",), "{": ("object",), "n": ("null",),
}  # fmt: skip
_KEY: Final = re.compile(r'"(\w+)"\s*\Z')
_KEY_PIECES: Final = 40
_KEY_CHARS: Final = 80
# A token for a quote, or outside of strings a comma before what closes or a constant of Python's; or what may become one of them;
# or a character that strings of JSON cannot have.
_ODD: Final = re.compile(
    r"<(?:\|\\?(?:\"|\Z)|\Z)|(,\s*[}\]]|\b(?:True|False|None)\b)|,\s*\Z|\b[TFN]\w{0,4}\Z|([\x00-\x1f]|(?<!\\)\\')"
    r"|(?<!\\)\\\Z"
)
_RAW: Final = re.compile(r"[\x00-\x1f]")
