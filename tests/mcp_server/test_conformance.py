"""The protocol's own conformance suite, with `/mcp` under test: all that applies to what a Mainspring server offers.

The suite calls tools of its own. Those that Mainspring's tools can be are offered to it, and its tasks are agents, which a proxy
has it call by its names; the other scenarios do not apply, and are listed with why, so that each new one is looked at once.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.world import written as write_agent
from tests.mcp.conformance_suite import REVISIONS, judge_server, run_revision, suite
from tests.mcp_server.suite_proxy import renaming
from tests.mcp_server.world import PNG
from tests.server.process import Script, Served, serving

pytestmark = pytest.mark.slow
__all__ = ["suite"]

APPLY = {
    "2025-11-25": [
        "server-initialize",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "server-sse-multiple-streams",
        "resources-list",
        "prompts-list",
        "dns-rebinding-protection",
    ],
    "2026-07-28": [
        "server-stateless",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "tools-call-image",
        "tools-call-audio",
        "tools-call-embedded-resource",
        "tools-call-mixed-content",
        "server-sse-multiple-streams",
        "resources-list",
        "sep-2164-resource-not-found",
        "prompts-list",
        "dns-rebinding-protection",
        "caching",
        "input-required-result-unsupported-methods",
    ],
}
# Not required yet, but they pass as well.
LATER = {
    "2025-11-25": ["server-session-lifecycle"],
    "2026-07-28": [
        "http-header-validation",
        "tasks-lifecycle",
        "tasks-capability-negotiation",
        "tasks-wire-fields",
        "tasks-request-state-removal",
        "tasks-mrtr-input",
        "tasks-request-headers",
        "tasks-dispatch-and-envelope",
        "tasks-status-notifications",
    ],
}

# Why a scenario does not apply, by how its name begins.
REASONS = {
    "logging-": "the server sends no log messages: what a run does is in its trace",
    "completion-": "nothing is to be completed",
    "resources-": "reads or subscribes to resources of the suite; ours are uploaded files, which do not change",
    "prompts-": "asks for prompts of the suite",
    "elicitation-": "calls a tool of the suite with a form of its own; ours are approvals and what servers ask",
    "tools-call-": "calls a tool of the suite that logs, samples, elicits or reports progress of its own",
    "input-required-result-": "calls a tool of the suite with a form of its own; ours are approvals and what servers ask",
    "json-schema-": "lists a tool of the suite with a schema of its own",
    "server-sse-polling": "calls a tool of the suite that has its stream closed",
    "http-custom-header-": "no tool of ours has parameters that are repeated in headers",
    "tasks-mrtr-composition": "a call of ours is a task from the first, and asks as one",
    "tasks-required-task-error": "no tool of ours must be a task: who knows none waits for the result",
}

# What the scenarios that apply find wrong, and why that is none of the server's doing.
EXCUSED = {
    "sep-2575-server-rejects-undeclared-capability": "needs a tool of the suite that samples",
    "sep-2575-missing-capability-http-400": "needs a tool of the suite that samples",
    "sep-2663-tasks-get-status-failed": "a task of ours always ends with a result, which may be an error",
}

TOOLS = '''
import asyncio

from mainspring import tool
from mainspring.core.items import InputFile, InputImage, InputText, Part

IMAGE = InputImage("data:image/png;base64,PNG")
NOTE = InputFile("note.txt", "data:text/plain;base64,bm90ZQ==")


@tool(effects=("read",))
def test_image_content() -> Part:
    """Shows an image."""
    return IMAGE


@tool(effects=("read",))
def test_audio_content() -> Part:
    """Plays a sound."""
    return InputFile("song.wav", "data:audio/wav;base64,UklGRg==")


@tool(effects=("read",))
def test_embedded_resource() -> Part:
    """Hands over a file."""
    return NOTE


@tool(effects=("read",))
def test_multiple_content_types() -> list[Part]:
    """Does all of that."""
    return [InputText("All:"), IMAGE, NOTE]


@tool(effects=("read",))
def test_simple_text() -> str:
    """Says what the suite expects."""
    return "This is a simple text response for testing."


@tool(effects=("read",))
def test_error_handling() -> str:
    """Always fails."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@tool(effects=("read",))
def greet(name: str) -> str:
    """Greets."""
    return f"Hello, {name}!"


@tool(effects=("read",))
async def rest(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "rested"


@tool(effects=("read",))
def test_logging_tool() -> str:
    """Logs nothing."""
    return "done"


@tool(effects=("write",))
def test_streaming_elicitation() -> str:
    """Needs a person's approval."""
    return "done"
'''
NAMES = [*re.findall(r"def (test_\w+)", TOOLS), "greet"]
# What the suite calls its tasks, and the agents that are those here.
TASKS = {"slow_compute": "rester", "failing_job": "failer", "confirm_delete": "asker", "multi_input": "asker-twice"}
ASKED: dict[str, object] = {"name": "confirm", "arguments": {"what": "delete"}}
TURNS: Script = [
    {"when": "Ask once.", "calls": [ASKED]},
    {"when": "Ask once.", "say": "Deleted."},
    {"when": "Ask twice.", "calls": [ASKED, {**ASKED, "arguments": {"what": "again"}}]},
    {"when": "Ask twice.", "say": "Deleted."},
    {"when": "Fail.", "fail": {"code": "invalid_prompt", "message": "it always fails"}},
    {"say": "Done."},
]
for seconds in (0, 1, 2, 60):
    TURNS.append({"when": f"Rest {seconds} s.", "calls": [{"name": "rest", "arguments": {"seconds": seconds}}]})
    TURNS.append({"when": f"Rest {seconds} s.", "say": "Rested."})
SETTINGS = f"""
agents = ["agents"]
tools = {[f"suite_tools:{name}" for name in (*NAMES, "rest")]}
[mcp.desk]
command = "{sys.executable}"
args = ["{Path(__file__).with_name("confirming.py")}"]
sandboxed = false
[mcp_server]
tools = {NAMES}
files = true
[governance.rules]
test_streaming_elicitation = "ask"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("conformance")
    agents = folder / "agents"
    write_agent(agents, "helper", inputs={"job": {"required": True}}, prompts={"user": "Do this: {{ job }}"})
    inputs = {"seconds": {"type": "integer", "required": True}, "label": {}}
    write_agent(agents, "rester", inputs=inputs, prompts={"user": "Rest {{ seconds }} s.", "confirmation": ""})
    write_agent(agents, "failer", prompts={"user": "Fail."})
    write_agent(agents, "asker", inputs={"filename": {}}, prompts={"user": "Ask once.", "confirmation": ""})
    write_agent(agents, "asker-twice", prompts={"user": "Ask twice.", "confirmation": ""})
    (folder / "suite_tools.py").write_text(TOOLS.replace("PNG", PNG))
    (folder / "mainspring.toml").write_text(SETTINGS)
    with serving(folder, TURNS, env={"PYTHONPATH": str(folder)}) as server:
        yield server


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes_or_has_a_reason_not_to_apply(
    revision: str, suite: list[str], server: Served, tmp_path: Path
) -> None:
    tools = {name: f"agent_{agent}" for name, agent in TASKS.items()}
    with renaming(server.url.replace("/v1", "/mcp"), tools) as url:
        found = run_revision(suite, "server", ["--url", url], revision, tmp_path)
    assert judge_server(found, [*APPLY[revision], *LATER[revision]], REASONS, EXCUSED) == {}
