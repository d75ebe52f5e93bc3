"""Which tools the active skills leave: those that every one of them allows and none disallows.

Skills only narrow. Two that allow different tools leave none; they never leave all.

A pattern is `tool`, `tool:operation` or `tool:*`; in the tool's name, `*` and `?` stand for any text and any character. What is
allowed must be spelled exactly so; what is disallowed is recognised in any case and form.
"""

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache

from msgspec import Struct

from mainspring.features.skills.skill_definition import Skill


class ToolScope(Struct, frozen=True):
    """The tools that are left, and why each of the others is not."""

    names: tuple[str, ...]
    refused: dict[str, str] = {}


def resolve_tool_context(active_skills: Iterable[Skill], tool_names: Iterable[str]) -> ToolScope:
    """What of these tools is left, in their order. A tool stays if any operation of it is left; `refusal` judges each."""
    skills, names = tuple(active_skills), tuple(dict.fromkeys(tool_names))
    refused = {name: why for name in names if (why := _refusal_of_all(skills, name)) is not None}
    return ToolScope(tuple([name for name in names if name not in refused]), refused)


def refusal(active_skills: Iterable[Skill], tool: str, operation: str | None = "", others: Sequence[str] = ()) -> str | None:
    """Why a skill refuses this call, None if none does. The operation is empty for a tool that has none, and None if it is not
    known: then what is said of one operation allows nothing and disallows all. By its `others`, names that it has besides, a tool
    is disallowed, and not allowed."""
    names, plain = (tool, *others), None if operation is None else _plain(operation)
    for skill in active_skills:
        for pattern in skill.disallowed_tools:
            if any(_fits(_plain(pattern), _plain(name), plain, unknown=True) for name in names):
                return f"the skill `{skill.name}` disallows `{pattern}`"
        allowed = skill.allowed_tools
        if allowed is not None and not any(_fits(pattern, tool, operation, unknown=False) for pattern in allowed):
            return f"the skill `{skill.name}` allows only: {', '.join(allowed) or 'no tool'}"
    return None


def _refusal_of_all(skills: tuple[Skill, ...], tool: str) -> str | None:
    """Why nothing of this tool is left, None if something is. Only operations that are named can be left where others are not."""
    why = refusal(skills, tool)
    named = {pattern.partition(":")[2] for skill in skills for pattern in skill.allowed_tools or ()}
    return None if why is None or any(refusal(skills, tool, each) is None for each in sorted(named - {"*"})) else why


def _fits(pattern: str, tool: str, operation: str | None, *, unknown: bool) -> bool:
    named, _, operated = pattern.partition(":")
    if _expression(named).fullmatch(tool) is None:
        return False
    return operated in ("", "*") or (unknown if operation is None else operated == operation)


@lru_cache(maxsize=1024)
def _expression(pattern: str) -> re.Pattern[str]:
    signs = {"*": ".*", "?": "."}
    return re.compile("".join([signs.get(sign) or re.escape(sign) for sign in pattern]), re.DOTALL)


@lru_cache(maxsize=1024)
def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold().strip()
