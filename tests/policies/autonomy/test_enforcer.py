"""The runtime enforcer: the eight points by the names of the documents, and what it remembers."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.policies.autonomy.world import BUDGET, SHELL, with_limits

from mainspring.core.items import FunctionCall, encode
from mainspring.features.budgets.amounts import Spent
from mainspring.features.budgets.budget import LEVELS, AutonomyBudget, StopCondition
from mainspring.features.budgets.budget_scope import EnforcementContext, read_call
from mainspring.features.budgets.enforce import BudgetDecision, EnforcementResult, RuntimeEnforcer
from mainspring.features.governance.scope_policies import CommandPolicy
from mainspring.ports import Allow
from mainspring.tools.scope import AllowedCommand
from mainspring.tools.shell_reader import read_line

ALLOWED, BLOCKED = EnforcementResult.ALLOWED, EnforcementResult.BLOCKED
WARNED, ESCALATED = EnforcementResult.WARNED, EnforcementResult.ESCALATED


class Enforcer(RuntimeEnforcer):
    """Asks about each of the eight points by itself, and counts what may happen. `decisions` are those that did not allow."""

    def __init__(self, budget: AutonomyBudget, clock: Callable[[], float] = lambda: 0.0) -> None:
        super().__init__(budget)
        self.decisions: list[BudgetDecision] = []
        self._clock, self._began = clock, clock()

    def check(self, **step: Any) -> EnforcementResult:
        decision = self.decide(context := EnforcementContext(self._clock(), **step))
        if decision.outcome is not ALLOWED:
            self.decisions.append(decision)
        if decision.outcome in (ALLOWED, WARNED):
            self.count(context)
        return decision.outcome

    async def check_command(self, command: str) -> EnforcementResult:
        seen = await read_call(FunctionCall("call_1", "shell", encode({"command": command}).decode()), SHELL)
        return self.check(commands=seen.commands, writes=seen.writes, doubts=seen.doubts)

    def check_duration(self) -> EnforcementResult:
        self.measure(Spent(seconds=self._clock() - self._began))
        return self.check()


class Hours:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.requirement("C25", "C26", "C27")
async def test_all_eight_points_answer_and_what_may_happen_is_counted() -> None:
    clock = Hours()
    enforcer = Enforcer(with_limits(max_iterations=2, max_files_modified=2, max_lines_changed=10), clock=clock)
    assert enforcer.check(reads=("src/a.py",)) is ALLOWED
    assert enforcer.check(reads=(".env",)) is BLOCKED
    assert enforcer.check(writes=("src/a.py",), lines=6) is ALLOWED
    assert enforcer.check(writes=("src/a.py",), lines=5) is BLOCKED, "EF-08"
    assert enforcer.check(writes=("src/b.py",), lines=1) is ALLOWED
    assert enforcer.check(writes=("src/c.py",), lines=1) is BLOCKED, "EF-07"
    assert await enforcer.check_command("ls -la && git status") is ALLOWED
    assert await enforcer.check_command("ls; rm -rf /") is BLOCKED
    assert await enforcer.check_command("python3 x.py") is ESCALATED
    assert enforcer.check(hosts=("docs.example",)) is ALLOWED
    assert [enforcer.check(iterations=1) for _ in range(3)] == [ALLOWED, ALLOWED, BLOCKED]
    assert enforcer.check_duration() is ALLOWED
    clock.now += 3600
    assert enforcer.check_duration() is BLOCKED
    assert enforcer.spent == Spent(
        iterations=2,
        seconds=3600,
        files=("src/a.py", "src/b.py"),
        lines=7,
        requests=1,
        commands={"ls": 1, "git (status|log)( .*)?": 1},
    )
    assert [decision.point for decision in enforcer.decisions] == [
        "EF-01", "EF-08", "EF-07", "EF-03", "EF-03", "EF-05", "EF-06",
    ]  # fmt: skip
    assert [decision.point for decision in enforcer.decisions if decision.stops] == ["EF-05", "EF-06"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("ls $(rm x)", BLOCKED),
        ("ls `python3 x.py`", ESCALATED),
        ("ls | xargs rm", ESCALATED),
        ("$CMD", ESCALATED),
        ("ls > src/list.txt", ALLOWED),
        ("ls > /etc/cron.d/x", BLOCKED),
        ("ls > $FILE", ESCALATED),
        ("ls > ~/list", ESCALATED),
        ("LD_PRELOAD=x.so ls", ESCALATED),
        ("for f in a b; do ls $f; done", ALLOWED),
        ("ls 'unclosed", ESCALATED),
        ("make && ls", ALLOWED),
    ],
)
async def test_a_line_of_shell_is_read_to_its_end(command: str, expected: EnforcementResult) -> None:
    assert await Enforcer(BUDGET).check_command(command) is expected


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("cd src && ls | grep x", ALLOWED),
        ("sort -rn -k2,3 names.txt", ALLOWED),
        ("sort -o names.txt names.txt", BLOCKED),
        ("sort -no names.txt names.txt", BLOCKED),
        ("sort --output=names.txt", BLOCKED),
        ("git diff HEAD~1 -- src", ALLOWED),
        ("git commit -m x", BLOCKED),
        ("find . -name x", ALLOWED),
        ("find . -delete", ESCALATED),
        ("python3 x.py", ESCALATED),
        ("ls > list.txt", ALLOWED),
        ("cd /etc && echo x > passwd", ESCALATED),
        ("cd src && echo x > /etc/passwd", BLOCKED),
        ("curl https://docs.example/", BLOCKED),
    ],
)
async def test_level_1_runs_what_only_reads(command: str, expected: EnforcementResult) -> None:
    assert await Enforcer(LEVELS[1]).check_command(command) is expected


@pytest.mark.requirement("C29")
def test_stop_conditions_are_evaluated_and_warnings_kept() -> None:
    conditions = (StopCondition("SC-09", "it keeps failing", "stop"), StopCondition("SC-04", "nothing was verified", "warn"))
    enforcer = Enforcer(replace(BUDGET, stop_conditions=conditions))
    assert enforcer.check() is ALLOWED
    assert enforcer.check(signals=frozenset({"SC-04"})) is WARNED
    assert not any(decision.stops for decision in enforcer.decisions)
    assert enforcer.check(failures=3) is BLOCKED
    assert [(decision.outcome, decision.point) for decision in enforcer.decisions] == [(WARNED, "SC-04"), (BLOCKED, "SC-09")]


@pytest.mark.parametrize(("line", "is_clear"), [("LANG=C sort", True), ("npm_config_x=y sort", False), ("PATH=. sort", False)])
async def test_a_variable_is_judged_alike_by_a_budget_and_by_the_rule_for_commands(line: str, is_clear: bool) -> None:
    budget = Enforcer(replace(BUDGET, allowed_commands=(AllowedCommand("sort"),)))
    assert (await budget.check_command(line) is ALLOWED) == is_clear
    rule = CommandPolicy(("sort",))
    assert (rule.judge_line(line, await read_line(line)) == Allow()) == is_clear


def test_an_encoded_way_up_is_outside_of_a_budget() -> None:
    assert Enforcer(LEVELS[3]).check(reads=("%2e%2e/x",)) is BLOCKED
