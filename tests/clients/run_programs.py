"""Programs that people use, unmodified, through the doors of a server: `python -m tests.clients.run_programs [NAME ...]`.

They are too large for every check: each is installed from its own lock in `programs/`, once, into the folder that `--cache`
names, and then run against a server with a model that answers by script. What goes wrong ends the script.
"""

import argparse
import json
import subprocess
import sys
import venv
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from anyio.from_thread import start_blocking_portal
from tests.clients.node import install
from tests.clients.process import environment, served
from tests.clients.upstream import Model, calls, says, serving
from tests.kit.processes import start
from tests.search.test_web_search import open_services

LOCKS = Path(__file__).parent / "programs"
NOWHERE = "http://127.0.0.1:9"
SECONDS = 300
FOUND = "Take an umbrella."


class Place(NamedTuple):
    """Where a program runs: its folder, the server's address up to `/v1`, its model, and what was installed for it."""

    folder: Path
    url: str
    model: Model
    installed: Path

    def run(self, *command: str, **more: str) -> str:
        """What a command prints. It reaches nobody but the server."""
        alone = {"HOME": str(self.folder), "HTTPS_PROXY": NOWHERE, "NO_PROXY": "127.0.0.1", "PYTHONPATH": ""}
        told = environment(URL=self.url, MODEL=self.model.name, **alone, **more)
        done = subprocess.run(
            command, cwd=self.folder, env=told, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
        )
        assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout

    def run_python(self, script: str) -> str:
        (self.folder / "script.py").write_text(script)
        return self.run(str(self.installed / "bin" / "python"), "script.py")


def run_litellm(place: Place) -> None:
    place.model.hears("Hello", says("Good morning."))
    said = place.run_python(LITELLM)
    assert said.splitlines().count("Good morning.") == 3, said


def run_smolagents(place: Place) -> None:
    place.model.hears("How is Oslo", calls(("weather", {"city": "Oslo"})))
    place.model.hears("rain in Oslo", calls(("final_answer", {"answer": FOUND})))
    assert FOUND in place.run_python(SMOLAGENTS)
    assert len(place.model.asked) == 2


def run_llm(place: Place) -> None:
    entry = {"model_id": "ours", "model_name": place.model.name, "api_base": place.url, "supports_tools": True}
    (place.folder / "extra-openai-models.yaml").write_text(json.dumps([entry]))
    place.model.hears("How is Oslo", calls(("weather", {"city": "Oslo"})))
    place.model.hears("rain in Oslo", says(FOUND))
    weather = 'def weather(city: str) -> str:\n    """The weather in a city."""\n    return "rain in " + city'
    asked = ("-m", "ours", "--key", "unused", "--functions", weather, "How is Oslo?")
    assert FOUND in place.run(str(place.installed / "bin" / "llm"), *asked, LLM_USER_PATH=str(place.folder))


def run_llama_index(place: Place) -> None:
    place.model.hears("Hello", says("Good morning."))
    place.model.hears("How is Oslo", calls(("weather", {"city": "Oslo"})))
    said = place.run_python(LLAMA_INDEX)
    assert said.splitlines()[-3:] == ["Good morning.", "Good morning.", "rain in Oslo"], said


def run_aider(place: Place) -> None:
    (place.folder / "note.txt").write_text("nothing\n")
    place.model.hears("Say hello in the note", says("note.txt\n```\nhello\n```"))
    asked = ("--model", f"openai/{place.model.name}", "--openai-api-base", place.url, "--openai-api-key", "unused")
    plain = (
        "--no-git",
        "--yes-always",
        "--no-show-model-warnings",
        "--no-check-update",
        "--analytics-disable",
        "--edit-format",
        "whole",
    )
    place.run(str(place.installed / "bin" / "aider"), *asked, *plain, "--message", "Say hello in the note.", "note.txt")
    assert (place.folder / "note.txt").read_text() == "hello\n"


