"""What an error tells a client: a status, a code, the field at fault, and nothing about our machine."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import aiohttp
import pytest
from starlette.requests import Request
from starlette.responses import Response
from tests.server.hosting import hosted
from tests.server.linter import Json
from tests.server.process import serving
from tests.server.test_serve import HELLO, get, post

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.http.endpoints import PUBLIC, Endpoint
from mainspring.parts import PartContents, ServedPart
from mainspring.providers.scripted import Scripted

FIELDS = {"message", "type", "param", "code"}


CASES: list[tuple[Json, int, str, str]] = [
    ({"input": 7}, 400, "input", "invalid_type"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, 400, "input[0].call_id", "missing_required_parameter"),
    ({"input": "x", "top_p": -1}, 400, "top_p", "decimal_below_min_value"),
    ({"input": "x", "top_logprobs": 21}, 400, "top_logprobs", "integer_above_max_value"),
    ({"input": "x", "truncation": "perhaps"}, 400, "truncation", "invalid_value"),
    ({"input": "x", "tools": [{"name": "f"}]}, 400, "tools[0].type", "missing_required_parameter"),
    ({"input": "x", "previous_response_id": "resp_no"}, 400, "previous_response_id", "previous_response_not_found"),
    ({"input": "x", "conversation": "conv_no"}, 404, "conversation", "not_found"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, 400, "input", "invalid_request_error"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, 400, "input", "invalid_request_error"),
    ({}, 400, "input", "invalid_request_error"),
    ({"input": "down"}, 502, "model", "provider_unavailable"),
]


async def test_an_error_has_a_code_and_names_the_field(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        for body, status, param, code in CASES:
            given, answer = await post(served, body)
            error = answer["error"]
            assert set(error) == FIELDS
            assert (given, error["param"], error["code"]) == (status, param, code)
        async with aiohttp.ClientSession() as session, session.post(f"{served.url}/chat/completions", json={}) as refused:
            error = (await refused.json())["error"]
            assert (refused.status, error["param"], error["code"]) == (400, "messages", "missing_required_parameter")


async def test_what_fails_in_the_store_is_told_without_the_path_of_its_file(tmp_path: Path) -> None:
    told: list[str] = []
    with serving(tmp_path, HELLO) as served:
        _, made = await post(served, {"input": "hello"})
        with closing(sqlite3.connect(tmp_path / "served.db")) as connection:
            connection.execute("ALTER TABLE runs RENAME TO hidden")
        for path in ("/responses", f"/responses/{made['id']}x", "/responses?model=m"):
            status, answer = await get(served, path)
            assert (status, answer["error"]["code"]) == (500, "store_error")
            told.append(answer["error"]["message"])
        _, failed = await post(served, {"input": "hello"})
        assert failed["error"]["code"] == "store_error"
        told.append(failed["error"]["message"])
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{served.url}/responses", json={"input": "hello", "stream": True}) as stream:
                told.append((await stream.read()).decode())
                assert "response.failed" in told[-1]
            async with session.ws_connect(f"{served.url}/responses") as socket:
                await socket.send_str('{"type": "response.create", "input": "hello"}')
                while not told[-1].startswith('{"type":"response.failed"'):
                    told.append(str(await socket.receive_str(timeout=30)))
        await asyncio.to_thread(served.stop)
        assert served.process.stdout is not None
        log = served.process.stdout.read()
    for words in told:
        assert "served.db" not in words
    assert "the database cannot be used (no such table" in told[0]
    assert f"{tmp_path}/served.db: OperationalError: no such table" in log


async def test_a_handler_that_fails_is_a_500_with_a_request_id_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def fail(request: Request) -> Response:
        raise RuntimeError("our own mistake")

    row = Endpoint("GET", "/v1/clumsy/{name:path}", fail, PUBLIC)
    part = PartContents(name="clumsy", serve=lambda host: ServedPart((row,)))
    async with hosted(server(Engine(Scripted(), parts=[part]))) as url, aiohttp.ClientSession() as session:
        answer = await session.get(f"{url}/clumsy/a/b", headers={"x-request-id": "mine"})
        told = await answer.json()
    assert (answer.status, told["error"]["code"], answer.headers["x-request-id"]) == (500, "server_error", "mine")
    assert "our own mistake" not in told["error"]["message"]
    assert [record.getMessage() for record in caplog.records if record.exc_info] == ["GET /v1/clumsy/a/b failed"]
