"""The five tools, one by one, on either database, as a client of the protocol sees them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS
from tests.tasks.conftest import NOBODY, Call, Json, reply, users

from mainspring_tasks.ports import TaskStore
from mainspring_tasks.server.identity import Unidentified, fix_user
from mainspring_tasks.server.mcp_server import build_task_server
from mainspring_tasks.server.task_definitions import TOOLS, make_definitions

NAMES = ["add_task", "list_tasks", "update_task", "complete_task", "delete_task"]


async def added(user: Call, description: str = "Buy milk") -> Json:
    task: Json = (await user("add_task", description=description))["data"]
    return task


async def descriptions(user: Call, **arguments: str) -> list[str]:
    return [task["description"] for task in (await user("list_tasks", **arguments))["data"]]


def refused(answer: Json, code: str, *words: str) -> None:
    assert (answer["success"], answer["data"], answer["error_code"]) == (False, None, code)
    for word in words:
        assert word in answer["error"]


@pytest.mark.requirement("B14")
async def test_exactly_five_tools_are_listed(store: TaskStore) -> None:
    async with Client(build_task_server(store, fix_user("alice"))) as client:
        listed = (await client.list_tools()).tools
    assert [tool.name for tool in listed] == NAMES == list(TOOLS) == [tool.name for tool in make_definitions()]
    hints = {tool.name: tool.annotations.model_dump(exclude_none=True) for tool in listed if tool.annotations is not None}
    assert {name for name, said in hints.items() if said["read_only_hint"]} == {"list_tasks"}
    assert {name for name, said in hints.items() if said["destructive_hint"]} == {"delete_task"}
    assert {name for name, said in hints.items() if not said["idempotent_hint"]} == {"add_task"}
    assert not any(said["open_world_hint"] for said in hints.values())


@pytest.mark.requirement("B5")
async def test_the_schemas_say_what_each_tool_takes(store: TaskStore) -> None:
    async with Client(build_task_server(store, fix_user("alice"))) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    takes = {name: (set(tool.input_schema["properties"]), tool.input_schema["required"]) for name, tool in listed.items()}
    assert takes == {
        "add_task": ({"description"}, ["description"]),
        "list_tasks": ({"status"}, []),
        "update_task": ({"task_id", "description"}, ["task_id", "description"]),
        "complete_task": ({"task_id"}, ["task_id"]),
        "delete_task": ({"task_id"}, ["task_id"]),
    }
    assert all(tool.input_schema["additionalProperties"] is False for tool in listed.values())
    described = listed["add_task"].input_schema["properties"]["description"]
    assert (described["minLength"], described["maxLength"]) == (1, 1000)
    assert listed["list_tasks"].input_schema["properties"]["status"]["enum"] == ["pending", "completed", "all"]
    assert [tool.input_schema for tool in listed.values()] == [tool.parameters for tool in make_definitions()]
    assert [tool.output_schema for tool in listed.values()] == [tool.answer for tool in TOOLS.values()]


async def test_an_added_task_is_pending(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        answer = await alice("add_task", description="Buy milk")
    task = answer["data"]
    assert answer == {"success": True, "data": task, "error": None, "error_code": None}
    assert set(task) == {"id", "description", "status", "created_at", "completed_at"}
    assert (task["description"], task["status"], task["completed_at"]) == ("Buy milk", "pending", None)
    assert str(UUID(task["id"])) == task["id"]


@pytest.mark.requirement("D50")
async def test_times_know_their_zone(store: TaskStore) -> None:
    before = datetime.now(UTC)
    async with users(store, "alice") as [alice]:
        task = (await alice("complete_task", task_id=(await added(alice))["id"]))["data"]
        [listed] = (await alice("list_tasks"))["data"]
    assert listed == task
    created, completed = [datetime.fromisoformat(task[name]) for name in ("created_at", "completed_at")]
    assert created.utcoffset() == completed.utcoffset() == timedelta(0)
    assert before <= created <= completed <= datetime.now(UTC)


async def test_tasks_are_listed_newest_first_by_status(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        first, _, _ = [await added(alice, name) for name in ("one", "two", "three")]
        await alice("complete_task", task_id=first["id"])
        assert await descriptions(alice) == await descriptions(alice, status="all") == ["three", "two", "one"]
        assert await descriptions(alice, status="pending") == ["three", "two"]
        assert await descriptions(alice, status="completed") == ["one"]


async def test_tasks_of_one_moment_or_of_a_clock_that_was_set_back_are_newest_first(store: TaskStore) -> None:
    times = iter([datetime(2030, 1, 1, tzinfo=UTC), datetime(2030, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)])
    async with Client(build_task_server(store, fix_user("alice"), clock=lambda: next(times))) as client:
        for name in ("one", "two", "three"):
            await client.call_tool("add_task", {"description": name})
        found = reply("list_tasks", await client.call_tool("list_tasks", {}))["data"]
    assert [task["description"] for task in found] == ["three", "two", "one"]


@pytest.mark.requirement("D44")
async def test_no_tasks_are_an_empty_list_and_a_success(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        assert await alice("list_tasks") == {"success": True, "data": [], "error": None, "error_code": None}


async def test_an_update_changes_the_description_alone(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        task = await added(alice)
        done = (await alice("complete_task", task_id=task["id"]))["data"]
        answer = await alice("update_task", task_id=task["id"], description="Buy bread")
        assert answer["data"] == {**done, "description": "Buy bread"}
        assert await descriptions(alice) == ["Buy bread"]


async def test_a_second_completion_does_not_move_the_time(store: TaskStore) -> None:
    times = iter([datetime(2030, 1, day, tzinfo=UTC) for day in (1, 2, 3)])
    async with Client(build_task_server(store, fix_user("alice"), clock=lambda: next(times))) as client:
        task = reply("add_task", await client.call_tool("add_task", {"description": "x"}))["data"]
        first, second = [
            reply("complete_task", await client.call_tool("complete_task", {"task_id": task["id"]})) for _ in range(2)
        ]
    assert first == second
    assert first["data"] == {**task, "status": "completed", "completed_at": "2030-01-02T00:00:00Z"}


async def test_deleting_is_for_good_and_may_be_repeated(store: TaskStore) -> None:
    done = {"success": True, "data": None, "error": None, "error_code": None}
    async with users(store, "alice") as [alice]:
        task = await added(alice)
        assert await alice("delete_task", task_id=task["id"]) == done
        assert await alice("delete_task", task_id=task["id"]) == done
        assert await alice("delete_task", task_id=NOBODY) == done
        assert await descriptions(alice) == []
        refused(await alice("complete_task", task_id=task["id"]), "NOT_FOUND", task["id"])


@pytest.mark.requirement("D44")
@pytest.mark.parametrize(("tool", "more"), [("update_task", {"description": "x"}), ("complete_task", {})])
async def test_a_task_that_does_not_exist_is_not_found(store: TaskStore, tool: str, more: dict[str, str]) -> None:
    async with users(store, "alice") as [alice]:
        refused(await alice(tool, task_id=NOBODY, **more), "NOT_FOUND", NOBODY, "list_tasks")


async def test_the_tasks_of_others_are_neither_seen_nor_touched(store: TaskStore) -> None:
    async with users(store, "alice", "bob") as [alice, bob]:
        task = await added(alice)
        await added(bob, "Sell milk")
        for tool, more in (("update_task", {"description": "x"}), ("complete_task", {}), ("delete_task", {})):
            refused(await bob(tool, task_id=task["id"], **more), "ACCESS_DENIED", task["id"], "list_tasks")
        assert (await alice("list_tasks"))["data"] == [task]
        assert await descriptions(bob) == ["Sell milk"]
        assert "alice" not in str(await alice("list_tasks"))


@pytest.mark.parametrize(
    "text", ["x", "x" * 1000, "🥛" * 1000, " Milk\n\tand bread ", "\u202eklim", "naïve — 牛奶", "'; DROP TABLE tasks; --"]
)
async def test_a_description_is_kept_as_it_is(store: TaskStore, text: str) -> None:
    async with users(store, "alice") as [alice]:
        assert (await added(alice, text))["description"] == text
        assert await descriptions(alice) == [text]


@pytest.mark.parametrize("tool", ["add_task", "update_task"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        (" \n\t", "is empty"),
        ("x" * 1001, "has 1001 characters; shorten it to 1000"),
        ("🥛" * 1001, "has 1001 characters"),
        ("nul\0", "NUL"),
        (7, "must be text, not a number"),
        (None, "must be text, not null"),
        (["x"], "must be text, not a list"),
        ({}, "must be text, not an object"),
        (True, "must be text, not a boolean"),
    ],
)
async def test_a_description_that_is_none_is_refused(store: TaskStore, tool: str, text: object, said: str) -> None:
    async with users(store, "alice") as [alice]:
        task = await added(alice, "before")
        more = {} if tool == "add_task" else {"task_id": task["id"]}
        refused(await alice(tool, description=text, **more), "VALIDATION_ERROR", "`description`", said)
        assert await descriptions(alice) == ["before"]


async def test_a_host_puts_a_task_back_as_it_was_and_only_its_users(store: TaskStore) -> None:
    async with users(store, "alice", "bob") as [alice, bob]:
        task = await added(alice)
        was = {"task_id": task["id"], **{name: task[name] for name in ("description", "created_at", "completed_at")}}
        await alice("complete_task", task_id=task["id"])
        refused(await bob("restore_task", **{**was, "description": "Mine now"}), "ACCESS_DENIED")
        assert (await alice("restore_task", **was))["data"] == task
        await alice("delete_task", task_id=task["id"])
        assert (await alice("restore_task", **was))["data"] == task
        assert (await alice("list_tasks"))["data"] == [task]
        wrong = await alice("restore_task", **{**was, "created_at": "2026-03-02T09:00:00", "completed_at": 7})
        refused(wrong, "VALIDATION_ERROR", "created_at", "completed_at", "zone")


@pytest.mark.parametrize("tool", ["update_task", "complete_task", "delete_task"])
@pytest.mark.parametrize(
    "id", ["", "1", "the second one", NOBODY[:-1], NOBODY.replace("-", ""), f"{{{NOBODY}}}", f"{NOBODY}\n", 5, None, "é" * 500]
)
async def test_an_id_that_is_none_is_refused(store: TaskStore, tool: str, id: object) -> None:
    more = {"description": "x"} if tool == "update_task" else {}
    async with users(store, "alice") as [alice]:
        answer = await alice(tool, task_id=id, **more)
    refused(answer, "VALIDATION_ERROR", "`task_id` must be")
    assert len(answer["error"]) < 500


async def test_an_id_in_capitals_is_the_same_id(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        task = await added(alice)
        assert (await alice("complete_task", task_id=task["id"].upper()))["data"]["id"] == task["id"]


@pytest.mark.parametrize("status", ["done", "PENDING", "", None, 1])
async def test_a_status_that_is_none_is_refused(store: TaskStore, status: object) -> None:
    async with users(store, "alice") as [alice]:
        refused(await alice("list_tasks", status=status), "VALIDATION_ERROR", "`status`", "`pending`, `completed` or `all`")


@pytest.mark.parametrize("tool", NAMES)
async def test_a_user_cannot_be_chosen_by_argument(store: TaskStore, tool: str) -> None:
    async with users(store, "alice", "bob") as [alice, bob]:
        task = await added(alice)
        given = {"description": "x", "task_id": task["id"], "status": "all"}
        arguments = {name: given[name] for name in TOOLS[tool].parameters["properties"]}
        refused(await bob(tool, user_id="alice", **arguments), "VALIDATION_ERROR", "`user_id`", "connection")
        assert (await alice("list_tasks"))["data"] == [task]
        assert await descriptions(bob) == []


@pytest.mark.requirement("D41")
async def test_an_argument_of_another_version_is_refused_before_anything_is_done(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        answer = await alice("add_task", title="Buy milk")
        refused(answer, "VALIDATION_ERROR", "`title`", "needs the argument `description`")
        assert await descriptions(alice) == []


async def test_all_that_is_wrong_is_said_at_once(store: TaskStore) -> None:
    async with users(store, "alice") as [alice]:
        answer = await alice("update_task", task_id="x", description="", priority="high")
    refused(answer, "VALIDATION_ERROR", "`priority`", "`task_id` must be", "`description` is empty")


@pytest.mark.parametrize("user", ["", "  ", "a\0b", "x" * 256])
async def test_a_user_without_a_name_has_no_tasks(store: TaskStore, user: str) -> None:
    async with Client(build_task_server(store, lambda headers: user)) as client:
        for tool, arguments in (("add_task", {"description": "x"}), ("list_tasks", {})):
            refused(reply(tool, await client.call_tool(tool, arguments)), "VALIDATION_ERROR", "whose tasks")


async def test_a_connection_without_a_user_is_told_so(store: TaskStore) -> None:
    def nobody(headers: object) -> str:
        raise Unidentified("send a token")

    async with Client(build_task_server(store, nobody)) as client:
        refused(reply("list_tasks", await client.call_tool("list_tasks", {})), "VALIDATION_ERROR", "send a token")


async def test_an_unknown_tool_is_an_error_of_the_protocol(store: TaskStore) -> None:
    async with Client(build_task_server(store, fix_user("alice"))) as client:
        with pytest.raises(MCPError, match="there is no tool `drop_tasks`; known: add_task, list_tasks") as caught:
            await client.call_tool("drop_tasks", {})
    assert caught.value.code == INVALID_PARAMS
