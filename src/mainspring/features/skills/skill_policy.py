"""Do the skills that are active in the run leave this tool?"""

from collections.abc import Callable, Sequence

from mainspring.core.run import Call, Run
from mainspring.ports import Allow, Deny, Verdict
from mainspring.tools.declarations import list_other_names, parsed_arguments, read_operation


class SkillScope:
    """Denies what an active skill refuses. `refusal` is told the run, the tool's names, the model's first, and the operation, and
    says why, or None.

    The operation is empty for a tool that has none, and None if the call does not tell. It holds for the client's tools as well.
    """

    name = "skill_scope"
    never_waits = True

    def __init__(self, refusal: Callable[[Run, Sequence[str], str | None], str | None]) -> None:
        self._refusal = refusal

    async def judge(self, call: Call, run: Run) -> Verdict:
        tool = run.spec.tool(call.item.name)
        if tool is None:
            return Deny(f"There is no tool `{call.item.name}`.")
        try:
            operation = read_operation(tool, parsed_arguments(call.item.arguments))
        except ValueError:
            operation = None
        why = self._refusal(run, (tool.name, *list_other_names(tool)), operation)
        return Allow() if why is None else Deny(f"`{tool.name}` is not for this task: {why}.")
