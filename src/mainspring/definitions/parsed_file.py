"""The values of a file with their lines, converted to structs: every mistake is told by file and line, all of them at once.

    def check(agent, parsed):
        if agent.name in taken:
            parsed.add_problem(("name",), f"`{agent.name}` is taken; choose another")

    agent = parse_yaml(file, text).finish(AgentDefinition, check)

Theory of operation. Whoever knows a format (YAML, JSON, TOML) makes a tree of `Node`s out of a text. A struct is converted field
by field, so that one mistake does not hide the next.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Meta, Struct, ValidationError
from msgspec.structs import FieldInfo, fields

from mainspring.core.errors import InvalidRequest

MOST_PROBLEMS: Final = 20
MOST_NAME: Final = 100
"""How much of a name is held against those that are known."""

Place = tuple[str | int, ...]
"""The keys and indexes that lead from the whole of a file to a value."""

T = TypeVar("T")


class Node(Struct, frozen=True):
    """A value and the line of its key, or else its own. `value` is a scalar, a list of nodes, or a dict of nodes by key."""

    value: object
    line: int = 1


class Problem(Struct, frozen=True, order=True):
    line: int
    message: str


class ParsedFile:
    """What a file holds, and all that is wrong with it."""

    def __init__(self, file: Path, root: Node, problems: Iterable[Problem] = ()) -> None:
        self.file = file
        self.root = root
        self.problems: list[Problem] = list(problems)

    def find_line(self, place: Place) -> int:
        """The line of the key or element that a place leads to, or as far as it leads."""
        node = self.root
        for step in place:
            inner = _child(node, step)
            if inner is None:
                break
            node = inner
        return node.line

    def add_problem(self, place: Place, message: str) -> None:
        self.problems.append(Problem(self.find_line(place), message))

    def convert(self, kind: type[T]) -> T | None:
        """The value as this type. If something is wrong with it, adds every problem and returns None."""
        count = len(self.problems)
        value: T = self._convert(kind, self.root, ())
        return value if len(self.problems) == count else None

    def finish(self, kind: type[T], check: Callable[[T, "ParsedFile"], object] | None = None) -> T:
        """The value as this type, if `check` adds no problem either. Raises as `raise_problems` does."""
        value = self.convert(kind)
        if value is not None and check is not None:
            check(value, self)
        self.raise_problems()
        return cast(T, value)

    def raise_problems(self) -> None:
        """Raises `InvalidRequest` with every problem, in the order of their lines, up to twenty."""
        if self.problems:
            raise InvalidRequest(tell_problems(self.file, sorted(set(self.problems))[:MOST_PROBLEMS]))

    def _convert(self, kind: Any, node: Node, place: Place) -> Any:
        """The value as that type; None stands for one with problems."""
        if kind is Any or kind is object:
            return plain(node)
        match node.value:
            case dict() as inner:
                if structs := [each for each in _alternatives(kind) if _is_struct(each)]:
                    return self._convert_struct(structs, inner, place)
                for each in _alternatives(kind):
                    if get_origin(each) is dict and get_args(each)[0] is str:
                        value, count = get_args(each)[1], len(self.problems)
                        made = {name: self._convert(value, part, (*place, name)) for name, part in inner.items()}
                        return self._convert_plain(kind, made, place) if len(self.problems) == count else None
            case list() as inner:
                for each in _alternatives(kind):
                    if _is_sequence(each):
                        value, count = get_args(each)[0], len(self.problems)
                        parts = [self._convert(value, part, (*place, index)) for index, part in enumerate(inner)]
                        return self._convert_plain(kind, parts, place) if len(self.problems) == count else None
            case _:
                pass
        return self._convert_plain(kind, plain(node), place)

    def _convert_struct(self, structs: Sequence[Any], inner: Mapping[str, Node], place: Place) -> Any:
        tag = structs[0].__struct_config__.tag_field
        said = inner[tag].value if tag in inner else None
        kind = next((each for each in structs if tag is None or each.__struct_config__.tag == said), None)
        if kind is None:
            told = f"`{tag}` is missing" if said is None else f"unknown {tag} `{said}`"
            tags = [str(each.__struct_config__.tag) for each in structs]
            self.add_problem((*place, tag), f"{told}; {hint(str(said), tags)}")
            return None
        count, known = len(self.problems), _fields(kind)
        for name in inner:
            if name not in known and name != tag:
                self.add_problem((*place, name), f"unknown key `{name}`; {hint(name, (*([tag] if tag else ()), *known))}")
        values: dict[str, Any] = {}
        for name, field in known.items():
            if name in inner:
                values[field.name] = self._convert(field.type, inner[name], (*place, name))
            elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
                self.add_problem(place, f"`{name}` is missing")
        if len(self.problems) > count:
            return None
        try:
            return kind(**values)
        except (TypeError, ValueError) as error:  # a struct may check itself
            self.add_problem(place, str(error))
            return None

    def _convert_plain(self, kind: Any, value: object, place: Place) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            told = tell_misfit(error, kind, value)
            if not place:
                told = f"{_name_shape(kind)} is needed here, not {_name(value)}"
            names = [step for step in place if isinstance(step, str)]
            self.add_problem(place, f"`{names[-1]}`: {told}" if names else told)
            return None


def plain(node: Node) -> Any:
    """The node's value without lines: scalars, lists and dicts."""
    match node.value:
        case dict() as inner:
            return {name: plain(part) for name, part in inner.items()}
        case list() as inner:
            return [plain(part) for part in inner]
        case value:
            return value


