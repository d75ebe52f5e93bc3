"""Definitions: all that is wrong with one is told at once, by file and line, with what may have been meant."""

from itertools import pairwise
from pathlib import Path

import pytest
from tests.workflows.world import defined, written

from mainspring.core.errors import InvalidInputs, InvalidRequest, NotFound
from mainspring.definitions.folder import KEPT
from mainspring.definitions.reader import MOST_NODES, parse_yaml
from mainspring.features.workflows.graph import find_predecessors, group_levels
from mainspring.features.workflows.workflow_definition import Execution, HttpRequest, Retry, complete_inputs, parse_workflow
from mainspring.features.workflows.workflow_folder import WorkflowFolders

WRONG = """\
name: digest
inputs:
  topic: {type: text}
execution: {parallel_limit: 33, timeout: 5, mode: paralel}
steps:
  - id: research
    action: invoke-agent
    agnt: researcher
  - id: Write
    action: invoke-agent
    agent: writer
    retry: {max_attempts: 11, delay: 0.5}
    timeout: 9
  - id: pause
    action: wiat
  - id: again
    action: wait
    secnds: 3
  - {}
"""


def problems(text: str, file: str = "flow.yaml") -> list[str]:
    with pytest.raises(InvalidRequest) as caught:
        parse_workflow(Path(file), text)
    told = caught.value.message.removeprefix(f"{file}:\n  line ").removeprefix(f"{file}:")
    return [f"{file}:{line}" for line in told.split("\n  line ")]


def one(step: str) -> str:
    return f"name: a\nsteps:\n  - {step}\n"


def test_every_mistake_of_form_is_told_with_its_line() -> None:
    assert problems(WRONG) == [
        "flow.yaml:3: `type`: it cannot be `text`; known: `string`, `integer`, `number`, `boolean`, `array`, `object`, `any`",
        "flow.yaml:4: `mode`: it cannot be `paralel`; did you mean `parallel`?",
        "flow.yaml:4: `parallel_limit`: it must be at most 32, not `33`",
        "flow.yaml:4: `timeout`: it must be at least 60, not `5`",
        "flow.yaml:6: `agent` is missing",
        "flow.yaml:8: unknown key `agnt`; did you mean `agent`?",
        "flow.yaml:9: `id`: it cannot be `Write`; write up to 64 lower-case letters, digits, `_` and `-`, a letter first",
        "flow.yaml:12: `delay`: it must be at least 1, not `0.5`",
        "flow.yaml:12: `max_attempts`: it must be at most 10, not `11`",
        "flow.yaml:13: `timeout`: it must be at least 10, not `9`",
        "flow.yaml:15: unknown action `wiat`; did you mean `wait`?",
        "flow.yaml:18: unknown key `secnds`; did you mean `seconds`?",
        "flow.yaml:19: `action` is missing; known: `invoke-agent`, `route`, `handoff`, `group-chat`, `run-command`, "
        "`execute-code`, `http-request`, `validate`, `transform`, `wait`, `conditional`, `parallel-group`, `sub-workflow`",
    ]


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("{id: a, action: transform, value: '{{ stps.b }}'}", "flow.yaml:3: `stps` is not known here; did you mean `steps`?"),
        ("{id: a, action: transform, value: '{{ steps.b.output }}'}", "flow.yaml:3: there is no step `b`; known: `a`"),
        (
            "{id: a, action: conditional, if: 'true', then: [{id: c, action: transform, value: '{{ steps.a.text }}'}]}",
            "`steps.a.text` is not there: a step has `output`, `outputs`, `status`, `error`; for what it gave "
            "write `steps.a.output.text`",
        ),
        ("{id: a, action: transform, value: 1, depends_on: [zz]}", "flow.yaml:3: there is no step `zz`; known: `a`"),
        ("{id: a, action: transform, value: '{{ 1 + }}'}", "is not an expression"),
        ("{id: a, action: transform, value: '{% if 1 %}{% endif %}'}", "has a statement"),
        ("{id: a, action: transform, value: 1, condition: 'inputs.x =='}", "is not an expression"),
        ("{id: a, action: transform, value: '{{ output }}'}", "`output` is not known here"),
        ("{id: a, action: run-command, command: 'ls {{ inputs.x }}'}", 'pass them as `inputs` and write "$name"'),
        ("{id: a, action: run-command, command: ls, inputs: {PATH: x}}", "`PATH` becomes a variable of the shell"),
        ("{id: a, action: validate, value: 1}", "needs a `schema` or an `expression`"),
        ("{id: a, action: validate, value: 1, schema: {type: nonsense}}", "this is no JSON Schema"),
        ("{id: a, action: wait}", "either `seconds` or `until`"),
        ("{id: a, action: wait, seconds: 301}", "`seconds`: it must be at most 300"),
        ("{id: a, action: conditional, if: 'true'}", "needs steps under `then` or `else`"),
        ("{id: a, action: http-request, url: http://x, body: 1}", "a GET request has no body"),
        ("{id: a, action: http-request, url: http://x, method: FETCH}", "it cannot be `FETCH`"),
        ("{id: a, action: wait, seconds: 1, retry: {delay: 3601}}", "`delay`: it must be at most 3600"),
        ("{id: a, action: wait, seconds: 1, timeout: 86401}", "`timeout`: it must be at most 86400"),
        ("{id: my-step, action: transform, value: '{{ steps.my-step.output }}'}", "write `steps['my-step']`"),
        (
            "{id: g, action: parallel-group, steps: [{id: b, action: wait, seconds: 1, depends_on: [g]}]}",
            "`b` is inside of `g` and cannot wait for it",
        ),
        (
            "{id: a, action: parallel-group, retry: {max_attempts: 2}, steps: [{id: b, action: wait, seconds: 1}]}",
            "a group of steps is not tried again",
        ),
        (
            "{id: a, action: parallel-group, steps: [{id: a, action: wait, seconds: 1}]}",
            "there is a step `a` already",
        ),
        (
            "{id: a, action: parallel-group, steps: [{id: b, action: wait, seconds: 1}, "
            "{id: c, action: transform, value: '{{ steps.b.output }}'}]}",
            "`c` needs `b`, but all steps here run at once",
        ),
    ],
)
def test_every_mistake_of_meaning_is_told_with_its_line(step: str, told: str) -> None:
    found = problems(one(step))
    assert any(told in problem and problem.startswith("flow.yaml:3: ") for problem in found), found


