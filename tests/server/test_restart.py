"""Servers that stop, crash, and share a database: nothing that was shown is taken back, nothing that is driven is taken away."""

import signal
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.fleet import TOOLS, ended, find_last_number, find_run_id, marked, marks, read_events, read_stream, whole_events
from tests.server.linter import events_of, linted
from tests.server.process import Script, Served, serving

pytestmark = pytest.mark.usefixtures("each_database")

SLOW: Script = [{"when": "count", "say": "one two three four five six seven eight nine ten", "pause": 0.02}]
STAMP: Script = [{"when": "stamp", "calls": [{"name": "stamp", "arguments": {}}]}, {"when": "stamp", "say": "Stamped."}]
TALK: Script = [
    {"when": "count", "say": "one two three", "calls": [{"name": "stamp", "arguments": {}}]},
    {"when": "count", "say": "four five"},
]
CARVE: Script = [{"when": "carve", "calls": [{"name": "carve", "arguments": {}}]}, {"when": "carve", "say": "Carved."}]


async def begun(http: aiohttp.ClientSession, served: Served, **body: Any) -> aiohttp.ClientResponse:
    return await http.post(f"{served.url}/responses", json={"model": "m", "input": "count", **body})


@pytest.mark.slow
@pytest.mark.parametrize("events", [4, 9, 16, 25])
async def test_a_foreground_stream_goes_on_where_a_killed_server_left_it(
    tmp_path: Path, http: aiohttp.ClientSession, events: int
) -> None:
    with serving(tmp_path, SLOW) as first:
        answer = await begun(http, first, stream=True)
        seen = whole_events(await read_events(answer, events))
        first.kill()
        answer.close()
    run_id = find_run_id(seen)
    with serving(tmp_path, SLOW) as second:
        rest = await read_stream(http, second, run_id, find_last_number(seen))
        whole = await read_stream(http, second, run_id)
    assert seen + rest == whole
    assert linted(events_of(whole))["status"] == "completed"


