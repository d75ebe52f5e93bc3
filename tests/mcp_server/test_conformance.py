"""The protocol's own conformance suite, with `/mcp` under test: all that applies to what a Mainspring server offers.

The suite calls tools of its own. Those that Mainspring's tools can be are offered to it; the other scenarios do not apply, and
are listed with why, so that each new one is looked at once.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.world import written as write_agent
from tests.mcp.conformance_suite import REVISIONS, judge_server, run_revision, suite
from tests.mcp_server.world import PNG
from tests.server.process import Served, serving

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
LATER = {"2025-11-25": ["server-session-lifecycle"], "2026-07-28": ["http-header-validation"]}

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
}

# What the scenarios that apply find wrong, and why that is none of the server's doing.
EXCUSED = {
    "sep-2575-server-rejects-undeclared-capability": "needs a tool of the suite that samples",
    "sep-2575-missing-capability-http-400": "needs a tool of the suite that samples",
}

TOOLS = '''
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
def test_logging_tool() -> str:
    """Logs nothing."""
    return "done"


@tool(effects=("write",))
def test_streaming_elicitation() -> str:
    """Needs a person's approval."""
    return "done"
'''
NAMES = re.findall(r"def (test_\w+)", TOOLS)
SETTINGS = f"""
agents = ["agents"]
tools = {[f"suite_tools:{name}" for name in NAMES]}
[mcp_server]
tools = {NAMES}
files = true
[governance.rules]
test_streaming_elicitation = "ask"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("conformance")
    write_agent(folder / "agents", "helper", inputs={"job": {"required": True}}, prompts={"user": "Do this: {{ job }}"})
    (folder / "suite_tools.py").write_text(TOOLS.replace("PNG", PNG))
    (folder / "mainspring.toml").write_text(SETTINGS)
    with serving(folder, [{"say": "Done."}], env={"PYTHONPATH": str(folder)}) as server:
        yield server


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes_or_has_a_reason_not_to_apply(
    revision: str, suite: list[str], server: Served, tmp_path: Path
) -> None:
    found = run_revision(suite, "server", ["--url", server.url.replace("/v1", "/mcp")], revision, tmp_path)
    assert judge_server(found, [*APPLY[revision], *LATER[revision]], REASONS, EXCUSED) == {}
