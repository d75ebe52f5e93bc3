"""What isolation costs at the start: from asking for `print(1)` to its first output, beside a bare subprocess.

    python bench/sandbox.py [--rounds N]

All variants take turns within each round, so that load meets them alike. A pooled worker is given time to come up before it is
asked for; what that costs is the row of the same backend without a pool. `gone` is when nothing of the run is left.
"""

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring.core.sandbox import OutputChunk
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox

CODE = "print(1)"

Measure = Callable[[], Awaitable[tuple[float, float]]]


async def bare() -> tuple[float, float]:
    """Milliseconds to the first output and to the end."""
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", CODE, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"1\n"
    first = time.perf_counter()
    await process.wait()
    return (first - began) * 1e3, (time.perf_counter() - began) * 1e3


def sandboxed(sandbox: LocalSandbox) -> Measure:
    async def measure() -> tuple[float, float]:
        await sandbox.wait_until_warm()
        began = time.perf_counter()
        async with sandbox.acquire() as lease:
            output = lease.run(CODE)
            assert await anext(output) == OutputChunk("stdout", b"1\n")
            first = time.perf_counter()
            async for _ in output:
                pass
            await lease.release()
        return (first - began) * 1e3, (time.perf_counter() - began) * 1e3

    return measure


async def main(rounds: int) -> None:
    variants: tuple[tuple[str, Mode, int], ...] = (
        ("bwrap, hardened", "bwrap", 0),
        ("bwrap, hardened, pooled", "bwrap", 1),
        ("landlock", "landlock", 0),
        ("landlock, pooled", "landlock", 1),
    )
    async with AsyncExitStack() as stack:
        measures: dict[str, Measure] = {"bare subprocess": bare}
        for name, mode, warm in variants:
            measures[name] = sandboxed(await stack.enter_async_context(open_sandbox(mode, warm=warm)))
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in measures}
        for _ in range(rounds):
            for name, measure in measures.items():
                taken[name].append(await measure())
    report(taken)


def report(taken: dict[str, list[tuple[float, float]]]) -> None:
    firsts = {name: [first for first, _ in rows] for name, rows in taken.items()}
    base = statistics.median(firsts["bare subprocess"])
    print(f"{'to first output':26} {'median ms':>10} {'x bare':>7} {'best ms':>8} {'gone, median ms':>16}")
    for name, times in firsts.items():
        middle, gone = statistics.median(times), statistics.median(end for _, end in taken[name])
        print(f"{name:26} {middle:10.2f} {middle / base:7.2f} {min(times):8.2f} {gone:16.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=50)
    asyncio.run(main(parse_options(parser).rounds))
