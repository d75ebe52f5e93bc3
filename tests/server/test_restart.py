"""Servers that stop, crash, and share a database: nothing that was shown is taken back, nothing that is driven is taken away."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.linter import events_of, linted
from tests.server.process import Script, Served, serving

pytestmark = pytest.mark.usefixtures("each_database")

SLOW: Script = [{"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.02}]
TOOLS = '''
import time
from pathlib import Path

from mainspring import tool


@tool
def stamp(seconds: float = 0.5) -> str:
    """Leaves a mark, slowly."""
    with Path("marks").open("a") as file:
        file.write("begun\\n")
    time.sleep(seconds)
    with Path("marks").open("a") as file:
        file.write("done\\n")
    return "stamped"
'''
STAMP: Script = [
    {"when": "stamp", "calls": [{"name": "stamp", "arguments": {"seconds": 1.0}}]},
    {"when": "stamp", "say": "Stamped."},
]


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def begun(http: aiohttp.ClientSession, served: Served, **body: Any) -> aiohttp.ClientResponse:
    return await http.post(f"{served.url}/responses", json={"model": "m", "input": "count", **body})


async def read_until(answer: aiohttp.ClientResponse, count: int) -> bytes:
    """At least so many whole events of the stream."""
    read = b""
    with anyio.fail_after(PATIENCE):
        while read.count(b"\n\n") < count:
            read += await answer.content.readany()
    return read[: read.rindex(b"\n\n") + 2]


def last_number(stream: bytes) -> int:
    frames = [frame for frame in stream.split(b"\n\n") if frame]
    return int(json.loads(frames[-1].partition(b"data: ")[2])["sequence_number"])


async def completed(http: aiohttp.ClientSession, served: Served, run_id: str) -> Any:
    told: Any = {}
    while told.get("status") != "completed":
        told = await (await http.get(f"{served.url}/responses/{run_id}")).json()
        await anyio.sleep(0.1)
    return told


async def marked(folder: Path) -> None:
    """Waits for what happens in another process, which can set no event."""
    with anyio.fail_after(PATIENCE):
        while not await anyio.Path(folder / "marks").exists():  # noqa: ASYNC110
            await anyio.sleep(0.01)


async def rest_of(http: aiohttp.ClientSession, served: Served, run_id: str, after: int | None = None) -> bytes:
    behind = "" if after is None else f"&starting_after={after}"
    with anyio.fail_after(PATIENCE):
        async with http.get(f"{served.url}/responses/{run_id}?stream=true{behind}") as answer:
            return await answer.read()


@pytest.mark.slow
@pytest.mark.parametrize("events", [4, 9, 16, 25])
async def test_a_foreground_stream_goes_on_where_a_killed_server_left_it(
    tmp_path: Path, http: aiohttp.ClientSession, events: int
) -> None:
    with serving(tmp_path, SLOW) as first:
        answer = await begun(http, first, stream=True)
        seen = await read_until(answer, events)
        first.kill()
        answer.close()
    run_id = json.loads(seen.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
    with serving(tmp_path, SLOW) as second:
        rest = await rest_of(http, second, run_id, last_number(seen))
        whole = await rest_of(http, second, run_id)
    assert seen + rest == whole
    assert linted(events_of(whole))["status"] == "completed"


@pytest.mark.slow
async def test_a_second_server_leaves_the_runs_of_the_first_alone(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    script = [*SLOW, *STAMP]
    with ExitStack() as servers:
        first = servers.enter_context(serving(tmp_path, script, "--tool", "tools"))
        stream = await begun(http, first, stream=True)
        seen = await read_until(stream, 5)
        background = await (await begun(http, first, input="stamp", background=True)).json()
        await marked(tmp_path)
        second = servers.enter_context(serving(tmp_path, script, "--tool", "tools"))
        seen += await stream.content.read()
        with anyio.fail_after(PATIENCE):
            told: Any = {"status": "in_progress"}
            while told["status"] in ("in_progress", "queued"):
                told = await (await http.get(f"{second.url}/responses/{background['id']}")).json()
                await anyio.sleep(0.05)
    assert linted(events_of(seen))["status"] == "completed"
    assert told["status"] == "completed"
    assert await anyio.Path(tmp_path / "marks").read_text() == "begun\ndone\n"


@pytest.mark.slow
async def test_a_server_takes_up_the_runs_of_one_that_died_beside_it(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ExitStack() as servers:
        first = servers.enter_context(serving(tmp_path, SLOW))
        second = servers.enter_context(serving(tmp_path, SLOW))
        run_id = (await (await begun(http, first, background=True)).json())["id"]
        first.kill()
        with anyio.fail_after(PATIENCE):
            told = await completed(http, second, run_id)
    assert told["output"][-1]["content"][0]["text"].endswith("nine ten")


@pytest.mark.slow
async def test_a_stopping_server_lets_background_runs_finish(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    with serving(tmp_path, STAMP, "--tool", "tools") as served:
        run_id = (await (await begun(http, served, input="stamp", background=True)).json())["id"]
        await marked(tmp_path)
        assert await anyio.to_thread.run_sync(served.stop) == 0
    assert await anyio.Path(tmp_path / "marks").read_text() == "begun\ndone\n"
    with serving(tmp_path, STAMP, "--tool", "tools") as again:
        told = await (await http.get(f"{again.url}/responses/{run_id}")).json()
    assert told["status"] == "completed"


@pytest.mark.slow
async def test_whoever_waits_for_a_run_that_a_stop_cuts_off_is_told_so(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    script: Script = [{"when": "count", "say": "never", "stall": True}]
    with serving(tmp_path, script, env={"MAINSPRING_DRAIN_SECONDS": "0.2"}) as served:
        answers: list[aiohttp.ClientResponse] = []

        async def ask() -> None:
            answers.append(await begun(http, served))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            while not (await (await http.get(f"{served.url}/responses")).json())["data"]:  # noqa: ASYNC110
                await anyio.sleep(0.02)
            served.process.send_signal(signal.SIGTERM)
        [answer] = answers
        told = await answer.json()
        assert await anyio.to_thread.run_sync(served.process.wait) == 0
    assert answer.status == 503
    assert answer.headers["x-should-retry"] == "false"
    assert "resumed" in told["error"]["message"]


@pytest.mark.slow
async def test_a_run_that_another_server_drives_is_streamed_live_and_byte_for_byte(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    script: Script = [{"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.1}]
    with serving(tmp_path, script) as driver, serving(tmp_path, script) as other:
        async with await begun(http, driver, background=True) as answer:
            run_id = (await answer.json())["id"]
        streams = [http.get(f"{other.url}/responses/{run_id}?stream=true") for _ in range(2)]
        async with streams[0] as live, streams[1] as second:
            whole = b""
            with anyio.fail_after(PATIENCE):
                while whole.count(b"\n\n") < 6:
                    whole += await live.content.readany()
                async with http.get(f"{driver.url}/responses/{run_id}") as under_way:
                    assert (await under_way.json())["status"] == "in_progress", "its events came while it was driven"
                whole += await live.content.read()
                assert await second.read() == whole
        assert whole == await rest_of(http, driver, run_id)
        assert whole == await rest_of(http, other, run_id)
        assert whole.endswith(b"data: [DONE]\n\n")
        assert linted(events_of(whole))["status"] == "completed"


PATIENT = '''
import asyncio
from pathlib import Path

from mainspring import tool


@tool
async def stamp(seconds: float = 0.5) -> str:
    """Leaves a mark, and later another."""
    with Path("marks").open("a") as file:
        file.write("begun\\n")
    await asyncio.sleep(seconds)
    with Path("marks").open("a") as file:
        file.write("done\\n")
    return "stamped"
'''


@pytest.mark.slow
async def test_a_run_that_another_server_drives_is_cancelled_there_before_it_is_said_to_be(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    (tmp_path / "tools.py").write_text(PATIENT)
    with serving(tmp_path, STAMP, "--tool", "tools") as driver, serving(tmp_path, STAMP, "--tool", "tools") as other:
        for _ in range(3):
            (tmp_path / "marks").unlink(missing_ok=True)
            async with await begun(http, driver, input="stamp", background=True) as answer:
                run_id = (await answer.json())["id"]
            await marked(tmp_path)
            with anyio.fail_after(PATIENCE):
                async with http.post(f"{other.url}/responses/{run_id}/cancel") as answer:
                    assert (await answer.json())["status"] == "cancelled"
                async with http.get(f"{driver.url}/responses/{run_id}") as answer:
                    assert (await answer.json())["status"] == "cancelled"
            await anyio.sleep(1.2)  # longer than the tool takes
            assert await anyio.Path(tmp_path / "marks").read_text() == "begun\n", "it had its effect after it was cancelled"


@pytest.mark.slow
async def test_a_run_of_a_frozen_server_is_taken_up_and_has_its_effect_once(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(PATIENT)
    script: Script = [{**STAMP[0], "pause": 0.5}, STAMP[1]]
    with serving(tmp_path, script, "--tool", "tools") as frozen, serving(tmp_path, script, "--tool", "tools") as other:
        async with await begun(http, frozen, input="stamp", background=True) as answer:
            run_id = (await answer.json())["id"]
        live = await http.get(f"{frozen.url}/responses/{run_id}?stream=true")
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            with anyio.fail_after(PATIENCE):
                await completed(http, other, run_id)
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        with anyio.fail_after(PATIENCE):
            await completed(http, frozen, run_id)
            assert await live.read() == await rest_of(http, frozen, run_id) == await rest_of(http, other, run_id)
        await anyio.sleep(1.5)  # longer than the tool takes
    assert (await anyio.Path(tmp_path / "marks").read_text()).count("begun") == 1


@pytest.mark.slow
async def test_a_run_of_a_frozen_server_is_cancelled_once_its_lease_is_over(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(PATIENT)
    script: Script = [{**STAMP[0], "pause": 0.5}, STAMP[1]]
    with serving(tmp_path, script, "--tool", "tools") as frozen, serving(tmp_path, script, "--tool", "tools") as other:
        async with await begun(http, frozen, input="stamp", background=True) as answer:
            run_id = (await answer.json())["id"]
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            with anyio.fail_after(PATIENCE):
                async with http.post(f"{other.url}/responses/{run_id}/cancel") as answer:
                    assert (await answer.json())["status"] == "cancelled"
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        await anyio.sleep(2)  # longer than the model and the tool take
    assert not await anyio.Path(tmp_path / "marks").exists()


@pytest.mark.slow
async def test_a_copy_of_a_request_joins_the_live_stream_of_the_original_in_another_process(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    script: Script = [{"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.2}]
    with serving(tmp_path, script) as driver, serving(tmp_path, script) as other:
        body = {"model": "m", "input": "count", "stream": True}
        asked = [http.post(f"{each.url}/responses", json=body, headers={"Idempotency-Key": "k"}) for each in (driver, other)]
        with anyio.fail_after(PATIENCE):
            async with asked[0] as original:
                async with asked[1] as copy:
                    joined = await read_until(copy, 8)
                    run_id = json.loads(joined.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"]
                    async with http.get(f"{driver.url}/responses/{run_id}") as under_way:
                        assert (await under_way.json())["status"] == "in_progress", "the copy has its events while it is driven"
                    joined += await copy.content.read()
                assert joined == await original.content.read()
    assert linted(events_of(joined))["status"] == "completed"
