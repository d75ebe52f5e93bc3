"""Tasks: a long call is a run with the same id, which any process on the database tells of, also after kill -9."""

from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.agents.world import written as write_agent
from tests.kit.waiting import PATIENCE, until
from tests.mcp_server.test_questions import accept, choices
from tests.mcp_server.world import ALL, FORMS_AND_TASKS, Hung, Json, Wire, list_wiped, make_engine, text_of
from tests.server.hosting import hosted
from tests.server.process import Script, serving

from mainspring.app.server import server
from mainspring.providers.scripted import call, calls, say

HELP = {"name": "agent_helper", "arguments": {"job": "tidy"}}


async def begin(wire: Wire, params: Json = HELP) -> str:
    made = (await wire.ask("tools/call", params, FORMS_AND_TASKS))["result"]
    assert (made["resultType"], made["status"]) == ("task", "working")
    assert not {"result", "requestState", "task"} & set(made)
    id: str = made["taskId"]
    return id


async def get(wire: Wire, id: str) -> Json:
    told = await wire.ask("tasks/get", {"taskId": id}, FORMS_AND_TASKS)
    assert told["result"]["resultType"] == "complete"
    found: Json = told["result"]
    return found


async def wait(wire: Wire, id: str, *statuses: str) -> Json:
    with anyio.fail_after(PATIENCE):
        while (found := await get(wire, id))["status"] not in statuses:  # noqa: ASYNC110
            await anyio.sleep(0.02)
    return found


async def test_agents_and_workflows_become_tasks_for_clients_that_know_them(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        id = await begin(wire)
        assert text_of((await wait(wire, id, "completed"))["result"]) == "Done."
        async with http.get(f"{url}/responses/{id}") as answer:
            assert (await answer.json())["id"] == id
        flow = await begin(wire, {"name": "workflow_shout", "arguments": {"text": "hi"}})
        assert (await wait(wire, flow, "completed"))["result"]["structuredContent"] == {"text": "HI"}
        quick = (await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, FORMS_AND_TASKS))["result"]
        assert quick["resultType"] == "complete"
        # Whoever does not know tasks gets none.
        assert (await wire.ask("tools/call", HELP))["result"]["resultType"] == "complete"
        told = await wire.ask("tasks/get", {"taskId": id})
        assert (wire.status, told["error"]["code"]) == (400, -32021)
        assert (await wire.ask("tasks/get", {"taskId": "resp_unknown"}, FORMS_AND_TASKS))["error"]["code"] == -32602


