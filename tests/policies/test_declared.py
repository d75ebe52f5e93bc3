"""What tools declare about themselves reaches the policies: the built-in ones, functions, and those that declare nothing."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.policies.world import folder, lookup, order

from mainspring.core.autonomy import Level
from mainspring.core.effects import EVERYTHING, read_effects, read_operation
from mainspring.core.items import Json, ToolDefinition
from mainspring.core.spec import Caller
from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import order_policies
from mainspring.features.governance.limit_policies import LevelPolicy
from mainspring.features.governance.scope_policies import CommandPolicy, DomainPolicy, PathPolicy
from mainspring.features.governance.tool_policies import ToolStatus, fill_standard_slots
from mainspring.providers.scripted import Scripted, call, say
from mainspring.storage.memory_runs import MemoryStore
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.file_ops import FileOps
from mainspring.tools.builtin.web_fetch import WebFetch
from mainspring.tools.contract import ToolContext
from mainspring.tools.declarations import parsed_arguments, read_texts
from mainspring.tools.functions import tool
from mainspring.tools.registry import Registry

ran: list[str] = []


@tool(effects=("execute",), purposes={"line": "command"})
def terminal(line: str) -> str:
    """Runs a line."""
    ran.append(line)
    return "ran it"


@pytest.mark.parametrize(
    ("name", "arguments", "level", "expect"),
    [
        ("file_ops", {"operation": "read", "path": "notes.txt"}, "read-only", "text"),
        ("file_ops", {"operation": "read", "path": "/etc/passwd"}, "read-only", "rule `paths`"),
        ("file_ops", {"operation": "write", "path": "notes.txt", "content": "x"}, "read-only", "level `read-only`"),
        ("web_fetch", {"url": "http://localhost/"}, "supervised", "rule `domains`"),
        ("web_fetch", {"url": "http://docs.example/"}, "read-only", "level `read-only`"),
        ("terminal", {"line": "ls"}, "supervised", "ran it"),
        ("terminal", {"line": "ls; rm x"}, "full", "rule `commands`"),
    ],
)
async def test_built_in_tools_and_functions_are_judged_by_what_they_declare(
    tmp_path: Path, name: str, arguments: Json, level: Level, expect: str
) -> None:
    root = folder(tmp_path)
    tools = Registry([FileOps(), WebFetch(), terminal], context=ToolContext(working_dir=root))
    policies = order_policies(
        fill_standard_slots([tools]),
        {
            "status": (ToolStatus(tools.status),),
            "level": (LevelPolicy(level, commands_judged=True),),
            "commands": (CommandPolicy(("ls",), ("rm",)),),
            "paths": (PathPolicy([root]),),
            "domains": (DomainPolicy(AddressGuard(lookup=lookup).check),),
        },
    )
    ran.clear()
    with Scripted(call(name, **arguments), say("Well.", expect=expect)) as script:
        async with Engine(script, MemoryStore(), executors=[tools], policies=policies) as engine:
            run = await (await engine.start(order(1, tools=tools.definitions, caller=Caller()))).wait()
    assert run.text == "Well."
    assert ran == (["ls"] if expect == "ran it" else [])
    assert (root / "notes.txt").read_text() == "text"


def test_function_cannot_declare_what_it_does_not_take() -> None:
    with pytest.raises(ValueError, match="no parameter `command`"):
        tool(purposes={"command": "command"})(lambda_like)


def lambda_like(line: str) -> str:
    return line


def test_tool_that_declares_nothing_may_do_everything() -> None:
    assert read_effects(ToolDefinition("it"), {}) == EVERYTHING
    assert read_effects(ToolDefinition("it", operations={"get": ()}), {"operation": "get"}) == EVERYTHING
    assert read_effects(ToolDefinition("it", effects=("read",), operations={"put": ("write",)}), {"operation": "put"}) == {
        "write"
    }


@pytest.mark.parametrize(
    ("properties", "arguments", "operation"),
    [
        ({}, {}, ""),
        ({"operation": {}}, {"operation": "get"}, "get"),
        ({"operation": {"default": "get"}}, {}, "get"),
        ({"operation": {}}, {}, None),
        ({"operation": {}}, {"operation": ["get"]}, None),
        ({"operation": {"default": "get"}}, {"operation": None}, None),
        ({}, {"operation": "get"}, "get"),
        ({"operation": True}, {}, None),
    ],
)
def test_operation_is_told_by_its_argument(properties: Json, arguments: Json, operation: str | None) -> None:
    assert read_operation(ToolDefinition("it", parameters={"properties": properties}), arguments) == operation


@pytest.mark.parametrize(
    ("value", "paths", "commands"),
    [
        ("a b", ["a b"], ["a b"]),
        (["a b", "c"], ["a b", "c"], ["'a b' c"]),
        (None, [], []),
        ([], [], [""]),
        ("", [""], [""]),
    ],
)
def test_texts_of_a_purpose(value: object, paths: Sequence[str], commands: Sequence[str]) -> None:
    made = ToolDefinition("it", purposes={"p": "path", "c": "command", "u": "url"})
    assert read_texts(made, {"p": value, "c": value, "other": "x"}, "path") == paths
    assert read_texts(made, {"p": value, "c": value, "other": "x"}, "command") == commands
    assert read_texts(made, {"p": value, "c": value}, "url") == []


@pytest.mark.parametrize("value", [1, {"a": "b"}, [["a"]], ["a", None], True])
def test_what_is_no_text_cannot_be_judged(value: object) -> None:
    with pytest.raises(ValueError, match="`p` must be text"):
        read_texts(ToolDefinition("it", purposes={"p": "path"}), {"p": value}, "path")


@pytest.mark.parametrize(
    "text", ['{"amount":1,"amount":9999}', '{"a":{"b":1,"b":2}}', '{"a":[{"b":1,"b":1}]}', '{"a":1,"\\u0061":2}']
)
def test_a_name_that_is_there_twice_is_an_error(text: str) -> None:
    """Who approves a call may read the first, and the tool would be given the last."""
    with pytest.raises(ValueError, match=r"the arguments have `(a|b|amount)` twice; send it once"):
        parsed_arguments(text)


def test_names_may_come_again_in_other_objects() -> None:
    assert parsed_arguments('{"a":{"a":[{"a":1},{"a":2}]}}') == {"a": {"a": [{"a": 1}, {"a": 2}]}}
