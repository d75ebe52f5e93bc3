"""What tests of several processes share: a tool whose calls leave marks and wait for a word, a client, and the ends of runs.

A call of `stamp` marks that it has begun and ends once there is a file `go`, so that a test says how long it takes. One that is
cancelled marks that it was left. `carve` is the same in a thread.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import anyio
from tests.kit.waiting import PATIENCE, until
from tests.server.process import Served

TOOLS = '''
import asyncio
import os
import time
from pathlib import Path

from mainspring import tool


def mark(what: str) -> None:
    with Path("marks").open("a") as file:
        file.write(f"{what} {os.getpid()}\\n")


@tool
async def stamp(name: str = "", seconds: float = 600) -> str:
    """Leaves a mark, and another when it is told to end or its time is up."""
    mark(f"begun{name}")
    try:
        while seconds > 0 and not Path("go").exists():
            await asyncio.sleep(0.01)
            seconds -= 0.01
    except asyncio.CancelledError:
        mark(f"left{name}")
        raise
    mark(f"done{name}")
    return "stamped"


@tool
def carve() -> str:
    """Leaves a mark, and another when it is told to end."""
    mark("begun")
    while not Path("go").exists():
        time.sleep(0.01)
    mark("done")
    return "carved"


@tool
def wipe() -> str:
    """Leaves a mark once a person agrees."""
    mark("wiped")
    return "wiped"


@tool(repeatable=True)
def explode() -> str:
    """Ends the process, as a fault in a library would."""
    mark("dead")
    os._exit(9)
'''


class Mark(NamedTuple):
    what: str
    pid: int


def read_marks(folder: Path) -> list[Mark]:
    path = folder / "marks"
    lines = path.read_text().splitlines() if path.exists() else []
    return [Mark(what, int(pid)) for what, _, pid in [line.partition(" ") for line in lines]]


def marks(folder: Path) -> list[str]:
    return [mark.what for mark in read_marks(folder)]


async def marked(folder: Path, *expected: str) -> None:
    """Waits for these marks, or for any."""
    await until(lambda: marks(folder) == list(expected) if expected else bool(marks(folder)))


async def post(http: aiohttp.ClientSession, served: Served, path: str = "/responses", **body: Any) -> tuple[int, Any]:
    """Asks again while there is no worker: on a busy machine one may need longer to be there than a gateway waits."""
    with anyio.fail_after(2 * PATIENCE):
        while True:
            status, told = await post_once(http, served, path, **body)
            if status != 503 or told["error"]["code"] != "no_worker":
                return status, told


async def post_once(http: aiohttp.ClientSession, served: Served, path: str = "/responses", **body: Any) -> tuple[int, Any]:
    async with http.post(f"{served.url}{path}", json=body) as answer:
        return answer.status, await answer.json()


async def read_stream(http: aiohttp.ClientSession, served: Served, run_id: str, after: int | None = None) -> bytes:
    """All that is streamed of a run, or what comes after an event."""
    behind = "" if after is None else f"&starting_after={after}"
    with anyio.fail_after(PATIENCE):
        async with http.get(f"{served.url}/responses/{run_id}?stream=true{behind}") as answer:
            return await answer.read()


async def read_events(answer: aiohttp.ClientResponse, count: int) -> bytes:
    """At least so many whole events of a stream."""
    read = b""
    with anyio.fail_after(PATIENCE):
        while read.count(b"\n\n") < count:
            read += await answer.content.readany()
    return read


def whole_events(read: bytes) -> bytes:
    return read[: read.rindex(b"\n\n") + 2]


def find_run_id(read: bytes) -> str:
    return str(json.loads(read.partition(b"data: ")[2].partition(b"\n")[0])["response"]["id"])


def find_last_number(read: bytes) -> int:
    return int(json.loads(read.rstrip().rpartition(b"data: ")[2])["sequence_number"])


async def ended(http: aiohttp.ClientSession, served: Served, run_id: str) -> dict[str, Any]:
    """The response of a run, once it is over."""
    with anyio.fail_after(PATIENCE):
        while True:
            async with http.get(f"{served.url}/responses/{run_id}") as answer:
                told: dict[str, Any] = await answer.json()
            if told["status"] not in ("queued", "in_progress"):
                return told
            await anyio.sleep(0.05)
