"""A tool of an MCP server goes by several names; what is said against it by any of them holds, whatever the model calls it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.mcp.conftest import Zoo
from tests.mcp.web import served
from tests.policies.world import tried
from tests.skills.shelf import put

from mainspring.app.engine import Engine
from mainspring.core.items import FunctionCallOutput, ServerTool, Tool, ToolDefinition, Unknown
from mainspring.core.run import Run
from mainspring.core.spec import Caller, Charter
from mainspring.features.agents.charter import CharterPolicy
from mainspring.features.governance.rule_policy import Choice, RulePolicy, Rules
from mainspring.features.governance.tool_policies import CallerScopes
from mainspring.providers.scripted import Scripted, call, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.registry import Registry

Make = Callable[..., Engine]


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path)


@pytest.fixture
def engine_with(zoo: Zoo) -> Make:
    """An engine whose operator has servers of these labels, each with the tools `read` and `write`."""

    def make(name: str, *labels: str, **options: Any) -> Engine:
        servers = [zoo.spec("good", label=label) for label in labels]
        tools = McpTools(servers, guard=AddressGuard(["127.0.0.1"]), connect_seconds=20)
        return Engine(Scripted(call(name, text="a"), say("Well.")), mcp=tools, **options)

    return make


def outputs(run: Run) -> list[FunctionCallOutput]:
    return [entry.item for entry in run.transcript if isinstance(entry.item, FunctionCallOutput)]


async def denied(engine: Engine, *tools: Tool, **options: Any) -> str:
    """What the model is told of its one call, which must have been denied."""
    async with engine:
        run = await engine.run("Go.", tools=tools, **options)
    [output] = outputs(run)
    assert output.is_error
    return str(output.output)


MINE = ToolDefinition("read", "The client's own.")


async def test_a_rule_holds_though_the_client_has_a_function_of_that_name(engine_with: Make) -> None:
    rules = [RulePolicy(Rules.of({"read": "deny"}))]
    assert "The rule `read` denies" in await denied(engine_with("good__read", "good", policies=rules), MINE)


async def test_a_rule_holds_though_a_second_server_has_a_tool_of_that_name(engine_with: Make) -> None:
    rules = [RulePolicy(Rules.of({"read": "deny"}))]
    assert "The rule `read` denies" in await denied(engine_with("other__read", "good", "other", policies=rules))


async def test_a_rule_for_one_servers_tool_holds_under_its_short_name(engine_with: Make) -> None:
    rules = [RulePolicy(Rules.of({"good__*": "deny"}))]
    assert "The rule `good__*` denies" in await denied(engine_with("read", "good", policies=rules))


async def test_a_blocked_tool_stays_blocked_under_another_name_and_the_reason_is_told(tmp_path: Path, engine_with: Make) -> None:
    folder = tmp_path / "definitions"
    folder.mkdir()
    (folder / "read.yaml").write_text("name: read\nstatus: blocked\nreason: it reads too much\n")
    registry = Registry()
    registry.load_definitions(folder)
    told = await denied(engine_with("good__read", "good", tools=registry), MINE)
    assert "has the tool `read` as blocked (it reads too much)" in told


async def test_a_charter_holds_under_another_name(engine_with: Make) -> None:
    charter = Charter("clerk", rules=(("read", "deny"),))
    told = await denied(engine_with("good__read", "good", policies=[CharterPolicy()]), MINE, charters=(charter,))
    assert "The rule `read` denies" in told


async def test_what_a_skill_disallows_stays_so_under_another_name(tmp_path: Path, engine_with: Make) -> None:
    put(tmp_path / "skills", "careful", "disallowed-tools: read\n")
    charter = Charter("clerk", skills=("careful",))
    engine = engine_with("good__read", "good", skills=[tmp_path / "skills"])
    assert "the skill `careful` disallows `read`" in await denied(engine, MINE, charters=(charter,))


async def test_a_strangers_tool_is_renamed_and_the_operators_keeps_its_name(engine_with: Make) -> None:
    async with served("good") as web, engine_with("read", "good") as engine:
        stranger = Unknown({"type": "mcp", "server_label": "web", "server_url": web.url, "require_approval": "never"})
        run = await engine.run("Go.", tools=[stranger])
        names = [tool.name for tool in run.spec.tools if isinstance(tool, ToolDefinition)]
        assert names == ["read", "write", "web__read", "web__write"]
        assert ([output.output for output in outputs(run)], web.calls) == (['{"text": "a"}'], 0)


@pytest.mark.parametrize(
    ("rules", "choice"),
    [
        ({"now": "deny"}, "deny"),
        ({"*": "allow", "now": "ask"}, "ask"),
        ({"clock.now": "deny"}, "deny"),
        ({"clock__now": "allow", "n*": "deny"}, "deny"),
        ({"*": "deny", "now": "allow"}, "deny"),
        ({"*": "ask", "clock__*": "allow"}, "allow"),
        ({"n*": "deny", "now": "allow"}, None),
    ],
)
def test_any_name_can_deny_and_only_the_models_can_allow(rules: dict[str, Choice], choice: Choice | None) -> None:
    found = Rules.of(rules).rule("clock__now", "", ("now", "clock__now", "clock.now"))
    assert (None if found is None else found.choice) == choice


@pytest.mark.parametrize(
    ("tool", "scope", "is_allowed"),
    [
        (ServerTool("good", "read"), "good__read", True),
        (ServerTool("good", "read"), "read", True),
        (ServerTool("good", "read"), "other__read", False),
        (ServerTool("good", "read", "0123"), "good__read", False),
    ],
)
async def test_a_scope_can_name_the_operators_server(tool: ServerTool, scope: str, is_allowed: bool) -> None:
    definition = ToolDefinition("read", kind="mcp", server=tool)
    outcome = await tried([], ("read", "{}"), tools=(definition,), caller=Caller("ada", (f"tools:execute:{scope}",)))
    is_denied = outcome.only.policy == CallerScopes.name
    assert is_denied is not is_allowed
