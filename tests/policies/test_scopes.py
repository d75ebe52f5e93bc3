"""Who may use a tool: the registry's word, the caller's scopes."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.policies.world import tried

from mainspring.app.engine import Engine
from mainspring.core.events import CallJudged
from mainspring.core.items import ToolDefinition
from mainspring.core.spec import Caller
from mainspring.features.governance.tool_policies import ToolStatus
from mainspring.providers.scripted import Scripted, call, say
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
    assert ("`notes` is deprecated" in outcome.only.reason) is (status == "deprecated")


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
    outcome = await tried([], NOTES, caller=Caller("ada", scopes))
    assert (outcome.only.verdict, len(outcome.done)) == (verdict, verdict == "allow")
    assert verdict == "allow" or "`tools:execute:notes`" in outcome.only.reason


async def test_clients_tools_need_no_scope_and_no_status() -> None:
    outcome = await tried([ToolStatus(lambda name: "blocked")], ("ask_user", "{}"), tools=CLIENTS, caller=Caller("ada", ()))
    assert outcome.only.verdict == "client"


def notes() -> str:
    """Says what was noted."""
    return "noted"


@pytest.mark.requirement("D71")
@pytest.mark.parametrize(("status", "done"), [("deprecated", True), ("blocked", False)])
async def test_status_in_a_file_of_definitions_holds_for_every_run(tmp_path: Path, status: str, done: bool) -> None:
    (tmp_path / "notes.yaml").write_text(f"name: notes\nstatus: {status}\nreason: too old\n")
    registry = Registry([notes])
    registry.load_definitions(tmp_path)
    async with Engine(Scripted(call("notes"), say("Done.")), tools=registry) as engine:
        # An order may hold a tool from before it was blocked, as that of a run which is resumed does.
        asked = [] if done else [replace(Registry([notes]).definitions[0])]
        handle = await engine.ask("Go.", tools=asked)
        await handle.wait()
        [judged] = [record.event async for record in handle.events() if isinstance(record.event, CallJudged)]
    assert judged.verdict == ("allow" if done else "deny")
    assert status in judged.reason
    assert (handle.run.tools_used == ("notes",)) is done
