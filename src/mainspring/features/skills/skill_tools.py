"""The two tools by which a model takes up skills: `load_skill` for the instructions (L1), `read_skill_file` for the rest (L2).

Both only read, and only what lies in a skill's folder. Long texts come in pages, so that a run's limit on outputs cuts none off.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from anyio import to_thread

from mainspring.core.errors import CallerError, InvalidRequest, NotFound
from mainspring.core.items import Json, ToolDefinition, ToolKind
from mainspring.features.skills.skill_definition import FILE, PLACE, Skill
from mainspring.features.skills.skill_prompt import build_skill_instructions_block
from mainspring.features.skills.skill_scope import LOAD, READ
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.tools.safe_read import read_beneath

MOST_BYTES: Final = 1024 * 1024
PAGE: Final = 12_000
MOST_LISTED: Final = 200


class SkillTools:
    """Performs both tools, for the skills that there are when they are called."""

    kind: ToolKind = "builtin"

    def __init__(self, skills: Callable[[], Mapping[str, Skill]]) -> None:
        self._skills = skills
        self._for_all: tuple[Mapping[str, Skill], tuple[ToolDefinition, ...]] = ({}, ())

    def definitions(self, names: Iterable[str] | None = None) -> tuple[ToolDefinition, ...]:
        """The tools as a run is given them: for these skills alone, or for all; none if there are no skills.

        Arguments are held to this before a call is made, so a run reaches no other skill.
        """
        known = self._skills()
        if names is not None:
            return _definitions(sorted(set(names) & set(known)))
        if self._for_all[0] is not known:
            self._for_all = (known, _definitions(sorted(known)))
        return self._for_all[1]

    def can_execute(self, tool: ToolDefinition) -> bool:
        return tool.kind == self.kind and tool.name in (LOAD, READ)

    async def execute(self, call: ToolCall, context: CallContext) -> ToolResult:
        try:
            output = await to_thread.run_sync(self._perform, call.name, call.parsed)
        except CallerError as error:
            return ToolResult(call.id, error.message, is_error=True)
        return ToolResult(call.id, output)

    def _perform(self, tool: str, arguments: Json) -> str:
        skills = self._skills()
        skill = skills.get(arguments["name"])
        if skill is None:
            raise NotFound(f"there is no skill `{arguments['name']}`; there are: {', '.join(sorted(skills)) or 'none'}")
        text = _instructions(skill) if tool == LOAD else _text(skill, arguments["path"])
        return _page(text, int(arguments.get("offset", 0)))


def _definitions(offered: list[str]) -> tuple[ToolDefinition, ...]:
    name = {"type": "string", "enum": offered, "description": "The name of the skill."}
    path = {"type": "string", "description": "The path of the file, as the skill gives it."}
    offset = {"type": "integer", "minimum": 0, "default": 0, "description": "The character to begin with, to read on."}
    told = "Loads a skill: its instructions, and which files it has. Its instructions hold from then on."
    load = _definition(LOAD, told, {"name": name, "offset": offset}, ["name"])
    more = _definition(READ, "Reads a file of a skill.", {"name": name, "path": path, "offset": offset}, ["name", "path"])
    return (load, more) if offered else ()


def _definition(name: str, description: str, properties: Json, required: list[str]) -> ToolDefinition:
    schema = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    return ToolDefinition(name, description, schema, kind="builtin", repeatable=True, effects=("read",))


def _instructions(skill: Skill) -> str:
    block = build_skill_instructions_block(skill)
    files = [path for path in list_files(skill.path) if path != FILE]
    return "\n".join([block, f"Files, for `{READ}`:", *files]) if files else block


def _text(skill: Skill, path: str) -> str:
    data = read_beneath(skill.path, path, MOST_BYTES, PLACE)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise InvalidRequest(f"`{path}` is binary, {len(data)} bytes; only text can be read")
    return text


def _page(text: str, offset: int) -> str:
    left = len(text) - offset - PAGE
    page = text[offset : offset + PAGE]
    return f"{page}\n[{left} characters more: read on with offset {offset + PAGE}]" if left > 0 else page


def list_files(folder: Path, most: int = MOST_LISTED) -> tuple[str, ...]:
    """The paths of the regular files, at most so many. Links, special files and hidden names are left out."""
    paths: list[str] = []
    for place, folders, names, descriptor in os.fwalk(folder):
        folders[:] = sorted([name for name in folders if not name.startswith(".")])
        for name in sorted(names):
            if len(paths) == most:
                return tuple(paths)
            if not name.startswith(".") and _is_regular(name, descriptor):
                paths.append(os.path.relpath(os.path.join(place, name), folder))
    return tuple(paths)


def _is_regular(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except OSError:
        return False
