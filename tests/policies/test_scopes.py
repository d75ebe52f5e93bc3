"""Who may use a tool: the registry's word, the caller's scopes."""

import pytest
from tests.policies.world import tried

from mainspring.items import ToolDefinition
from mainspring.policies.scopes import CallerScopes
from mainspring.policies.status import ToolStatus
from mainspring.ports import CallPolicy
from mainspring.spec import Caller
from mainspring.tools.registry import Registry

NOTES = ("notes", "{}")
CLIENTS = (ToolDefinition("ask_user"),)


@pytest.mark.requirement("D71")
@pytest.mark.parametrize(
    ("status", "verdict"), [("active", "allow"), ("deprecated", "allow"), ("blocked", "deny"), ("odd", "deny")]
)
async def test_tool_is_denied_unless_the_registry_has_it_in_use(status: str, verdict: str) -> None:
    outcome = await tried([ToolStatus(lambda name: status)], NOTES)
    assert (outcome.only.verdict, len(outcome.done)) == (verdict, verdict == "allow")
    assert verdict == "allow" or f"`notes` as {status}" in outcome.only.reason


async def test_tool_that_the_registry_does_not_keep_is_not_its_concern() -> None:
    outcome = await tried([ToolStatus(Registry().status)], NOTES)
    assert outcome.only.verdict == "allow"


@pytest.mark.parametrize(
    ("scopes", "verdict"),
    [
        (None, "allow"),
        (("tools:execute",), "allow"),
        (("responses", "tools:execute:notes"), "allow"),
        (("*",), "allow"),
        ((), "deny"),
        (("responses",), "deny"),
        (("tools:execute:shell",), "deny"),
        (("TOOLS:EXECUTE",), "deny"),
    ],
)
async def test_caller_needs_a_scope_for_the_tool(scopes: tuple[str, ...] | None, verdict: str) -> None:
    outcome = await tried([CallerScopes()], NOTES, caller=Caller("ada", scopes))
    assert (outcome.only.verdict, len(outcome.done)) == (verdict, verdict == "allow")
    assert verdict == "allow" or "`tools:execute:notes`" in outcome.only.reason


async def test_clients_tools_need_no_scope_and_no_status() -> None:
    policies: list[CallPolicy] = [ToolStatus(lambda name: "blocked"), CallerScopes()]
    outcome = await tried(policies, ("ask_user", "{}"), tools=CLIENTS, caller=Caller("ada", ()))
    assert outcome.only.verdict == "client"
