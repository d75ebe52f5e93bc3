"""`mainspring agents`: listed, shown, and at work on the screen."""

import json

import pytest
from tests.agents.world import written
from tests.cli.command import Shell, events

from mainspring.core.events import RunEnded

INPUTS = {"path": {"required": True, "description": "Where."}, "depth": {"type": "integer", "default": 1}}


@pytest.fixture
def bees(shell: Shell) -> Shell:
    """A folder with agents in it."""
    written(shell.folder / "agents", "bee", description="Busy.", inputs=INPUTS, outputs={"honey": {}})
    written(shell.folder / "agents", "ant", role="worker")
    return shell


def test_agents_are_listed(bees: Shell) -> None:
    done = bees.run("agents", "list", "--folder", "agents")
    assert (done.code, done.err) == (0, "")
    assert done.out == "ant  1.0.0  implementer\nbee  1.0.0  implementer  Busy.\n"
    lines = bees.run("agents", "list", "--folder", "agents", "--json").out.splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["ant", "bee"]


def test_what_is_wrong_with_a_definition_is_told_by_file_and_line(bees: Shell) -> None:
    (bees.folder / "agents" / "bad.yaml").write_text("name: bad\nversion: 1.0.0\nrole: quen\n")
    done = bees.run("agents", "list", "--folder", "agents")
    assert done.code == 1
    assert "bee" in done.out
    assert "bad.yaml:3: `role`" in done.err
    assert done.err.count("bad.yaml") == 1


def test_the_settings_name_the_folders(bees: Shell) -> None:
    assert "no folder of agents is named; pass --folder DIR" in bees.run("agents", "list").err
    (bees.folder / "mainspring.toml").write_text('agents = ["agents"]\n')
    assert "bee" in bees.run("agents", "list").out


def test_an_agent_is_shown_as_it_is_told_about_itself(bees: Shell) -> None:
    done = bees.run("agents", "show", "bee", "--folder", "agents")
    assert done.out.startswith("# Identity\nYou are the agent `bee`")
    assert json.loads(bees.run("agents", "show", "bee", "--folder", "agents", "--json").out)["inputs"]["depth"]["default"] == 1
    missing = bees.run("agents", "show", "be", "--folder", "agents")
    assert missing.code == 2
    assert "there is no agent `be`; did you mean `bee`?" in missing.err


def test_an_agent_is_run_and_shown(bees: Shell) -> None:
    look = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}], "expect": '{"path":"src","depth":2}'}
    model = bees.script(look, {"say": "Three."}, {"say": "Three, yes.", "expect": "is every part of the task done"})
    done = bees.run(
        "agents", "run", "bee", "--folder", "agents", "--input", "path=src", "--input", "depth=2", "--model", model,
        "--tool", "mytools:add", "--database", "runs.db",
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "add(a=1, b=2)" in done.out
    assert "Three, yes." in done.out
    shown = bees.run("runs", "--database", "runs.db")
    assert "completed" in shown.out


def test_once_is_one_turn_and_inputs_may_come_as_json(bees: Shell) -> None:
    model = bees.script({"say": "Sweet.", "expect": '{"path":"a","depth":3}'})
    given = '{"path": "a", "depth": 3}'
    done = bees.run(
        "agents", "run", "bee", "--folder", "agents", "--inputs", "-", "--once", "--model", model, "--json", given=given
    )
    assert done.code == 0, done.err
    log = events(done.out)
    assert isinstance(log[-1].event, RunEnded)
    assert len([record for record in log if type(record.event).__name__ == "TurnStarted"]) == 1


def test_the_level_and_the_number_of_turns_are_options(bees: Shell) -> None:
    look = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    model = bees.script(look, {"say": "Not done.", "expect": "does not cover this"})
    options = ("--level", "read-only", "--no-confirm", "--max-turns", "2", "--tool", "mytools:add")
    done = bees.run("agents", "run", "ant", "--folder", "agents", "--model", model, *options)
    assert done.code == 0, done.err
    assert not (bees.folder / "tally").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("bee",), "is missing: Where."),
        (("bee", "--input", "path"), "`path` is not an input; write --input NAME=VALUE"),
        (("bee", "--inputs", "[1]"), "--inputs must be a JSON object"),
        (("bee", "--input", "path=a", "--input", "depth=x"), "`depth` must be of type integer, not string"),
        (("wasp",), "there is no agent `wasp`"),
        (("bee", "--level", "4"), "must be 0, 1, 2, 3 or one of read-only, supervised, standard, full, not `4`"),
    ],
)
def test_mistakes_are_told_and_nothing_runs(bees: Shell, options: tuple[str, ...], told: str) -> None:
    done = bees.run("agents", "run", *options, "--folder", "agents", "--model", bees.script({"say": "never"}))
    assert done.code == 2
    assert told in done.err
    assert "never" not in done.out


