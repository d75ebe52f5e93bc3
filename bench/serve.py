"""What the server costs: CPU per request, per delta and per turn, memory per open stream, beside a bare byte-forwarding proxy.

    python bench/serve.py [--quick] [--growth]

A fast backend, the server with its database, and a proxy that only copies bytes run as processes of their own; the load comes
from this one. CPU is what the operating system charged the server's process; the proxy is asked for the same answers in the
same run.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import aiohttp

HERE = Path(__file__).parent


def cpu_of(pid: int) -> float:
    """CPU seconds of all its threads so far, by the clock that Linux keeps for every process."""
    return time.clock_gettime(~pid << 3 | 2)


def resident(pid: int) -> int:
    """Bytes of memory in use."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(*command: str, cwd: str | None = None) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=cwd) as started:
        assert started.stdout is not None
        started.stdout.readline()
        try:
            yield started
        finally:
            started.kill()


class Load:
    """Asks the server, or the proxy, for the same things."""

    def __init__(self, session: aiohttp.ClientSession, server: str, proxy: str) -> None:
        self._session, self._server, self._proxy = session, server, proxy

    async def ask(self, text: str, *, stream: bool = False) -> None:
        body = {"model": "m", "input": text, "stream": stream}
        async with self._session.post(f"{self._server}/responses", json=body) as answer:
            data = await answer.read()
            assert answer.status == 200, data
            assert (b"response.completed" if stream else b'"status":"completed"') in data, data[-600:]

    async def continue_chain(self, previous: str | None) -> str:
        body = {"model": "m", "input": "small", "previous_response_id": previous}
        async with self._session.post(f"{self._server}/responses", json=body) as answer:
            told = await answer.json()
            assert told["status"] == "completed", told
            return str(told["id"])

    async def begin_chain(self, length: int) -> str | None:
        previous: str | None = None
        for _ in range(length):
            previous = await self.continue_chain(previous)
        return previous

    async def follow_calls(self, turns: int) -> AsyncIterator[None]:
        """Runs a loop of that many turns, and tells of each call that is made."""
        body = {"model": "m", "input": f"loop {turns}", "stream": True, "max_turns": turns + 1}
        async with self._session.post(f"{self._server}/responses", json=body, read_bufsize=1 << 24) as answer:
            is_complete = False
            async for line in answer.content:
                is_complete |= line.startswith(b"event: response.completed")
                if line.startswith(b"event: response.output_item.done"):
                    yield
            assert is_complete

    async def ask_proxy(self, text: str) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}
        async with self._session.post(f"{self._proxy}/chat/completions", json=body) as answer:
            assert b"[DONE]" in await answer.read()


async def cost(pid: int, times: int, at_once: int, work: Callable[[], Awaitable[None]]) -> float:
    """CPU seconds of the process per call of `work`, `at_once` of them under way at a time."""
    for _ in range(3):
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


def row(name: str, value: str, aim: str, beside: str = "") -> None:
    print(f"{name:34} {value:>14}   aim {aim:>9}   {beside}")


