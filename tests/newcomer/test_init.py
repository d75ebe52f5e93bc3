"""`mainspring init`: what it writes works as it is, and agents say what they need."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agents.world import defined, engine_of, written
from tests.cli.command import Shell
from tests.kit.processes import STDOUT, start

from mainspring.core.items import ToolDefinition
from mainspring.features.agents.agent_definition import SPEC_CAPABILITIES
from mainspring.providers.scripted import say

ROOT = Path(__file__).resolve().parents[2]


def test_a_new_project_passes_its_test_and_its_agent_runs(tmp_path: Path) -> None:
    home = Shell(tmp_path)
    made = home.run("init", "shop")
    assert made.code == 0, made.err
    shop = Shell(tmp_path / "shop")
    command = [sys.executable, "-m", "unittest"]
    with start(command, cwd=shop.folder, env=shop.environment(), stderr=STDOUT) as test:
        assert test.stdout is not None
        said = test.stdout.read()
        assert (test.wait(), "OK" in said) == (0, True), said
    listed = shop.run("agents", "list")
    assert (listed.code, listed.err) == (0, "")
    assert listed.out.startswith("order-desk")
    done = shop.run("agents", "run", "order-desk", "--input", "question=Where is A-17?", "--model", "scripted:order-desk.json")
    assert done.code == 0, done.err
    assert "on its way, due on Friday" in done.out
    again = home.run("init", "shop")
    assert (again.code, "is there already" in again.err) == (2, True)


def test_what_is_printed_after_run_can_be_typed_as_it_is(tmp_path: Path) -> None:
    """With the script `run` of the repository, set up already, and no `mainspring` on the PATH."""
    checkout = tmp_path / "a checkout"
    for name, text in (("scripts/setup", ""), (".venv/bin/mainspring", f'exec {sys.executable} -m mainspring "$@"\n')):
        (checkout / name).parent.mkdir(parents=True)
        (checkout / name).write_text(f"#!/bin/sh\n{text}")
        (checkout / name).chmod(0o755)
    shutil.copy(ROOT / "run", checkout / "run")
    home = {**Shell(checkout).environment(), "PATH": "/usr/bin:/bin"}
    told = subprocess.run(["./run", "init", "shop"], cwd=checkout, env=home, capture_output=True, text=True, check=True).stdout
    [enter, run, script, *_] = told.split("Try it:\n")[1].splitlines()
    done = subprocess.run(
        ["sh", "-euc", f"{enter}\n{run}\n{script}"], cwd=checkout, env=home, capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Your order is due on Friday." in done.stdout) == (0, True), done.stderr
    shop = checkout / "shop"
    lost = subprocess.run(["../run", "show", "nobody"], cwd=shop, env=home, capture_output=True, text=True, check=False).stderr
    listed = subprocess.run(
        ["sh", "-c", lost.split("list the runs with: ")[1]], cwd=shop, env=home, capture_output=True, text=True, check=False
    )
    assert (listed.returncode, listed.stdout.count("resp_")) == (0, 1), listed.stderr


def test_an_agent_says_which_tool_and_which_server_it_lacks(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "mytools.py").write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    (tmp_path / "mainspring.toml").write_text('agents = ["agents"]\ntools = ["mytools:add"]\n')
    written(tmp_path / "agents", "able", tools=["add"])
    written(tmp_path / "agents", "needy", tools=["add", "ad"])
    written(tmp_path / "agents", "lonely", mcp=["tickets"])
    done = shell.run("agents", "list")
    assert done.code == 1
    assert done.out.split()[0] == "able"
    assert "needs the tool `ad`" in done.err
    assert "needs the MCP server `tickets`" in done.err


async def test_an_agent_has_the_model_and_the_tools_of_its_file(tmp_path: Path) -> None:
    written(tmp_path, "bee", model="scripted/queen", temperature=0.25, tools=["look"])
    engine, script = engine_of(tmp_path, say("Done."), say("Done."))
    async with engine:
        await engine.agents.invoke_iterative("bee", {})
        request = script.requests[0]
        names = [tool.name for tool in request.tools if isinstance(tool, ToolDefinition)]
        assert (names, request.model, request.temperature) == (["look"], "scripted/queen", 0.25)
    engine, script = engine_of(tmp_path, say("Done."), say("Done."))
    async with engine:
        await engine.agents.invoke_iterative("bee", {}, model="other", temperature=1.0)
        assert (script.requests[0].model, script.requests[0].temperature) == ("other", 1.0)


@pytest.mark.parametrize("name", ["R-01", "reviewing-code"])
def test_a_capability_has_a_name_and_a_code(name: str) -> None:
    assert defined(spec_capabilities=[name]).spec_capabilities == ("R-01",)


def test_the_documentation_lists_every_capability() -> None:
    page = (Path(__file__).parents[2] / "docs/agents.md").read_text()
    assert all(f"| `{code}` | `{name.replace(' ', '-')}` |" in page for code, name in SPEC_CAPABILITIES.items())
