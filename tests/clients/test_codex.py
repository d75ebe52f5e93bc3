"""The Codex command line, unmodified: it sends everything with every request, stores nothing, and runs commands by itself."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.clients import node
from tests.clients.process import environment
from tests.clients.tap import Tap
from tests.clients.upstream import Model, Reply, Upstream, calls, says

pytestmark = pytest.mark.usefixtures("node_clients")

SECONDS = 90
NOWHERE = "http://127.0.0.1:9"
CONFIG = """
model = "{model}"
model_provider = "local"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false
{settings}

[analytics]
enabled = false

[model_providers.local]
name = "{name}"
base_url = "{url}"
wire_api = "responses"
env_key = "LOCAL_KEY"
request_max_retries = 0
stream_max_retries = 0
"""


class Codex:
    """Codex at home in a folder: what it knows of sessions stays between its runs. `settings` are added to those it has."""

    def __init__(
        self, folder: Path, url: str, model: str, *, settings: str = "", name: str = "Local engine", more: str = ""
    ) -> None:
        self._home, self.work = folder / "home", folder / "work"
        self._home.mkdir()
        self.work.mkdir()
        config = CONFIG.format(model=model, url=url, settings=settings, name=name)
        (self._home / "config.toml").write_text(config + more)

    def run(self, *arguments: str) -> str:
        """What `codex exec` prints as its answer."""
        done = subprocess.run(
            [node.FOLDER / "node_modules/.bin/codex", "exec", "--skip-git-repo-check", *arguments],
            cwd=self.work,
            # Whatever else it would like to ask for, on other machines, it does not get.
            env=environment(
                CODEX_HOME=str(self._home), HOME=str(self._home), LOCAL_KEY="unused", HTTPS_PROXY=NOWHERE, NO_PROXY="127.0.0.1"
            ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def codex(folder: Path, url: str, model: str, *arguments: str) -> str:
    return Codex(folder, url, model).run(*arguments)


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


SERVER = """
from mcp.server import MCPServer

server = MCPServer("notes")


@server.tool()
def keep(text: str) -> str:
    \"\"\"Keeps a note.\"\"\"
    return f"kept: {text}"


