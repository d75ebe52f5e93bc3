"""Limits hold for a whole deployment: two servers of two processes each on one database exceed none of them together."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from sys import executable
from typing import Any

import aiohttp
import anyio
import pytest
from aiohttp import web
from tests.kit.databases import database_in
from tests.kit.processes import run
from tests.kit.waiting import PATIENCE
from tests.server.process import Script, Served, serving, working

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("each_database")]

TOOLS = """
import os
from mainspring import tool

@tool
def count() -> str:
    with open("tally", "a") as tally:
        tally.write("x\\n")
    return "counted"
"""


class Backend:
    """A model that counts how many requests it has at once, and in all."""

    def __init__(self) -> None:
        self.open = self.peak = self.total = 0

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.total += 1
        self.open += 1
        self.peak = max(self.peak, self.open)
        try:
            await request.read()
            await asyncio.sleep(0.02)
            reply = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await reply.prepare(request)
            for delta, finish in (({"role": "assistant", "content": "Hi."}, None), ({}, "stop")):
                chunk = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
                await reply.write(f"data: {json.dumps(chunk)}\n\n".encode())
            await reply.write(b"data: [DONE]\n\n")
        finally:
            self.open -= 1
        return reply


@asynccontextmanager
async def counting() -> AsyncIterator[tuple[Backend, str]]:
    backend = Backend()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", backend.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield backend, f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


async def ask(session: aiohttp.ClientSession, served: Served, number: int, **body: Any) -> Any:
    async with session.post(f"{served.url}/responses", json={"input": f"Go {number}.", **body}) as answer:
        return await answer.json()


async def ask_all(servers: list[Served], count: int, **body: Any) -> list[Any]:
    """Asks all servers at once, over a connection for each request."""
    timeout = aiohttp.ClientTimeout(2 * PATIENCE)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        asked = [ask(session, servers[number % len(servers)], number, **body) for number in range(count)]
        return list(await asyncio.gather(*asked))


def serve_two(stack: ExitStack, folder: Path, *options: str, script: Script | None = None) -> list[Served]:
    return [stack.enter_context(serving(folder, script or [], "--workers", "2", *options)) for _ in range(2)]


async def test_a_backend_gets_no_more_at_once_or_in_a_minute_than_it_may(tmp_path: Path) -> None:
    async with AsyncExitStack() as outer:
        few, few_url = await outer.enter_async_context(counting())
        rare, rare_url = await outer.enter_async_context(counting())
        settings = f'[providers.few]\nbase_url = "{few_url}"\nkey = "k"\nconcurrency = 3\n'
        settings += f'[providers.rare]\nbase_url = "{rare_url}"\nkey = "k"\nper_minute = 5\nwait_seconds = 2.0\n'
        (tmp_path / "mainspring.toml").write_text(settings)
        with ExitStack() as stack:
            servers = serve_two(stack, tmp_path, "--model", "few/m")
            answers = await ask_all(servers, 40, model="few/m")
            others = await ask_all(servers, 12, model="rare/m")
    assert [answer["status"] for answer in answers] == ["completed"] * 40
    assert (few.total, few.peak) == (40, 3)
    told = sorted([answer.get("status") or answer["error"]["code"] for answer in others])
    assert told == ["completed"] * 5 + ["rate_limit_exceeded"] * 7
    assert rare.total == 5


async def test_a_caller_makes_no_more_calls_in_a_minute_than_it_may(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text('tools = ["counting"]\n[governance]\nper_minute = 6\nburst = 6\n')
    call = {"calls": [{"name": "count", "arguments": {}}]}
    script: Script = [{"when": "Go", **call}, {"when": "Go", "say": "Done."}]
    with ExitStack() as stack:
        servers = serve_two(stack, tmp_path, script=script)
        answers = await ask_all(servers, 16)
    assert {answer["status"] for answer in answers} == {"completed"}
    assert len((tmp_path / "tally").read_text().splitlines()) == 6


async def test_runs_that_race_for_a_budget_spend_no_more_than_there_is(tmp_path: Path) -> None:
    (tmp_path / "counting.py").write_text(TOOLS)
    budget = '[budget]\nper = "tenant"\nshare = 0.25\nlimits = { max_tool_calls = 8 }\n'
    (tmp_path / "mainspring.toml").write_text(f'tools = ["counting"]\n{budget}')
    calls = {"calls": [{"name": "count", "arguments": {}}] * 3}
    script: Script = [{"when": "Go", **calls}, {"when": "Go", "say": "Done."}]
    with ExitStack() as stack:
        servers = serve_two(stack, tmp_path, script=script)
        answers = await ask_all(servers, 24)
        async with aiohttp.ClientSession() as session, session.get(f"{servers[0].url}/budgets/default") as answer:
            [calls_line] = [line for line in (await answer.json())["lines"] if line["measure"] == "calls"]
    assert {answer.get("status", "refused") for answer in answers} <= {"completed", "incomplete", "refused", "failed"}
    made = len((tmp_path / "tally").read_text().splitlines())
    assert 0 < made <= 8
    assert calls_line["used"] + calls_line["held"] <= 8


def create_key(folder: Path, *options: str) -> str:
    made = run([executable, "-m", "mainspring", "keys", "create", "--database", database_in(folder, "served.db"), *options])
    assert made.returncode == 0, made.stderr
    return next(word for word in made.stdout.split() if word.startswith("ms_"))


async def test_a_key_uses_no_more_at_all_servers_than_it_may(tmp_path: Path) -> None:
    """Gateways admit, and the worker that drives a run notes its tokens."""
    (tmp_path / "mainspring.toml").write_text("[http]\nrequests_per_key = 2\n")
    rare, few = create_key(tmp_path, "--requests-per-minute", "5"), create_key(tmp_path, "--tokens-per-minute", "10")
    script: Script = [
        {"when": "stay", "say": "Hello.", "pause": 3600},
        {"when": "", "say": "x " * 50, "usage": {"input_tokens": 5, "output_tokens": 50}},
    ]
    async with AsyncExitStack() as outer:
        stack = outer.enter_context(ExitStack())
        gateways = [stack.enter_context(serving(tmp_path, script, "--role", "gateway")) for _ in range(2)]
        stack.enter_context(working(tmp_path, script))
        one, other = [gateway.url for gateway in gateways]
        session = await outer.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(2 * PATIENCE)))

        async def post(url: str, key: str, input: str = "Go.", *, stream: bool = False) -> aiohttp.ClientResponse:
            headers = {"authorization": f"Bearer {key}"}
            return await session.post(f"{url}/responses", headers=headers, json={"input": input, "stream": stream})

        told = [(await post((one, other)[number % 2], rare)).status for number in range(8)]
        assert told == [200] * 5 + [429] * 3
        first = await post(one, few)
        assert (first.status, first.headers["x-ratelimit-limit-tokens"]) == (200, "10")
        with anyio.fail_after(PATIENCE):
            while (refused := await post(other, few)).status == 200:  # until the worker has noted them
                pass
        assert (refused.status, (await refused.json())["error"]["code"]) == (429, "rate_limit_exceeded")
        full = create_key(tmp_path)
        streams = [await post(url, full, "stay", stream=True) for url in (one, other)]
        assert [stream.status for stream in streams] == [200, 200]
        refused = await post(other, full)
        assert (refused.status, (await refused.json())["error"]["code"]) == (429, "too_many_requests")
        streams[0].close()
        with anyio.fail_after(PATIENCE):
            while (await post(other, full)).status == 429:  # noqa: ASYNC110 - until the other gateway has noticed
                await anyio.sleep(0.05)
        streams[1].close()