def run_claude(place: Place) -> None:
    (place.folder / "note.txt").write_text("The code is 4711.\n")
    # What it was asked is followed by a message of the system, about where it works.
    place.model.hears("# Environment", calls(("Read", {"file_path": str(place.folder / "note.txt")}), saying="I read it."))
    line = {"command": "echo done-4711 > out.txt; cat out.txt", "description": "Notes it"}
    place.model.hears("The code is 4711", calls(("Bash", line)))
    place.model.hears("done-4711", says("The code is 4711, and it is noted."))
    told = run_claude_code(place, "Which code is in note.txt? Note it.")
    assert told.strip() == "The code is 4711, and it is noted."
    assert (place.folder / "out.txt").read_text() == "done-4711\n"
    assert len(place.model.asked) == 3


def run_claude_searching(place: Place) -> None:
    """Its own tool asks for a message with a search of the web, which the server performs."""
    place.model.hears("# Environment", calls(("WebSearch", {"query": "how long sourdough rests"}), saying="I search."))
    place.model.hears("Perform a web search", calls(("web_search", {"queries": ["sourdough"]})))
    place.model.hears("Sourdough rests", says("All night."))
    place.model.hears("Web search results", says("All night, they say."))
    assert run_claude_code(place, "How long does sourdough rest?").strip() == "All night, they say."
    [results] = [message for message in place.model.messages() if message["role"] == "tool"]
    assert '"https://bakers.example/bread"' in results["content"]
    assert "All night." in results["content"]


def run_claude_with_agents(place: Place) -> None:
    """It starts `mainspring mcp serve`, and calls an agent as a tool."""
    write_helper(place.folder)
    served = {
        "command": sys.executable,
        "args": ["-m", "mainspring", "mcp", "serve", "--config", "mainspring.toml"],
        "env": {"PYTHONPATH": environment()["PYTHONPATH"]},
    }
    (place.folder / "servers.json").write_text(json.dumps({"mcpServers": {"shore": served}}))
    place.model.hears("# Environment", calls(("mcp__shore__agent_helper", {"where": "the shore"}), saying="I ask."))
    place.model.hears("Seven crabs.", says("There are seven."))
    told = run_claude_code(place, "How many crabs are there?", "--mcp-config", "servers.json", "--strict-mcp-config")
    assert told.strip() == "There are seven."


def write_helper(folder: Path) -> None:
    """The settings of a server that has an agent."""
    (folder / "agents").mkdir()
    (folder / "agents" / "helper.yaml").write_text(HELPER)
    (folder / "script.json").write_text('{"turns": [{"say": "Seven crabs."}], "repeat": true}')
    (folder / "mainspring.toml").write_text('agents = ["agents"]\nmodel = "scripted:script.json"\n')


def run_inspector(place: Place) -> None:
    """It calls an agent as a tool: of a server that it starts, and at `/mcp` of one that runs."""
    write_helper(place.folder)
    served = {"command": sys.executable, "args": ["-m", "mainspring", "mcp", "serve"], "env": environment()}
    (place.folder / "servers.json").write_text(json.dumps({"mcpServers": {"shore": served}}))
    started = ("--config", "servers.json", "--server", "shore")
    with start([sys.executable, "-m", "mainspring", "serve", "--port", "0"], cwd=place.folder, env=environment()) as server:
        assert server.stdout is not None
        url = server.stdout.readline().rpartition(" ")[2].strip().replace("/v1", "/mcp")
        for where in (started, (url, "--transport", "http")):
            [tool] = inspect(place, *where, "--method", "tools/list")["tools"]
            called = ("--method", "tools/call", "--tool-name", tool["name"], "--tool-arg", "where=the shore")
            assert inspect(place, *where, *called)["content"] == [{"type": "text", "text": "Seven crabs."}]
        server.kill()


def inspect(place: Place, *arguments: str) -> Any:
    programs = place.installed / "node_modules" / ".bin"
    return json.loads(place.run(str(programs / "node"), str(programs / "mcp-inspector"), "--cli", *arguments))


