"""The Codex command line, unmodified: it sends everything with every request, stores nothing, and runs commands by itself."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.clients import node
from tests.clients.process import environment
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, says

pytestmark = pytest.mark.usefixtures("node_clients")

SECONDS = 90
NOWHERE = "http://127.0.0.1:9"
CONFIG = """
model = "{model}"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.local]
name = "Local engine"
base_url = "{url}"
wire_api = "responses"
env_key = "LOCAL_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


def codex(folder: Path, url: str, model: str, *arguments: str) -> str:
    """What `codex exec` prints as its answer."""
    home = folder / "home"
    home.mkdir()
    (home / "config.toml").write_text(CONFIG.format(model=model, url=url))
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(
        [node.FOLDER / "node_modules/.bin/codex", "exec", "--skip-git-repo-check", *arguments],
        cwd=work,
        # Whatever else it would like to ask for, on other machines, it does not get.
        env=environment(CODEX_HOME=str(home), HOME=str(home), LOCAL_KEY="unused", HTTPS_PROXY=NOWHERE, NO_PROXY="127.0.0.1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_codex_runs_a_command_and_tells_the_result(tmp_path: Path, url: str, model: Model, tap: Tap) -> None:
    model.hears("Make a note", calls(("exec_command", {"cmd": "echo hello > note; cat note"}), saying="I will."))
    model.hears("Output:\nhello", says("The note says hello.", thinking="It worked."))
    assert codex(tmp_path, url, model.name, "Make a note that says hello.") == "The note says hello."
    assert (tmp_path / "work" / "note").read_text() == "hello\n"
    first, second = tap.posted()
    assert (first["stream"], first["store"]) == (True, False)
    assert [message["role"] for message in model.messages()][-3:] == ["user", "assistant", "tool"]
    assert "exec_command" in [tool["function"]["name"] for tool in model.asked[0]["tools"]]
    assert {tool["type"] for tool in first["tools"]} > {"function"}, "it offers tools of other kinds too, unasked"
    assert len(second["input"]) > len(first["input"])


def test_codex_gets_an_answer_in_the_shape_it_asks_for(tmp_path: Path, url: str, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo"}'))
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
        "additionalProperties": False,
    }
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    said = codex(tmp_path, url, model.name, "--output-schema", str(tmp_path / "schema.json"), "Oslo?")
    assert json.loads(said) == {"name": "Oslo"}
    assert model.asked[0]["response_format"]["json_schema"]["schema"] == schema
