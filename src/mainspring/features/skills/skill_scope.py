"""What active skills leave a run: only tools that every one of them allows and none disallows.

Which skills are active is read off the transcript: those the run began with, and those that `load_skill` has loaded. There is no
other state, so a resumed, replayed or continued run has the skills it had. Whoever writes a call into the transcript that was
never made gains nothing: a skill can only narrow. Two that allow different tools leave none; they never leave all.

A pattern is `tool`, `tool:operation` or `tool:*`; in the tool's name, `*` and `?` stand for any text and any character. What is
allowed must be spelled exactly so; what is disallowed is recognised in any case and form.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from mainspring.core.items import FunctionCall, FunctionCallOutput, parse_arguments
from mainspring.core.run import Call, Run
from mainspring.features.skills.skill_definition import Skill
from mainspring.ports import Allow, Deny, QuickPolicy, Verdict
from mainspring.tools.declarations import NamedCall, compile_pattern, fold_name, name_call

LOAD = "load_skill"
READ = "read_skill_file"


def list_active_skills(run: Run, always: Iterable[str] = ()) -> tuple[str, ...]:
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
                names[_read_name(call)] = None
    return tuple(names)


def _read_name(call: FunctionCall) -> str:
    try:
        return str(parse_arguments(call.arguments).get("name", ""))
    except ValueError:
        return ""


def _no_skills(run: Run) -> tuple[str, ...]:
    return ()


class SkillScopePolicy(QuickPolicy):
    """Denies what an active skill refuses, to the client's tools as well. `skills` gives those there are, `always` names those
    that a run begins with. A skill that is active but not known any more refuses all.
    """

    name = "skill_scope"

    def __init__(self, skills: Callable[[], Mapping[str, Skill]], always: Callable[[Run], Iterable[str]] = _no_skills) -> None:
        self._skills = skills
        self._always = always

    async def judge(self, call: Call, run: Run) -> Verdict:
        if (named := name_call(call, run)) is None:
            return Deny(f"There is no tool `{call.item.name}`.")
        why = self._find_refusal(run, named)
        return Allow() if why is None else Deny(f"`{named.names[0]}` is not for this task: {why}.")

    def _find_refusal(self, run: Run, call: NamedCall) -> str | None:
        names, known = list_active_skills(run, self._always(run)), self._skills()
        if (gone := next((name for name in names if name not in known), None)) is not None:
            return f"the skill `{gone}` is active, but what it allows is not known any more; begin a new conversation"
        active, (tool, *others) = [known[name] for name in names], call.names
        if tool in (LOAD, READ):
            # These two need not be allowed: they only read, and what they load can only narrow.
            active = [replace(skill, allowed_tools=None) for skill in active]
        return find_refusal(active, tool, call.operation, others)


def find_refusal(active_skills: Iterable[Skill], tool: str, operation: str | None = "", others: Sequence[str] = ()) -> str | None:
    """Why a skill refuses this call, None if none does. The operation is empty for a tool that has none, and None if it is not
    known: then what is said of one operation allows nothing and disallows all. By its `others`, names that it has besides, a tool
    is disallowed, and not allowed."""
    names, plain = (tool, *others), None if operation is None else fold_name(operation)
    for skill in active_skills:
        for pattern in skill.disallowed_tools:
            if any(_fits(fold_name(pattern), fold_name(name), plain, unknown=True) for name in names):
                return f"the skill `{skill.name}` disallows `{pattern}`"
        allowed = skill.allowed_tools
        if allowed is not None and not any(_fits(pattern, tool, operation, unknown=False) for pattern in allowed):
            return f"the skill `{skill.name}` allows only: {', '.join(allowed) or 'no tool'}"
    return None


def _fits(pattern: str, tool: str, operation: str | None, *, unknown: bool) -> bool:
    named, _, operated = pattern.partition(":")
    if compile_pattern(named).fullmatch(tool) is None:
        return False
    return operated in ("", "*") or (unknown if operation is None else operated == operation)
