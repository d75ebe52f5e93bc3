"""What MCP clients are offered, and calls of it: the SDK's own client in both eras, and the wire by hand."""

import subprocess
import sys
from pathlib import Path
from typing import Literal

import aiohttp
import anyio
import pytest
from mcp import Client
from tests.kit.waiting import PATIENCE
from tests.mcp_server.world import ALL, FORMS_AND_TASKS, PNG, Hung, Wire, make_engine, text_of
from tests.server.hosting import hosted
from tests.workflows.world import written as write_workflows

from mainspring.app.server import server
from mainspring.features.mcp_server.settings import OfferSettings, find_offer_doubts
from mainspring.http.auth import Keys
from mainspring.providers.scripted import call, calls, say


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_sdks_client_lists_and_calls_what_is_offered(mode: Literal["auto", "legacy"], tmp_path: Path) -> None:
    engine = make_engine(tmp_path, say("Done."))
    heard: list[str | None] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with hosted(server(engine, offer=ALL)) as url, Client(url.replace("/v1", "/mcp"), mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert list(tools) == ["agent_helper", "workflow_shout", "add", "wipe", "hang"]
        assert tools["agent_helper"].input_schema["required"] == ["job"]
        added = await client.call_tool("add", {"a": 1, "b": 2})
        assert (added.is_error, added.content[0].text) == (False, "3")  # type: ignore[union-attr]
        helped = await client.call_tool("agent_helper", {"job": "tidy"}, progress_callback=note)
        assert helped.content[0].text == "Done."  # type: ignore[union-attr]
        assert heard == ["the model has answered"] * 2
        shouted = await client.call_tool("workflow_shout", {"text": "hi"}, progress_callback=note)
        assert shouted.structured_content == {"text": "HI"}
        assert heard[2:] == ["step `loud` started", "step `loud` completed"]
        wrong = await client.call_tool("agent_helper", {"work": "tidy"})
        assert wrong.is_error
        prompt = await client.get_prompt("helper", {"job": "tidy"})
        assert prompt.messages[0].content.text == "Do this: tidy"  # type: ignore[union-attr]


async def test_images_sound_and_files_are_content_of_the_protocol(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=OfferSettings(tools=("draw",)))) as url:
        shown = (await Wire(http, url).ask("tools/call", {"name": "draw", "arguments": {}}))["result"]
    assert shown["content"] == [
        {"type": "text", "text": "Look:"},
        {"type": "image", "data": PNG, "mimeType": "image/png"},
        {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
        {
            "type": "resource",
            "resource": {"uri": "attachment:a%20plan.pdf", "mimeType": "application/pdf", "blob": "JVBERg=="},
        },
    ]


async def test_a_call_is_a_run_like_every_other(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=ALL)) as url:
        wire = Wire(http, url)
        told = await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, headers={"idempotency-key": "once"})
        again = await wire.ask("tools/call", {"name": "add", "arguments": {"a": 1, "b": 2}}, headers={"idempotency-key": "once"})
        run_id = told["result"]["_meta"]["mainspring/run_id"]
        assert again["result"]["_meta"]["mainspring/run_id"] == run_id
        async with http.get(f"{url}/responses/{run_id}") as answer:
            assert answer.status == 200
        async with http.get(f"{url}/audit") as answer:
            assert answer.status == 200


async def test_only_agents_and_workflows_are_offered_unless_more_is_chosen(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")))) as url:
        wire = Wire(http, url)
        names = [tool["name"] for tool in (await wire.ask("tools/list"))["result"]["tools"]]
        assert names == ["agent_helper", "workflow_shout"]
        assert (await wire.ask("tools/call", {"name": "add", "arguments": {}}))["error"]["code"] == -32602
        assert (await wire.ask("resources/list"))["error"]["code"] == -32601


async def test_a_key_is_shown_what_it_is_for_and_its_own_tenants_files(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, offer=ALL)) as url:
        flows = Wire(http, url, await keys.create(scopes=["workflows:run"]))
        ada, bob = [Wire(http, url, await keys.create(tenant=tenant)) for tenant in ("ada", "bob")]
        nobody, other = Wire(http, url), Wire(http, url, await keys.create(scopes=["models"]))
        assert [tool["name"] for tool in (await flows.ask("tools/list"))["result"]["tools"]] == ["workflow_shout"]
        assert "error" in await nobody.ask("tools/list")
        assert nobody.status == 401
        assert "error" in await other.ask("tools/list")
        assert other.status == 403
        form = aiohttp.FormData({"purpose": "user_data"})
        form.add_field("file", b"the tide comes in", filename="tides.txt")
        own = {"authorization": ada.headers["authorization"]}
        async with http.post(f"{url}/files", data=form, headers=own) as answer:
            assert answer.status == 200
        [found] = (await ada.ask("resources/list"))["result"]["resources"]
        read = await ada.ask("resources/read", {"uri": found["uri"]})
        assert read["result"]["contents"] == [{"uri": found["uri"], "mimeType": "text/plain", "text": "the tide comes in"}]
        assert (await bob.ask("resources/list"))["result"]["resources"] == []
        assert (await bob.ask("resources/read", {"uri": found["uri"]}))["error"]["code"] == -32602
        task = (await ada.ask("tools/call", {"name": "agent_helper", "arguments": {"job": "x"}}, FORMS_AND_TASKS))["result"]
        assert (await bob.ask("tasks/get", {"taskId": task["taskId"]}, FORMS_AND_TASKS))["error"]["code"] == -32602
        assert "result" in await ada.ask("tasks/get", {"taskId": task["taskId"]}, FORMS_AND_TASKS)


