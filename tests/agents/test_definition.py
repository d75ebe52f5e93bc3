"""What a definition may say, what it says if it says nothing, and how mistakes in it are told."""

from pathlib import Path

import pytest
from tests.agents.world import BASE, defined

from mainspring.core.errors import InvalidRequest
from mainspring.core.spec import Charter
from mainspring.features.agents.agent_definition import (
    GROUPS,
    SPEC_CAPABILITIES,
    Constraints,
    Governance,
    make_charter,
    parse_definition,
)

WHOLE = """\
name: code-review
version: 1.2.3-rc.1
role: reviewer
description: Reads a change.
capabilities: [file-read, code-analysis]
inputs:
  path: {type: string, description: Where., required: true}
  depth: {type: integer, default: 2, enum: [1, 2, 3]}
outputs:
  findings: {type: array, description: What is wrong.}
dependencies:
  - {agent: helper, optional: true, purpose: counts}
prompts:
  system: Be kind.
  user: "Review {{ path }}."
  examples:
    - {input: {path: a}, output: {findings: []}}
constraints: {max_tokens: 1000, timeout_seconds: 30, max_retries: 0, parallel_allowed: false}
metadata: {author: me, created: 2026-01-01, updated: 2026-02-01, tags: [code]}
agent_id: AGT-007
spec_capabilities: [R-01, X-02]
governance:
  scope: src, docs/**
  commands: [git status, ls]
  network: none
  approval_required: [deploy]
  tool_policies: {"file_ops:write": deny}
ownership: {owner: team, escalation_target: boss}
status: experimental
autonomy_level: read-only
skills: [style]
"""


def problems(text: str, file: str = "agent.yaml") -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse_definition(text, Path(file))
    return caught.value.message


def minimal(**fields: str) -> str:
    lines = {"name": "x1", "version": "1.0.0", "role": "qa", **fields}
    return "".join([f"{key}: {value}\n" for key, value in lines.items()])


def test_every_field_is_read() -> None:
    made = parse_definition(WHOLE, Path("agent.yaml"))
    assert made.name == "code-review"
    assert made.inputs["depth"].default == 2
    assert made.inputs["depth"].enum == (1, 2, 3)
    assert made.inputs["path"].required
    assert made.dependencies[0].optional
    assert made.prompts.examples[0].output == {"findings": []}
    assert made.constraints == Constraints(1000, 30, 0, False)
    assert made.metadata.created == "2026-01-01"
    assert made.ownership.escalation_target == "boss"
    assert make_charter(made, root="/w", skills=("style",)) == Charter(
        agent="code-review",
        level="read-only",
        rules=(("deploy", "ask"), ("file_ops:write", "deny")),
        commands=("git status", "ls"),
        domains=(),
        files=("src", "docs/**"),
        root="/w",
        skills=("style",),
        outputs=("findings",),
    )


def test_what_is_left_out_has_its_default() -> None:
    made = parse_definition(minimal(), Path("agent.yaml"))
    assert made.constraints == Constraints(4096, 120, 2, True)
    assert (made.status, made.autonomy_level, made.skills, made.agent_id) == ("active", "supervised", (), None)
    assert made.governance == Governance()
    assert make_charter(made) == Charter("x1", "supervised")


@pytest.mark.parametrize(("alias", "role"), [("worker", "implementer"), ("validator", "qa"), ("architect", "architect")])
def test_roles_have_aliases(alias: str, role: str) -> None:
    assert parse_definition(minimal(role=alias), Path("agent.yaml")).role == role


def test_the_taxonomy_is_five_by_five() -> None:
    assert [sum(id.startswith(group) for id in SPEC_CAPABILITIES) for group in GROUPS] == [5] * 5


def test_json_is_read_as_well_even_if_it_is_indented_by_tabs() -> None:
    text = '{\n\t"name": "x1",\n\t"version": "1.0.0",\n\t"role": "qa"\n}'
    assert parse_definition(text, Path("agent.json")).name == "x1"


