"""The protocol's own conformance suite, with the task server under test: all that it asks of a server that has only tools.

Most of its scenarios call tools, resources and prompts that a server must have for the sake of the suite. Those do not apply, and
are listed, so that each new scenario is looked at once.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mcp.conformance_suite import REVISIONS, judge_server, run_revision, suite
from tests.tasks.conftest import Served, served

__all__ = ["suite"]

pytestmark = pytest.mark.slow

APPLY = {
    "2025-11-25": [
        "server-initialize",
        "ping",
        "tools-list",
        "server-sse-multiple-streams",
        "dns-rebinding-protection",
    ],
    "2026-07-28": [
        "server-stateless",
        "tools-list",
        "server-sse-multiple-streams",
        "sep-2164-resource-not-found",
        "dns-rebinding-protection",
        "caching",
        "input-required-result-unsupported-methods",
    ],
}
# Not required yet, but they pass as well.
LATER = {"2025-11-25": ["server-session-lifecycle"], "2026-07-28": ["http-header-validation"]}

# Why a scenario does not apply, by how its name begins.
REASONS = {
    "logging-": "the server sends no log messages",
    "completion-": "nothing is to be completed",
    "resources-": "there are no resources",
    "prompts-": "there are no prompts",
    "elicitation-": "calls a tool of the suite that asks the user",
    "tools-call-": "calls a tool of the suite",
    "input-required-result-": "calls a tool of the suite that asks the user",
    "json-schema-": "lists a tool of the suite with a schema of its own",
    "server-sse-polling": "calls a tool of the suite that has its stream closed",
    "http-custom-header-": "no tool has parameters that are repeated in headers",
    "tasks-": "calls a tool of the suite that takes its time; those of the task server do not",
}

# What the scenarios that apply find wrong, and why that is none of the server's doing.
EXCUSED = {
    "sep-2575-server-rejects-undeclared-capability": "needs a tool of the suite",
    "sep-2575-missing-capability-http-400": "needs a tool of the suite",
    "sep-2575-http-server-no-independent-requests-on-stream": "needs a tool of the suite",
    "sep-2575-server-no-log-without-loglevel": "needs a tool of the suite",
    "sep-2549-prompts-list-caching-hints": "there are no prompts",
    "sep-2549-resources-list-caching-hints": "there are no resources",
    "sep-2549-resources-templates-list-caching-hints": "there are no resources",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("conformance"), "--user", "suite", "--database", "tasks.db") as server:
        yield server


@pytest.mark.parametrize("revision", REVISIONS)
def test_every_scenario_passes_or_has_a_reason_not_to_apply(
    revision: str, suite: list[str], server: Served, tmp_path: Path
) -> None:
    found = run_revision(suite, "server", ["--url", server.url], revision, tmp_path)
    assert judge_server(found, [*APPLY[revision], *LATER[revision]], REASONS, EXCUSED) == {}
