"""What HTTP clients cost: ours, beside aiohttp, httpx and, where it is installed, pycurl. Takes about a minute.

    python -m bench.clients [CLIENT ...] [--rounds N] [--streams N] [--deadline SECONDS]

Each asks the backend of `bench/upstream.py` from a process of its own, in turns, on uvloop, without TLS: small requests one after
the other on a kept connection, then paced streams of 20 chunks a second, then streams that are held open. What is printed is CPU
of the thread and memory of the process, the median of the rounds and how far they are apart.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import median

import uvloop

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import free_port, memory_of, parse_options, process

UPSTREAM = str(Path(__file__).with_name("upstream.py"))
HEADERS = {"Content-Type": "application/json", "Accept": "text/event-stream", "Authorization": "Bearer abcdefgh"}
REQUESTS, CHUNKS, RATE, HELD = 1000, 60, 20, 300
SILENCE = 600.0

Ask = Callable[[str], Coroutine[None, None, int]]
"""Asks the backend and reads the answer to its end; how many bytes that is."""


def write(text: str) -> bytes:
    return json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}).encode()


@asynccontextmanager
async def open_own(url: str) -> AsyncIterator[Ask]:
    from yarl import URL

    from mainspring.net.client import HttpClient, encode_headers, make_endpoint

    endpoint, headers = make_endpoint(URL(url)), encode_headers(HEADERS.items())

    async def ask(text: str) -> int:
        answer, size = await client.request("POST", endpoint, headers, write(text)), 0
        try:
            while data := await answer.read():
                size += len(data)
        finally:
            answer.close()
        return size

    async with HttpClient(seconds=SILENCE) as client:
        yield ask


@asynccontextmanager
async def open_aiohttp(url: str) -> AsyncIterator[Ask]:
    import aiohttp

    async def ask(text: str) -> int:
        size = 0
        async with session.post(url, data=write(text)) as answer:
            while data := await answer.content.readany():
                size += len(data)
        return size

    timeout = aiohttp.ClientTimeout(total=None, sock_read=SILENCE)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), headers=HEADERS, timeout=timeout) as session:
        yield ask


@asynccontextmanager
async def open_httpx(url: str) -> AsyncIterator[Ask]:
    import httpx

    async def ask(text: str) -> int:
        size = 0
        async with client.stream("POST", url, content=write(text)) as answer:
            async for data in answer.aiter_bytes():
                size += len(data)
        return size

    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(limits=limits, headers=HEADERS, timeout=SILENCE, trust_env=False) as client:
        yield ask


@asynccontextmanager
async def open_pycurl(url: str) -> AsyncIterator[Ask]:
    import pycurl  # type: ignore[import-not-found,import-untyped,unused-ignore]

    headers = [*[f"{name}: {value}" for name, value in HEADERS.items()], "Expect:"]

    async def ask(text: str) -> int:
        """Wakes a reader for every piece, as the others do."""
        size, pieces, arrived = 0, list[bytes](), asyncio.Event()

        def take(data: bytes) -> None:
            pieces.append(data)
            arrived.set()

        curl = pycurl.Curl()
        for option, value in (
            (pycurl.URL, url), (pycurl.HTTPHEADER, headers), (pycurl.POSTFIELDS, write(text)), (pycurl.NOSIGNAL, 1),
            (pycurl.PROXY, ""), (pycurl.WRITEFUNCTION, take),
        ):  # fmt: skip
            curl.setopt(option, value)
        done = multi.add_handle(curl)
        done.add_done_callback(lambda _: arrived.set())
        while not done.done() or pieces:
            await arrived.wait()
            arrived.clear()
            size += sum(map(len, pieces))
            pieces.clear()
        done.result()
        return size

    async with pycurl.AsyncCurlMulti() as multi:
        yield ask


CLIENTS = {"own": open_own, "aiohttp": open_aiohttp, "httpx": open_httpx, "pycurl": open_pycurl}


async def measure(name: str, port: int, streams: int) -> dict[str, float]:
    async with CLIENTS[name](f"http://127.0.0.1:{port}/v1/chat/completions") as ask:
        for _ in range(100):
            await ask("small")
        begun = time.thread_time()
        for _ in range(REQUESTS):
            await ask("small")
        request = (time.thread_time() - begun) / REQUESTS
        begun = time.thread_time()
        sizes = await asyncio.gather(*[ask(f"paced {RATE} {CHUNKS}") for _ in range(streams)])
        chunk = (time.thread_time() - begun - streams * request) / (streams * CHUNKS)
        if min(sizes) < 20 * CHUNKS:
            raise RuntimeError(f"{name} has lost something: {sizes}")
        before = memory_of(os.getpid())
        held = [asyncio.create_task(ask("hold 1")) for _ in range(HELD)]
        await asyncio.sleep(2)
        stream = (memory_of(os.getpid()) - before) / HELD
        for task in held:
            task.cancel()
        await asyncio.gather(*held, return_exceptions=True)
    return {"us per request": request * 1e6, "us per chunk": chunk * 1e6, "KB per idle stream": stream / 1000}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"some of {', '.join(CLIENTS)} (default: all there are)")
    parser.add_argument("--rounds", type=int, default=3, help="how often all take turns (default 3)")
    parser.add_argument("--streams", type=int, default=100, help="how many are paced (default 100)")
    parser.add_argument("--inside", type=int, metavar="PORT", help=argparse.SUPPRESS)
    options = parse_options(parser)
    if options.inside:
        print(json.dumps(uvloop.run(measure(options.clients[0], options.inside, options.streams))))
        return
    names = options.clients or [name for name in CLIENTS if name == "own" or find_spec(name)]
    port, rows = free_port(), {name: list[dict[str, float]]() for name in names}
    command = [sys.executable, "-m", "bench.clients", "--inside", str(port), "--streams", str(options.streams)]
    with process(sys.executable, UPSTREAM, "backend", str(port)):
        for _ in range(options.rounds):
            for name in names:
                said = subprocess.run([*command, name], stdout=subprocess.PIPE, check=True, cwd=Path(__file__).parent.parent)
                rows[name].append(json.loads(said.stdout))
    for name, found in rows.items():
        told = []
        for what in found[0]:
            values = sorted([each[what] for each in found])
            told.append(f"{median(values):8.1f} ({values[0]:.0f}-{values[-1]:.0f}) {what}")
        print(f"{name:8}", *told, flush=True)


if __name__ == "__main__":
    main()
