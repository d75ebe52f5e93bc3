"""The protocol's own conformance suite, with the task server under test: all that it asks of a server that has only tools.

Most of its scenarios call tools, resources and prompts that a server must have for the sake of the suite. A proxy has it call two
tools for tasks by the names of its own; the other scenarios do not apply, and are listed with why, one by one, so that each new
one is looked at once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp.conformance_suite import REVISIONS, find_unexplained, judge_server, list_scenarios, run_revision, suite
from tests.mcp_server.suite_proxy import renaming
from tests.tasks.conftest import Served, served

__all__ = ["suite"]

pytestmark = pytest.mark.slow

APPLY = {
    "2025-11-25": [
        "server-initialize",
        "ping",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    ],
    "2026-07-28": [
        "server-stateless",
        "tools-list",
        "tools-call-simple-text",
        "tools-call-error",
        "server-sse-multiple-streams",
        "sep-2164-resource-not-found",
        "dns-rebinding-protection",
        "caching",
        "input-required-result-unsupported-methods",
    ],
}
# Not required yet, but they pass as well.
LATER = {"2025-11-25": ["server-session-lifecycle"], "2026-07-28": ["http-header-validation"]}

# What the suite calls a tool that answers, and one that fails, here for want of the task.
TOOLS = {"test_simple_text": "list_tasks", "test_error_handling": "complete_task"}

NO_FORMS = "no tool asks the user for anything, nor the client for a model or its roots"
ONLY_TEXT = "the tools answer with text and data alone"
AT_ONCE = "the tools answer at once, so that none is worked on as a task, reports progress, or has its stream closed"
NO_RESOURCES, NO_PROMPTS = "there are no resources", "there are no prompts"
# Why a scenario does not apply; `-` is for all that begin so.
REASONS = {
    "logging-set-level": "the server sends no log messages, and declares none",
    "tools-call-with-logging": "as logging-set-level",
    "completion-complete": "nothing is to be completed, and no completions are declared",
    "tools-call-image": ONLY_TEXT,
    "tools-call-audio": ONLY_TEXT,
    "tools-call-embedded-resource": ONLY_TEXT,
    "tools-call-mixed-content": ONLY_TEXT,
    "tools-call-with-progress": AT_ONCE,
    "server-sse-polling": AT_ONCE,
    "tasks-": AT_ONCE,
    "tools-call-sampling": NO_FORMS,
    "tools-call-elicitation": NO_FORMS,
    "elicitation-sep1034-defaults": NO_FORMS,
    "elicitation-sep1330-enums": NO_FORMS,
    "input-required-result-": NO_FORMS,
    "resources-": NO_RESOURCES,
    "prompts-": NO_PROMPTS,
    "json-schema-2020-12": "wants a tool with a given schema",
    "sep-2640-": "a draft: there are no skills",
    "http-custom-header-server-validation": "no tool has parameters that are repeated in headers",
}

# What the scenarios that apply find wrong, and why that is none of the server's doing.
EXCUSED = {
    "sep-2575-server-rejects-undeclared-capability": "needs a tool of the suite",
    "sep-2575-missing-capability-http-400": "needs a tool of the suite",
    "sep-2575-http-server-no-independent-requests-on-stream": "needs a tool of the suite",
    "sep-2575-server-no-log-without-loglevel": "needs a tool of the suite",
    "sep-2549-prompts-list-caching-hints": NO_PROMPTS,
    "sep-2549-resources-list-caching-hints": NO_RESOURCES,
    "sep-2549-resources-templates-list-caching-hints": NO_RESOURCES,
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("conformance"), "--user", "suite", "--database", "tasks.db") as server:
        yield server


def test_every_scenario_of_the_suite_is_run_or_has_a_reason_not_to(suite: list[str]) -> None:
    run = [name for each in (*APPLY.values(), *LATER.values()) for name in each]
    assert find_unexplained(list_scenarios(suite, "server"), run, REASONS) == []


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes_or_has_a_reason_not_to_apply(
    revision: str, suite: list[str], server: Served, tmp_path: Path
) -> None:
    with renaming(server.url, TOOLS) as url:
        found = run_revision(suite, "server", ["--url", url], revision, tmp_path)
    assert judge_server(found, [*APPLY[revision], *LATER[revision]], REASONS, EXCUSED) == {}