def test_steps_that_wait_for_each_other_are_named() -> None:
    text = """\
name: ring
steps:
  - {id: first, action: transform, value: 1}
  - {id: a, action: transform, value: "{{ steps.b.output }}"}
  - {id: b, action: transform, value: 1, condition: steps.c.output}
  - {id: c, action: transform, value: 1, depends_on: [a]}
"""
    assert problems(text) == ["flow.yaml:4: these steps wait for each other: a -> b -> c -> a"]


def test_a_mode_that_cannot_keep_the_order_is_refused() -> None:
    steps = "steps:\n  - {id: a, action: transform, value: '{{ steps.b.output }}'}\n  - {id: b, action: transform, value: 1}\n"
    assert problems(f"name: x\nexecution: {{mode: sequential}}\n{steps}") == [
        "flow.yaml:4: `a` needs `b`, which comes later; move it up"
    ]
    assert "use the mode dependency-aware" in problems(f"name: x\nexecution: {{mode: parallel}}\n{steps}")[0]
    assert group_levels(find_predecessors(defined(f"name: x\n{steps}").steps, "dependency-aware")) == [["b"], ["a"]]


def test_what_a_step_reads_comes_before_it_wherever_the_reading_is() -> None:
    workflow = defined("""\
name: order
steps:
  - id: group
    action: conditional
    if: "true"
    then: [{id: inside, action: transform, value: "{{ steps['late-1'].output }}"}]
  - {id: last, action: transform, value: "{{ steps.inside.output }}"}
  - {id: late-1, action: transform, value: 1}
""")
    assert group_levels(find_predecessors(workflow.steps, "dependency-aware")) == [["late-1"], ["group"], ["last"]]
    assert group_levels(find_predecessors(workflow.steps, "parallel")) == [["group", "last", "late-1"]]
    assert group_levels(find_predecessors(workflow.steps, "sequential")) == [["group"], ["last"], ["late-1"]]


def test_defaults_are_those_of_the_reference() -> None:
    workflow = defined(one("{id: a, action: http-request, url: http://x}"))
    assert workflow.execution == Execution("dependency-aware", 4, False, True, 3600.0, False)
    assert workflow.steps == (HttpRequest(id="a", url="http://x", method="GET", retry=Retry(1, 1.0), timeout=None),)


def test_json_is_read_like_yaml_also_with_tabs() -> None:
    workflow = parse_workflow(
        Path("a.json"), '{\n\t"name": "a",\n\t"steps": [{"id": "s", "action": "transform", "value": [1, null]}]\n}'
    )
    assert workflow == defined(one("{id: s, action: transform, value: [1, null]}"))
    [told] = problems('{\n\t"name": 1,\n\t"steps": []\n}', "a.json")
    assert told.startswith("a.json:2: `name`: it must be text, not a whole number; write up to 64 lower-case letters")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: a\n  b: c", "flow.yaml:2: this is not YAML"),
        ("- 1\n- 2", "flow.yaml:1: a mapping is needed here, not a list"),
        ("", "flow.yaml:1: a mapping is needed here, not nothing"),
        ("name: a\nname: b\nsteps: []", "flow.yaml:2: `name` is there twice; keep one"),
        ("name: !!python/object:os.system a", "flow.yaml:1: "),
        ("name: !secret a", "flow.yaml:1: the tag `!secret` is not known"),
        ("? [a]\n: b", "keys must be text"),
        pytest.param("a: " + "[" * 4000 + "]" * 4000, "flow.yaml:1: it is nested too deeply", id="deep"),
        pytest.param("[" * 500_000, "flow.yaml:1: it is nested too deeply", id="deeper"),
        ("name: &a [*a]", "flow.yaml:1: the alias `*a` stands for nothing"),
        ("name: &a b\nversion: *a\n<<: *a", "flow.yaml:3: `<<` merges mappings only"),
    ],
)
def test_what_is_no_definition_is_told_with_its_line(text: str, told: str) -> None:
    assert any(told in problem for problem in problems(text))