server.run()
"""


def configure_notes(folder: Path) -> str:
    """The settings for a server that Codex waits for before it asks the model."""
    (folder / "notes.py").write_text(SERVER)
    server = {"command": sys.executable, "args": [str(folder / "notes.py")], "required": True, "startup_timeout_sec": SECONDS}
    return "\n".join(["[mcp_servers.notes]", *[f"{name} = {json.dumps(value)}" for name, value in server.items()]])


def test_codex_uses_the_tools_of_an_mcp_server_and_resumes_its_session(tmp_path: Path, url: str, model: Model, tap: Tap) -> None:
    """It declares them in a namespace, and finds its own names in the calls; also in what it sends of an earlier session."""
    more = configure_notes(tmp_path)
    model.hears("Keep milk", calls(("mcp__notes__keep", {"text": "milk"})))
    model.hears("kept: milk", says("It is kept."))
    model.hears("What did you keep", says("Milk."))
    here = Codex(tmp_path, url, model.name, more=more)
    assert here.run("Keep milk in mind.") == "It is kept."
    assert here.run("resume", "--last", "What did you keep?") == "Milk."
    spaces = [tool for tool in tap.posted()[0]["tools"] if tool["type"] == "namespace"]
    assert "mcp__notes" in [tool["name"] for tool in spaces]
    [call] = [item for item in tap.posted()[-1]["input"] if item["type"] == "function_call"]
    assert (call["namespace"], call["name"]) == ("mcp__notes", "keep")
    [made] = [call for message in model.messages() for call in message.get("tool_calls", ())]
    assert made["function"]["name"] == "mcp__notes__keep"


HELPER = """
name: helper
version: 1.0.0
role: implementer
description: Counts crabs.
inputs: {where: {type: string, required: true}}
"""


def test_codex_has_an_agent_of_mainspring_work(tmp_path: Path, url: str, model: Model) -> None:
    """It starts `mainspring mcp serve`, and calls an agent as a tool."""
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "helper.yaml").write_text(HELPER)
    (tmp_path / "script.json").write_text('{"turns": [{"say": "Seven crabs."}], "repeat": true}')
    (tmp_path / "mainspring.toml").write_text('agents = ["agents"]\nmodel = "scripted:script.json"\n')
    served = {
        "command": sys.executable,
        "args": ["-m", "mainspring", "mcp", "serve"],
        "cwd": str(tmp_path),
        "required": True,
        "startup_timeout_sec": SECONDS,
    }
    lines = [f"{name} = {json.dumps(value)}" for name, value in served.items()]
    path = json.dumps(environment()["PYTHONPATH"])
    more = "\n".join(["[mcp_servers.shore]", *lines, "[mcp_servers.shore.env]", f"PYTHONPATH = {path}"])
    model.hears("How many crabs", calls(("mcp__shore__agent_helper", {"where": "the shore"})))
    model.hears("Seven crabs.", says("There are seven."))
    assert Codex(tmp_path, url, model.name, more=more).run("How many crabs are there?") == "There are seven."


def test_codex_has_a_sub_agent_work_and_waits_for_it(tmp_path: Path, url: str, model: Model) -> None:
    model.hears("Ask a helper", calls(("multi_agent_v1__spawn_agent", {"message": "Count the crabs."})))
    model.hears("agent_id", lambda told: calls(("multi_agent_v1__wait_agent", {"targets": [json.loads(told)["agent_id"]]})))
    model.hears("Count the crabs", says("Seven crabs."))
    model.hears('"Seven crabs."', says("The helper found seven."))
    assert codex(tmp_path, url, model.name, "Ask a helper about crabs.") == "The helper found seven."


@pytest.mark.parametrize("name", ["OpenAI", "Local engine"])
@pytest.mark.parametrize("sockets", [False, True], ids=["http", "websocket"])
def test_codex_goes_on_when_its_context_is_full(
    tmp_path: Path, url: str, model: Model, tap: Tap, name: str, sockets: bool
) -> None:
    """One that takes us for OpenAI has us compact, by a trigger; any other asks the model for a summary itself."""
    full = calls(("exec_command", {"cmd": "echo hello > note; cat note"}))
    model.hears("Make a note", Reply(full.deltas, full.finish, asked=90_000))
    model.hears("summary", says("A note was made, it says hello."))
    model.hears("it says hello", says("The note says hello."))
    provider = "supports_websockets = true\n" if sockets else ""
    here = Codex(tmp_path, url, model.name, settings="model_auto_compact_token_limit = 50000", name=name, more=provider)
    assert here.run("Make a note that says hello.") == "The note says hello."
    assert (tmp_path / "work" / "note").read_text() == "hello\n"
    assert len(model.asked) == 3, "on a socket it prepares its context first, and nobody is asked for that"
    assert [message["role"] for message in model.messages(0)] == ["system", "system", "user", "user"]
    if not sockets:
        sent = [[item["type"] for item in body["input"]] for body in tap.posted()]
        assert ["compaction_trigger" in kinds for kinds in sent] == [False, name == "OpenAI", False]
        assert ("compaction" in sent[2]) is (name == "OpenAI")
    else:
        assert not tap.posted()


def test_codex_searches_for_the_tools_of_its_mcp_servers(tmp_path: Path, url: str, upstream: Upstream, tap: Tap) -> None:
    """It does so with the models that it knows to be able to."""
    model = upstream.model("gpt-5.5")
    model.hears("Keep milk", calls(("tool_search", {"query": "keep a note"})))
    model.hears("mcp__notes__keep", calls(("mcp__notes__keep", {"text": "milk"})))
    model.hears("kept: milk", says("It is kept."))
    here = Codex(tmp_path, url, model.name, more=configure_notes(tmp_path))
    assert here.run("Keep milk in mind.") == "It is kept."
    model.check()
    offered = [[tool["function"]["name"] for tool in asked["tools"]] for asked in model.asked]
    assert ["mcp__notes__keep" in names for names in offered] == [False, True, True]
    kinds = [item["type"] for item in tap.posted()[-1]["input"]]
    assert kinds[-4:] == ["tool_search_call", "tool_search_output", "function_call", "function_call_output"]


@pytest.mark.parametrize("sockets", [False, True], ids=["http", "websocket"])
def test_codex_brings_all_of_its_tools_in_an_item(tmp_path: Path, url: str, upstream: Upstream, tap: Tap, sockets: bool) -> None:
    """In namespaces, and with a custom tool that runs code. On a socket, the item comes first, to prepare the context."""
    model = upstream.model("gpt-6-astra")
    code = 'const made = await tools.exec_command({cmd: "echo hello > note; cat note"}); text(made.output);'
    model.hears("Make a note", calls(("functions__exec", {"input": code})))
    model.hears("hello", says("The note says hello."))
    here = Codex(tmp_path, url, model.name, more="supports_websockets = true\n" if sockets else "")
    assert here.run("Make a note that says so.") == "The note says hello."
    model.check()
    assert (tmp_path / "work" / "note").read_text() == "hello\n"
    for asked in model.asked:
        assert "functions__exec" in [tool["function"]["name"] for tool in asked["tools"]]
    if sockets:
        assert not tap.posted()
        return
    first, second = tap.posted()
    assert not first.get("tools")
    assert first["input"][0]["type"] == "additional_tools"
    [call] = [item for item in second["input"] if item["type"] == "custom_tool_call"]
    assert (call["namespace"], call["name"], call["input"]) == ("functions", "exec", code)