def run_claude_code(place: Place, *arguments: str) -> str:
    return place.run(
        str(place.installed / "node_modules/@anthropic-ai/claude-code-linux-x64/claude"),
        *("-p", *arguments, "--dangerously-skip-permissions"),
        ANTHROPIC_BASE_URL=place.url.removesuffix("/v1"),
        ANTHROPIC_AUTH_TOKEN="unused",
        ANTHROPIC_MODEL=place.model.name,
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        ENABLE_TOOL_SEARCH="false",  # tools of MCP servers are there from the start
        IS_SANDBOX="1",
    )


HELPER = """
name: helper
version: 1.0.0
role: implementer
description: Counts crabs.
inputs: {where: {type: string, required: true}}
"""
LITELLM = """
import os
import litellm

url, model = os.environ["URL"], os.environ["MODEL"]
hello = [{"role": "user", "content": "Hello"}]
chat = {"model": f"openai/{model}", "api_base": url, "api_key": "unused", "messages": hello}
print(litellm.completion(**chat).choices[0].message.content)
print("".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**chat, stream=True)))
claude = {**chat, "model": f"anthropic/{model}", "api_base": url.removesuffix("/v1")}
print("".join(chunk.choices[0].delta.content or "" for chunk in litellm.completion(**claude, stream=True)))
"""
SMOLAGENTS = '''
import os
from smolagents import OpenAIModel, ToolCallingAgent, tool

@tool
def weather(city: str) -> str:
    """The weather in a city.

    Args:
        city: Which one.
    """
    return f"rain in {city}"

model = OpenAIModel(model_id=os.environ["MODEL"], api_base=os.environ["URL"], api_key="unused")
print(ToolCallingAgent(tools=[weather], model=model).run("How is Oslo?"))
'''
LLAMA_INDEX = '''
import os
from llama_index.core.llms import ChatMessage
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai import OpenAI

def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"

model = OpenAI(model=os.environ["MODEL"], api_base=os.environ["URL"], api_key="unused", max_retries=0)
print(model.complete("Hello"))
print("".join(chunk.delta for chunk in model.stream_chat([ChatMessage(role="user", content="Hello")])))
print(model.predict_and_call([FunctionTool.from_defaults(weather)], "How is Oslo?"))
'''
PROGRAMS: Mapping[str, Callable[[Place], None]] = {
    "litellm": run_litellm,
    "smolagents": run_smolagents,
    "llm": run_llm,
    "llama_index": run_llama_index,
    "aider": run_aider,
    "claude": run_claude,
    "claude_searching": run_claude_searching,
    "claude_with_agents": run_claude_with_agents,
    "inspector": run_inspector,
}
# This one must know a model to know how much it takes in.
NAMES = {"llama_index": "gpt-4o-mini"}


def prepare(name: str, cache: Path) -> Path:
    """Where a program is installed, as its lock says."""
    if (on_node := LOCKS / name.partition("_")[0]).is_dir():
        install(on_node)
        return on_node
    folder, lock = cache / name, LOCKS / f"{name}.lock"
    stamp = folder / "lock"
    if not stamp.exists() or stamp.read_text() != lock.read_text():
        venv.create(folder, with_pip=True, clear=True)
        pip = [str(folder / "bin" / "pip"), "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(lock)]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL)
        stamp.write_text(lock.read_text())
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(PROGRAMS)}; all if none is named")
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache" / "mainspring-programs")
    given = parser.parse_args()
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(serving()) as upstream,
        portal.wrap_async_context_manager(open_services()) as services,
        TemporaryDirectory() as home,
    ):
        server = Path(home) / "server"
        server.mkdir()
        settings = f'[web_search]\nprovider = "searxng"\nurl = "{services.url}/searxng"\n'
        (server / "mainspring.toml").write_text(settings)
        with served(server, upstream.url) as running:
            for name in given.names or PROGRAMS:
                installed, folder = prepare(name, given.cache), Path(home) / name
                folder.mkdir()
                model = upstream.model(NAMES.get(name, name))
                PROGRAMS[name](Place(folder, running.url, model, installed))
                model.check()
                print(f"{name}: well", file=sys.stderr)


if __name__ == "__main__":
    main()
