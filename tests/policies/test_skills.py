"""A skill that a run has loaded narrows its tools from then on: in the loop, in what continues it, and when it is replayed."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from tests.skills.shelf import put

from mainspring.app.engine import Engine
from mainspring.core.events import CallJudged
from mainspring.core.history import History
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Json, ToolDefinition, user
from mainspring.core.run import Run, replay
from mainspring.core.spec import Caller
from mainspring.engine.handle import Handle
from mainspring.features.skills.skill_folder import SkillFolders
from mainspring.features.skills.skill_scope import SkillScopePolicy, list_active_skills
from mainspring.features.skills.skill_tools import SkillTools
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.tools.contract import ToolContext, ToolResult


class Files:
    """Tells operations apart, and remembers them."""

    name = "file_ops"
    description = "Reads and writes files."
    parameters_schema: ClassVar[Json] = {"type": "object", "properties": {"operation": {"type": "string"}}}

    def __init__(self) -> None:
        self.done: list[str] = []

    async def execute(self, params: Json, context: ToolContext) -> ToolResult:
        self.done.append(str(params.get("operation")))
        return ToolResult.ok("done")


def shell() -> str:
    """Runs a command."""
    return "ran"


class World:
    """A real engine with two tools and the skills of a folder."""

    def __init__(self, place: Path, script: Scripted, always: Sequence[str] = ()) -> None:
        put(place, "reader", "allowed-tools: file_ops:read\n", references__a="Text of a.")
        put(place, "runner", "allowed-tools: shell\n")
        put(place, "gentle", "disallowed-tools: shell file_ops:delete\n")
        put(place, "locked", "disallowed-tools: read_skill_file load_skill\n")
        put(place, "free")
        self.shelf, self.files, self.script = SkillFolders([place]), Files(), script
        hands = SkillTools(lambda: self.shelf.definitions)
        scope = SkillScopePolicy(lambda: self.shelf.definitions, lambda run: always)
        self.engine = Engine(script, tools=[self.files, shell], executors=[hands], policies=[scope])
        self.tools = hands.definitions()

    async def play(self, prompt: str | Sequence[Item] = "Go.", previous: str | None = None) -> Handle:
        handle = await self.engine.ask(prompt, tools=self.tools, previous=previous)
        await handle.wait()
        assert handle.run.text == "Done.", "the model goes on, whatever is denied"
        return handle


async def verdicts(handle: Handle) -> list[str]:
    return [record.event.verdict async for record in handle.events() if isinstance(record.event, CallJudged)]


def outputs(run: Run) -> list[str]:
    return [str(item.output) for item in run.output if isinstance(item, FunctionCallOutput)]


@pytest.mark.requirement("C24")
async def test_skill_that_is_loaded_narrows_the_tools_of_the_run_from_then_on(tmp_path: Path) -> None:
    world = World(tmp_path, Scripted(call("shell"), call("load_skill", name="reader"), call("shell"), say("Done.")))
    async with world.engine:
        handle = await world.play()
        assert await verdicts(handle) == ["allow", "allow", "deny"]
    assert outputs(handle.run)[2] == "`shell` is not for this task: the skill `reader` allows only: file_ops:read."
    assert list_active_skills(handle.run) == ("reader",)


@pytest.mark.requirement("C24")
async def test_operation_of_a_tool_is_judged_on_its_own(tmp_path: Path) -> None:
    asked = [call("file_ops", operation=operation) for operation in ("write", "read", "READ")]
    world = World(tmp_path, Scripted(*asked, call("file_ops"), say("Done.")), always=["reader"])
    async with world.engine:
        assert await verdicts(await world.play()) == ["deny", "allow", "deny", "deny"]
    assert world.files.done == ["read"]


@pytest.mark.requirement("D68")
async def test_two_skills_that_have_no_tool_in_common_leave_none(tmp_path: Path) -> None:
    asked = [
        call("load_skill", name="reader"),
        call("load_skill", name="runner"),
        call("shell"),
        call("file_ops", operation="read"),
    ]
    world = World(tmp_path, Scripted(*asked, say("Done.")))
    async with world.engine:
        assert await verdicts(await world.play()) == ["allow", "allow", "deny", "deny"]
    assert world.files.done == []


@pytest.mark.requirement("D68")
async def test_skill_that_only_disallows_leaves_the_rest(tmp_path: Path) -> None:
    asked = [call("shell"), call("file_ops", operation="delete"), call("file_ops", operation="write")]
    world = World(tmp_path, Scripted(*asked, say("Done.")), always=["gentle"])
    async with world.engine:
        assert await verdicts(await world.play()) == ["deny", "deny", "allow"]
    assert world.files.done == ["write"]


async def test_tools_of_skills_stay_unless_a_skill_disallows_them(tmp_path: Path) -> None:
    asked = [call("read_skill_file", name="reader", path="references/a"), call("load_skill", name="locked")]
    again = call("read_skill_file", name="reader", path="references/a")
    world = World(tmp_path, Scripted(*asked, again, say("Done.")), always=["reader"])
    async with world.engine:
        handle = await world.play()
        assert await verdicts(handle) == ["allow", "allow", "deny"]
    assert outputs(handle.run)[0] == "Text of a."


async def test_skill_that_could_not_be_loaded_is_not_active(tmp_path: Path) -> None:
    world = World(tmp_path, Scripted(call("load_skill", name="nothing"), call("shell"), say("Done.")))
    async with world.engine:
        handle = await world.play()
        assert await verdicts(handle) == ["deny", "allow"]
    assert list_active_skills(handle.run) == ()


async def test_call_beside_the_loading_one_is_judged_by_what_was_active_then(tmp_path: Path) -> None:
    together = calls(call("load_skill", name="reader"), call("shell"))
    world = World(tmp_path, Scripted(together, call("shell"), say("Done.")))
    async with world.engine:
        assert await verdicts(await world.play()) == ["allow", "allow", "deny"]


async def test_skill_stays_active_in_the_run_that_continues(tmp_path: Path) -> None:
    world = World(tmp_path, Scripted(call("load_skill", name="reader"), say("Done."), call("shell"), say("Done.")))
    async with world.engine:
        first = await world.play()
        second = await world.play("Go on.", previous=first.id)
        assert await verdicts(second) == ["deny"]


async def test_skill_stays_active_for_a_client_that_keeps_the_conversation_itself(tmp_path: Path) -> None:
    said = [FunctionCall("c1", "load_skill", '{"name": "reader"}'), FunctionCallOutput("c1", "text"), user("Go on.")]
    world = World(tmp_path, Scripted(call("shell"), say("Done.")))
    async with world.engine:
        assert await verdicts(await world.play(said)) == ["deny"]


async def test_active_skill_that_is_gone_leaves_no_tool(tmp_path: Path) -> None:
    said = [FunctionCall("c1", "load_skill", '{"name": "old"}'), FunctionCallOutput("c1", "text"), user("Go on.")]
    world = World(tmp_path, Scripted(call("shell"), say("Done.")))
    async with world.engine:
        handle = await world.play(said)
        assert await verdicts(handle) == ["deny"]
    assert "the skill `old` is active, but what it allows is not known any more" in outputs(handle.run)[0]


async def test_replayed_run_has_the_same_active_skills_after_every_event(tmp_path: Path) -> None:
    script = Scripted(call("load_skill", name="free"), call("load_skill", name="reader"), say("Done."))
    world = World(tmp_path, script)
    async with world.engine:
        handle = await world.play()
        log = [record async for record in handle.events()]
    seen = [list_active_skills(replay(log[:length], History()), ["runner", "free"]) for length in range(1, len(log) + 1)]
    assert list(dict.fromkeys(seen)) == [("runner", "free"), ("runner", "free", "reader")]


async def test_clients_tool_is_narrowed_too(tmp_path: Path) -> None:
    world = World(tmp_path, Scripted(call("choose"), say("Done.")), always=["reader"])
    world.tools = (*world.tools, ToolDefinition("choose"))
    async with world.engine:
        assert await verdicts(await world.play()) == ["deny"]


@pytest.mark.requirement("D68")
async def test_a_skill_that_allows_a_tool_lifts_no_other_rule(tmp_path: Path) -> None:
    """Scopes, tenant and budget of the caller are asked about as if there were no skill."""
    put(tmp_path, "runner", "allowed-tools: shell\n")
    script = Scripted(call("load_skill", name="runner"), call("shell"), say("Done."))
    caller = Caller("ada", ("tools:execute:load_skill", "tools:execute:file_ops"))
    async with Engine(script, tools=[Files(), shell], skills=[tmp_path]) as engine:
        handle = await engine.ask("Go.", caller=caller)
        await handle.wait()
        assert await verdicts(handle) == ["allow", "deny"]
    assert "`tools:execute:shell`" in outputs(handle.run)[1]
