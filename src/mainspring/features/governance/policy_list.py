"""The questions of governance in their order, each asked only if it is configured."""

from collections.abc import Callable

from mainspring.core.run import Run
from mainspring.features.governance.command_policy import Commands
from mainspring.features.governance.domains import Domains
from mainspring.features.governance.level import AutonomyLevel, Level
from mainspring.features.governance.paths import Paths
from mainspring.features.governance.patterns import Rules, ToolRules
from mainspring.features.governance.rate import Rate
from mainspring.features.governance.tool_status import ToolStatus
from mainspring.features.skills.skill_policy import SkillScope
from mainspring.ports import CallPolicy


def governance(
    *,
    rules: Rules | None = None,
    status: Callable[[str], str] | None = None,
    skills: SkillScope | None = None,
    rate: Rate | None = None,
    level: Callable[[Run], Level] | None = None,
    network_reads: bool = False,
    logs_only: bool = False,
    commands: Commands | None = None,
    paths: Paths | None = None,
    domains: Domains | None = None,
) -> tuple[CallPolicy, ...]:
    """The policies for these settings, as `standard_policies` takes them."""
    judged = commands is not None
    asked: tuple[CallPolicy | None, ...] = (
        None if rules is None else ToolRules(rules),
        None if status is None else ToolStatus(status),
        skills,
        rate,
        None if level is None else AutonomyLevel(level, network_reads=network_reads, commands_judged=judged, logs_only=logs_only),
        commands,
        paths,
        domains,
    )
    return tuple([policy for policy in asked if policy is not None])
