"""What is looked at before a run begins."""

from datetime import UTC, datetime

import pytest
from msgspec.structs import replace
from tests.policies.autonomy.world import BUDGET, CLIENT, FETCH, FILES, SHELL, SILENT, only, order

from mainspring.core.errors import InvalidRequest
from mainspring.core.spec import Price
from mainspring.features.budgets.budget import AutonomyBudget, AutonomyLimits, EscalationTrigger, StopCondition
from mainspring.features.budgets.preflight import PreflightCheck, require_cleared, run_preflight

SPEC = order()
READY = replace(BUDGET, stop_conditions=(StopCondition("SC-09"),))


def flaws(budget: AutonomyBudget | None, *, now: float = 0.0) -> dict[str, str]:
    checks = run_preflight(SPEC, budget, (SHELL, FILES, FETCH), now)
    return {check.id: check.result for check in checks if check.result != "pass"}


def test_a_good_budget_passes_all_ten() -> None:
    checks = run_preflight(SPEC, READY, SPEC.tools, 0.0)
    assert checks == tuple([PreflightCheck(f"PF-{number:02}") for number in range(1, 11)])
    assert require_cleared(checks) == checks


def test_each_check_finds_its_flaw() -> None:
    assert flaws(None) == {"PF-01": "fail"}
    assert flaws(replace(READY, state="suspended")) == {"PF-02": "fail"}
    expiring = replace(READY, expires_at=datetime.fromtimestamp(100, UTC))
    assert flaws(expiring, now=99) == {}
    assert flaws(expiring, now=100) == {"PF-03": "fail"}
    assert flaws(replace(READY, in_scope=())) == {"PF-04": "fail"}
    shut = AutonomyBudget("b", state="active", in_scope=("x",), stop_conditions=(StopCondition("SC-09"),))
    assert flaws(shut) == {"PF-05": "warn", "PF-06": "warn", "PF-07": "warn"}
    assert flaws(replace(READY, limits=AutonomyLimits(max_iterations=None))) == {"PF-08": "warn"}
    assert flaws(replace(READY, stop_conditions=())) == {"PF-09": "warn"}
    assert flaws(replace(READY, stop_conditions=(StopCondition("SC-01"),))) == {"PF-09": "warn"}
    assert flaws(replace(READY, escalation_triggers=(EscalationTrigger("EF-07"),))) == {"PF-10": "warn"}
    assert flaws(replace(READY, default_escalation_target="")) == {"PF-10": "warn"}


def test_a_money_limit_without_a_price_for_the_model_fails() -> None:
    dear = replace(READY, limits=AutonomyLimits(max_cost=1.0))
    assert flaws(dear) == {"PF-08": "fail"}
    assert flaws(replace(dear, prices={"other-*": Price(1, 1)})) == {"PF-08": "fail"}
    assert flaws(replace(dear, prices={"script*": Price(1, 1)})) == {}


def test_tools_of_the_client_and_those_that_say_nothing_warn_of_nothing() -> None:
    shut = AutonomyBudget("b", state="active", in_scope=("x",), stop_conditions=(StopCondition("SC-09"),))
    assert all(check.result == "pass" for check in run_preflight(SPEC, shut, (CLIENT, SILENT), 0.0))


def test_all_failures_are_told_at_once() -> None:
    with pytest.raises(InvalidRequest, match=r"PF-02: .*; PF-04: .*; PF-08") as caught:
        require_cleared(run_preflight(SPEC, AutonomyBudget("b", limits=only(max_cost=1.0)), (), 0.0))
    assert "PF-09" not in caught.value.message
