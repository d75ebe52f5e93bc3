"""What a definition says about tools, commands, hosts and files really binds, in whatever way its run is driven."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.agents.world import written
from tests.skills.shelf import put

from mainspring import Engine
from mainspring.core.events import CallJudged
from mainspring.core.items import Effect, Purpose
from mainspring.core.spec import Caller
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.charter import CharterPolicy
from mainspring.features.approvals.pending import Approvals
from mainspring.ports import Allow
from mainspring.providers.script import Call
from mainspring.providers.scripted import Scripted, call, calls, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import ToolContext, ToolResult

PLAIN = ToolLoopConfig(enable_double_confirmation=False)


class Pretend:
    """A tool that declares what it does, and remembers what it was told to do."""

    description = "Pretends."

    def __init__(self, name: str, *effects: Effect, **purposes: Purpose) -> None:
        self.name, self.effects, self.purposes = name, effects, purposes
        self.operation_effects: dict[str, tuple[Effect, ...]] = {}
        self.done: list[dict[str, Any]] = []

    async def execute(self, params: dict[str, Any], context: ToolContext) -> ToolResult:
        self.done.append(params)
        return ToolResult.ok("done")


def files() -> Pretend:
    made = Pretend("files", "read", "write", path="path")
    made.operation_effects = {"read": ("read",), "write": ("write",)}
    return made


def world() -> dict[str, Pretend]:
    made = [
        Pretend("shell", "execute", command="command"),
        Pretend("fetch", "read", "network", url="url"),
        Pretend("notify", "network"),
        files(),
        Pretend("notes", "read"),
        Pretend("silent"),
    ]
    return {each.name: each for each in made}


async def verdicts(folder: Path, *made: Call, **fields: object) -> list[tuple[str, str]]:
    """What the gate says about each of these calls of an agent that is defined so, and by which policy."""
    written(folder, "bee", **fields)
    (folder / "work").mkdir(exist_ok=True)
    found: list[tuple[str, str]] = []
    for each in made:
        tools, builtins = world(), BuiltinTools(working_dir=folder / "work")
        script = Scripted(each, say("Done."))
        async with Engine(script, tools=list(tools.values()), agents=[folder], builtins=builtins) as engine:
            result = await engine.agents.invoke_iterative("bee", {}, PLAIN)
            log = await engine.store.events(result.run_id)
        (judged,) = [record.event for record in log if isinstance(record.event, CallJudged)]
        found.append((judged.verdict, judged.policy))
        assert (judged.verdict == "allow") is bool(tools[each.name].done), each
    return found


ALLOW, DENY, ASK = ("allow", "gate"), ("deny", "agent"), ("ask", "agent")
GONE = ("deny", "known_tool")


@pytest.mark.requirement("D78", "C59")
async def test_the_level_binds_by_what_tools_do(tmp_path: Path) -> None:
    made = [call("notes"), call("files", operation="write", path="a"), call("files", operation="read", path="a"), call("silent")]
    assert await verdicts(tmp_path, *made, autonomy_level="read-only") == [ALLOW, DENY, ALLOW, GONE]
    assert await verdicts(tmp_path, *made, autonomy_level="full") == [ALLOW] * 4


@pytest.mark.requirement("S16", "D62")
async def test_s16_supervised_asks_a_person_before_anything_is_changed(tmp_path: Path) -> None:
    made = [call("notes"), call("files", operation="write", path="a"), call("shell", command="ls"), call("silent")]
    assert await verdicts(tmp_path, *made, autonomy_level="supervised") == [ALLOW, ASK, ASK, ASK]


@pytest.mark.requirement("D78")
async def test_commands_bind_by_program_and_first_words(tmp_path: Path) -> None:
    lines = ["ls -l", "git status -s", "git status", "git push", "rm -rf /", "ls | rm x", "$program x", "git statusx"]
    found = await verdicts(
        tmp_path, *[call("shell", command=line) for line in lines], governance={"commands": ["ls", "git status"]}
    )
    assert found == [ALLOW, ALLOW, ALLOW, DENY, DENY, DENY, ASK, DENY]
    assert await verdicts(tmp_path, call("shell", command="ls"), governance={"commands": "none"}) == [DENY]


@pytest.mark.requirement("D78")
async def test_supervised_with_commands_runs_those_without_asking(tmp_path: Path) -> None:
    made = [call("shell", command="ls"), call("shell", command="rm x")]
    assert await verdicts(tmp_path, *made, autonomy_level="supervised", governance={"commands": "ls"}) == [ALLOW, DENY]


@pytest.mark.requirement("D78")
async def test_network_binds_by_host(tmp_path: Path) -> None:
    made = [
        call("fetch", url="https://docs.example/a"),
        call("fetch", url="https://www.docs.example/a"),
        call("fetch", url="https://evildocs.example/"),
        call("fetch", url="https://docs.example@evil.example/"),
        call("notify"),
    ]
    assert await verdicts(tmp_path, *made, governance={"network": "docs.example"}) == [ALLOW, ALLOW, DENY, DENY, ASK]
    assert await verdicts(tmp_path, made[0], made[4], governance={"network": "none"}) == [DENY, DENY]
    assert await verdicts(tmp_path, made[0], made[4], governance={"network": "all"}) == [ALLOW, ALLOW]
    assert await verdicts(tmp_path, made[0], autonomy_level="read-only") == [DENY]
    assert await verdicts(tmp_path, made[0], autonomy_level="read-only", governance={"network": True}) == [ALLOW]


@pytest.mark.requirement("D78")
async def test_scope_binds_files_by_whole_names(tmp_path: Path) -> None:
    paths = ["src/a.py", "src", "src-evil/a", "docs/x.md", "docs/deep/x.md", "src/../etc", "/etc/passwd"]
    made = [call("files", operation="read", path=path) for path in paths]
    found = await verdicts(tmp_path, *made, governance={"scope": ["src", "docs/*.md"]})
    assert found == [ALLOW, ALLOW, DENY, ALLOW, DENY, DENY, DENY]
    inside = call("files", operation="write", path=f"{await anyio.Path(tmp_path).resolve()}/work/src/a.py")
    assert await verdicts(tmp_path, inside, governance={"scope": "src"}) == [ALLOW]


@pytest.mark.requirement("D78")
async def test_rules_bind_by_tool_and_operation(tmp_path: Path) -> None:
    governance = {"approval_required": ["notes"], "tool_policies": {"files:write": "deny", "sh*": "deny"}}
    made = [
        call("notes"),
        call("files", operation="write", path="a"),
        call("files", operation="read", path="a"),
        call("shell", command="ls"),
    ]
    assert await verdicts(tmp_path, *made, governance=governance) == [ASK, DENY, ALLOW, GONE]


@pytest.mark.requirement("D62", "D78")
@pytest.mark.parametrize("way", ["waited", "streamed", "background", "resumed", "in_responses"])
async def test_d62_a_definition_binds_however_its_run_is_driven(tmp_path: Path, way: str) -> None:
    written(tmp_path, "bee", autonomy_level="read-only")
    tools, store = world(), MemoryStore()
    write = call("files", operation="write", path="a")

    def engine(*turns: Any) -> Engine:
        return Engine(Scripted(*turns), tools=list(tools.values()), agents=[tmp_path], store=store)

    async with engine(calls(write), say("Done.")) as first:
        spec = await first.agents.make_order("bee", {}, PLAIN, background=way == "background")
        if way == "in_responses":
            spec = await first.agents.select_agent(first.order("Write!"), "bee", None)
        if way == "resumed":
            # Nobody has driven it yet: its order is all that there is.
            handle = await first.start(spec)
            first.interrupt()
        else:
            handle = await first.start(spec)
            if way == "streamed":
                assert [record async for record in handle.events()]
            await handle.wait()
    if way == "resumed":
        async with engine(calls(write), say("Done.")) as second:
            await (await second.resume(spec.id)).wait()
    judged = [record.event for record in await store.events(spec.id) if isinstance(record.event, CallJudged)]
    assert [(each.verdict, each.policy) for each in judged] == [DENY]
    assert tools["files"].done == []


@pytest.mark.requirement("S16")
async def test_s16_what_a_person_approves_is_done_by_the_same_agent(tmp_path: Path) -> None:
    written(tmp_path, "bee", autonomy_level="supervised", governance={"tool_policies": {"silent": "deny"}})
    tools = world()
    script = Scripted(
        call("files", operation="write", path="a"), call("silent"), say("Done.", expect="There is no tool `silent`")
    )
    async with Engine(script, tools=list(tools.values()), agents=[tmp_path]) as engine:
        paused = await engine.agents.invoke_iterative("bee", {}, PLAIN)
        assert paused.termination_reason == "approval_required"
        assert tools["files"].done == []
        approvals = Approvals(engine.core)
        (waiting,) = (await approvals.list()).approvals
        answered = await approvals.answer(waiting.id, approve=True)
        assert answered.handle is not None
        run = await answered.handle.wait()
    assert run.spec.agent == "bee"
    assert run.spec.charters
    assert run.status == "completed"
    assert len(tools["files"].done) == 1
    assert tools["silent"].done == []


@pytest.mark.requirement("C75")
async def test_c75_governance_skills_and_budgets_are_three_layers_each_of_which_can_refuse(tmp_path: Path) -> None:
    put(tmp_path / "skills", "calm", "disallowed-tools: fetch\n")
    written(tmp_path / "agents", "bee", skills=["calm"], governance={"tool_policies": {"notes": "ask"}})
    tools = world()
    script = Scripted(
        calls(call("fetch", url="https://docs.example/"), call("shell", command="sudo ls"), call("silent")), say("Done."),
    )  # fmt: skip
    async with Engine(script, tools=list(tools.values()), agents=[tmp_path / "agents"], skills=[tmp_path / "skills"]) as engine:
        caller = Caller("me", ("tools:execute:fetch", "tools:execute:shell"))
        options: Any = {"active_skills": ("calm",), "autonomy_level": 2, "caller": caller}
        result = await engine.agents.invoke_iterative("bee", {}, PLAIN, **options)
        log = await engine.store.events(result.run_id)
    judged = [record.event for record in log if isinstance(record.event, CallJudged)]
    assert [(each.verdict, each.policy) for each in judged] == [
        ("deny", "skill_scope"),
        ("deny", "budget"),
        ("deny", "caller_scopes"),
    ]


async def test_a_run_without_an_agent_is_no_concern_of_charters(tmp_path: Path) -> None:
    tools = world()
    async with Engine(Scripted(call("silent"), say("Done.")), tools=list(tools.values())) as engine:
        run = await engine.run("Go.")
        assert await CharterPolicy().judge(None, run) == Allow()  # type: ignore[arg-type]
    assert len(tools["silent"].done) == 1
