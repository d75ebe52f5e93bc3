"""Every promised behaviour has a test, and every test that claims one names a promise: `requirements.toml`, both ways."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PROMISES: dict[str, dict[str, str]] = tomllib.loads((TESTS / "requirements.toml").read_text())
PARTS = {"responses API", "models", "tools", "governance", "agents", "decisions"}
DOORS = (
    # Real servers, clients and commands, and the examples of the docs.
    "browser/test_server", "cli/", "clients/", "cluster/", "docs/", "memory/test_cli", "memory/test_server", "server/",
    "tasks/test_serve", "tasks/test_tools", "trace/test_routes",
    # A Python program with the public `Engine`.
    "agents/test_charter", "agents/test_delegation", "agents/test_runtime", "agents/test_stream", "decisions/test_decisions",
    "engine/test_audit", "engine/test_facade", "engine/test_subsystems", "memory/test_capture", "policies/test_skills",
    "providers/test_engine", "trace/test_collector",
    "workflows/test_agents", "workflows/test_people", "workflows/test_runs", "workflows/test_steps",
)  # fmt: skip
COUNTS = {"A": 38, "B": 19, "C": 84, "C-T": 33, "S": 19}


def marked(path: Path) -> Iterator[tuple[str, str]]:
    """The ids that the tests of a file claim, each with the name of the test."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                claims: list[ast.expr] = node.decorator_list
            case ast.Assign(targets=[ast.Name(id="pytestmark" as name)], value=value):
                claims = [value]
            case _:
                continue
        for claim in claims:
            yield from ((promise, name) for promise in ids(claim))


def ids(expression: ast.expr) -> Iterator[str]:
    for node in ast.walk(expression):
        match node:
            case ast.Call(func=ast.Attribute(attr="requirement"), args=args):
                assert args, "a requirement mark names at least one id"
                for arg in args:
                    assert isinstance(arg, ast.Constant), f"line {arg.lineno}: ids are written out"
                    yield str(arg.value)
            case _:
                pass


@cache
def claims() -> list[tuple[str, str]]:
    """Every promise that a test claims to prove, with that test."""
    files = [path for path in sorted(TESTS.rglob("*.py")) if "node_modules" not in path.parts]
    return [(promise, f"{path.relative_to(TESTS)}::{name}") for path in files for promise, name in marked(path)]


@cache
def proven() -> set[str]:
    return {promise for promise, _ in claims()}


def test_every_promise_is_listed_and_well_formed() -> None:
    expected = {f"{group}{number}" for group, count in COUNTS.items() for number in range(1, count + 1)}
    assert expected <= set(PROMISES)
    for promise, fields in PROMISES.items():
        assert set(fields) - {"later", "context", "below"} == {"text", "source"}, promise
        assert not {"later", "context"} <= set(fields), f"{promise} is both to come and nothing to prove"
        assert fields.get("later", "tools") in PARTS, f"{promise} comes with an unknown part: {fields['later']}"
        assert all(value and "\n" not in value for value in fields.values()), promise


def test_every_claim_is_made_by_a_test_and_names_a_promise() -> None:
    unknown = [f"{test} claims {promise}" for promise, test in claims() if promise not in PROMISES]
    assert unknown == []
    helpers = [test for _, test in claims() if not test.split("::")[1].startswith(("test_", "Test", "pytestmark"))]
    assert helpers == []


def test_every_promise_is_proven_or_says_why_not() -> None:
    open_ = [promise for promise, fields in PROMISES.items() if not {"later", "context"} & set(fields)]
    assert [promise for promise in open_ if promise not in proven()] == []


def test_every_promise_is_proven_at_a_door_or_says_why_its_test_is_below() -> None:
    at_doors = {promise for promise, test in claims() if test.startswith(DOORS)}
    open_ = [promise for promise, fields in PROMISES.items() if not {"later", "context", "below"} & set(fields)]
    assert [promise for promise in open_ if promise not in at_doors] == []
    stale = [promise for promise in at_doors if "below" in PROMISES[promise]]
    assert stale == [], "take `below` out of tests/requirements.toml for these"


def test_promise_with_a_test_is_no_longer_to_come() -> None:
    stale = {promise: test for promise, test in claims() if {"later", "context"} & set(PROMISES.get(promise, {}))}
    assert stale == {}, "take `later` out of tests/requirements.toml for these"


def test_claims_are_found_wherever_pytest_takes_them(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "pytestmark = [pytest.mark.requirement('A1')]\n"
        "@pytest.mark.parametrize('x', [pytest.param(1, marks=pytest.mark.requirement('A2', 'A3'))])\n"
        "async def test_one(x): ...\n"
        "@pytest.mark.requirement('A4')\n"
        "class TestTwo: ...\n"
    )
    assert sorted(marked(tmp_path / "test_it.py")) == [
        ("A1", "pytestmark"),
        ("A2", "test_one"),
        ("A3", "test_one"),
        ("A4", "TestTwo"),
    ]


def test_claim_with_a_computed_id_is_refused(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("@pytest.mark.requirement(NAME)\ndef test_one(): ...\n")
    with pytest.raises(AssertionError, match="ids are written out"):
        list(marked(tmp_path / "test_it.py"))
