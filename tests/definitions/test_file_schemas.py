"""The JSON Schemas for editors take the files that are read, and no misspelt key."""

import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import jsonschema_rs
import pytest
from tests.agents.test_definition import WHOLE as AGENT
from tests.cli.command import Shell
from tests.skills.test_definition import WHOLE as SKILL
from tests.workflows.test_definition import INPUTS as WORKFLOW

from mainspring.core.items import Json
from mainspring.definitions.parsed_file import plain
from mainspring.definitions.reader import parse_yaml
from mainspring.features.agents import agent_definition
from mainspring.features.skills import skill_definition
from mainspring.features.workflows import workflow_definition
from mainspring.tools import entries as tool_entries

SCHEMAS: dict[str, Callable[[], Json]] = {
    "agent": agent_definition.file_schema,
    "workflow": workflow_definition.file_schema,
    "skill": skill_definition.file_schema,
    "tool": tool_entries.file_schema,
}
DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"<!-- file: (agents|workflows|skills)/(\S+) -->\n```\w+\n(.*?)```", re.DOTALL)
TOOL = """
name: weather
status: blocked
reason: under review
effects: [network, read]
timeout: 5
schema: {type: object, properties: {city: {type: string}}}
"""


def examples() -> list[tuple[str, str]]:
    """The kind and text of every file that the documentation and tests write."""
    found = [("agent", AGENT), ("workflow", WORKFLOW), ("skill", SKILL), ("tool", TOOL)]
    for page in sorted(DOCS.glob("*.md")):
        found += [(kind.removesuffix("s"), text) for kind, _, text in BLOCK.findall(page.read_text())]
    return found


def content(kind: str, text: str) -> Json:
    text = text.split("---\n")[1] if kind == "skill" else text
    value: Json = plain(parse_yaml(Path("file.yaml"), text).root)
    return value


def test_the_documentation_has_examples_of_agents_workflows_and_skills() -> None:
    assert {"agent", "workflow", "skill"} == {kind for kind, _ in examples()[4:]}


@cache
def validator_for(kind: str) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(SCHEMAS[kind]())


@pytest.mark.parametrize(("kind", "text"), examples())
def test_every_example_fits_and_a_misspelt_key_does_not(kind: str, text: str) -> None:
    validator = validator_for(kind)
    value = content(kind, text)
    assert [error.message for error in validator.iter_errors(value)] == []
    first, *_ = value
    for wrong in (
        {**value, f"{first}x": 1},
        {key: each for key, each in value.items() if key != "name"},
        {**value, "name": "a b"},
    ):
        assert not validator.is_valid(wrong)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_the_command_prints_each_schema(kind: str, tmp_path: Path) -> None:
    assert json.loads(Shell(tmp_path).run("config", "schema", kind).out) == json.loads(json.dumps(SCHEMAS[kind]()))
