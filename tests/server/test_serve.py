"""The server as a process: requests, streams, disconnects, restarts."""

import asyncio
import json
from io import BytesIO
from pathlib import Path

import aiohttp
import anyio
import pytest
from tests.kit.waiting import PATIENCE
from tests.server.linter import Json, events_of, linted
from tests.server.process import Served, serving

from mainspring.app.serve import GARBAGE_OBJECTS

HELLO: list[Json] = [
    {"when": "hello", "say": "Hello there."},
    {"when": "slowly", "say": "One word at a time, please.", "pause": 0.02},
    {"when": "for ever", "say": "I will begin", "stall": True},
    {"calls": [{"name": "weather", "arguments": {"city": "Paris"}}], "expect": "Paris"},
    {"say": "Sunny.", "expect": "22 degrees"},
    {"when": "down", "fail": {"code": "provider_unavailable", "message": "nobody is at home"}},
]
WEATHER: Json = {"type": "function", "name": "weather", "parameters": {"type": "object"}}


async def post(served: Served, body: Json, **headers: str) -> tuple[int, Json]:
    async with (
        aiohttp.ClientSession(headers={name.replace("_", "-"): value for name, value in headers.items()}) as session,
        session.post(f"{served.url}/responses", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def get(served: Served, path: str) -> tuple[int, Json]:
    async with aiohttp.ClientSession() as session, session.get(f"{served.url}{path}") as answer:
        return answer.status, await answer.json()


async def settled(served: Served, response_id: str, leaves: str = "in_progress") -> Json:
    """The response once it has left that status; clients poll, so do we."""
    with anyio.fail_after(PATIENCE):
        while (found := (await get(served, f"/responses/{response_id}"))[1])["status"] == leaves:  # noqa: ASYNC110
            await anyio.sleep(0.01)
    return found


async def stream(served: Served, response_id: str, after: int | None = None) -> bytes:
    query = "" if after is None else f"&starting_after={after}"
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{served.url}/responses/{response_id}?stream=true{query}") as answer,
    ):
        return await answer.read()


async def test_a_response_is_created_stored_and_found_again(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        status, made = await post(served, {"input": [{"role": "user", "content": "hello"}], "metadata": {"a": "b"}})
        assert status == 200
        assert made["output"][0]["content"][0]["text"] == "Hello there."
        assert (await get(served, f"/responses/{made['id']}"))[1] == made
        assert (await get(served, "/responses"))[1]["data"] == [made]
        items = (await get(served, f"/responses/{made['id']}/input_items"))[1]
        assert [item["content"][0]["text"] for item in items["data"]] == ["hello"]


async def test_a_stream_read_live_again_and_from_every_point_is_the_same_even_after_a_crash(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{served.url}/responses", json={"input": "hello", "stream": True}) as answer,
        ):
            assert answer.content_type == "text/event-stream"
            live = await answer.read()
        made = linted(events_of(live))
        assert await stream(served, made["id"]) == live
        served.kill()
    blocks = live.split(b"\n\n")[:-2]
    with serving(tmp_path, HELLO) as served:
        for cut in range(len(blocks)):
            rest = await stream(served, made["id"], after=cut)
            assert b"\n\n".join(blocks[: cut + 1]) + b"\n\n" + rest == live


async def test_a_background_run_survives_a_crash_and_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        _, made = await post(served, {"input": "for ever", "background": True})
        assert (made["status"], made["output"], made["usage"]) == ("queued", [], None)
        await settled(served, made["id"], "queued")
        served.kill()
    with serving(tmp_path, [{"when": "for ever", "say": "Done at last."}]) as served, anyio.fail_after(PATIENCE):
        events = events_of(await stream(served, made["id"]))
        assert linted(events)["status"] == "completed"
        assert events[-1]["response"]["output"][-1]["content"][0]["text"] == "Done at last."


async def test_a_client_that_leaves_cancels_its_run_unless_it_asked_to_go_on(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        left = await _leave(served, {})
        stays = await _leave(served, {"mainspring-on-disconnect": "continue"})
        gone, went = await settled(served, left), await settled(served, stays)
    assert gone["status"] == "cancelled"
    assert gone["output"][0]["status"] == "incomplete"
    assert went["status"] == "completed"
    assert went["output"][0]["content"][0]["text"] == "One word at a time, please."


async def _leave(served: Served, headers: dict[str, str]) -> str:
    """Reads the beginning of a stream and hangs up."""
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{served.url}/responses", json={"input": "slowly", "stream": True}) as answer,
    ):
        seen = b""
        while b"output_text.delta" not in seen:
            more = await answer.content.readany()
            assert more, f"the stream ended early: {seen.decode()}"
            seen += more
        answer.close()
    return str(json.loads(seen.split(b"data: ")[1].split(b"\n")[0])["response"]["id"])


async def test_a_client_that_does_not_stream_and_leaves_cancels_its_run_too(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        with pytest.raises(asyncio.TimeoutError):
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=0.3)) as session:
                await session.post(f"{served.url}/responses", json={"input": "for ever"})
        [begun] = (await get(served, "/responses"))[1]["data"]
        assert (await settled(served, begun["id"]))["status"] == "cancelled"


async def test_a_polite_stop_lets_runs_finish_and_leaves_the_rest_to_be_resumed(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO, env={"MAINSPRING_DRAIN_SECONDS": "1"}) as served:
        _, endless = await post(served, {"input": "for ever", "background": True})
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{served.url}/responses", json={"input": "slowly", "stream": True}) as answer,
        ):
            seen = await answer.content.readany()
            code = await asyncio.to_thread(served.stop)
            seen += await answer.read()
    assert code == 0
    assert linted(events_of(seen))["status"] == "completed"
    with serving(tmp_path, [{"when": "for ever", "say": "Done at last."}]) as served, anyio.fail_after(PATIENCE):
        assert linted(events_of(await stream(served, endless["id"])))["status"] == "completed"


