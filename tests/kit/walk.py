"""The files that a streamed request with two tool calls goes through, in the order in which it enters them.

    python -m tests.kit.walk

One request to the server's application in this process, traced, by a clock that makes each walk the same. A hop is a
call, or a coroutine that goes on, in another file of ours than the one before.
"""

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from starlette.types import Message, Scope
from tests.kit.clock import JumpingLoop

from mainspring import tool
from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.providers.scripted import Scripted, call, calls, say

SOURCES = Path(__file__).resolve().parents[2] / "src"


class Walk(NamedTuple):
    """`files` are relative to the sources, each where it is first entered."""

    files: list[str]
    hops: int


def walk() -> Walk:
    """Raises `AssertionError` if the request did not end well."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        steps = runner.run(_request())
    files = list(dict.fromkeys(steps))
    return Walk(files, sum(before != after for before, after in pairwise(steps)))


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def _request() -> list[str]:
    script = Scripted(calls(call("add", a=1, b=2), call("add", a=3, b=4)), say("3 and 7."))
    app = server(Engine(script, tools=[add]))
    body = json.dumps({"model": "scripted", "input": "What is 1 + 2, and 3 + 4?", "stream": True}).encode()
    scope: Scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "query_string": b"",
        "root_path": "",
        "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))],
        "client": ("127.0.0.1", 40_000),
        "server": ("127.0.0.1", 80),
    }
    sent = bytearray()
    received = _messages(body)

    async def send(message: Message) -> None:
        sent.extend(message.get("body", b""))

    async with app.router.lifespan_context(app):
        with _traced() as steps:
            await app(scope, received.__anext__, send)
    assert b"response.completed" in sent, sent.decode()
    return steps


async def _messages(body: bytes) -> AsyncIterator[Message]:
    yield {"type": "http.request", "body": body, "more_body": False}
    await asyncio.Event().wait()


@contextmanager
def _traced() -> Iterator[list[str]]:
    """The files of ours in which something is called or goes on, in order, in this thread and in those that it starts."""
    steps: list[str] = []
    prefix = f"{SOURCES}/"

    def note(frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(prefix):
            steps.append(frame.f_code.co_filename.removeprefix(prefix))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield steps
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


if __name__ == "__main__":
    walked = walk()
    print(*walked.files, f"{len(walked.files)} files, {walked.hops} hops", sep="\n")
