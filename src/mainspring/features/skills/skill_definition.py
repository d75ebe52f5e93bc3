"""A skill as its folder defines it: `SKILL.md`, in the open Agent Skills format, with two fields of governance.

    ---
    name: invoices
    description: Checks invoices. Use it when a bill or an invoice is to be looked at.
    allowed-tools: file_ops:read web_fetch
    ---
    1. Read the invoice ...

Between the lines `---` is YAML, below them the instructions. Every value is text as it is written, so `version: 1.10` stays that.
Keys may be spelled with `-` or `_`. What is wrong is told by file and line, all at once, up to twenty mistakes.
"""

import re
from logging import getLogger
from pathlib import Path
from typing import Annotated, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.definitions.json_schema import build_schema
from mainspring.definitions.parsed_file import Node, ParsedFile, Problem
from mainspring.definitions.reader import decode_text, parse_yaml
from mainspring.tools.safe_read import read_beneath

log = getLogger(__name__)

FILE: Final = "SKILL.md"
PLACE: Final = "the skill's folder"
MOST_BYTES: Final = 64 * 1024

_NAMING = "up to 64 lower-case letters and digits, with single hyphens between"
_OPENING = re.compile(r"---[ \t]*\n")
_CLOSING = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)
_PATTERN: Final = re.compile(r"[^\s:(),]+(?::(?:\*|[^\s:(),*?]+))?")
# What other programs call a tool and what it may be given, as in `Bash(git add:*)`.
_FOREIGN: Final = re.compile(r"[^\s:(),]+\([^()]*\)")
_PARTS: Final = re.compile(r"[^\s,(]+\([^()]*\)|[^\s,]+")


class Skill(Struct, frozen=True):
    """What a skill says. `body` is its instructions, `path` its folder.

    `allowed_tools` are patterns like `shell`, `file_ops:read`, `shell:*` or `web_*`: None allows every tool, and an empty tuple
    allows none. `disallowed_tools` are patterns too, and go before what is allowed.
    """

    name: str
    description: str
    body: str
    path: Path
    license: str = ""
    compatibility: str = ""
    metadata: dict[str, str] = {}
    allowed_tools: tuple[str, ...] | None = None
    disallowed_tools: tuple[str, ...] = ()


class FrontMatter(Struct, frozen=True):
    """What is written above the instructions. Patterns of tools are a list, or a text with blanks or commas between."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64, description=_NAMING)]
    description: Annotated[str, Meta(min_length=1, max_length=1024)]
    license: Annotated[str, Meta(max_length=1024)] = ""
    compatibility: Annotated[str, Meta(max_length=500)] = ""
    metadata: dict[str, str] = {}
    allowed_tools: str | tuple[str, ...] | None = None
    disallowed_tools: str | tuple[str, ...] | None = None


def read_skill(folder: Path) -> Skill:
    """The skill in this folder. Raises `InvalidRequest` or `NotFound` with the file, and the line of whatever is wrong in it."""
    return parse_skill(read_beneath(folder, FILE, MOST_BYTES, PLACE), folder)


def parse_skill(data: bytes, folder: Path) -> Skill:
    """The skill that the content of its `SKILL.md` makes. Raises `InvalidRequest` with every mistake, each by file and line."""
    file = folder / FILE
    text = decode_text(file, data).replace("\r\n", "\n")
    opening = _OPENING.match(text)
    if opening is None:
        raise InvalidRequest(f"{file}:1: a skill begins with a line `---` and its name and description in YAML; add them")
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise InvalidRequest(f"{file}:1: the front matter has no end; close it with a line `---`")
    parsed = _respell(parse_yaml(file, text[opening.end() : closing.start()], first_line=2, as_text=True))
    front = parsed.convert(FrontMatter)
    if front is not None and front.name != folder.name:
        told = f"the skill is called `{front.name}`, its folder `{folder.name}`; give both one name"
        parsed.add_problem(("name",), told)
    allowed = None if front is None else _patterns(parsed, "allowed_tools", front.allowed_tools)
    disallowed = None if front is None else _patterns(parsed, "disallowed_tools", front.disallowed_tools)
    parsed.raise_problems()
    assert front is not None
    return Skill(
        name=front.name,
        description=front.description,
        body=text[closing.end() :].strip(),
        path=folder,
        license=front.license,
        compatibility=front.compatibility,
        metadata=front.metadata,
        allowed_tools=allowed,
        disallowed_tools=disallowed or (),
    )


def file_schema() -> Json:
    """The JSON Schema of the front matter. Every scalar is read as text, so numbers will do, too."""
    schema = build_schema(FrontMatter, "The front matter of a skill for Mainspring")
    properties = schema["$defs"]["FrontMatter"]["properties"]
    properties["metadata"]["additionalProperties"] = {"type": ["string", "number", "boolean", "null"]}
    for name in ("allowed_tools", "disallowed_tools"):
        properties[name.replace("_", "-")] = properties[name]
    return schema


def _respell(parsed: ParsedFile) -> ParsedFile:
    """The front matter with `_` for `-` in its keys."""
    if not isinstance(parsed.root.value, dict):
        return parsed
    keys: dict[str, Node] = {}
    problems = list(parsed.problems)
    for name, node in parsed.root.value.items():
        if (spelled := name.replace("-", "_")) in keys:
            problems.append(Problem(node.line, f"`{name}` is there twice; keep one"))
        keys[spelled] = node
    return ParsedFile(parsed.file, replace(parsed.root, value=keys), problems)


def _patterns(parsed: ParsedFile, key: str, given: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The patterns of tools; an empty text could mean two things. Tools of other programs may be allowed: they fit none of ours,
    and are logged."""
    parts = tuple(_PARTS.findall(given)) if isinstance(given, str) else given
    if isinstance(given, str) and not parts:
        parsed.add_problem((key,), f"`{key}` names no tools; list them, write `[]` for none, or leave it out")
    for part in parts or ():
        if key == "allowed_tools" and _FOREIGN.fullmatch(part):
            log.warning("%s:%d: `%s` in `%s` is no tool here, and allows none", parsed.file, parsed.find_line((key,)), part, key)
        elif not _PATTERN.fullmatch(part):
            parsed.add_problem((key,), f"`{part}` in `{key}` is no tool; write `tool`, `tool:operation` or `tool:*`")
    return parts
