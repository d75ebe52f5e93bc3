"""The protocol's own conformance suite, with `/mcp` under test: all that applies to what a Mainspring server offers.

The suite calls tools, prompts and resources of its own. Those that Mainspring's tools can be are offered to it; what it has as
tasks, as prompts, and as tools that report progress or ask for something are agents here, and its resources are uploaded files,
all of which a proxy offers by the suite's names. The other scenarios do not apply, and are listed with why, one by one, so that
each new one is looked at once.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI
from tests.agents.world import written as write_agent
from tests.mcp.conformance_suite import REVISIONS, find_unexplained, judge_server, list_scenarios, run_revision, suite
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
        "tools-call-with-progress",
        "tools-call-elicitation",
        "elicitation-sep1034-defaults",
        "elicitation-sep1330-enums",
        "server-sse-multiple-streams",
        "resources-list",
        "resources-read-text",
        "resources-read-binary",
        "prompts-list",
        "prompts-get-simple",
        "prompts-get-with-args",
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
        "tools-call-with-progress",
        "server-sse-multiple-streams",
        "resources-list",
        "resources-read-text",
        "resources-read-binary",
        "sep-2164-resource-not-found",
        "prompts-list",
        "prompts-get-simple",
        "prompts-get-with-args",
        "dns-rebinding-protection",
        "caching",
        "input-required-result-basic-elicitation",
        "input-required-result-request-state",
        "input-required-result-multi-round",
        "input-required-result-missing-input-response",
        "input-required-result-result-type",
        "input-required-result-unsupported-methods",
        "input-required-result-tampered-state",
        "input-required-result-ignore-extra-params",
        "input-required-result-validate-input",
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

# Why a scenario does not apply; `-` is for all that begin so.
REASONS = {
    "logging-set-level": "the server sends no log messages, and declares none: what a run does is in its trace",
    "tools-call-with-logging": "as logging-set-level",
    "completion-complete": "nothing is to be completed, and no completions are declared",
    "tools-call-sampling": "the server has models of its own, and asks no client for one",
    "input-required-result-basic-sampling": "as tools-call-sampling",
    "input-required-result-capability-check": "as tools-call-sampling",
    "input-required-result-basic-list-roots": "the server asks for no roots: it reads no files of its clients",
    "input-required-result-multiple-input-requests": "wants sampling and roots beside a form",
    "input-required-result-non-tool-request": "no prompt of ours asks for anything",
    "resources-templates-read": "there are no templates: files are listed, or named by their id",
    "resources-subscribe": "a file does not change once it is uploaded, and subscriptions are not declared",
    "resources-unsubscribe": "as resources-subscribe",
    "prompts-get-embedded-resource": "prompts of ours are those of agents, which are text",
    "prompts-get-with-image": "as prompts-get-embedded-resource",
    "json-schema-2020-12": "wants a tool with a given schema; those of our functions follow from their hints",
    "server-sse-polling": "the server closes no stream before its end, so there is none to come back to",
    "http-custom-header-server-validation": "no tool of ours has parameters that are repeated in headers",
    "tasks-mrtr-composition": "a call of ours is a task from the first, and asks as one",
    "sep-2640-": "a draft: skills of ours are for the agents here, and are not handed out",
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
# What the suite calls its tasks and other tools, and the agents that are those here.
AGENTS = {
    "slow_compute": "rester",
    "failing_job": "failer",
    "confirm_delete": "asker",
    "multi_input": "asker-twice",
    "test_tool_with_progress": "reporter",
}
# Those that ask, and for what.
ASKING = {
    "test_elicitation": "contact",
    "test_elicitation_sep1034_defaults": "defaults",
    "test_elicitation_sep1330_enums": "choices",
    "test_input_required_result_elicitation": "name",
    "test_input_required_result_request_state": "ok",
    "test_input_required_result_tampered_state": "ok",
    "test_input_required_result_multi_round": "name and color",
}
PROMPTS = {"test_simple_prompt": "asker", "test_prompt_with_arguments": "prompter"}
FILES = {"test://static-text": b"This is text.", "test://static-binary": b"\x89PNG\xff"}
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
for what in ASKING.values():
    TURNS.append({"when": f"Ask for {what}.", "calls": [{"name": "fill_in", "arguments": {"what": what}}]})
    TURNS.append({"when": f"Ask for {what}.", "say": "Filled in."})
for _ in range(3):
    TURNS.append({"when": "Report.", "calls": [{"name": "rest", "arguments": {"seconds": 0.05}}]})
TURNS.append({"when": "Report.", "say": "Reported."})
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


def name_asker(what: str) -> str:
    return f"asks-for-{what.replace(' ', '-')}"


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
    write_agent(agents, "reporter", prompts={"user": "Report.", "confirmation": ""})
    write_agent(agents, "prompter", inputs={"arg1": {}, "arg2": {}}, prompts={"user": "Say {{ arg1 }} and {{ arg2 }}."})
    for what in set(ASKING.values()):
        write_agent(agents, name_asker(what), inputs={"message": {}}, prompts={"user": f"Ask for {what}.", "confirmation": ""})
    (folder / "suite_tools.py").write_text(TOOLS.replace("PNG", PNG))
    (folder / "mainspring.toml").write_text(SETTINGS)
    with serving(folder, TURNS, env={"PYTHONPATH": str(folder)}) as server:
        yield server


def test_every_scenario_of_the_suite_is_run_or_has_a_reason_not_to(suite: list[str]) -> None:
    run = [name for each in (*APPLY.values(), *LATER.values()) for name in each]
    assert find_unexplained(list_scenarios(suite, "server"), run, REASONS) == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes_or_has_a_reason_not_to_apply(
    revision: str, suite: list[str], server: Served, tmp_path: Path
) -> None:
    ours = {name: f"agent_{agent}" for name, agent in AGENTS.items()}
    ours |= {name: f"agent_{name_asker(what)}" for name, what in ASKING.items()}
    files = OpenAI(base_url=server.url, api_key="unused").files
    for uri, content in FILES.items():
        ours[uri] = f"mainspring://files/{files.create(file=(uri[7:], content), purpose='user_data').id}"
    with renaming(server.url.replace("/v1", "/mcp"), ours | PROMPTS) as url:
        found = run_revision(suite, "server", ["--url", url], revision, tmp_path)
    assert judge_server(found, [*APPLY[revision], *LATER[revision]], REASONS, EXCUSED) == {}