async def test_a_cancelled_task_stops_its_run(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hung = Hung()
    async with hosted(server(make_engine(tmp_path, calls(call("hang")), hung=hung), offer=ALL)) as url:
        wire = Wire(http, url)
        id = await begin(wire)
        with anyio.fail_after(PATIENCE):
            await hung.begun.wait()
        assert (await wire.ask("tasks/cancel", {"taskId": id}, FORMS_AND_TASKS))["result"] == {"resultType": "complete"}
        assert hung.stopped.is_set()
        assert (await get(wire, id))["status"] == "cancelled"
        assert (await wire.ask("tasks/cancel", {"taskId": id}, FORMS_AND_TASKS))["result"] == {"resultType": "complete"}


async def test_a_task_that_asks_goes_on_when_all_is_answered(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda"), call("wipe", disk="sdb")), say("Wiped."), say("Wiped."))
    async with hosted(server(engine, offer=ALL)) as url:
        wire = Wire(http, url)
        id = await begin(wire)
        asked = (await wait(wire, id, "input_required"))["inputRequests"]
        approvals = {key: accept(choices(question["params"])[1]) for key, question in asked.items()}
        [first, second] = approvals
        for key, left in ((first, [second]), (second, [])):
            update = {"taskId": id, "inputResponses": {key: approvals[key]}}
            assert (await wire.ask("tasks/update", update, FORMS_AND_TASKS))["result"] == {"resultType": "complete"}
            assert list((await get(wire, id)).get("inputRequests", {})) == left
        assert text_of((await wait(wire, id, "completed"))["result"]) == "Wiped."
        assert sorted(list_wiped(tmp_path)) == ["sda", "sdb"]


async def test_a_cancelled_question_cannot_be_answered_any_more(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda")), say("Wiped."), say("Wiped."))
    async with hosted(server(engine, offer=ALL)) as url:
        wire = Wire(http, url)
        id = await begin(wire)
        [(key, question)] = (await wait(wire, id, "input_required"))["inputRequests"].items()
        await wire.ask("tasks/cancel", {"taskId": id}, FORMS_AND_TASKS)
        assert (await get(wire, id))["status"] == "cancelled"
        update = {"taskId": id, "inputResponses": {key: accept(choices(question["params"])[1])}}
        await wire.ask("tasks/update", update, FORMS_AND_TASKS)
        assert (await get(wire, id))["status"] == "cancelled"
        assert list_wiped(tmp_path) == []


async def test_who_listens_is_told_how_a_task_stands(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, calls(call("wipe", disk="sda")), say("Refused."), say("Refused."))
    async with hosted(server(engine, offer=ALL)) as url:
        wire = Wire(http, url)
        id = await begin(wire)
        await wait(wire, id, "input_required")
        seen = []
        with anyio.fail_after(PATIENCE):
            async for message in Wire(http, url).stream(
                "subscriptions/listen", {"notifications": {"taskIds": [id]}}, FORMS_AND_TASKS
            ):
                if message["method"] == "notifications/tasks":
                    seen.append(message["params"]["status"])
                if seen == ["input_required"]:
                    [key] = message["params"]["inputRequests"]
                    update = {"taskId": id, "inputResponses": {key: {"action": "decline"}}}
                    await wire.ask("tasks/update", update, FORMS_AND_TASKS)
                if seen[-1:] == ["completed"]:
                    break
        assert text_of(message["params"]["result"]) == "Refused."


async def test_a_client_of_a_session_may_ask_for_a_task(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        talk = await Wire(http, url).open()
        made = (await talk.ask("tools/call", {**HELP, "task": {"ttl": 60_000}}))["result"]["task"]
        told = (await talk.ask("tasks/result", {"taskId": made["taskId"]}))["result"]
        assert text_of(told) == "Done."
        assert told["_meta"]["io.modelcontextprotocol/related-task"] == {"taskId": made["taskId"]}
        assert (await talk.ask("tasks/get", {"taskId": made["taskId"]}))["result"]["status"] == "completed"
        # What has ended is not cancelled any more.
        assert (await talk.ask("tasks/cancel", {"taskId": made["taskId"]}))["error"]["code"] == -32602
        # A tool that is not long is no task, and nobody is told otherwise in silence.
        quick = {"name": "add", "arguments": {"a": 1, "b": 2}, "task": {}}
        assert (await talk.ask("tools/call", quick))["error"]["code"] == -32601


async def test_a_task_of_a_session_whose_result_is_an_error_has_failed(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("")), offer=ALL)) as url:
        talk = await Wire(http, url).open()
        made = (await talk.ask("tools/call", {**HELP, "task": {}}))["result"]["task"]
        assert (await talk.ask("tasks/result", {"taskId": made["taskId"]}))["result"]["isError"]
        assert (await talk.ask("tasks/get", {"taskId": made["taskId"]}))["result"]["status"] == "failed"


async def test_tasks_to_listen_to_are_named_in_a_list(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        for wrong in (5, "resp_1", {"resp_1": True}):
            told = await wire.ask("subscriptions/listen", {"notifications": {"taskIds": wrong}}, FORMS_AND_TASKS)
            assert (wire.status, told["error"]["code"]) == (400, -32602)


GATE = """
import asyncio
from pathlib import Path

from mainspring import tool


@tool(effects=("read",), repeatable=True)
async def gate() -> str:
    \"\"\"Waits until it is opened.\"\"\"
    Path("begun").touch()
    while not Path("open").exists():
        await asyncio.sleep(0.02)
    return "open"
"""
SETTINGS = 'agents = ["agents"]\ntools = ["gates:gate"]\n'


@pytest.mark.slow
async def test_a_task_survives_the_kill_of_its_server(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    write_agent(tmp_path / "agents", "helper", inputs={"job": {"required": True}})
    (tmp_path / "gates.py").write_text(GATE)
    (tmp_path / "mainspring.toml").write_text(SETTINGS)
    here = {"PYTHONPATH": str(tmp_path)}
    script: Script = [{"calls": [{"name": "gate", "arguments": {}}]}, {"say": "Through."}, {"say": "Through."}]
    with serving(tmp_path, script, env=here) as first:
        id = await begin(Wire(http, first.url))
        await until((tmp_path / "begun").exists)
        (tmp_path / "begun").unlink()
        first.kill()
    with serving(tmp_path, script, env=here) as second:
        wire = Wire(http, second.url)
        assert (await get(wire, id))["status"] == "working"
        await until((tmp_path / "begun").exists)
        (tmp_path / "open").touch()
        assert text_of((await wait(wire, id, "completed"))["result"]) == "Through."