def tell_problems(file: Path, problems: Sequence[Problem]) -> str:
    """Problems of one file: one on a line with its path, several one below the other behind it."""
    if len(problems) == 1:
        return f"{file}:{problems[0].line}: {problems[0].message}"
    return "\n  ".join([f"{file}:", *[f"line {problem.line}: {problem.message}" for problem in problems]])


def hint(name: str, known: Sequence[str]) -> str:
    """What may have been meant by a name that is not known."""
    close = get_close_matches(name[:MOST_NAME], known, 1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join([f'`{each}`' for each in known]) or 'none'}"


_WORDS: Final = {
    "str": "text", "int": "a whole number", "float": "a number", "bool": "true or false", "array": "a list",
    "object": "a mapping", "null": "nothing",
}  # fmt: skip
_TYPES: Final = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")
_BOUND: Final = re.compile(r"Expected `(?:int|float)` (>=|<=|>|<) (\S+)")
_LENGTH: Final = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_BOUNDS: Final = {">=": "at least", "<=": "at most", ">": "more than", "<": "less than"}
_PARTS: Final = {"str": "characters"}


def tell_misfit(error: ValidationError, kind: Any, value: object, *, quotes: bool = False) -> str:
    """Why a value is none of this type, in the words that the pages use. It `quotes` what can be no secret."""
    if isinstance(value, str) and (known := _choices(kind)):
        more = ", or a number" if {int, float} & {*_alternatives(kind)} else ""
        return f"it cannot be {_name(value)}; {hint(value, known)}{more}"
    if isinstance(value, str) and (wanted := _description(kind)):
        return f"it cannot be {_name(value)}; write {wanted}"
    told = str(error).partition(" - at `")[0]
    if (types := _TYPES.fullmatch(told)) is not None:
        wanted = " or ".join([_WORDS.get(each, each) for each in types[1].split(" | ") if each != "null"])
        given = _name(value) if quotes or isinstance(value, bool) else _WORDS.get(types[2], types[2])
        return f"it must be {wanted}, not {given}{f'; write {about}' if (about := _description(kind)) else ''}"
    if (bound := _BOUND.fullmatch(told)) is not None:
        return f"it must be {_BOUNDS[bound[1]]} {bound[2].removesuffix('.0')}, not {_name(value)}"
    if (length := _LENGTH.fullmatch(told)) is not None:
        return f"it must have {_BOUNDS[length[2]]} {length[3]} {_PARTS.get(length[1], 'entries')}"
    return told


def _child(node: Node, step: str | int) -> Node | None:
    match node.value:
        case dict() as inner:
            return inner.get(step)
        case list() as inner if isinstance(step, int) and step < len(inner):
            found: Node = inner[step]
            return found
        case _:
            return None


@lru_cache(maxsize=256)
def _fields(kind: Any) -> Mapping[str, FieldInfo]:
    return {field.encode_name: field for field in fields(kind)}


@lru_cache(maxsize=512)
def _alternatives(kind: Any) -> tuple[Any, ...]:
    """The types that a value of this type may have, without what is said about them besides."""
    if get_origin(kind) is Annotated:
        return _alternatives(get_args(kind)[0])
    return tuple([each for part in get_args(kind) for each in _alternatives(part)]) if _is_union(kind) else (kind,)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, UnionType)


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _is_sequence(kind: Any) -> bool:
    """Whether its elements all have one type."""
    return get_origin(kind) is list or (get_origin(kind) is tuple and get_args(kind)[1:] == (...,))


def _choices(kind: Any) -> list[str]:
    """The texts that a value of this type may be."""
    found: list[str] = []
    for each in _alternatives(kind):
        if get_origin(each) is Literal:
            found += [value for value in get_args(each) if isinstance(value, str)]
        elif isinstance(each, type) and issubclass(each, Enum):
            found += [str(value.value) for value in each]
    return found


def _description(kind: Any) -> str:
    """What a type says of its values in words, empty if nothing."""
    metas = [meta for each in (kind, *get_args(kind)) if get_origin(each) is Annotated for meta in get_args(each)[1:]]
    return next((meta.description for meta in metas if isinstance(meta, Meta) and meta.description), "")


def _name_shape(kind: Any) -> str:
    shapes = ["a list" if _is_sequence(each) else "a mapping" for each in _alternatives(kind)]
    return " or ".join(dict.fromkeys(shapes))


def _name(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"`{str(value).lower() if isinstance(value, bool) else str(value)[:80]}`"
