"""Judges calls by what the agent is defined to do.

The order for a run carries the charters of its agent and of the agents that have delegated to it, so a call gets the same
verdict whether the run is waited for, streamed, in the background, or resumed. A charter only narrows: the strictest verdict
stands, and no charter lifts another policy.
"""

import re
from functools import lru_cache

from msgspec import Struct

from mainspring.core.run import Call, Run
from mainspring.core.spec import Charter
from mainspring.engine.policy_order import pick_strictest_verdict
from mainspring.features.budgets.budget import AutonomyBudget, FileScope, Network
from mainspring.features.budgets.budget_scope import find_objections, read_call
from mainspring.features.governance.limit_policies import LevelPolicy
from mainspring.features.governance.rule_policy import RulePolicy, Rules
from mainspring.ports import Ask, Deny, Verdict
from mainspring.tools.declarations import find_served_tool
from mainspring.tools.scope import AllowedCommand


class CharterPolicy:
    """Judges calls by the charters of the run; allows all calls of a run without one."""

    name = "agent"
    # The parser of commands has its own time limit, and nothing else is waited for.
    never_waits = True

    async def judge(self, call: Call, run: Run) -> Verdict:
        verdicts = [verdict for charter in run.spec.charters for verdict in await self._judge_charter(charter, call, run)]
        return pick_strictest_verdict(verdicts)

    async def _judge_charter(self, charter: Charter, call: Call, run: Run) -> list[Verdict]:
        bound = _compile_charter(charter)
        verdicts = [await bound.rules.judge(call, run), await bound.level.judge(call, run)]
        if (tool := find_served_tool(call, run)) is not None:
            context = await read_call(call.item, tool)
            for found in find_objections(bound.scope, context):
                told = f"The agent `{charter.agent}` may not do this ({found.point}): {found.why}."
                verdicts.append(Ask(told) if found.severity == "unclear" else Deny(told))
        return verdicts


class _CompiledCharter(Struct, frozen=True):
    """A charter as policies."""

    rules: RulePolicy
    level: LevelPolicy
    scope: AutonomyBudget


@lru_cache(maxsize=256)
def _compile_charter(charter: Charter) -> _CompiledCharter:
    judged, fetches = charter.commands is not None, bool(charter.domains)
    return _CompiledCharter(
        RulePolicy(Rules.of(dict(charter.rules))),
        LevelPolicy(charter.level, network_reads=fetches, commands_judged=judged),
        _make_scope(charter),
    )


def _make_scope(charter: Charter) -> AutonomyBudget:
    """The scope of the charter as a budget without limits."""
    everywhere = ("**", "/**")
    paths = everywhere if charter.files is None else tuple([path for each in charter.files for path in _expand_path(each)])
    network = Network(enabled=True) if charter.domains is None else Network(bool(charter.domains), charter.domains)
    commands = ("*",) if charter.commands is None else charter.commands
    return AutonomyBudget(
        f"agent-{charter.agent}",
        state="active",
        files=FileScope(read=paths, write=paths, root=charter.root),
        allowed_commands=tuple([_make_command(command) for command in commands]),
        network=network,
    )


def _expand_path(path: str) -> tuple[str, ...]:
    """A path without wildcards stands for itself and all below it."""
    plain = path.removeprefix("./").rstrip("/") or "."
    if plain == ".":
        return ("**",)
    return (path,) if "*" in path or "?" in path else (plain, f"{plain}/**")


def _make_command(command: str) -> AllowedCommand:
    """A program, or a program and its first words."""
    name, *words = command.split()
    return AllowedCommand(name, re.escape(" ".join(words)) + "(?: .*)?" if words else None)
