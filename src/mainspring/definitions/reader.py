"""Definitions that people write as YAML or JSON files: read into structs, with the file and line of every mistake.

    written = Written(file, text)
    made = written.made(MyStruct)
    if made is not None and made.name in taken:
        written.fault(("name",), f"`{made.name}` is taken; choose another")
    written.check()

Theory of operation. The nodes that YAML makes know their lines. Plain values are made out of them here: text, numbers, truth
values, lists and mappings, nothing else, each key once, and no more of them than `MOST_NODES`, whatever aliases multiply them.
A struct is made field by field, so that one mistake does not hide the next. The YAML library is imported when it is needed: it
takes longer to import than most commands.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from math import isfinite
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final, Protocol, TypeVar, cast, get_args, get_origin

import msgspec
from msgspec import NODEFAULT, Struct
from msgspec import inspect as types
from msgspec.structs import fields

from mainspring.core.errors import InvalidRequest

SUFFIXES: Final = (".yaml", ".yml", ".json")
MOST_BYTES: Final = 1024 * 1024
MOST_NODES: Final = 100_000
MOST_PROBLEMS: Final = 20

Place = tuple[str | int, ...]
T = TypeVar("T", bound=Struct)

_PATH = re.compile(r" - at `(?:\$|key in \$)(?P<path>.*)`$")
_STEP = re.compile(r"\.(?P<key>[^.\[]+)|\[(?P<index>\d+)\]")
_TAG = "tag:yaml.org,2002:"


class _Mark(Protocol):
    line: int


class _Node(Protocol):
    """A node as the YAML library makes it; `value` is text, nodes, or pairs of nodes, as `id` says."""

    id: str
    tag: str
    value: Any
    start_mark: _Mark


class Written:
    """What a file holds. `value` is plain data; `problems` gathers what is wrong, each with its line.

    Raises `InvalidRequest` by file and line if the whole is not to be read.
    """

    def __init__(self, file: Path, text: str) -> None:
        self.file = file
        self.problems: list[tuple[int, str]] = []
        # JSON may be indented by tabs, which YAML does not allow, and has none inside of strings.
        self._root = _composed(file, text.replace("\t", " ") if file.suffix == ".json" else text)
        self._left = MOST_NODES
        try:
            self.value: object = None if self._root is None else self._plain(self._root)
        except RecursionError:
            raise InvalidRequest(f"{file}:1: it is nested too deeply; make it flatter") from None

    def line(self, place: Place) -> int:
        """The line of the key or element that a place leads to, or as far as it leads."""
        node, line = self._root, 1 if self._root is None else self._root.start_mark.line + 1
        for step in place:
            found = _inner(node, step)
            if found is None:
                break
            line, node = found
        return line

    def fault(self, place: Place, problem: str) -> None:
        self.problems.append((self.line(place), problem))

    def made(self, kind: type[T]) -> T | None:
        """The struct that the value makes; None if something is wrong with it, which is among the problems then."""
        count = len(self.problems)
        self._unknown(_info(kind), self.value, ())
        made = self._struct(kind, self.value, ())
        return made if len(self.problems) == count else None

    def check(self) -> None:
        """Raises `InvalidRequest` with every problem, in the order of their lines, up to twenty."""
        if self.problems:
            told = sorted(set(self.problems))[:MOST_PROBLEMS]
            raise InvalidRequest("; ".join([f"{self.file}:{line}: {problem}" for line, problem in told]))

    def _struct(self, kind: type[T], value: object, place: Place) -> T | None:
        if not isinstance(value, dict):
            self.fault(place, f"a mapping is needed here, not {_named(value)}")
            return None
        count = len(self.problems)
        values: dict[str, Any] = {}
        for field in fields(kind):
            name = field.encode_name
            if name in value:
                values[field.name] = self._value(field.type, value[name], (*place, name))
            elif field.default is NODEFAULT and field.default_factory is NODEFAULT:
                self.fault(place, f"`{name}` is missing")
        return kind(**values) if len(self.problems) == count else None

    def _value(self, kind: Any, value: object, place: Place) -> Any:
        """The value as that type. What is wrong with it is said; None stands for it then."""
        if isinstance(value, dict) and (structs := _structs(_info(kind))):
            meant = _meant(structs, value)
            return self._struct(meant.cls, value, place) if meant is not None else self._meant_nothing(structs, value, place)
        if get_origin(kind) is tuple and get_args(kind)[1:] == (...,) and isinstance(value, list):
            return tuple([self._value(get_args(kind)[0], each, (*place, index)) for index, each in enumerate(value)])
        if get_origin(kind) is dict and isinstance(value, dict) and get_args(kind)[0] is str:
            return {name: self._value(get_args(kind)[1], each, (*place, name)) for name, each in value.items()}
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            told, inner = _told(error)
            if told.startswith("Invalid enum value") and not inner and (known := _choices(kind)):
                told = f"it cannot be {_named(value)}; {hint(str(value), known)}"
            names = [step for step in (*place, *inner) if isinstance(step, str)]
            self.fault((*place, *inner), f"`{names[-1]}`: {told}" if names else told)
            return None

    def _meant_nothing(self, structs: Sequence[types.StructType], value: Mapping[str, object], place: Place) -> None:
        tag, tags = str(structs[0].tag_field), [str(each.tag) for each in structs]
        said = value.get(tag)
        told = f"`{tag}` is missing" if said is None else f"unknown {tag} `{said}`"
        self.fault((*place, tag), f"{told}; {hint(str(said), tags)}")

    def _unknown(self, kind: types.Type, value: object, place: Place) -> None:
        """Finds every key that no struct has."""
        match kind, value:
            case types.StructType(), dict():
                known = {field.encode_name: field.type for field in kind.fields}
                tag = {kind.tag_field} if kind.tag_field else set()
                for name, each in value.items():
                    if name in known:
                        self._unknown(known[name], each, (*place, name))
                    elif name not in tag:
                        self.fault((*place, name), f"unknown key `{name}`; {hint(str(name), (*tag, *known))}")
            case types.UnionType(), _:
                meant = _meant(_structs(kind), value) if isinstance(value, dict) else None
                for inner in [meant] if meant is not None else [each for each in kind.types if not _structs(each)]:
                    self._unknown(inner, value, place)
            case types.VarTupleType() | types.ListType(), list():
                for index, each in enumerate(value):
                    self._unknown(kind.item_type, each, (*place, index))
            case types.DictType(), dict():
                for name, each in value.items():
                    self._unknown(kind.value_type, each, (*place, name))

    def _plain(self, node: _Node) -> object:
        self._left -= 1
        line = node.start_mark.line + 1
        if self._left < 0:
            raise InvalidRequest(f"{self.file}:{line}: the file stands for more than {MOST_NODES} values; make it smaller")
        if node.id == "sequence":
            return [self._plain(each) for each in node.value]
        if node.id == "scalar":
            return self._scalar(node, line)
        plain: dict[str, object] = {}
        for key, each in node.value:
            name = str(key.value)
            if key.id != "scalar":
                raise InvalidRequest(f"{self.file}:{line}: keys must be text")
            if name in plain:
                self.problems.append((int(key.start_mark.line) + 1, f"`{name}` is there twice; keep one"))
            plain[name] = self._plain(each)
        return plain

    def _scalar(self, node: _Node, line: int) -> object:
        from yaml import YAMLError
        from yaml.constructor import SafeConstructor

        if node.tag in [f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float")]:
            try:
                value = SafeConstructor().construct_object(cast(Any, node))
                if isinstance(value, float) and not isfinite(value):
                    raise ValueError("a number must be finite")
                return value
            except (YAMLError, ValueError) as error:
                raise InvalidRequest(f"{self.file}:{line}: `{str(node.value)[:80]}` is no value: {error}") from error
        if node.tag.startswith("!"):
            raise InvalidRequest(f"{self.file}:{line}: the tag `{node.tag[:80]}` is not known; write plain values")
        # Moments and the like stay the text that they are.
        return str(node.value)


def read_text(file: Path) -> str:
    """The text of a definition. Raises `InvalidRequest` with the file if it cannot be had."""
    try:
        if not S_ISREG(file.stat().st_mode):  # a pipe would be waited for
            raise InvalidRequest(f"{file}: it is no file; take it out of this folder, or rename it")
        with file.open("rb") as opened:
            data = opened.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise InvalidRequest(f"{file}:1: the file has more than {MOST_BYTES} bytes; make it smaller")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{file}:{line}: this is not UTF-8; save it as such") from None
    except OSError as error:
        raise InvalidRequest(f"{file}: it cannot be read: {error.strerror}") from error


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that may be definitions, by name. Raises `InvalidRequest` if there is no such folder."""
    try:
        return sorted([file for file in folder.iterdir() if file.suffix in SUFFIXES and not file.name.startswith(".")])
    except OSError as error:
        raise InvalidRequest(f"the folder `{folder}` cannot be read: {error.strerror}; check its name") from error


