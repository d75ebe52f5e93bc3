"""Which skills are active in a run, read off its transcript: those it began with, and those that `load_skill` has loaded.

There is no other state, so a resumed, replayed or continued run has the skills it had. Whoever writes a call into the transcript
that was never made gains nothing: a skill can only narrow.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from mainspring.core.items import FunctionCall, FunctionCallOutput, parse_arguments
from mainspring.core.run import Run
from mainspring.features.skills.skill_definition import Skill
from mainspring.features.skills.skill_scope import refusal

LOAD = "load_skill"
READ = "read_skill_file"


def active_skills(run: Run, always: Iterable[str] = ()) -> tuple[str, ...]:
    """The names of the active skills: `always`, then those loaded in this conversation, each once, in order."""
    names = dict.fromkeys(always)
    calls: dict[str, FunctionCall] = {}
    for entry in run.transcript:
        item = entry.item
        if isinstance(item, FunctionCall):
            if item.name == LOAD:
                calls[item.call_id] = item
        elif isinstance(item, FunctionCallOutput) and item.call_id in calls:
            call = calls.pop(item.call_id)
            if item.is_error is not True:
                names[_loaded(call)] = None
    return tuple(names)


def _loaded(call: FunctionCall) -> str:
    try:
        return str(parse_arguments(call.arguments).get("name", ""))
    except ValueError:
        return ""


def _no_skills(run: Run) -> tuple[str, ...]:
    return ()


class ActiveSkills:
    """Says what a run's active skills refuse. `skills` gives those there are, `always` names those a run begins with."""

    def __init__(self, skills: Callable[[], Mapping[str, Skill]], always: Callable[[Run], Iterable[str]] = _no_skills) -> None:
        self._skills = skills
        self._always = always

    def refusal(self, run: Run, tool: Sequence[str], operation: str | None) -> str | None:
        """Why this call of a tool with these names is refused, None if it is not. A skill that is active but not known any more
        refuses all.

        The two tools of skills themselves need not be allowed: they only read, and what they load can only narrow.
        """
        names, known = active_skills(run, self._always(run)), self._skills()
        if (gone := next((name for name in names if name not in known), None)) is not None:
            return f"the skill `{gone}` is active, but what it allows is not known any more; begin a new conversation"
        active = [known[name] for name in names]
        if tool[0] in (LOAD, READ):
            active = [replace(skill, allowed_tools=None) for skill in active]
        return refusal(active, tool[0], operation, tool[1:])
