"""What a request says that nobody here reads: listed in `Mainspring-Ignored`, and refused where it can only be a slip.

A field that is not known costs one set difference. One that is spelled almost like a known one, or that means what another field
is for, asks for something: it is refused, with the name that it should have. Whatever else clients send along is listed.
"""

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from difflib import get_close_matches
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Raw
from msgspec.structs import fields
from starlette.requests import Request

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Item, Json, from_wire
from mainspring.http.bodies import Body, parse_body, read_json_body
from mainspring.http.kinds import ITEM_KINDS, PART_KINDS, TOOL_KINDS

HEADER: Final = "Mainspring-Ignored"
MOST_NAMES: Final = 20
MOST_NAME_CHARS: Final = 80
ALIKE: Final = 0.85
# To look for what a name is a slip for takes time, and whoever sends so many did not slip.
MOST_LOOKED_UP: Final = 100

T = TypeVar("T")


class IgnoredFields:
    """The paths of what is ignored, in the order in which it was found. `rename` gives what the request calls a path."""

    def __init__(self, rename: Callable[[str], str] = str) -> None:
        self._paths: list[str] = []
        self._rename = rename
        self.passable: list[str] = []
        """What is ignored only by backends that do not take it as it is."""

    def add(self, path: str, *, is_passable: bool = False) -> None:
        (self.passable if is_passable else self._paths).append(self._rename(path))

    def parse(self, body: bytes, kind: type[Body], read: Callable[[type, Any], Any] = from_wire) -> Body:
        """The body as `parse_body` reads it. Notes the fields that `kind` does not have."""
        parsed = parse_body(body, kind, read)
        self.compare("", read_fields(body), {field.encode_name for field in fields(kind)})
        return parsed

    def compare(self, place: str, given: Mapping[str, object], known: AbstractSet[str], *, is_passable: bool = False) -> None:
        """Notes the fields of `given` that are not `known`; null asks for nothing. Raises `InvalidRequest` for a slip."""
        if given.keys() <= known:
            return
        for name, value in given.items():
            if name in known or value is None or value == _NULL:
                continue
            path = f"{place}.{name}" if place else name
            is_looked_up = len(self._paths) + len(self.passable) < MOST_LOOKED_UP
            if is_looked_up and (meant := find_meant(name[:MOST_NAME_CHARS], known)) is not None:
                raise refuse_field(path, f"did you mean `{meant}`?")
            self.add(path, is_passable=is_passable)

    def compare_body(
        self, body: bytes, known: AbstractSet[str], other_names: Mapping[str, str], blanks: Sequence[bytes] = (b"null",)
    ) -> None:
        """Notes the fields of a whole body. Raises `InvalidRequest` for a slip, and for `other_names` that are not blank."""
        if (sent := read_fields(body)).keys() <= known:
            return
        for name, value in sent.items():
            if name in other_names and bytes(value) not in blanks:
                raise refuse_field(name, other_names[name])
        self.compare("", sent, known)

    def list_paths(self) -> list[str]:
        """As much of it as a client is told: printable, and not longer than a header may be."""
        told = [path[:MOST_NAME_CHARS].encode("unicode_escape").decode() for path in self._paths[:MOST_NAMES]]
        return told if len(self._paths) <= MOST_NAMES else [*told, f"and {len(self._paths) - MOST_NAMES} more"]

    def make_headers(self) -> dict[str, str]:
        return {HEADER: ", ".join(self.list_paths())} if self._paths else {}


async def read_known(request: Request, kind: type[Body], *, may_be_empty: bool = False) -> tuple[Body, dict[str, str]]:
    """The body of a request, and the headers that tell what of it is ignored. Raises `Fault`, `InvalidRequest`."""
    ignored, body = IgnoredFields(), await read_json_body(request)
    return ignored.parse(body or b"{}" if may_be_empty else body, kind), ignored.make_headers()


def compare_tools(ignored: IgnoredFields, place: str, tools: Sequence[object]) -> None:
    """Notes what is ignored of declared tools, those of namespaces among them."""
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or (kind := TOOL_KINDS.get(str(tool.get("type")))) is None:
            continue
        if kind.fields is not None and not tool.keys() <= kind.fields:
            ignored.compare(f"{place}[{number}]", tool, kind.fields)
        if isinstance(form := tool.get("format"), dict) and tool["type"] == "custom":
            ignored.compare(f"{place}[{number}].format", form, _FORMAT)
        if isinstance(inner := tool.get("tools"), list):
            compare_tools(ignored, f"{place}[{number}].tools", inner)
        if isinstance(local := tool.get("environment"), dict) and local.get("type") == "local":
            ignored.compare(f"{place}[{number}].environment", local, {"type"})


class ItemReader:
    """Reads the items of a body as `from_wire` does, and notes the fields of theirs that are ignored. `param` names the list."""

    def __init__(self, param: str, ignored: IgnoredFields) -> None:
        self._param, self._ignored = param, ignored
        self._count = 0

    def read(self, kind: type[T], value: object) -> T:
        if kind is Item:
            if isinstance(value, dict):
                self._compare(value)
            self._count += 1
        return from_wire(kind, value)

    def _compare(self, item: Json) -> None:
        """Paths are made only for what is not known: this runs for every item of every request."""
        kind = item.get("type", "message")
        known = ITEM_KINDS.get(kind) if isinstance(kind, str) else None
        if known is None:
            return
        if not item.keys() <= known:
            self._ignored.compare(f"{self._param}[{self._count}]", item, known)
        for name in _PARTED:
            if name in item and isinstance(parts := item[name], list):
                self._compare_parts(name, parts)
        if "tools" in item and isinstance(tools := item["tools"], list):
            compare_tools(self._ignored, f"{self._param}[{self._count}].tools", tools)

    def _compare_parts(self, name: str, parts: Sequence[object]) -> None:
        for number, part in enumerate(parts):
            kind = part.get("type") if isinstance(part, dict) else None
            known = PART_KINDS.get(kind) if isinstance(kind, str) else None
            if isinstance(part, dict) and known is not None and not part.keys() <= known:
                self._ignored.compare(f"{self._param}[{self._count}].{name}[{number}]", part, known)


def read_fields(body: bytes) -> dict[str, Raw]:
    """The fields of an object that is valid JSON, unread."""
    return _fields.decode(body)


def find_meant(name: str, known: AbstractSet[str]) -> str | None:
    """The field that a name is a slip for: in another case or style, with letters in another order, or almost the same."""
    letters = _list_letters(name)
    alike = [other for other in known if _list_letters(other) == letters] or get_close_matches(name, known, 1, ALIKE)
    return alike[0] if alike else None


def _list_letters(name: str) -> list[str]:
    return sorted(name.replace("_", "").replace("-", "").casefold())


def refuse_field(path: str, advice: str) -> InvalidRequest:
    path = path[: 2 * MOST_NAME_CHARS]
    return InvalidRequest(f"there is no `{path}` in this request; {advice}", param=path, code="unknown_parameter")


_NULL: Final = Raw(b"null")
_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_FORMAT: Final = frozenset({"type", "syntax", "definition"})
_PARTED: Final = ("content", "output")