def hint(name: str, known: Sequence[str]) -> str:
    """What may have been meant by a name that is not known."""
    close = get_close_matches(name, known, 1)
    return f"did you mean `{close[0]}`?" if close else f"known: {', '.join([f'`{each}`' for each in known]) or 'none'}"


@lru_cache(maxsize=256)
def _info(kind: Any) -> types.Type:
    return types.type_info(kind)


def _structs(kind: types.Type) -> list[types.StructType]:
    """The structs that a value of this type may be."""
    each = kind.types if isinstance(kind, types.UnionType) else (kind,)
    return [inner for inner in each if isinstance(inner, types.StructType)]


def _meant(structs: Sequence[types.StructType], value: Mapping[str, object]) -> types.StructType | None:
    """The one of several structs that a mapping names by its tag; the only one needs none."""
    fitting = [each for each in structs if each.tag_field is None or value.get(each.tag_field) == each.tag]
    return fitting[0] if fitting else None


def _choices(kind: Any) -> list[str]:
    """The texts that a value of this type may be."""
    info = _info(kind)
    each = info.types if isinstance(info, types.UnionType) else (info,)
    return [str(value) for inner in each if isinstance(inner, types.LiteralType) for value in inner.values]


def _told(error: msgspec.ValidationError) -> tuple[str, Place]:
    """The message without the path at its end, and that path."""
    text = str(error)
    found = _PATH.search(text)
    if found is None:
        return text, ()
    steps = [step["key"] or int(step["index"]) for step in _STEP.finditer(found["path"])]
    return text[: found.start()], tuple(steps)


def _inner(node: _Node | None, step: str | int) -> tuple[int, _Node] | None:
    if node is None or node.id == "scalar":
        return None
    if node.id == "sequence":
        inner = node.value[step] if isinstance(step, int) and step < len(node.value) else None
        return None if inner is None else (inner.start_mark.line + 1, inner)
    for key, value in node.value:
        if key.value == step:
            return int(key.start_mark.line) + 1, value
    return None


def _composed(file: Path, text: str) -> _Node | None:
    import yaml

    try:
        root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 1
        raise InvalidRequest(f"{file}:{line}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise InvalidRequest(f"{file}:1: this is not YAML: {' '.join(str(error).split())[:200]}") from error
    except RecursionError:
        raise InvalidRequest(f"{file}:1: it is nested too deeply; make it flatter") from None
    return cast(_Node | None, root)


def _named(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case list():
            return "a list"
        case dict():
            return "a mapping"
        case _:
            return f"`{str(value)[:80]}`"
