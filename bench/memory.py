"""What remembering costs: recall among many observations, and CPU per turn with the memory on, beside off.

    python bench/memory.py [--observations N] [--runs N]

Recall at the level `index` should take under 50 ms among 100,000 observations, whatever the query: rare words, common ones, a
question. Beside it the same rows by a LIKE scan, and by plain FTS5 that ranks every match. Times of one search are medians, wall
and CPU of this process. Capture is CPU of the whole process (the threads included) for runs of ten turns with two calls each,
best of several interleaved rounds, in a file.
"""

import argparse
import asyncio
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring import Engine, tool
from mainspring.core.items import Usage
from mainspring.features.memory.memory import Memory, build_memory
from mainspring.features.memory.observation import Observation
from mainspring.providers.scripted import Scripted, call, turn
from mainspring.storage.search.word_index import split_terms

LIMIT_MS = 50.0
ROUNDS = 5
TURNS = 10
TENANTS = 4
WORDS = [f"word{number}" for number in range(5_000)]
WEIGHTS = [1 / (number + 1) for number in range(len(WORDS))]
QUERIES = {
    "a rare word": "word4000",
    "a common word": "word0",
    "a question": "word0 word3 word12 word40 word700 word4100",
    "only common words": "word0 word1 word2 word3",
    "no word": "",
}


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


async def filled(path: Path, count: int) -> Memory:
    """An open memory with so many observations of sixty words, most of them of one tenant."""
    dice = random.Random(1)
    memory = build_memory(path)
    await memory.open()
    began = time.process_time()
    for number in range(count):
        tenant = "" if number % TENANTS else "other"
        text = " ".join(dice.choices(WORDS, WEIGHTS, k=60))
        await memory.record(
            Observation(f"obs_{number}", f"s{number % 1000}", "scout", "llm_response", text, {}, (), time.time(), tenant)
        )
    await memory.capture.flush()
    print(f"{count} observations recorded, {(time.process_time() - began) / count * 1e6:.0f} us of CPU each")
    return memory


async def timed(work: Callable[[], Awaitable[object]], times: int = 9) -> tuple[float, float]:
    """Milliseconds, wall and CPU, the median of several times."""
    walls, cpus = [], []
    await work()
    for _ in range(times):
        wall, cpu = time.perf_counter(), time.process_time()
        await work()
        walls.append((time.perf_counter() - wall) * 1e3)
        cpus.append((time.process_time() - cpu) * 1e3)
    return statistics.median(walls), statistics.median(cpus)


async def recall(memory: Memory) -> None:
    database = memory._database
    print(f"\n{'index recall, ms':20} {'wall':>7} {'CPU':>7} {'LIKE scan':>10} {'plain FTS5':>11}   limit {LIMIT_MS:g}")
    for name, query in QUERIES.items():
        words = query.split()

        async def ours(query: str = query) -> object:
            return await memory.search(query, tenant="", top_k=10)

        async def scan(words: list[str] = words) -> object:
            fits = " OR ".join(["content LIKE ?"] * len(words)) or "TRUE"
            sql = f"SELECT id FROM observations WHERE tenant = '' AND ({fits}) ORDER BY at DESC"
            values = [f"%{word}%" for word in words]
            return await database.read(lambda connection: connection.execute(sql, values).fetchall()[:10])

        async def plain(query: str = query) -> object:
            sql = (
                "SELECT id FROM observation_words JOIN observations ON number = observation_words.rowid "
                "WHERE observation_words MATCH ? AND observations.tenant = '' ORDER BY bm25(observation_words) LIMIT 10"
            )
            values = (" OR ".join(split_terms(query)),)
            return await database.read(lambda connection: connection.execute(sql, values).fetchall()) if query else None

        wall, cpu = await timed(ours)
        like, fts = (await timed(scan, 3))[0], (await timed(plain, 3))[0]
        verdict = "ok" if wall < LIMIT_MS else "OVER"
        print(f"{name:20} {wall:7.1f} {cpu:7.1f} {like:6.1f} {like / wall:2.0f}x {fts:7.1f} {fts / wall:2.0f}x   {verdict}")


async def runs(database: Path, count: int, deltas: int, *, memory: bool) -> None:
    usage = Usage(10, 10)
    work = [turn(calls=[call("add", a=number, b=1), call("add", a=number, b=2)], usage=usage) for number in range(TURNS)]
    script = Scripted(*work, turn(say="x " * (deltas // 2), usage=usage), repeat=True, chunk=1)
    async with Engine(script, tools=[add], database=database, memory=memory) as engine:
        for _ in range(count):
            run = await engine.run("go", max_turns=TURNS + 1)
            assert run.status == "completed", run.error


def cpu_of_runs(count: int, deltas: int, *, memory: bool) -> float:
    """CPU microseconds per run."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.process_time()
        asyncio.run(runs(Path(folder, "runs.db"), count, deltas, memory=memory))
        return (time.process_time() - began) / count * 1e6


def capture(count: int) -> None:
    few, many = 10, 4010
    rounds = [
        [cpu_of_runs(count, deltas, memory=memory) for deltas in (few, many) for memory in (False, True)] for _ in range(ROUNDS)
    ]
    off, on, off_many, on_many = [min(costs) for costs in zip(*rounds, strict=True)]
    turns, deltas = TURNS + 1, many - few
    print(f"\n{'capture, CPU us':20} {'off':>8} {'on':>8} {'added':>8}")
    print(f"{'per turn':20} {off / turns:8.0f} {on / turns:8.0f} {(on - off) / turns:8.0f}   {100 * (on - off) / off:.0f} %")
    plain, remembered = (off_many - off) / deltas, (on_many - on) / deltas
    print(f"{'per delta':20} {plain:8.2f} {remembered:8.2f} {remembered - plain:8.2f}")


async def main(observations: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        memory = await filled(Path(folder, "memory.db"), observations)
        await recall(memory)
        await memory.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", type=int, default=100_000)
    parser.add_argument("--runs", type=int, default=20)
    options = parse_options(parser)
    asyncio.run(main(options.observations))
    capture(options.runs)