async def test_a_client_tool_goes_round_and_the_wire_says_completed(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        _, paused = await post(served, {"input": "weather in Paris?", "tools": [WEATHER]})
        assert paused["status"] == "completed"
        [made] = paused["output"]
        assert paused["required_input"] == [{"type": "function_call_output", "call_id": made["call_id"], "name": "weather"}]
        status, refused = await post(served, {"input": "and?", "previous_response_id": paused["id"], "tools": [WEATHER]})
        assert (status, refused["error"]["param"]) == (400, "input")
        answer = {"type": "function_call_output", "call_id": made["call_id"], "output": "22 degrees"}
        _, done = await post(served, {"input": [answer], "previous_response_id": paused["id"], "tools": [WEATHER]})
        assert done["output"][0]["content"][0]["text"] == "Sunny."


async def test_the_status_requires_action_is_shown_to_those_who_ask_for_it(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        body = {"input": "weather in Paris?", "tools": [WEATHER]}
        assert (await post(served, body, mainspring_status="requires_action"))[1]["status"] == "requires_action"


async def test_a_failing_model_fails_the_response_and_says_why(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        status, refused = await post(served, {"input": "down"})
        [failed] = (await get(served, "/responses"))[1]["data"]
    assert (status, refused["error"]["code"], refused["error"]["message"]) == (502, "provider_unavailable", "nobody is at home")
    assert failed["status"] == "failed"
    assert failed["error"] == {
        "code": "server_error", "message": "nobody is at home", "type": "model_error", "reason": "provider_unavailable",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": "x", "temperature": 9}, "temperature", "temperature must be at most 2.0"),
        ({"input": "x", "max_output_tokens": 3}, "max_output_tokens", "at least 16"),
        ({"input": 7}, "input", "input must be a string or an array or null, not an integer"),
        ({"input": "x", "temperature": "hot"}, "temperature", "temperature must be a number or null, not a string"),
        ({"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].function", "beside `type`"),
        ({"input": "x", "tools": [{"type": "function", "name": "no spaces"}]}, "tools[0].name", "letters"),
        ({"input": "x", "tool_choice": {"type": "function", "name": "nope"}}, "tool_choice", "not among the tools"),
        ({"input": "x", "tool_choice": "sometimes"}, "tool_choice", "allowed_tools"),
        ({"input": "x", "tool_choice": {"type": "image_generation"}}, "tool_choice", "allowed_tools"),
        ({"input": "x", "tools": [{"type": "function", "name": "\u00e9\u65e5\u672c"}]}, "tools[0].name", "letters"),
        ({"input": "x", "tools": [{"type": "function", "name": "weather\n"}]}, "tools[0].name", "letters"),
        ({"input": "x", "background": True, "store": False}, "store", "`background: true`"),
        ({"input": "x", "previous_response_id": "resp_nope"}, "previous_response_id", "resp_nope"),
        ({"input": "x", "metadata": {"a": 1}}, "metadata", "a value in metadata must be a string, not an integer"),
        ({"input": "x", "text": {"format": {"type": "json_schema"}}}, "text.format", "schema"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input", "No tool call found"),
        ({"input": [{"type": "message"}]}, "input", "role"),
    ],
)
async def test_what_cannot_be_honoured_is_refused_by_name(tmp_path: Path, body: Json, param: str, words: str) -> None:
    with serving(tmp_path, HELLO) as served:
        status, answer = await post(served, body)
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["param"].startswith(param)
    assert words in answer["error"]["message"]


async def test_garbage_gets_a_clean_refusal(tmp_path: Path) -> None:
    bodies = [
        b"", b"{", b"null", b"[]", b"\x00\xff", b'{"input": "\\ud800"}', b'{"input": ' + b"[" * 100_000, b"{}" * 3,
        b'{"temperature": 1e999}', b'{"input": "x", "max_tool_calls": 99999999999999999999999999}',
        b'{"input": [[[]]]}', b'{"tools": [1]}',
    ]  # fmt: skip
    with serving(tmp_path, HELLO) as served:
        async with aiohttp.ClientSession(headers={"content-type": "application/json"}) as session:
            for body in bodies:
                async with session.post(f"{served.url}/responses", data=body) as answer:
                    assert 400 <= answer.status < 500, body[:40]
                    assert (await answer.json())["error"]["message"]
            async with session.post(f"{served.url}/responses", data=BytesIO(b" " * (33 * 1024 * 1024))) as answer:
                assert answer.status == 413
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{served.url}/responses", data=b"a=b") as answer:
                assert answer.status == 415
            async with session.post(
                f"{served.url}/responses", data=b'{"input": "hello"}', headers={"content-type": "application/json; charset=utf-8"}
            ) as answer:
                assert answer.status == 200
            async with session.put(f"{served.url}/responses") as answer:
                assert answer.status == 405
        assert (await get(served, "/nowhere"))[0] == 404
        assert (await get(served, "/responses/resp_nope"))[0] == 404


async def test_health_readiness_and_request_ids(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        root = served.url.removesuffix("/v1")
        async with aiohttp.ClientSession() as session:
            for path in ("/healthz", "/readyz"):
                for given in ("abc123", "3f2c1b9a-1111-4222-8333-abcdefabcdef", "req_0.1", "x" * 128):
                    async with session.get(root + path, headers={"x-request-id": given}) as answer:
                        assert answer.status == 200
                        assert answer.headers["x-request-id"] == given
            for given in ("not sensible!", "x" * 129, "\u00e9", ""):
                async with session.get(root + "/healthz", headers={"x-request-id": given}) as answer:
                    assert answer.headers["x-request-id"].startswith("req_")


LOOK_AT_GARBAGE = '''
import gc

from mainspring import tool


@tool
def look() -> str:
    """Tells how garbage is looked for here, and whether it is among what the server is made of."""
    return f"{gc.get_threshold()[0]} {any(type(each).__name__ == 'ConnectionTable' for each in gc.get_objects())}"
'''


async def test_a_server_looks_for_garbage_seldom_and_not_in_itself(tmp_path: Path) -> None:
    (tmp_path / "garbage.py").write_text(LOOK_AT_GARBAGE)
    script: list[Json] = [{"calls": [{"name": "look"}]}, {"say": "Done.", "expect": f"{GARBAGE_OBJECTS} False"}]
    with serving(tmp_path, script, "--tool", "garbage", env={"PYTHONPATH": "."}) as served:
        _, told = await post(served, {"input": "Look."})
    assert told["status"] == "completed", told["error"]
