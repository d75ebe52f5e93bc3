"""What the load harness asks: Mainspring, what it is compared with, and the load itself."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import median
from sys import executable
from tempfile import TemporaryDirectory
from typing import NamedTuple, cast

import aiohttp
from bench.processes import cpu_of, free_port, process

UPSTREAM = str(Path(__file__).with_name("upstream.py"))
TOOLS = "def add(a: int, b: int) -> int:\n    'Adds two numbers.'\n    return a + b\n"


class Surroundings(NamedTuple):
    """Ports of what every server of a run stands between."""

    backend: int
    mcp: int


class Target(NamedTuple):
    """A process that is asked for answers, by the Responses API or, where it only forwards, by Chat Completions."""

    name: str
    pid: int
    base: str
    model: str = "m"
    is_forwarder: bool = False
    database: Path | None = None
    mcp: int = 0

    def write(self, text: str, *, stream: bool, with_mcp: bool = False, **fields: object) -> tuple[str, dict[str, object]]:
        """The address and the body of a request."""
        if self.is_forwarder:
            return f"{self.base}/chat/completions", {"messages": [{"role": "user", "content": text}], "stream": True}
        server = {"type": "mcp", "server_label": "bench", "server_url": f"http://127.0.0.1:{self.mcp}/mcp"}
        tools = {"tools": [{**server, "require_approval": "never"}]} if with_mcp else {}
        return f"{self.base}/responses", {"model": self.model, "input": text, "stream": stream, **tools, **fields}

    @property
    def end(self) -> bytes:
        return b"[DONE]" if self.is_forwarder else b"completed"


@contextmanager
def surroundings() -> Iterator[Surroundings]:
    ports = Surroundings(free_port(), free_port())
    with (
        process(executable, UPSTREAM, "backend", str(ports.backend)),
        process(executable, UPSTREAM, "mcp", str(ports.mcp)),
    ):
        yield ports


@contextmanager
def mainspring(ports: Surroundings, database: Path | None = None) -> Iterator[Target]:
    """A server as `mainspring serve` starts it, with a database that is empty unless one is given."""
    port = free_port()
    with TemporaryDirectory(prefix="mainspring-bench-") as folder:
        Path(folder, "benchtools.py").write_text(TOOLS)
        file = database or Path(folder, "bench.db")
        command = [executable, "-m", "mainspring", "serve", "--port", str(port), "--database", str(file)]
        command += ["--base-url", f"http://127.0.0.1:{ports.backend}/v1", "--tool", "benchtools:add", "--allow-host", "127.0.0.1"]
        with process(*command, cwd=folder, ready="listens") as started:
            yield Target("mainspring", started.pid, f"http://127.0.0.1:{port}/v1", database=file, mcp=ports.mcp)


@contextmanager
def forwarders(ports: Surroundings) -> Iterator[list[Target]]:
    with ExitStack() as stack:
        found = []
        for role in ("calibrator", "floor"):
            port = free_port()
            started = stack.enter_context(process(executable, UPSTREAM, role, str(port), str(ports.backend)))
            found.append(Target(role, started.pid, f"http://127.0.0.1:{port}/v1", is_forwarder=True))
        yield found


class Load:
    """Asks targets, with connections that are kept."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def ask(self, target: Target, text: str, *, stream: bool = False, with_mcp: bool = False, **fields: object) -> bytes:
        url, body = target.write(text, stream=stream, with_mcp=with_mcp, **fields)
        async with self._session.post(url, json=body) as answer:
            data = await answer.read()
            if answer.status != 200 or target.end not in data[-4000:] + data[:4000]:
                raise RuntimeError(f"{target.name} answers {answer.status}: {data[-600:].decode(errors='replace')}")
            return data

    async def get(self, url: str) -> bytes:
        async with self._session.get(url) as answer:
            data = await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"{url} answers {answer.status}: {data[-600:].decode(errors='replace')}")
            return data

    async def follow_calls(self, target: Target, turns: int) -> AsyncIterator[None]:
        """Runs a loop of that many turns, and tells of each call that is made."""
        url, body = target.write(f"loop {turns} add", stream=True, max_turns=turns + 1)
        async with self._session.post(url, json=body, read_bufsize=1 << 24) as answer:
            is_complete = False
            async for line in answer.content:
                is_complete |= line.startswith(b"event: response.completed")
                if line.startswith(b"event: response.output_item.done"):
                    yield
            if not is_complete:
                raise RuntimeError("the run has not completed")


async def cost(pid: int, times: int, at_once: int, work: Callable[[], Awaitable[object]]) -> float:
    """CPU seconds of the process per call of `work`, `at_once` of them under way at a time."""
    await work()
    before = cpu_of(pid)
    left = times

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await work()

    await asyncio.gather(*[worker() for _ in range(at_once)])
    return (cpu_of(pid) - before) / times


async def wait_until_quiet(*pids: int, seconds: float = 10.0) -> None:
    """Returns when the processes have done next to nothing for a moment, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        before = sum(map(cpu_of, pids))
        await asyncio.sleep(0.2)
        if sum(map(cpu_of, pids)) - before < 0.01:
            return


_SENT = re.compile(rb"@(\d+) ")


class LiveStream(asyncio.Protocol):
    """A stream that is read as it comes, with as little work as can be. Notes how late each piece is, in microseconds."""

    def __init__(self, request: bytes, late: list[int]) -> None:
        self._request, self._late = request, late
        self.received = 0
        self.has_begun = asyncio.get_running_loop().create_future()
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        now, end = time.monotonic_ns() // 1000, 0
        for found in _SENT.finditer(data):
            self._late.append(now - int(found[1]))
            end = found.end()
        self.received += len(data)
        self._rest = data[max(end, len(data) - 24) :]
        if (b'"delta":"' in data or b'"content":"w' in data or end) and not self.has_begun.done():
            self.has_begun.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.has_begun.done():
            self.has_begun.set_exception(RuntimeError("a stream has ended before it began"))
            self.has_begun.exception()


async def open_streams(target: Target, count: int, text: str, late: list[int], seconds: float = 60.0) -> list[LiveStream]:
    """Opens that many, twenty at a time, or as many as begin to speak within so many seconds."""
    url, body = target.write(text, stream=True)
    host, _, path = url.removeprefix("http://").partition("/")
    sent = json.dumps({"model": target.model, **body}).encode()
    head = f"POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(sent)}\r\n\r\n"
    loop, found = asyncio.get_running_loop(), list[LiveStream]()
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            for _ in range(count):
                _, stream = await loop.create_connection(
                    lambda: LiveStream(head.encode() + sent, late), "127.0.0.1", int(host.partition(":")[2])
                )
                found.append(stream)
                if len(found) >= 20:
                    await found[-20].has_begun
            for stream in found:
                await stream.has_begun
    return found


def middle(values: list[float]) -> float:
    return median(values)


def spread(values: list[float]) -> float:
    """How far the values are apart: half of the distance between the extremes, in parts of the median."""
    return (max(values) - min(values)) / 2 / median(values) if median(values) else 0.0