async def test_who_reads_many_files_at_once_holds_up_nobody_else(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, offer=ALL)) as url:
        files: dict[str, tuple[Wire, str]] = {}
        for tenant in ("busy", "other"):
            wire = Wire(http, url, await keys.create(tenant=tenant))
            form = aiohttp.FormData({"purpose": "user_data"})
            form.add_field("file", b"x" * 200_000, filename="x.txt")
            async with http.post(f"{url}/files", data=form, headers={"authorization": wire.headers["authorization"]}) as answer:
                assert answer.status == 200
            [found] = (await wire.ask("resources/list"))["result"]["resources"]
            files[tenant] = (wire, found["uri"])
        order: list[str] = []

        async def read(tenant: str) -> None:
            wire, uri = files[tenant]
            assert "result" in await wire.ask("resources/read", {"uri": uri})
            order.append(tenant)

        async with anyio.create_task_group() as group:
            for tenant in [*["busy"] * 40, "other"]:
                group.start_soon(read, tenant)
        assert order.index("other") < 20


async def test_leaving_cancels_a_call_without_a_session(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hung = Hung()
    async with hosted(server(make_engine(tmp_path, say("Done."), hung=hung), offer=ALL)) as url:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Wire(http, url).ask, "tools/call", {"name": "hang", "arguments": {}})
            with anyio.fail_after(PATIENCE):
                await hung.begun.wait()
            tasks.cancel_scope.cancel()
        with anyio.fail_after(PATIENCE):
            await hung.stopped.wait()


async def test_a_notification_cancels_a_call_of_a_session(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hung, told = Hung(), list[object]()
    engine = make_engine(tmp_path, calls(call("hang")), hung=hung)
    async with hosted(server(engine, offer=ALL)) as url:
        talk = await Wire(http, url).open()

        async def work() -> None:
            asked = {"name": "agent_helper", "arguments": {"job": "x"}}
            told.extend([message async for message in talk.stream("tools/call", asked, 7)])

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await hung.begun.wait()
                await talk.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}})
            await hung.stopped.wait()
        assert told == []
        await engine.core.drain()
        assert engine.core.live == 0


async def test_a_reloaded_definition_is_told_to_whoever_listens(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("Done.")), offer=OfferSettings())) as url:
        wire = Wire(http, url)
        with anyio.fail_after(PATIENCE):
            wanted = {"toolsListChanged": True, "resourcesListChanged": True}
            heard = wire.stream("subscriptions/listen", {"notifications": wanted})
            first = await anext(heard)
            assert first["method"] == "notifications/subscriptions/acknowledged"
            assert first["params"]["notifications"] == {"toolsListChanged": True}
            write_workflows(tmp_path / "flows", "name: again\nsteps: [{id: one, action: transform, value: 1}]\n")
            second = await anext(heard)
            assert second["method"] == "notifications/tools/list_changed"
            assert second["params"]["_meta"] == first["params"]["_meta"]
        names = [tool["name"] for tool in (await wire.ask("tools/list"))["result"]["tools"]]
        assert "workflow_again" in names


async def test_what_failed_is_told_to_the_model_that_called(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    async with hosted(server(make_engine(tmp_path, say("")), offer=ALL)) as url:
        told = (await Wire(http, url).ask("tools/call", {"name": "agent_helper", "arguments": {"job": "x"}}))["result"]
        assert told["isError"]
        assert text_of(told)


async def test_memory_is_searched_where_it_is_on(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("The tide comes in at noon."), database=tmp_path / "runs.db", memory=True)
    async with hosted(server(engine, offer=ALL)) as url:
        wire = Wire(http, url)
        await wire.ask("tools/call", {"name": "agent_helper", "arguments": {"job": "tides"}})
        with anyio.fail_after(PATIENCE):
            while True:  # what was said is noted after the answer
                found = (await wire.ask("tools/call", {"name": "search_memory", "arguments": {"query": "tide noon"}}))["result"]
                if found["structuredContent"]["data"]:
                    break
        assert "noon" in text_of(found)
        wrong = (await wire.ask("tools/call", {"name": "search_memory", "arguments": {"words": "tide"}}))["result"]
        assert wrong["isError"]


async def test_a_stream_ends_with_its_key(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    engine = make_engine(tmp_path, say("Done."))
    keys = Keys(engine.store)
    async with hosted(server(engine, keys=keys, offer=ALL)) as url:
        key = await keys.create()
        wire = Wire(http, url, key)
        with anyio.fail_after(PATIENCE):
            heard = wire.stream("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
            await anext(heard)
            await keys.revoke(key.split("_")[1])
            write_workflows(tmp_path / "flows", "name: again\nsteps: [{id: one, action: transform, value: 1}]\n")
            assert [message async for message in heard] == []


def test_what_answers_mcp_clients_is_not_imported_before_one_comes() -> None:
    code = "import sys, mainspring.app.server; print(*[name for name in sys.modules if 'features.mcp_server' in name])"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    parts = {"", ".routes", ".services", ".settings"}
    assert set(loaded) == {f"mainspring.features.mcp_server{part}" for part in parts}


def test_what_is_to_be_offered_and_is_not_there_is_said_at_the_start() -> None:
    offer = OfferSettings(agents=("helpr",), tools=("add",), memory=True)
    doubts = find_offer_doubts(offer, agents=["helper"], workflows=[], tools=["add"], remembers=False)
    assert [doubt.partition(":")[0] for doubt in doubts] == ["mcp_server.agents", "mcp_server.memory"]
    assert "`helper`" in doubts[0]
