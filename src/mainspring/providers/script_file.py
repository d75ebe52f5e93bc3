"""Scripts in files: a JSON format that is strict, and tells everything that is wrong at once."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, fields

from mainspring.core.errors import InvalidRequest
from mainspring.core.events import Finish
from mainspring.core.items import Usage
from mainspring.definitions.parsed_file import hint
from mainspring.providers.script import FAULTS, Call, Count, Fault, ScriptedFailure, Seconds, Turn


class _Regex(Struct, frozen=True):
    regex: str


class _FileTurn(Struct, frozen=True):
    """A turn as a file spells it."""

    think: str | None = None
    say: str | None = None
    refuse: str | None = None
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    usage: Usage | None = None
    cut: Count | None = None
    fail: ScriptedFailure | None = None
    stall: bool = False
    malformed: Fault | None = None
    pause: Seconds | None = None
    expect: str | _Regex | None = None
    when: str | None = None

    def build(self) -> Turn:
        """The turn. Raises `ValueError` for what cannot be."""
        given = {name: value for name, value in asdict(self).items() if name != "malformed"}
        events = FAULTS[self.malformed] if self.malformed else None
        fail = self.fail.build() if self.fail else None
        expect = _pattern(self.expect.regex) if isinstance(self.expect, _Regex) else self.expect
        return Turn(**given | {"events": events, "fail": fail, "expect": expect})


class FileKeys(Struct, frozen=True):
    turns: Annotated[tuple[_FileTurn, ...], Meta(min_length=1)]
    repeat: bool = False
    chunk: Count = 1
    pause: Seconds | None = None


_NESTED: dict[str, type[Struct]] = {"turns": _FileTurn, "calls": Call, "usage": Usage, "fail": ScriptedFailure, "expect": _Regex}


def read_script(path: Path) -> FileKeys:
    """What the file says. Raises `InvalidRequest` with every problem, unless all of its turns can be made."""
    try:
        data = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise InvalidRequest(f"cannot read the script `{path}`: {error.strerror}; check the path") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise InvalidRequest(f"the script `{path}` is not JSON: {error.msg} at {where}; correct it there") from error
    except RecursionError:
        raise InvalidRequest(f"the script `{path}` is nested too deeply; make it flatter") from None
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the script `{path}` is not UTF-8 text; save it as such") from error
    if not (problems := list(_misfits(data, FileKeys, "the file"))):
        script = msgspec.convert(data, FileKeys)
        if not (problems := list(_contradictions(script))):
            return script
    listed = "".join([f"\n- {problem}" for problem in problems])
    raise InvalidRequest(f"the script `{path}` cannot be played; correct:{listed}")


def _misfits(value: object, kind: type[Struct], where: str) -> Iterator[str]:
    """Everything in `value` that keeps it from being a `kind`, however deep."""
    if not isinstance(value, dict):
        yield f"{where}: must be an object, not {json.dumps(value)[:40]}"
        return
    known = {field.name: field for field in fields(kind)}
    for key, inner in value.items():
        if key not in known:
            yield f"{where}: there is no key `{key}`; {hint(key, list(known))}"
        elif inner and key in ("turns", "calls") and isinstance(inner, list):
            for number, part in enumerate(inner, start=1):
                yield from _misfits(part, _NESTED[key], _within(where, f"{key[:-1]} {number}"))
        elif key in ("usage", "fail", "expect") and isinstance(inner, dict):
            yield from _misfits(inner, _NESTED[key], _within(where, f"`{key}`"))
        else:
            try:
                msgspec.convert(inner, known[key].type)
            except msgspec.ValidationError as error:
                yield f"{_within(where, f'`{key}`')}: {error}"
    for name, field in known.items():
        if field.required and name not in value:
            yield f"{where}: `{name}` is missing"


def _contradictions(script: FileKeys) -> Iterator[str]:
    for number, turn in enumerate(script.turns, start=1):
        try:
            turn.build()
        except ValueError as error:
            yield f"turn {number}: {error}"


def _within(where: str, part: str) -> str:
    return part if where == "the file" else f"{where}, {part}"


def _pattern(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise ValueError(f"`{regex}` is not a regular expression: {error}") from error
