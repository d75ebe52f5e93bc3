"""`mainspring workflows`: listed, drawn, carried out and taken up again from a terminal."""

import json
import signal

import pytest
from tests.agents.world import written as agent
from tests.cli.command import Shell
from tests.workflows.world import tallying, written

DIGEST = """
name: digest
version: 2.1.0
description: Joins an agent and a transformation.
inputs:
  topic: {type: string, required: true}
  times: {type: integer, default: 1}
steps:
  - {id: research, action: invoke-agent, agent: researcher, inputs: {topic: "{{ inputs.topic }}"}}
  - id: loud
    action: conditional
    if: inputs.times > 1
    then: [{id: shout, action: transform, value: "{{ steps.research.output.notes | upper }}"}]
    else: [{id: whisper, action: transform, value: "{{ steps.research.output.notes | lower }}"}]
  - {id: aside, action: transform, value: 1, condition: inputs.times > 5}
outputs: {text: "{{ steps.shout.output or steps.whisper.output }}"}
"""
CALLS = """
name: calls
inputs: {base: {type: string}}
steps:
  - {id: first, action: http-request, method: POST, url: "{{ inputs.base }}/first"}
  - {id: second, action: http-request, url: "{{ inputs.base }}/second", depends_on: [first]}
outputs: {status: "{{ steps.second.output.status }}"}
"""
DRAWN = """\
digest 2.1.0  Joins an agent and a transformation.
  > topic  string, required
  > times  integer, default 1
  1 ┬── research  invoke-agent researcher
    └── aside  transform  if inputs.times > 5
  2 ─── loud  conditional  after research
          then: shout  transform
          else: whisper  transform
  < text
"""


@pytest.fixture
def folder(shell: Shell) -> Shell:
    written(shell.folder / "flows", DIGEST, CALLS)
    agent(shell.folder / "agents", "researcher", inputs={"topic": {"required": True}}, outputs={"notes": {}})
    (shell.folder / "mainspring.toml").write_text(
        'workflows = ["flows"]\nagents = ["agents"]\nallow_hosts = ["127.0.0.1"]\ndatabase = "runs.db"\n'
    )
    return shell


def model(shell: Shell) -> tuple[str, str]:
    return "--model", shell.script({"say": '{"notes": "The Moon"}'}, repeat=True)


def test_workflows_are_listed_and_drawn(folder: Shell) -> None:
    listed = folder.run("workflows", "list")
    assert listed.code == 0, listed.err
    assert [line.split() for line in listed.out.splitlines()] == [
        ["calls", "1.0.0", "2", "steps"],
        ["digest", "2.1.0", "3", "steps", "Joins", "an", "agent", "and", "a", "transformation."],
    ]
    assert folder.run("workflows", "show", "digest").out == DRAWN
    shown = json.loads(folder.run("workflows", "show", "digest", "--json").out)
    assert shown["steps"][1]["else"][0]["id"] == "whisper"
    assert "did you mean `digest`?" in folder.run("workflows", "show", "digst").err


def test_what_is_wrong_with_a_definition_is_told_by_file_and_line(folder: Shell) -> None:
    written(folder.folder / "flows", "name: broken\nsteps:\n  - {id: a, action: wiat}\n")
    listed = folder.run("workflows", "list")
    assert listed.code == 1
    assert "broken.yaml:3: unknown action `wiat`; did you mean `wait`?" in listed.err
    assert "pass --folder DIR" in folder.run("workflows", "list", env={"MAINSPRING_WORKFLOWS": ""}).err


def test_a_workflow_is_carried_out_with_its_progress_and_outputs(folder: Shell) -> None:
    done = folder.run("workflows", "run", "digest", "--input", "topic=tides", "--input", "times=3", *model(folder))
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[-1] == '{"text":"THE MOON"}'
    assert [line.split()[:2] for line in lines if line[0] in "✓✗"] == [["✓", "research"], ["✓", "shout"], ["✓", "loud"]]
    assert "· aside  skipped: its condition does not hold" in lines
    assert done.err == "mainspring: digest: success\n"


