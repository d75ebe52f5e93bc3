"""What the doors of the clouds are tested with: a stand-in for the vendor on loopback that answers only what was asked
rightly, and a real server process that is configured to ask it.

No cloud was asked for the answers here. They are written by hand, in the shapes that the vendors publish.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlsplit

import msgspec
import openai
from aiohttp import web
from msgspec import Struct
from tests.kit.processes import STDOUT, run, start

from mainspring.core.items import Json

CLOCK = '''
from pathlib import Path

from mainspring import tool


@tool
def get_time(zone: str) -> str:
    """Tells the time in a zone."""
    with Path("tally").open("a") as tally:
        tally.write(zone + "\\n")
    return f"12:00 {zone}"
'''
CLOUDS = ("MAINSPRING_", "OPENAI_", "ANTHROPIC_", "GEMINI_", "GOOGLE_", "OLLAMA_", "AZURE_", "AWS_", "GCE_", "IDENTITY_")


class Asked(Struct, frozen=True):
    """A request as it came; names of headers are small, the path is as it was written."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Json:
        body: Json = msgspec.json.decode(self.body)
        return body

    @property
    def form(self) -> dict[str, str]:
        assert self.headers["content-type"] == "application/x-www-form-urlencoded"
        return dict(parse_qsl(self.body.decode(), strict_parsing=True))

    @property
    def asks(self) -> dict[str, str]:
        return dict(parse_qsl(self.query))


class Reply(Struct, frozen=True):
    pieces: Sequence[bytes]
    mime: str = "text/event-stream"
    status: int = 200
    headers: dict[str, str] = {}
    ending: Literal["end", "abort"] = "end"


Answer = Callable[[Asked], Reply]


class Stand:
    """A vendor. `answers` are asked in order: the first whose path begins so answers, or fails the test by an assertion."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Asked] = []
        self._answers: list[tuple[str, Answer]] = []
        self._faults: list[str] = []

    def on(self, path: str, answer: Answer) -> None:
        self._answers.append((path, answer))

    def find(self, path: str) -> list[Asked]:
        return [asked for asked in self.asked if asked.path.startswith(path)]

    def check(self) -> None:
        assert not self._faults, "\n".join(self._faults)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        parts = urlsplit(request.raw_path)
        headers = {name.lower(): value for name, value in request.headers.items()}
        asked = Asked(request.method, parts.path, parts.query, headers, await request.read())
        self.asked.append(asked)
        try:
            answer = next((answer for path, answer in self._answers if asked.path.startswith(path)), None)
            assert answer is not None, "nobody answers here"
            reply = answer(asked)
        except Exception as fault:
            self._faults.append(f"{type(fault).__name__}: {fault}\nin {asked}")
            return web.Response(status=500, text="the test has failed")
        response = web.StreamResponse(status=reply.status, headers={"Content-Type": reply.mime, **reply.headers})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for piece in reply.pieces:
            await response.write(piece)
        if reply.ending == "abort":
            assert request.transport is not None
            request.transport.close()
        return response


@asynccontextmanager
async def standing() -> AsyncIterator[Stand]:
    stand = Stand()
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", stand.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    stand.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield stand
    finally:
        await runner.cleanup()
    stand.check()


class Site:
    """A folder with settings and a tool. `zones` are those that the tool was called with."""

    def __init__(self, folder: Path, settings: str, env: dict[str, str]) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith(CLOUDS)}
        self.env = {**kept, "HOME": str(folder), "PYTHONUNBUFFERED": "1", **env}
        (folder / "clock.py").write_text(CLOCK)
        (folder / "mainspring.toml").write_text(settings)

    @property
    def zones(self) -> list[str]:
        tally = self.folder / "tally"
        return tally.read_text().split() if tally.exists() else []

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "mainspring", *arguments]

    def run(self, *arguments: str) -> str:
        """What the command says, whatever its exit code."""
        ended = run(self.command(*arguments), cwd=self.folder, env=self.env)
        return ended.stdout + ended.stderr

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[openai.AsyncOpenAI]:
        command = self.command("serve", "--port", "0", "--tool", "clock:get_time", "--database", "served.db")
        with start(command, stderr=STDOUT, cwd=self.folder, env=self.env) as process:
            assert process.stdout is not None
            said = ""
            while " listens at " not in (line := process.stdout.readline()):
                said += line
                assert line, f"the server did not start: {said}"
            url = line.rpartition(" ")[2].strip()
            try:
                async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                    yield client
            finally:
                process.kill()


def sse(*payloads: Json, named: bool = False) -> bytes:
    """Events as every vendor but Amazon writes them."""
    heads = [f"event: {payload['type']}\n".encode() if named else b"" for payload in payloads]
    return b"".join(
        [head + b"data: " + msgspec.json.encode(payload) + b"\n\n" for head, payload in zip(heads, payloads, strict=True)]
    )


def whole(payload: object, status: int = 200, **headers: str) -> Reply:
    return Reply([msgspec.json.encode(payload)], "application/json", status, headers)


async def ask(client: openai.AsyncOpenAI, model: str, **request: Any) -> Any:
    return await client.responses.create(**{"model": model, "input": "What time is it?", **request})
