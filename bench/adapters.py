"""What a chunk costs to read: each adapter beside its vendor's own client, on the same bytes.

    python -m bench.adapters [--pieces N] [--rounds N] [NAME ...]

A fake vendor in a process of its own sends one frame per write. `reader` is our pure reader, fed frame by frame without HTTP;
`adapter` is the whole adapter and `client` the vendor's SDK, both over that server. CPU time of this process, the best of several
rounds in which all three take turns; the cost of a chunk is what many pieces cost more than one.

The second table is what it costs to look for odd habits in the answers of a backend that has none: Chat Completions, read with
tools declared as the adapter reads them, beside the same reader that looks for nothing.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options
from msgspec.structs import replace
from tests.providers.backend import QUESTION
from tests.providers.dialects import Dialect, Spoken, SpokenCall
from tests.providers.dialects.chat import ChatDialect

from mainspring.core.items import ToolDefinition

CLOCK = ToolDefinition("get_time", "Tells the time.", {"type": "object", "properties": {"zone": {"type": "string"}}})
NAMES = ("chat", "responses", "ollama", "gemini", "anthropic")
Work = Callable[[int], Awaitable[None]]


def frames(dialect: Dialect, pieces: int) -> list[bytes]:
    return dialect.frames(Spoken(text=("word ",) * pieces))


async def serve(name: str, sizes: Sequence[int]) -> None:
    """Answers any request with as many pieces as its port stands for. Prints the ports."""
    dialect = loaded(name)
    head = f"HTTP/1.1 200 OK\r\ncontent-type: {dialect.mime}\r\ntransfer-encoding: chunked\r\n\r\n".encode()
    servers = []
    for size in sizes:
        chunks = [b"%x\r\n%b\r\n" % (len(frame), frame) for frame in frames(dialect, size)]

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, chunks: list[bytes] = chunks) -> None:
            asked = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(asked.lower().partition(b"content-length:")[2].split(b"\r\n")[0]))
            writer.write(head)
            for chunk in chunks:
                writer.write(chunk)
                await asyncio.sleep(0)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            writer.close()

        servers.append(await asyncio.start_server(answer, "127.0.0.1", 0))
    print(*[server.sockets[0].getsockname()[1] for server in servers], flush=True)
    await asyncio.gather(*[server.serve_forever() for server in servers])


@contextmanager
def serving(name: str, sizes: Sequence[int]) -> Iterator[dict[int, str]]:
    """The addresses of that server, by the number of pieces."""
    command = [sys.executable, "-m", "bench.adapters", "--serve", name, *map(str, sizes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            ports = process.stdout.readline().split()
            yield {size: f"http://127.0.0.1:{port}" for size, port in zip(sizes, ports, strict=True)}
        finally:
            process.kill()


def loaded(name: str) -> Dialect:
    dialect: Dialect = import_module(f"tests.providers.dialects.{name}").DIALECT
    return dialect


def cpu(work: Work, pieces: int) -> float:
    async def main() -> float:
        began = time.process_time()
        await work(pieces)
        return time.process_time() - began

    return asyncio.run(main())


def measured(dialect: Dialect, pieces: int, rounds: int) -> dict[str, float]:
    """CPU microseconds per chunk, by who reads."""
    sizes = (1, pieces)
    prepared = {size: frames(dialect, size) for size in sizes}

    async def reader(size: int) -> None:
        reading = dialect.reader()
        for frame in prepared[size]:
            for _ in reading.feed(frame):
                pass
        for _ in reading.end():
            pass

    with serving(dialect.name, sizes) as urls:

        async def adapter(size: int) -> None:
            provider = dialect.provider(urls[size])
            async for _ in provider.stream(QUESTION):
                pass
            await provider.close()

        async def client(size: int) -> None:
            assert (await dialect.sdk(urls[size], QUESTION)).text == "word " * size

        works: dict[str, Work] = {"reader": reader, "adapter": adapter, "client": client}
        best = {(name, size): float("inf") for name in works for size in sizes}
        for _ in range(rounds):
            for name, work in works.items():
                for size in sizes:
                    best[name, size] = min(best[name, size], cpu(work, size))
    return {name: (best[name, pieces] - best[name, 1]) / (pieces - 1) * 1e6 for name in works}


def speak_cleanly(pieces: int) -> dict[str, Spoken]:
    """What a backend without habits says, in about so many chunks."""
    signs = (" <b>", "bold", "</b>", " [1]", " {x}", "\n```py\n", "f(x)", "\n```\n")
    call = SpokenCall(CLOCK.name, ('{"zone": "', *("word ",) * pieces, '"}'))
    return {
        "words": Spoken(text=("word ",) * pieces),
        "signs": Spoken(text=("Look:", *(signs * (pieces // len(signs) + 1))[:pieces])),
        "a call": Spoken(calls=(call,)),
        "two calls": Spoken(calls=(call, SpokenCall(CLOCK.name, call.arguments, "call_def")), interleaved=True),
        "thoughts": Spoken(think=("word ",) * pieces, text=("Noon.",)),
    }


def measure_habits(pieces: int, rounds: int) -> dict[str, tuple[float, float]]:
    """CPU microseconds per chunk of each clean answer: by a reader that looks for no habit, and by one that does."""
    dialect, request = ChatDialect(), replace(QUESTION, tools=(CLOCK,))
    provider, costs = dialect.provider("http://127.0.0.1"), {}
    for name, spoken in speak_cleanly(pieces).items():
        frames = dialect.frames(spoken)
        best = [float("inf")] * 2
        for _ in range(rounds):
            for place, reading in enumerate((dialect.reader(), provider._reader(request))):
                began = time.process_time()
                for frame in frames:
                    for _ in reading.feed(frame):
                        pass
                for _ in reading.end():
                    pass
                best[place] = min(best[place], time.process_time() - began)
        plain, adapted = [cost / len(frames) * 1e6 for cost in best]
        costs[name] = plain, adapted
    return costs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME")
    parser.add_argument("--pieces", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", nargs="+", help=argparse.SUPPRESS)
    options = parse_options(parser)
    if options.serve:
        name, *sizes = options.serve
        asyncio.run(serve(name, list(map(int, sizes))))
        return
    print(f"{'us of CPU per chunk':20} {'reader':>8} {'adapter':>8} {'client':>8} {'client/reader':>14} {'client/adapter':>15}")
    for name in options.names:
        try:
            dialect = loaded(name)
        except ModuleNotFoundError as missing:
            print(f"{name:20} skipped: {missing}")
            continue
        cost = measured(dialect, options.pieces, options.rounds)
        reader, adapter, client = cost["reader"], cost["adapter"], cost["client"]
        print(f"{name:20} {reader:8.2f} {adapter:8.2f} {client:8.1f} {client / reader:14.1f} {client / adapter:15.1f}")
    print(f"\n{'us of CPU per chunk':20} {'plain':>8} {'reader':>8} {'more':>8}")
    for name, (plain, adapted) in measure_habits(options.pieces, 4 * options.rounds).items():
        print(f"{name:20} {plain:8.2f} {adapted:8.2f} {adapted - plain:8.2f}")


if __name__ == "__main__":
    main()