def test_aliases_that_multiply_are_stopped() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join([f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)])
    with pytest.raises(InvalidRequest, match=f"stands for more than {MOST_NODES} values"):
        parse_yaml(Path("bomb.yaml"), bomb)


INPUTS = """\
name: typed
inputs:
  who: {type: string, required: true}
  count: {type: integer, default: 2}
  kind: {type: string, enum: [a, b], default: a}
steps: [{id: s, action: transform, value: 1}]
"""


def test_inputs_are_checked_and_have_defaults() -> None:
    workflow = defined(INPUTS)
    assert complete_inputs(workflow, {"who": "me"}) == {"who": "me", "count": 2, "kind": "a"}
    with pytest.raises(InvalidInputs) as caught:
        complete_inputs(workflow, {"count": True, "kind": "c", "hwo": 1})
    assert caught.value.status == 422
    assert "there is no input `hwo`; did you mean `who`?" in caught.value.message
    assert "`who` (string) is missing" in caught.value.message
    assert "`count` must be of type integer, not boolean" in caught.value.message
    assert '`kind` must be one of "a", "b", not "c"' in caught.value.message


def test_a_default_of_the_wrong_type_is_a_mistake_of_the_definition() -> None:
    assert problems(INPUTS.replace("default: 2", "default: two")) == [
        "flow.yaml:4: the default of `count` must be of type integer, not string"
    ]


def sub(name: str, inner: str) -> str:
    return f"name: {name}\nsteps: [{{id: s, action: sub-workflow, workflow: {inner}}}]\n"


def test_workflows_that_contain_themselves_or_what_is_missing_are_left_out(tmp_path: Path) -> None:
    good = one("{id: a, action: wait, seconds: 0}")
    folder = written(tmp_path / "flows", sub("x", "y"), sub("y", "x"), sub("lost", "nowhere"), sub("user", "lost"), good)
    folders = WorkflowFolders([folder])
    assert list(folders.definitions) == ["a"]
    told = "\n".join(folders.problems)
    assert "`x` contains itself: x -> y -> x" in told
    assert "`lost` needs the workflow `nowhere`" in told
    assert "`user` needs the workflow `lost`" in told
    with pytest.raises(NotFound, match=r"there is no workflow `lost`; .*`mainspring workflows list` says why"):
        folders.get("lost")


def test_workflows_nest_ten_deep_and_no_deeper(tmp_path: Path) -> None:
    names = [f"w{n}" for n in range(11)]
    texts = [sub(outer, inner) for outer, inner in pairwise(names)]
    last = "name: w10\nsteps: [{id: s, action: wait, seconds: 0}]\n"
    folders = WorkflowFolders([written(tmp_path / "flows", *texts, last)])
    assert set(folders.definitions) == set(names[1:])
    assert "`w0` nests more than 10 workflows" in folders.problems[0]


def told(folders: WorkflowFolders) -> str:
    return "\n".join(folders.problems)


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    folder = written(tmp_path / "flows", one("{id: a, action: wait, seconds: 0}"))
    folders = WorkflowFolders([folder])
    first = folders.get("a")
    assert folders.get("a") is first
    (folder / "a.yaml").write_text("name: b\nsteps: [{id: later, action: wait, seconds: 1}]\n")
    assert list(folders.definitions) == ["b"]
    (folder / "c.yml").write_text("name: b\nsteps: [{id: s, action: wait, seconds: 1}]\n")
    assert "the workflow `b` is defined at" in told(folders)
    (folder / "c.yml").unlink()
    assert told(folders) == ""
    (folder / "a.yaml").write_text("name: b\nsteps: []\n")
    assert list(folders.definitions) == ["b"], "a broken version does not replace the one before"
    assert told(folders).endswith(KEPT)
    (folder / "a.yaml").unlink()
    assert (dict(folders.definitions), told(folders)) == ({}, "")


@pytest.mark.parametrize(
    "value",
    ["{{ inputs" + ".a" * 300 + " }}", "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "{{ " + "[" * 150 + "]" * 150 + " }}"],
    ids=["attributes", "parentheses", "lists"],
)
def test_a_file_with_an_expression_that_nobody_can_read_takes_no_other_down(tmp_path: Path, value: str) -> None:
    bad = f"name: bad\nsteps:\n  - {{id: s, action: transform, value: '{value}'}}\n"
    folders = WorkflowFolders([written(tmp_path / "flows", one("{id: a, action: wait, seconds: 0}"), bad)])
    assert list(folders.definitions) == ["a"]
    assert "bad.yaml:3: " in folders.problems[0]
