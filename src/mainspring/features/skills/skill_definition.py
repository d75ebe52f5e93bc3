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
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.features.skills.skill_files import read

if TYPE_CHECKING:
    from mainspring.features.skills.front_matter import Fields

FILE: Final = "SKILL.md"
MOST_BYTES: Final = 64 * 1024
MOST_PROBLEMS: Final = 20
NAME: Final = re.compile(r"(?=.{1,64}\Z)[a-z0-9]+(?:-[a-z0-9]+)*")
KEYS: Final = ("name", "description", "license", "compatibility", "metadata", "allowed_tools", "disallowed_tools")

_OPENING = re.compile(r"---[ \t]*\n")
_CLOSING = re.compile(r"^---[ \t]*(?:\n|\Z)", re.MULTILINE)


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


def read_skill(folder: Path) -> Skill:
    """The skill in this folder. Raises `InvalidRequest` or `NotFound` with the file, and the line of whatever is wrong in it."""
    return parse_skill(read(folder, FILE, MOST_BYTES), folder)


def parse_skill(data: bytes, folder: Path) -> Skill:
    """The skill that the content of its `SKILL.md` makes. Raises `InvalidRequest` with every mistake, each by file and line."""
    from mainspring.features.skills.front_matter import Fields

    file = folder / FILE
    try:
        text = data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidRequest(f"{file}:{line}: this is not UTF-8; save it as such") from None
    opening = _OPENING.match(text)
    if opening is None:
        raise InvalidRequest(f"{file}:1: a skill begins with a line `---` and its name and description in YAML; add them")
    closing = _CLOSING.search(text, opening.end())
    if closing is None:
        raise InvalidRequest(f"{file}:1: the front matter has no end; close it with a line `---`")
    fields = Fields(text[opening.end() : closing.start()], file, KEYS)
    skill = _skill(fields, text[closing.end() :].strip(), folder)
    if fields.problems:
        told = sorted(fields.problems)[:MOST_PROBLEMS]
        raise InvalidRequest("; ".join([f"{file}:{line}: {problem}" for line, problem in told]))
    return skill


def _skill(fields: "Fields", body: str, folder: Path) -> Skill:
    name = fields.text("name", 64, required=True)
    if name and not NAME.fullmatch(name):
        fields.fault("name", f"`{name}` cannot name a skill; use lower-case letters and digits, with single hyphens between")
    elif name and name != folder.name:
        fields.fault("name", f"the skill is called `{name}`, its folder `{folder.name}`; give both one name")
    return Skill(
        name=name,
        description=fields.text("description", 1024, required=True),
        body=body,
        path=folder,
        license=fields.text("license", 1024),
        compatibility=fields.text("compatibility", 500),
        metadata=fields.texts("metadata"),
        allowed_tools=fields.patterns("allowed_tools", foreign=True),
        disallowed_tools=fields.patterns("disallowed_tools") or (),
    )