@pytest.mark.slow
async def test_a_second_server_leaves_the_runs_of_the_first_alone(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    script = [*SLOW, *CARVE]
    with ExitStack() as servers:
        first = servers.enter_context(serving(tmp_path, script, "--tool", "tools"))
        stream = await begun(http, first, stream=True)
        seen = await read_events(stream, 5)
        background = await (await begun(http, first, input="carve", background=True)).json()
        await marked(tmp_path, "begun")
        second = servers.enter_context(serving(tmp_path, script, "--tool", "tools"))
        seen += await stream.content.read()
        (tmp_path / "go").touch()
        assert (await ended(http, second, background["id"]))["status"] == "completed"
    assert linted(events_of(seen))["status"] == "completed"
    assert marks(tmp_path) == ["begun", "done"]


@pytest.mark.slow
async def test_a_server_takes_up_the_runs_of_one_that_died_beside_it(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    with ExitStack() as servers:
        first = servers.enter_context(serving(tmp_path, SLOW))
        second = servers.enter_context(serving(tmp_path, SLOW))
        run_id = (await (await begun(http, first, background=True)).json())["id"]
        first.kill()
        told = await ended(http, second, run_id)
    assert told["output"][-1]["content"][0]["text"].endswith("nine ten")


@pytest.mark.slow
async def test_a_stopping_server_lets_background_runs_finish(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    with serving(tmp_path, CARVE, "--tool", "tools") as served:
        run_id = (await (await begun(http, served, input="carve", background=True)).json())["id"]
        await marked(tmp_path, "begun")
        served.process.send_signal(signal.SIGTERM)
        with pytest.raises(aiohttp.ClientConnectorError):  # noqa: PT012 - it listens until it has heard
            while True:
                async with aiohttp.ClientSession() as session, session.get(f"{served.url}/models"):
                    pass
        (tmp_path / "go").touch()
        assert await anyio.to_thread.run_sync(served.process.wait) == 0
    assert marks(tmp_path) == ["begun", "done"]
    with serving(tmp_path, CARVE, "--tool", "tools") as again:
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
    (tmp_path / "tools.py").write_text(TOOLS)
    talk = ("--tool", "tools")
    with serving(tmp_path, TALK, *talk) as driver, serving(tmp_path, TALK, *talk) as other:
        async with await begun(http, driver, background=True) as answer:
            run_id = (await answer.json())["id"]
        streams = [http.get(f"{other.url}/responses/{run_id}?stream=true") for _ in range(2)]
        async with streams[0] as live, streams[1] as second:
            whole = await read_events(live, 6)
            with anyio.fail_after(PATIENCE):
                async with http.get(f"{driver.url}/responses/{run_id}") as under_way:
                    assert (await under_way.json())["status"] == "in_progress", "its events came while it was driven"
                (tmp_path / "go").touch()
                whole += await live.content.read()
                assert await second.read() == whole
        assert whole == await read_stream(http, driver, run_id)
        assert whole == await read_stream(http, other, run_id)
        assert whole.endswith(b"data: [DONE]\n\n")
        assert linted(events_of(whole))["status"] == "completed"


@pytest.mark.slow
async def test_a_run_that_another_server_drives_is_cancelled_there_before_it_is_said_to_be(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    with serving(tmp_path, STAMP, "--tool", "tools") as driver, serving(tmp_path, STAMP, "--tool", "tools") as other:
        for _ in range(3):
            (tmp_path / "marks").unlink(missing_ok=True)
            async with await begun(http, driver, input="stamp", background=True) as answer:
                run_id = (await answer.json())["id"]
            await marked(tmp_path, "begun")
            with anyio.fail_after(PATIENCE):
                async with http.post(f"{other.url}/responses/{run_id}/cancel") as answer:
                    assert (await answer.json())["status"] == "cancelled"
                assert marks(tmp_path) == ["begun", "left"]
                async with http.get(f"{driver.url}/responses/{run_id}") as answer:
                    assert (await answer.json())["status"] == "cancelled"


@pytest.mark.slow
async def test_a_run_of_a_frozen_server_is_taken_up_and_has_its_effect_once(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "go").touch()
    script: Script = [{**STAMP[0], "pause": 0.5}, STAMP[1]]
    with serving(tmp_path, script, "--tool", "tools") as frozen, serving(tmp_path, script, "--tool", "tools") as other:
        async with await begun(http, frozen, input="stamp", background=True) as answer:
            run_id = (await answer.json())["id"]
        live = await http.get(f"{frozen.url}/responses/{run_id}?stream=true")
        frozen.process.send_signal(signal.SIGSTOP)
        try:
            assert (await ended(http, other, run_id))["status"] == "completed"
        finally:
            frozen.process.send_signal(signal.SIGCONT)
        with anyio.fail_after(PATIENCE):
            assert (await ended(http, frozen, run_id))["status"] == "completed"
            assert await live.read() == await read_stream(http, frozen, run_id) == await read_stream(http, other, run_id)
        # It lets its runs end, if it thinks that it has one.
        assert await anyio.to_thread.run_sync(frozen.stop) == 0
    assert marks(tmp_path) == ["begun", "done"]


@pytest.mark.slow
async def test_a_run_of_a_frozen_server_is_cancelled_once_its_lease_is_over(tmp_path: Path, http: aiohttp.ClientSession) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "go").touch()
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
        # It lets its runs end, if it thinks that it has one.
        assert await anyio.to_thread.run_sync(frozen.stop) == 0
    assert marks(tmp_path) == []


@pytest.mark.slow
async def test_a_copy_of_a_request_joins_the_live_stream_of_the_original_in_another_process(
    tmp_path: Path, http: aiohttp.ClientSession
) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    talk = ("--tool", "tools")
    with serving(tmp_path, TALK, *talk) as driver, serving(tmp_path, TALK, *talk) as other:
        body = {"model": "m", "input": "count", "stream": True}
        asked = [http.post(f"{each.url}/responses", json=body, headers={"Idempotency-Key": "k"}) for each in (driver, other)]
        with anyio.fail_after(PATIENCE):
            async with asked[0] as original:
                async with asked[1] as copy:
                    joined = await read_events(copy, 8)
                    run_id = find_run_id(joined)
                    async with http.get(f"{driver.url}/responses/{run_id}") as under_way:
                        assert (await under_way.json())["status"] == "in_progress", "the copy has its events while it is driven"
                    (tmp_path / "go").touch()
                    joined += await copy.content.read()
                assert joined == await original.content.read()
    assert linted(events_of(joined))["status"] == "completed"