def test_an_agent_that_is_not_there_is_told_before_a_model_is_looked_for(bees: Shell) -> None:
    assert (
        bees.run("agents", "run", "wasp", "--folder", "agents").err
        == "mainspring: there is no agent `wasp`; known: `ant`, `bee`\n"
    )


def test_an_agent_that_was_interrupted_is_taken_up_with_its_agents(bees: Shell) -> None:
    written(bees.folder / "agents", "queen", dependencies=[{"agent": "ant"}])
    (bees.folder / "mainspring.toml").write_text('agents = ["agents"]\n')
    first = bees.script({"calls": [{"name": "agent_ant", "arguments": {"task": "dig"}}]}, {"stall": True})
    with bees.started(
        "agents", "run", "queen", "--no-confirm", "--model", first, "--tool", "mytools:add", "--database", "r.db"
    ) as it:
        it.wait_for("agent_ant(")
        it.process.kill()
    rest = bees.script(
        {"when": "dig", "say": "Dug."}, {"when": "Before", "say": "Dug!"}, {"when": "{}", "say": "Done."}, name="two.json"
    )
    done = bees.run("resume", "--all", "--database", "r.db", "--model", rest, "--tool", "mytools:add")
    assert done.code == 0, done.err
    assert "Done." in done.out


def test_the_settings_that_are_named_govern_and_equip_the_agent(bees: Shell) -> None:
    work = bees.folder / "work"
    work.mkdir()
    (work / "notes.txt").write_text("hello from work")
    (bees.folder / "mainspring.toml").write_text('[governance.rules]\nfile_ops = "allow"\n')
    (bees.folder / "strict.toml").write_text(
        'agents = ["agents"]\nbuiltins = ["file_ops"]\nworking_dir = "work"\n'
        '[governance.rules]\n"file_ops:write" = "deny"\n[memory]\nenabled = true\n'
    )
    reads = {"calls": [{"name": "file_ops", "arguments": {"operation": "read", "path": "notes.txt"}}]}
    writes = {
        "expect": "hello from work",
        "calls": [{"name": "file_ops", "arguments": {"operation": "write", "path": "x.txt", "content": "x"}}],
    }
    model = bees.script(reads, writes, {"say": "Denied, then.", "expect": "file_ops:write"})
    done = bees.run("agents", "run", "ant", "--config", "strict.toml", "--no-confirm", "--model", model, "--database", "runs.db")
    assert done.code == 0, done.err
    assert "Denied, then." in done.out
    assert not (work / "x.txt").exists()
    assert "hello from work" in bees.run("memory", "search", "work", "--database", "runs.db").out


def test_the_budget_of_the_settings_that_are_named_holds(bees: Shell) -> None:
    (bees.folder / "tight.toml").write_text('agents = ["agents"]\ntools = ["mytools:add"]\n[budget.limits]\nmax_tool_calls = 1\n')
    add = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    model = bees.script(add, {**add, "calls": [{"name": "add", "arguments": {"a": 3, "b": 4}}]}, {"say": "never"})
    done = bees.run("agents", "run", "ant", "--config", "tight.toml", "--no-confirm", "--model", model)
    assert "add(a=1, b=2)" in done.out
    assert "never" not in done.out
    assert "incomplete (max_tool_calls)" in done.out
