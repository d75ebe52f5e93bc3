"""Every enforcement point, and what it says at its edges."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.policies.autonomy.world import BUDGET, only, with_limits

from mainspring.features.budgets.amounts import Spent
from mainspring.features.budgets.budget import (
    LEVELS,
    AutonomyBudget,
    EscalationTrigger,
    FileScope,
    Network,
    StopCondition,
)
from mainspring.features.budgets.budget_scope import EnforcementContext
from mainspring.features.budgets.enforce import MEASURES, BudgetDecision, EnforcementResult, add_step, enforce
from mainspring.tools.scope import AllowedCommand

ALLOWED, BLOCKED = EnforcementResult.ALLOWED, EnforcementResult.BLOCKED
WARNED, ESCALATED = EnforcementResult.WARNED, EnforcementResult.ESCALATED


def said(budget: AutonomyBudget = BUDGET, spent: Spent | None = None, **context: Any) -> BudgetDecision:
    return enforce(budget, spent or Spent(), EnforcementContext(**context))


def answers(budget: AutonomyBudget = BUDGET, spent: Spent | None = None, **context: Any) -> tuple[EnforcementResult, str]:
    decision = said(budget, spent, **context)
    return decision.outcome, decision.point


@pytest.mark.requirement("C26", "C27")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("src/main.py", ALLOWED),
        ("/work/src/main.py", ALLOWED),
        ("./src//main.py", ALLOWED),
        (".", ALLOWED),
        ("/work", ALLOWED),
        ("/etc/passwd", BLOCKED),
        ("/work-evil/x", BLOCKED),
        ("//etc/passwd", BLOCKED),
        ("../etc/passwd", BLOCKED),
        ("src/../../etc/passwd", BLOCKED),
        ("~/.ssh/id_rsa", BLOCKED),
        ("src/\0x", BLOCKED),
        ("", BLOCKED),
        (".env", BLOCKED),
        ("src/.env", BLOCKED),
        ("src/.ENV", BLOCKED),
        (".env/inner", BLOCKED),
        ("secrets/key", BLOCKED),
        ("/work/secrets/key", BLOCKED),
        ("my-secrets/key", ALLOWED),
        ("env", ALLOWED),
    ],
)
def test_ef_01_reads_what_is_listed_and_not_denied(path: str, expected: EnforcementResult) -> None:
    assert said(reads=(path,)).outcome is expected


@pytest.mark.parametrize(
    ("path", "expected"),
    [("src/a.py", ALLOWED), ("src/deep/er/a.py", ALLOWED), ("SRC/a.py", BLOCKED), ("a.py", BLOCKED), ("src/.env", BLOCKED)],
)
def test_ef_02_writes_only_what_is_listed(path: str, expected: EnforcementResult) -> None:
    assert said(writes=(path,)).outcome is expected


@pytest.mark.requirement("D79")
def test_an_empty_list_allows_nothing_and_two_stars_reach_the_top_folder() -> None:
    nothing = replace(BUDGET, files=FileScope(read=(), write=()), allowed_commands=())
    assert answers(nothing, reads=("a",)) == (BLOCKED, "EF-01")
    assert answers(nothing, writes=("a",)) == (BLOCKED, "EF-02")
    assert answers(nothing, commands=(("ls",),)) == (BLOCKED, "EF-03")
    hidden = replace(BUDGET, files=FileScope(deny=("**/.env",)))
    assert answers(hidden, reads=(".env",)) == (BLOCKED, "EF-01")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("ls", "-la"), ALLOWED),
        (("/bin/ls",), ALLOWED),
        (("/tmp/ls",), BLOCKED),
        (("./ls",), BLOCKED),
        (("LS",), BLOCKED),
        (("git", "status"), ALLOWED),
        (("git", "log", "-1"), ALLOWED),
        (("git", "commit"), BLOCKED),
        (("git", "status-x"), BLOCKED),
        (("git", "push"), BLOCKED),
        (("git", "-C", "x", "PUSH"), BLOCKED),
        (("git", None), ESCALATED),
        (("rm", "x"), BLOCKED),
        (("/bin/RM", "x"), BLOCKED),
        (("python3", "x.py"), ESCALATED),
        (("env", "rm"), ESCALATED),
        (("xargs", "ls"), ESCALATED),
        ((None,), ESCALATED),
        (("ls", None), ALLOWED),
        (("curl", "x"), BLOCKED),
    ],
)
def test_ef_03_runs_what_is_listed_asks_where_it_must_and_blocks_the_rest(
    words: tuple[str | None, ...], expected: EnforcementResult
) -> None:
    decision = said(commands=(words,))
    assert decision.outcome is expected
    assert decision.point == ("" if expected is ALLOWED else "EF-03")
    assert not decision.stops


def test_one_bad_command_in_a_line_is_enough() -> None:
    assert said(commands=(("ls",), ("python3", "x.py"), ("rm", "x"))).outcome is BLOCKED
    assert said(commands=(("ls",), ("python3", "x.py"))).outcome is ESCALATED
    assert said(commands=(("ls",),), doubts=("it cannot be parsed",)).outcome is ESCALATED


def test_a_budget_that_lets_everything_run_has_no_doubts() -> None:
    assert said(LEVELS[3], commands=(("rm", None), (None,)), doubts=("who knows",), writes=(None,)).outcome is ALLOWED
    assert said(LEVELS[2], commands=(("ls", "x"), ("env", "rm"))).outcome is ESCALATED
    assert said(LEVELS[2], commands=(("rm", "x"),)).outcome is BLOCKED


def test_calls_of_a_command_are_counted_and_the_one_beyond_is_blocked() -> None:
    log = EnforcementContext(commands=(("git", "log"),))
    spent = add_step(BUDGET, add_step(BUDGET, Spent(), log), log)
    assert spent.commands == {"git (status|log)( .*)?": 2}
    assert answers(spent=spent, commands=log.commands) == (BLOCKED, "EF-03")
    assert said(spent=spent, commands=(("ls",),)).outcome is ALLOWED
    assert said(commands=log.commands * 3).outcome is BLOCKED


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("docs.example", ALLOWED),
        ("api.DOCS.example.", ALLOWED),
        ("notdocs.example", BLOCKED),
        ("docs.example.evil.example", BLOCKED),
        ("bad.docs.example", BLOCKED),
        ("very.bad.docs.example", BLOCKED),
    ],
)
def test_ef_04_speaks_to_listed_domains_and_those_below(host: str, expected: EnforcementResult) -> None:
    assert said(hosts=(host,)).outcome is expected


def test_ef_04_is_shut_when_the_network_is_off_and_after_the_last_request() -> None:
    assert answers(replace(BUDGET, network=Network()), hosts=("docs.example",)) == (BLOCKED, "EF-04")
    assert said(spent=Spent(requests=2), hosts=("docs.example",)).outcome is ALLOWED
    assert answers(spent=Spent(requests=3), hosts=("docs.example",)) == (BLOCKED, "EF-04")
    assert said(LEVELS[2], hosts=("localhost",)).outcome is ALLOWED
    assert said(LEVELS[2], hosts=("docs.example",)).outcome is BLOCKED


@pytest.mark.parametrize(
    ("limit", "spent", "context", "point", "stops"),
    [
        ("max_iterations", Spent(iterations=3), {"iterations": 1}, "EF-05", True),
        ("max_duration_minutes", Spent(seconds=180), {}, "EF-06", True),
        ("max_files_modified", Spent(files=("a", "b", "c")), {"writes": ("src/d",)}, "EF-07", False),
        ("max_lines_changed", Spent(lines=2), {"writes": ("src/d",), "lines": 2}, "EF-08", False),
        ("max_tool_calls", Spent(calls=3), {"calls": 1}, "calls", True),
        ("max_tokens", Spent(tokens=3), {}, "tokens", True),
        ("max_cost", Spent(cost=3.0), {}, "cost", True),
    ],
)
def test_limits_block_what_exceeds_them_and_nothing_before(
    limit: str, spent: Spent, context: dict[str, Any], point: str, stops: bool
) -> None:
    budget = replace(BUDGET, limits=only(**{limit: 3}))
    decision = said(budget, spent, **context)
    assert (decision.outcome, decision.point, decision.stops) == (BLOCKED, point, stops)
    assert said(replace(BUDGET, limits=only(**{limit: 4})), spent, **context).outcome is ALLOWED
    assert said(replace(BUDGET, limits=only()), spent, **context).outcome is ALLOWED


def test_a_file_counts_once_however_it_is_spelled() -> None:
    budget = with_limits(max_files_modified=1)
    spent = add_step(budget, Spent(), EnforcementContext(writes=("src/a", "./src/a", "/work/src//a")))
    assert spent.files == ("src/a",)
    assert said(budget, spent, writes=("src/a",)).outcome is ALLOWED
    assert answers(budget, spent, writes=("src/b",)) == (BLOCKED, "EF-07")


def test_files_of_unknown_name_are_other_files_every_time() -> None:
    once = add_step(BUDGET, Spent(), EnforcementContext(writes=(None,)))
    assert len(add_step(BUDGET, once, EnforcementContext(writes=(None, None))).files) == 3


@pytest.mark.parametrize(
    ("changes", "context"),
    [
        ({"state": "draft"}, {}),
        ({"state": "suspended"}, {}),
        ({"expires_at": datetime.fromtimestamp(100, UTC)}, {"now": 100.0}),
        ({"limits": only(max_cost=1.0)}, {"is_priced": False}),
    ],
)
def test_a_budget_that_does_not_stand_allows_nothing(changes: dict[str, Any], context: dict[str, Any]) -> None:
    decision = said(replace(BUDGET, **changes), calls=1, **context)
    assert (decision.outcome, decision.stops) == (BLOCKED, True)


def test_a_budget_holds_until_the_moment_it_expires() -> None:
    assert said(replace(BUDGET, expires_at=datetime.fromtimestamp(100, UTC)), now=99.9).outcome is ALLOWED


@pytest.mark.requirement("C29")
@pytest.mark.parametrize(
    ("action", "outcome"), [("stop", BLOCKED), ("escalate", ESCALATED), ("warn", WARNED)]
)  # fmt: skip
@pytest.mark.parametrize(
    ("id", "spent", "context"),
    [
        ("SC-05", Spent(iterations=81), {}),
        ("SC-06", Spent(seconds=2881), {}),
        ("SC-07", Spent(files=tuple(map(str, range(40)))), {"writes": ("src/new",)}),
        ("SC-08", Spent(lines=4001), {}),
        ("SC-09", Spent(), {"failures": 3}),
        ("SC-01", Spent(), {"signals": frozenset({"SC-01"})}),
    ],
)
def test_a_stop_condition_that_holds_has_its_consequence(
    id: str, spent: Spent, context: dict[str, Any], action: Any, outcome: EnforcementResult
) -> None:
    budget = replace(BUDGET, stop_conditions=(StopCondition(id, "enough", action, at=0.8),))
    decision = said(budget, spent, **context)
    assert (decision.outcome, decision.point, decision.stops) == (outcome, id, action == "stop")
    assert "enough" in decision.reason
    assert said(budget, calls=1).outcome is ALLOWED


def test_two_failures_in_a_row_are_no_stop_condition_yet() -> None:
    assert said(replace(BUDGET, stop_conditions=(StopCondition("SC-09"),)), failures=2).outcome is ALLOWED


def test_sc_10_stops_the_run_at_a_violation_or_asks_about_it() -> None:
    stops = replace(BUDGET, stop_conditions=(StopCondition("SC-10"),))
    assert said(stops, reads=("/etc/passwd",)).stops
    assert said(stops, commands=(("python3", "x.py"),)).outcome is ESCALATED
    asks = replace(BUDGET, stop_conditions=(StopCondition("SC-10", action="escalate"),))
    assert said(asks, reads=("/etc/passwd",)).outcome is ESCALATED
    assert said(asks, reads=(".env",)).outcome is BLOCKED


def test_a_trigger_has_somebody_asked_about_what_is_not_listed_but_never_about_what_is_denied() -> None:
    budget = replace(BUDGET, escalation_triggers=(EscalationTrigger("EF-04", target="network team", urgency="immediate"),))
    decision = said(budget, hosts=("other.example",))
    assert (decision.outcome, decision.target, decision.urgency) == (ESCALATED, "network team", "immediate")
    assert said(budget, hosts=("bad.docs.example",)).outcome is BLOCKED
    assert said(budget, Spent(requests=3), hosts=("other.example",)).outcome is BLOCKED
    assert said(budget, reads=("/etc/passwd",)).outcome is BLOCKED
    assert said(budget, commands=(("python3", "x"),)).target == "orchestrator"


def test_effects_out_of_sight_are_blocked_asked_about_or_covered() -> None:
    shut = replace(BUDGET, files=FileScope(), allowed_commands=(), network=Network())
    for effect, point in (("write", "EF-02"), ("destructive", "EF-02"), ("execute", "EF-03"), ("network", "EF-04")):
        unseen = frozenset({effect})
        assert answers(shut, unseen=unseen) == (BLOCKED, point)
        assert answers(shut, unseen=unseen, is_declared=False) == (ESCALATED, point)
        assert answers(BUDGET, unseen=unseen) == (ESCALATED, point)
        assert said(LEVELS[3], unseen=unseen).outcome is ALLOWED
    assert said(shut, unseen=frozenset({"read"})).outcome is ALLOWED


def test_all_warnings_are_told_together() -> None:
    conditions = (StopCondition("SC-09", "it keeps failing", "warn"), StopCondition("SC-02", "a new risk", "warn"))
    decision = said(replace(BUDGET, stop_conditions=conditions), failures=5, signals=frozenset({"SC-02"}))
    assert decision.outcome is WARNED
    assert "it keeps failing" in decision.reason
    assert "a new risk" in decision.reason


paths = st.sampled_from(["src/a", "src/b", "src/c", "./src/a", "x", ".env", "../y"])
words = st.sampled_from([("ls",), ("git", "log"), ("git", "status"), ("make",), ("rm", "x"), ("python3", "y"), (None,)])
contexts = st.builds(
    EnforcementContext,
    iterations=st.integers(0, 1),
    calls=st.integers(0, 1),
    reads=st.lists(paths, max_size=2).map(tuple),
    writes=st.lists(paths | st.none(), max_size=3).map(tuple),
    lines=st.integers(0, 9),
    commands=st.lists(words, max_size=3).map(tuple),
    hosts=st.lists(st.sampled_from(["docs.example", "x.docs.example", "evil.example"]), max_size=2).map(tuple),
    failures=st.integers(0, 4),
    signals=st.frozensets(st.sampled_from(["SC-01", "SC-02"])),
)
limits = st.fixed_dictionaries(
    {
        name: st.none() | st.integers(0, 6)
        for name in ("max_iterations", "max_tool_calls", "max_files_modified", "max_lines_changed")
    }
)
conditions = st.lists(
    st.builds(
        StopCondition,
        st.sampled_from(["SC-01", "SC-05", "SC-07", "SC-08", "SC-09", "SC-10"]),
        action=st.sampled_from(["stop", "escalate", "warn"]),
        at=st.sampled_from([0.5, 1.0]),
    ),
    max_size=3,
).map(tuple)


def within(budget: AutonomyBudget, spent: Spent) -> bool:
    most = budget.amounts
    amounts = [
        (getattr(most, measure.name), getattr(spent.amounts, measure.name)) for measure in MEASURES if not measure.is_stock
    ]
    amounts += [(limit, spent.commands.get(command, 0)) for command, limit in most.commands.items()]
    return all(limit is None or used <= limit for limit, used in amounts)


@given(limits, conditions, st.lists(contexts, max_size=12))
def test_no_row_of_steps_that_may_happen_exceeds_a_limit(
    given_limits: dict[str, int | None], given_conditions: tuple[StopCondition, ...], steps: list[EnforcementContext]
) -> None:
    budget = replace(with_limits(BUDGET, **given_limits), stop_conditions=given_conditions)
    spent = Spent()
    for step in steps:
        decision = enforce(budget, spent, step)
        then = add_step(budget, spent, step)
        # An escalated step happens if a person agrees, and no person can lift a limit.
        if decision.outcome is not BLOCKED:
            spent = then
        assert within(budget, spent)
        assert (decision.reason == "") == (decision.outcome is ALLOWED)


@given(contexts, st.sampled_from(range(4)))
def test_what_a_lower_level_allows_no_higher_level_denies_for_its_scope(step: EnforcementContext, level: int) -> None:
    quiet = replace(step, iterations=0, calls=0, lines=0, writes=(), failures=0, signals=frozenset())
    if level < 3 and enforce(LEVELS[level], Spent(), quiet).outcome is ALLOWED:
        assert enforce(LEVELS[level + 1], Spent(), quiet).outcome is ALLOWED


def test_a_rule_for_everything_must_come_first_to_cover_everything() -> None:
    counted = (AllowedCommand("ls", max_calls=1), AllowedCommand("*"))
    budget = replace(BUDGET, denied_commands=(), require_approval_commands=(), allowed_commands=counted)
    assert said(budget, commands=(("ls",), ("ls",))).outcome is BLOCKED
    assert said(budget, commands=(("make",), ("make",))).outcome is ALLOWED