def test_events_are_lines_of_json(folder: Shell) -> None:
    done = folder.run("workflows", "run", "digest", "--inputs", "-", "--json", *model(folder), given='{"topic": "tides"}')
    events = [json.loads(line) for line in done.out.splitlines()]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert (events[0]["type"], events[0]["inputs"]) == ("workflow_started", {"topic": "tides", "times": 1})
    assert (events[-1]["type"], events[-1]["outputs"]) == ("workflow_completed", {"text": "the moon"})


def test_inputs_that_do_not_fit_are_told(folder: Shell) -> None:
    wrong = folder.run("workflows", "run", "digest", "--input", "topc=tides", "--input", "times=many", *model(folder))
    assert wrong.code == 2
    for told in ("there is no input `topc`; did you mean `topic`?", "`topic` (string) is missing", "must be of type integer"):
        assert told in wrong.err


def test_a_dry_run_sends_nothing(folder: Shell) -> None:
    with tallying() as tally:
        done = folder.run("workflows", "run", "calls", "--input", f"base={tally.url}", "--dry-run", *model(folder))
        assert tally.arrivals == []
    assert done.code == 0
    assert f"· first  skipped: dry run: would send POST {tally.url}/first" in done.out.splitlines()


def test_a_step_that_fails_is_the_exit_code(folder: Shell) -> None:
    with tallying() as tally:
        tally.answers["/second"] = (500,)
        done = folder.run("workflows", "run", "calls", "--input", f"base={tally.url}", *model(folder))
    assert done.code == 1
    assert any(line.startswith("✗ second  GET http://127.0.0.1") for line in done.out.splitlines())
    assert "calls: failed: step `second` failed: GET" in done.err


@pytest.mark.slow
def test_a_killed_workflow_is_resumed_at_its_first_unfinished_step(folder: Shell) -> None:
    with tallying() as tally:
        killed: list[str] = []

        def kill(path: str) -> None:
            if path == "/second" and not killed:
                killed.append(path)
                live.process.kill()

        tally.on_arrival = kill
        with folder.started("workflows", "run", "calls", "--input", f"base={tally.url}", *model(folder)) as live:
            live.process.wait()
        assert live.process.returncode == -signal.SIGKILL
        resumed = folder.run("workflows", "resume", *model(folder))
        assert resumed.code == 0, resumed.err
        assert tally.arrivals == ["POST /first", "GET /second", "GET /second"]
    assert "» taken up again" in resumed.out
    assert resumed.out.splitlines()[-1] == '{"status":200}'
    assert "have ended" in folder.run("workflows", "resume", *model(folder)).err


@pytest.mark.slow
def test_ctrl_c_cancels_the_workflow(folder: Shell) -> None:
    with tallying() as tally:

        def stop(path: str) -> None:
            if path == "/first":
                live.process.send_signal(signal.SIGINT)
                live.process.wait()

        tally.on_arrival = stop
        with folder.started("workflows", "run", "calls", "--input", f"base={tally.url}", *model(folder)) as live:
            assert live.process.wait() == 130
            said = live.out.read()
    assert tally.arrivals == ["POST /first"]
    assert "✗ first  stopped: the workflow was cancelled" in said
    assert "have ended" in folder.run("workflows", "resume", *model(folder)).err


@pytest.mark.slow
def test_a_step_that_waits_for_a_person_says_what_to_do(folder: Shell) -> None:
    settings = folder.folder / "mainspring.toml"
    settings.write_text(settings.read_text() + '[governance]\nrules = {"http_request:POST" = "ask"}\n')
    with tallying() as tally:
        with folder.started("workflows", "run", "calls", "--input", f"base={tally.url}", *model(folder)) as live:
            said = live.wait_for("--database runs.db\n")
            assert "? first  waits for a person" in said
            (told,) = [line for line in said.splitlines() if "approvals approve" in line]
            approved = folder.run(*told.split()[1:], "--config", "mainspring.toml")
            assert approved.code == 0, approved.err
            assert live.ended().code == 0
        assert tally.arrivals == ["POST /first", "GET /second"]
    assert len(folder.run("traces", "list").out.splitlines()) == 4, "the database is that of the settings"
