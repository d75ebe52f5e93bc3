"""Two servers on one database: a session is known to both, and what goes out by one comes in by the other."""

from pathlib import Path

import aiohttp
import anyio
from tests.kit.waiting import PATIENCE
from tests.mcp_server.test_questions import HELP, accept, choices
from tests.mcp_server.world import ALL, FORMS, Hung, Json, Wire, list_wiped, make_engine, text_of
from tests.server.hosting import hosted

from mainspring.app.server import server
from mainspring.features.mcp_server.client_sessions import CALL
from mainspring.providers.scripted import call, calls, say


async def test_an_answer_that_comes_to_another_server_counts(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    file = tmp_path / "runs.db"
    first = make_engine(tmp_path, calls(call("wipe", disk="sda")), database=file)
    # Where the answer comes in, the run goes on.
    second = make_engine(tmp_path, say("It is wiped."), database=file)
    async with hosted(server(first, offer=ALL)) as url, hosted(server(second, offer=ALL)) as other:
        talk = await Wire(http, url).open(FORMS)
        with anyio.fail_after(PATIENCE):
            async for message in talk.stream("tools/call", HELP, 3):
                if message.get("method") == "elicitation/create":
                    reply = {"jsonrpc": "2.0", "id": message["id"], "result": accept(choices(message["params"])[1])}
                    await Wire(http, other).send(reply, talk.headers)
        assert text_of(message["result"]) == "It is wiped."
        assert list_wiped(tmp_path) == ["sda"]


async def test_a_call_is_cancelled_by_way_of_another_server(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    hung, told, file = Hung(), list[Json](), tmp_path / "runs.db"
    first, second = [make_engine(tmp_path, calls(call("hang")), hung=hung, database=file) for _ in range(2)]
    async with hosted(server(first, offer=ALL)) as url, hosted(server(second, offer=ALL)) as other:
        talk = await Wire(http, url).open()

        async def work() -> None:
            told.extend([message async for message in talk.stream("tools/call", HELP, 7)])

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(work)
                await hung.begun.wait()
                while not await first.store.documents(CALL, parent="nobody"):  # noqa: ASYNC110
                    await anyio.sleep(0.02)  # from when on others know of the call
                cancelled = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 7}}
                await Wire(http, other).send(cancelled, talk.headers)
        assert hung.stopped.is_set()
        assert told[-1]["result"]["isError"]
