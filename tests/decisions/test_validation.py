"""Fixtures: messages whose decision is known beforehand."""

from pathlib import Path

import pytest
from tests.decisions.world import World, answer, on, world

from mainspring.core.errors import InvalidRequest
from mainspring.providers.scripted import call
from mainspring_tasks.decision_engine import RecordedDecision
from mainspring_tasks.decision_types import DecisionContext
from mainspring_tasks.validation import Fixture, load_fixtures, run_validation

FIXTURES = """
fixtures:
  - test_id: greets
    input: Hello!
    expected_intent: GENERAL_CHAT
    expected_tool: none
    expected_outcome: "SUCCESS:"
  - test_id: deletes
    input: delete buy milk
    tasks: [Buy milk]
    expected_intent: DELETE_TASK
    expected_tool: delete_task
    expected_outcome: AMBIGUITY
  - test_id: lists
    input: what is left?
    expected_tool: list_tasks
"""


def decider(w: World) -> object:
    async def decide(fixture: Fixture) -> RecordedDecision:
        await w.add(*fixture.tasks, user=fixture.test_id)
        return await w.agent.decide(DecisionContext(fixture.test_id, fixture.input, fixture.test_id))

    return decide


async def test_fixtures_are_decided_and_compared(tmp_path: Path) -> None:
    (tmp_path / "fixtures.yaml").write_text(FIXTURES)
    fixtures = load_fixtures(tmp_path / "fixtures.yaml")
    cues = (answer("Hello!"), call("list_tasks"), on("delete_task", "Buy milk"), answer("Nothing.", "GENERAL_CHAT"))
    async with world(tmp_path, *cues) as w:
        report = await run_validation(fixtures, decider(w))  # type: ignore[arg-type]
    assert (report.passed, report.failed, report.drift_detected) == (2, 1, None)
    assert [(result.test_id, result.problems) for result in report.results if result.problems] == [
        ("lists", ("tool is none, not list_tasks",))
    ]


async def test_a_hundred_fixtures_are_decided(tmp_path: Path) -> None:
    fixtures = [Fixture(f"t{number}", "Hello!", "GENERAL_CHAT", "none", "SUCCESS:RESPONSE_GIVEN") for number in range(100)]
    async with world(tmp_path, *[answer("Hi!") for _ in range(100)]) as w:
        report = await run_validation(fixtures, decider(w))  # type: ignore[arg-type]
    assert (report.passed, report.failed) == (100, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("- {test_id: a}", "f.yaml:1: `input` is missing"),
        ("- {test_id: a, input: x, expected_intent: BUY}", "'BUY' is not a valid IntentType"),
        ("- {test_id: a, input: x, expected_tool: shell}", "expected_tool must be `none` or one of"),
        ("- {test_id: a, input: x, expected_outcome: FINE}", "no outcome begins with `FINE`"),
        ("- {test_id: a, input: x, wanted: 1}", "f.yaml:1: unknown key `wanted`"),
        ("- {test_id: a, input: x}\n- {test_id: a, input: y}", "two fixtures are called `a`"),
        ("- {test_id: a, input: x}\n- test_id: b\n  input: x\n  input: y", "f.yaml:4: `input` is there twice"),
        ("tests: []", "have one under `fixtures`"),
        ("[]", "at least one"),
        ("- {test_id: a, input: '  '}", "an input of 1 to 4000 characters"),
        (f"- {{test_id: a, input: {'x' * 4001}}}", "an input of 1 to 4000 characters"),
        ("[", "this is not YAML"),
    ],
)
def test_a_file_that_is_not_right_says_where(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        load_fixtures(tmp_path / "f.yaml")
    assert why in refused.value.message
