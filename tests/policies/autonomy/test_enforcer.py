"""The runtime enforcer: the eight points by the names of the documents, and what it remembers."""

import pytest
from msgspec.structs import replace
from tests.policies.autonomy.world import BUDGET, with_limits

from mainspring.features.budgets.amounts import Spent
from mainspring.features.budgets.budget import LEVELS, StopCondition
from mainspring.features.budgets.enforce import EnforcementResult, RuntimeEnforcer
from mainspring.features.governance.scope_policies import CommandPolicy, CommandRules
from mainspring.ports import Allow
from mainspring.tools.scope import AllowedCommand
from mainspring.tools.shell_reader import read_line

ALLOWED, BLOCKED = EnforcementResult.ALLOWED, EnforcementResult.BLOCKED
WARNED, ESCALATED = EnforcementResult.WARNED, EnforcementResult.ESCALATED


class Hours:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.requirement("C25", "C26", "C27")
async def test_all_eight_points_answer_and_what_may_happen_is_counted() -> None:
    clock = Hours()
    enforcer = RuntimeEnforcer(with_limits(max_iterations=2, max_files_modified=2, max_lines_changed=10), clock=clock)
    assert enforcer.check_file_read("src/a.py") is ALLOWED
    assert enforcer.check_file_read(".env") is BLOCKED
    assert enforcer.check_file_write("src/a.py", 6) is ALLOWED
    assert enforcer.check_file_write("src/a.py", 5) is BLOCKED, "EF-08"
    assert enforcer.check_file_write("src/b.py", 1) is ALLOWED
    assert enforcer.check_file_write("src/c.py", 1) is BLOCKED, "EF-07"
    assert await enforcer.check_command("ls -la && git status") is ALLOWED
    assert await enforcer.check_command("ls; rm -rf /") is BLOCKED
    assert await enforcer.check_command("python3 x.py") is ESCALATED
    assert enforcer.check_network("docs.example") is ALLOWED
    assert [enforcer.record_iteration() for _ in range(3)] == [ALLOWED, ALLOWED, BLOCKED]
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
    assert enforcer.stopped is not None
    assert enforcer.stopped.point == "EF-05"


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
    assert await RuntimeEnforcer(BUDGET).check_command(command) is expected


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
    assert await RuntimeEnforcer(LEVELS[1]).check_command(command) is expected


@pytest.mark.requirement("C29")
def test_stop_conditions_are_evaluated_and_warnings_kept() -> None:
    conditions = (StopCondition("SC-09", "it keeps failing", "stop"), StopCondition("SC-04", "nothing was verified", "warn"))
    enforcer = RuntimeEnforcer(replace(BUDGET, stop_conditions=conditions))
    assert enforcer.evaluate_stop_conditions() is ALLOWED
    assert enforcer.evaluate_stop_conditions(signals=frozenset({"SC-04"})) is WARNED
    assert enforcer.stopped is None
    assert enforcer.evaluate_stop_conditions(failures=3) is BLOCKED
    assert [(decision.outcome, decision.point) for decision in enforcer.decisions] == [(WARNED, "SC-04"), (BLOCKED, "SC-09")]


@pytest.mark.parametrize(("line", "is_clear"), [("LANG=C sort", True), ("npm_config_x=y sort", False), ("PATH=. sort", False)])
async def test_a_variable_is_judged_alike_by_a_budget_and_by_the_rule_for_commands(line: str, is_clear: bool) -> None:
    budget = RuntimeEnforcer(replace(BUDGET, allowed_commands=(AllowedCommand("sort"),)))
    assert (await budget.check_command(line) is ALLOWED) == is_clear
    rule = CommandPolicy(CommandRules(("sort",)))
    assert (rule.judge_line(line, await read_line(line)) == Allow()) == is_clear


def test_an_encoded_way_up_is_outside_of_a_budget() -> None:
    assert RuntimeEnforcer(LEVELS[3]).check_file_read("%2e%2e/x") is BLOCKED
