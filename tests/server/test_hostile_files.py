"""No file ends the server, holds it up, or leads it out of its folder."""

import json
import sys
from pathlib import Path

import httpx2
import pytest
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE
from tests.server.process import serving

MB = 1024 * 1024 - 100
AGENT = """
name: well
version: 1.0.0
role: worker
capabilities: [file-read]
spec_capabilities: [R-01]
description: Works.
prompts: {system: Be well.}
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("deep.yaml", "x: " + "[" * 30_000),
        ("deeper.yaml", "x: " + "[{" * (MB // 2)),
        ("blocks.yaml", "- " * (MB // 2)),
        ("keys.yaml", "? " * (MB // 2)),
        ("base60.yaml", "x: " + "1:" * (MB // 2) + "1"),
        (
            "laughs.yaml",
            "a: &a [x, x]\n"
            + "".join([f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefghijkl", "bcdefghijklm", strict=True)]),
        ),
        ("large.yaml", "#" * 2 * MB),
        ("deep.json", "[" * MB),
        ("digits.json", "1" * MB),
    ],
    ids=lambda value: value if len(value) < 20 else "",
)
def test_a_definition_of_any_shape_is_left_out_and_the_server_starts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / name).write_text(text)
    (tmp_path / "mainspring.toml").write_text('agents = ["agents"]\n')
    with serving(tmp_path, [{"when": "", "say": "Hello."}]) as served:
        assert f"{name}:" in served.warnings
        assert "Traceback" not in served.warnings
        assert served.stop() == 0


@pytest.mark.parametrize(
    "text",
    ["a" + ".a" * 100_000 + " = 1", "a = 1" + "0" * 100_000, "a = " + "[" * 100_000, "#" * 2 * MB],
    ids=["key", "digits", "deep", "large"],
)
def test_settings_of_any_shape_are_told_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "mainspring.toml").write_text(text)
    done = run([sys.executable, "-m", "mainspring", "serve", "--port", "0"], cwd=tmp_path)
    assert done.returncode == 2
    assert "mainspring.toml:1: " in done.stderr
    assert "Traceback" not in done.stderr


def test_a_link_out_of_its_folder_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("password: hunter2\n")
    agents = tmp_path / "agents"
    (agents / "data").mkdir(parents=True)
    (agents / "out.yaml").symlink_to(tmp_path / "secret.yaml")
    (agents / "data" / "in").write_text(AGENT)
    (agents / "in.yaml").symlink_to(agents / "data" / "in")
    (tmp_path / "mainspring.toml").write_text('agents = ["agents"]')
    listed = run([sys.executable, "-m", "mainspring", "agents", "list"], cwd=tmp_path)
    assert "well" in listed.stdout
    assert "out.yaml: it is a link" in listed.stderr
    assert "password" not in listed.stdout + listed.stderr


def test_definitions_where_tools_may_write_are_warned_of(tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "agents").mkdir(parents=True)
    (tmp_path / "flows").mkdir()
    settings = {"working_dir": str(work), "agents": [str(work / "agents")], "workflows": [str(tmp_path / "flows")]}
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (tmp_path / "mainspring.toml").write_text('builtins = ["file_ops"]\n' + "".join(lines))
    with serving(tmp_path, [{"when": "", "say": "Hello."}]) as served:
        assert f"agents: the folder {work / 'agents'} is inside of {work}" in served.warnings
        assert "workflows: the folder" not in served.warnings


def test_what_is_wrong_with_a_file_is_told_in_few_words(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows/long.yaml").write_text(f"? {'k' * 900_000}\n: v\n")
    (tmp_path / "mainspring.toml").write_text('workflows = ["flows"]\n')
    with serving(tmp_path, [{"when": "", "say": "Hello."}]) as served:
        assert "long.yaml" in served.warnings
        assert len(served.warnings) < 20_000


def test_workflows_that_multiply_are_counted_before_they_run(tmp_path: Path) -> None:
    """Eleven small files of ten steps each stand for ten thousand million steps."""
    flows = tmp_path / "flows"
    flows.mkdir()
    for level in range(10):
        steps = "".join([f"  - {{id: s{n}, action: sub-workflow, workflow: w{level + 1}}}\n" for n in range(10)])
        (flows / f"w{level}.yaml").write_text(f"name: w{level}\nsteps:\n{steps}")
    (flows / "w10.yaml").write_text("name: w10\nsteps: [{id: s, action: wait, seconds: 0}]\n")
    (tmp_path / "mainspring.toml").write_text('workflows = ["flows"]\n')
    with (
        serving(tmp_path, [{"when": "", "say": "Hello."}]) as served,
        httpx2.Client(base_url=served.url, timeout=PATIENCE) as http,
    ):
        assert "`w0` has 11,111,111,110 steps with those of the workflows inside of it" in served.warnings
        listed = [each["name"] for each in http.get("/workflows").json()["data"]]
        assert sorted(listed) == ["w10", "w7", "w8", "w9"]
        assert http.post("/workflows/w0/runs", json={}).status_code == 404
        assert http.post("/workflows/w9/runs", json={}).json()["status"] == "success"