def test_all_mistakes_are_told_at_once_each_by_its_line() -> None:
    told = problems("name: X\nversion: 1.0.0\nrole: qq\nconstraints:\n  max_tokens: 99\n  max_retries: 11\ncapabilties: []\n")
    assert "\n  line 1: `name`: it cannot be `X`" in told
    assert "\n  line 3: `role`" in told
    assert "\n  line 5: `max_tokens`: it must be at least 100" in told
    assert "\n  line 6: `max_retries`: it must be at most 10" in told
    assert "\n  line 7: unknown key `capabilties`; did you mean `capabilities`?" in told


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"name": "Upper"}, "agent.yaml:1: `name`: it cannot be `Upper`; write 2 to 64"),
        ({"name": "x"}, "agent.yaml:1: `name`"),
        ({"name": "a" * 65}, "agent.yaml:1: `name`"),
        ({"name": '"trailing\\n"'}, "agent.yaml:1: `name`"),
        ({"version": "'1.0'"}, "agent.yaml:2: `version`: it cannot be `1.0`; write three numbers"),
        ({"agent_id": "AGT-7"}, "agent.yaml:4: `agent_id`: it cannot be `AGT-7`"),
        ({"description": "x" * 501}, "agent.yaml:4: `description`"),
        ({"spec_capabilities": "[R-01, Z-01]"}, "there is no spec capability `Z-01`"),
        ({"constraints": "{timeout_seconds: 9}"}, "it must be at least 10, not `9`"),
        ({"dependencies": "[{agent: x1}]"}, "an agent cannot call itself"),
        ({"dependencies": f"[{{agent: {'a' * 59}}}]"}, "cannot be called; rename it"),
        ({"inputs": "{a b: {}}"}, "`a b` cannot name a field"),
        ({"inputs": "{a: {type: integer, default: x}}"}, "the default of `a` must be of type integer"),
        ({"inputs": "{a: {enum: [x], default: y}}"}, "the default of `a` must be one of"),
        ({"inputs": "{a: {required: true, default: y}}"}, "its default is never used"),
        ({"inputs": "{a: {type: integer, enum: [x]}}"}, "`x` in the enum of `a` is no integer"),
        ({"inputs": "{a: {enum: []}}"}, "allows nothing"),
        ({"prompts": "{user: 'Do {{ b }}'}", "inputs": "{bb: {}}"}, "stands for no input; did you mean `bb`?"),
        ({"governance": "{scope: all of the code}"}, "is no path; name files and folders"),
        ({"governance": "{scope: [../up]}"}, "is no path"),
        ({"governance": "{network: 'http://x.example/'}"}, "is no domain"),
        ({"governance": "{tool_policies: {'a:': deny}}"}, "names no tool or no operation"),
        ({"governance": "{tool_policies: {a: never}}"}, "`a`: it cannot be `never`; known: `allow`, `ask`, `deny`"),
        (
            {"autonomy_level": "none"},
            "`autonomy_level`: it cannot be `none`; known: `read-only`, `supervised`, `standard`, `full`",
        ),
        ({"role": "boss"}, "agent.yaml:3: `role`: it cannot be `boss`; known: `orchestrator`, "),
        ({"dependencies": "[{agent: aa}, {agent: bb}, {agent: aa}]"}, "`aa` is there twice; keep one of them"),
        ({"inputs": "{a: {type: number, default: .nan}}"}, "agent.yaml:4: `.nan` is no value: a number must be finite"),
        ({"prompts": "{user: 'Do {{ q|upper }}'}", "inputs": "{q: {}}"}, "`{{ q|upper }}` is nothing that could be filled in"),
    ],
)
def test_mistakes_are_told_by_file_and_line(fields: dict[str, str], expected: str) -> None:
    assert expected in problems(minimal(**fields))


@pytest.mark.parametrize(
    ("network", "domains"),
    [
        (None, None),
        (False, ()),
        ("none", ()),
        (True, ("*",)),
        ("all", ("*",)),
        ("a.example, b.example", ("a.example", "b.example")),
    ],
)
def test_network_is_said_in_several_ways(network: object, domains: tuple[str, ...] | None) -> None:
    assert make_charter(defined(governance={"network": network})).domains == domains


def test_of_two_rules_for_one_tool_the_stricter_holds() -> None:
    governance = {"approval_required": ["a", "b"], "tool_policies": {"a": "allow", "b": "deny"}}
    assert dict(make_charter(defined(governance=governance)).rules) == {"a": "ask", "b": "deny"}


def test_what_is_no_definition_at_all_is_told() -> None:
    assert "agent.yaml:1: a mapping is needed here" in problems("- a\n")
    assert "this is not YAML" in problems("a: [")
    assert "`version` is missing" in problems(f"name: x1\nrole: {BASE['role']}\n")
