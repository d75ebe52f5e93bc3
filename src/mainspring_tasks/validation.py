"""Validation: messages whose decision is known, put to an agent, and what it made of them."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import Node, ParsedFile
from mainspring.definitions.reader import parse_yaml, read_text
from mainspring_tasks.decision_engine import RecordedDecision
from mainspring_tasks.decision_types import ALLOWED_TOOLS, MAX_MESSAGE_LENGTH, IntentType, Outcome


class Fixture(Struct, frozen=True, forbid_unknown_fields=True):
    """What is said, and what is expected of it; what is not named does not matter. `tasks` are on the list beforehand.

    `expected_tool` is the last tool that is called, or `none`; `expected_outcome` an outcome or its beginning.
    """

    test_id: str
    input: str
    expected_intent: str | None = None
    expected_tool: str | None = None
    expected_outcome: str | None = None
    tasks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.test_id.strip() or not 0 < len(self.input.strip()) <= MAX_MESSAGE_LENGTH:
            raise ValueError(f"a fixture needs a test_id, and an input of 1 to {MAX_MESSAGE_LENGTH} characters")
        if self.expected_intent is not None:
            IntentType(self.expected_intent)
        if self.expected_tool not in (None, "none", *ALLOWED_TOOLS):
            raise ValueError(f"expected_tool must be `none` or one of {', '.join(sorted(ALLOWED_TOOLS))}")
        if self.expected_outcome is not None and not any(outcome.startswith(self.expected_outcome) for outcome in Outcome):
            raise ValueError(f"no outcome begins with `{self.expected_outcome}`")


class TestResult(Struct, frozen=True):
    """How one fixture went: what was wrong, empty if nothing was."""

    __test__ = False

    test_id: str
    problems: tuple[str, ...]

    @property
    def is_passed(self) -> bool:
        return not self.problems


class ValidationReport(Struct, frozen=True):
    results: tuple[TestResult, ...]
    drift_detected: bool | None = None

    @property
    def passed(self) -> int:
        return sum([result.is_passed for result in self.results])

    @property
    def failed(self) -> int:
        return len(self.results) - self.passed


def load_fixtures(path: Path) -> tuple[Fixture, ...]:
    """The fixtures of a YAML file: a list, or the list under `fixtures`. Raises `InvalidRequest` for what is wrong with it."""
    parsed = parse_yaml(path, read_text(path))
    if isinstance(parsed.root.value, dict):
        listed = parsed.root.value.get("fixtures", Node([]))
        parsed = ParsedFile(path, listed, parsed.problems)
    fixtures = parsed.convert(tuple[Fixture, ...])
    if fixtures == ():
        parsed.add_problem((), "it must be a list, or have one under `fixtures`, with at least one of them")
    parsed.raise_problems()
    assert fixtures is not None
    ids = [fixture.test_id for fixture in fixtures]
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise InvalidRequest(f"{path}: two fixtures are called `{twice[0]}`", param="fixtures")
    return fixtures


async def run_validation(
    fixtures: Sequence[Fixture], decide: Callable[[Fixture], Awaitable[RecordedDecision]]
) -> ValidationReport:
    """Has every fixture decided, one after the other."""
    results = [TestResult(fixture.test_id, _problems(fixture, await decide(fixture))) for fixture in fixtures]
    return ValidationReport(tuple(results))


def _problems(fixture: Fixture, made: RecordedDecision) -> tuple[str, ...]:
    decided = made.report
    called = [call.name for call in decided.calls if call.was_performed]
    if decided.decision.pending_action is not None:
        called.append("delete_task")
    intent = None if decided.intent is None else decided.intent.intent_type.value
    tool = called[-1] if called else "none"
    problems = []
    if fixture.expected_intent not in (None, intent):
        problems.append(f"intent is {intent}, not {fixture.expected_intent}")
    if fixture.expected_tool not in (None, tool):
        problems.append(f"tool is {tool}, not {fixture.expected_tool}")
    if fixture.expected_outcome is not None and not decided.outcome.startswith(fixture.expected_outcome):
        problems.append(f"outcome is {decided.outcome}, not {fixture.expected_outcome}")
    return tuple(problems)