async def scenarios(load: Load, server: int, proxy: int, quick: bool) -> None:
    few, many = (40, 200) if quick else (100, 1000)
    small = await cost(server, many, 4, lambda: load.ask("small"))
    bare = await cost(proxy, many, 4, lambda: load.ask_proxy("small"))
    row("small request", f"{small * 1e3:.2f} ms", "0.6 ms", f"{small / max(bare, 1e-9):.1f} x proxy ({bare * 1e3:.2f} ms)")
    long = await cost(server, few, 2, lambda: load.ask("deltas 500", stream=True))
    short = await cost(server, few, 2, lambda: load.ask("deltas 1", stream=True))
    bare_long = await cost(proxy, few, 2, lambda: load.ask_proxy("deltas 500"))
    delta, bare_delta = (long - short) / 499, bare_long / 500
    row(
        "delta of a 500-delta stream",
        f"{delta * 1e6:.1f} us",
        "12 us",
        f"{delta / bare_delta:.1f} x proxy ({bare_delta * 1e6:.1f} us)",
    )
    loops = await cost(server, max(few // 4, 10), 2, lambda: load.ask("loop 9"))
    row("turn of a 10-turn loop, 2 calls each", f"{loops / 10 * 1e3:.2f} ms", "1.5 ms")


async def growth(load: Load, server: int, length: int) -> None:
    """What the last costs of many that continue each other, beside the tenth; both are asked for in turn, since machines are
    not always equally fast."""
    early, late = list[float](), list[float]()
    long = await load.begin_chain(length - 20)
    for _ in range(20):
        short = await load.begin_chain(9)
        before = cpu_of(server)
        await load.continue_chain(short)
        between = cpu_of(server)
        long = await load.continue_chain(long)
        early.append(between - before)
        late.append(cpu_of(server) - between)
    report_growth(f"response {length} of a chain", median(early), median(late), "1.3 x")
    # Two calls in each turn. What a client is told of several turns may come at once, so a mean is taken.
    moments = [cpu_of(server) async for _ in load.follow_calls(length)][::2]
    costs = [after - before for before, after in pairwise(moments)]
    report_growth(f"turn {length} of a run", mean(costs[5:45]), mean(costs[-40:]), "1.5 x")


def report_growth(name: str, early: float, late: float, aim: str) -> None:
    row(name, f"{late * 1e3:.2f} ms", aim, f"{late / early:.2f} x the tenth ({early * 1e3:.2f} ms)")


async def open_streams(base: str, server: int, count: int) -> None:
    """Memory of streams that have begun and wait."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        before = resident(server)
        answers = []
        for _ in range(count):
            answer = await session.post(f"{base}/responses", json={"model": "m", "input": "hold", "stream": True})
            seen = b""
            while b"output_text.delta" not in seen:
                seen += await answer.content.readany()
            answers.append(answer)
        each = (resident(server) - before) / count
        row(f"each of {count} open streams", f"{each / 1024:.1f} KB", "40 KB")
        for answer in answers:
            answer.close()


async def measure(quick: bool, only_growth: bool) -> None:
    ports = [free_port() for _ in range(3)]
    backend = (sys.executable, str(HERE / "upstream.py"))
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "benchtools.py").write_text("def add(a: int, b: int) -> int:\n    'Adds.'\n    return a + b\n")
        serve = [sys.executable, "-m", "mainspring", "serve", "--port", str(ports[1]), "--database", f"{folder}/bench.db"]
        serve += ["--base-url", f"http://127.0.0.1:{ports[0]}/v1", "--tool", "benchtools:add"]
        with (
            process(*backend, "backend", str(ports[0])),
            process(*serve, cwd=folder) as server,
            process(*backend, "proxy", str(ports[2]), str(ports[0])) as proxy,
        ):
            row("cold start until ready", f"{cpu_of(server.pid):.2f} s", "1 s")
            base, proxied = f"http://127.0.0.1:{ports[1]}/v1", f"http://127.0.0.1:{ports[2]}/v1"
            async with aiohttp.ClientSession() as session:
                await session.get(f"{base}/models")
                row("memory when idle", f"{resident(server.pid) / 1e6:.0f} MB", "60 MB")
                load = Load(session, base, proxied)
                if not only_growth:
                    await scenarios(load, server.pid, proxy.pid, quick)
                await growth(load, server.pid, 200 if quick else 1000)
            if only_growth:
                return
            await open_streams(base, server.pid, 100)
            if not quick:
                await open_streams(base, server.pid, 1000)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--growth", action="store_true", help="only what a long conversation costs")
    options, began = parser.parse_args(), time.monotonic()
    asyncio.run(measure(options.quick, options.growth))
    print(json.dumps({"seconds": round(time.monotonic() - began, 1)}))


if __name__ == "__main__":
    main()
