"""Skills as the model reads them: a line for each that there is (L0), and the full text of one that is active (L1)."""

from collections.abc import Callable, Iterable, Mapping
from html import escape

from msgspec.structs import replace

from mainspring.core.spec import RunSpec
from mainspring.features.skills.skill_definition import Skill
from mainspring.features.skills.skill_scope import LOAD
from mainspring.ports import OrderContext, OrderStep


def build_skill_metadata_block(skills: Iterable[Skill]) -> str:
    """One line for each skill, empty if there are none."""
    lines = [f"- {skill.name}: {escape(' '.join(skill.description.split()), quote=False)}" for skill in skills]
    if not lines:
        return ""
    how = "Before you do what one of these skills is for, call `load_skill` with its name and follow what it says."
    return "\n".join(["<skills>", how, *lines, "</skills>"])


def build_skill_instructions_block(skill: Skill) -> str:
    """The skill's instructions, below what it does to the tools."""
    lines = [f'<skill name="{skill.name}">']
    if skill.allowed_tools is not None:
        lines.append(f"While this skill is active, only these tools may be called: {', '.join(skill.allowed_tools) or 'none'}.")
    if skill.disallowed_tools:
        lines.append(f"While this skill is active, these tools may not be called: {', '.join(skill.disallowed_tools)}.")
    return "\n".join([*lines, skill.body, "</skill>"])


class SkillListStep(OrderStep):
    """Adds the list of skills to the instructions of an order; its client is not told."""

    name = "skills"
    runs_in_place = True

    def __init__(self, skills: Callable[[], Mapping[str, Skill]]) -> None:
        self._skills = skills

    async def prepare(self, order: RunSpec, context: OrderContext) -> RunSpec:
        if order.tool(LOAD) is None or order.agent:
            return order  # an agent has been told of its own
        block = build_skill_metadata_block(self._skills().values())
        told = block if order.instructions is None else f"{order.instructions}\n\n{block}"
        return replace(order, instructions=told, echo={**order.echo, "instructions": order.instructions})
