"""What the engine costs: CPU per delta and per turn, beside a bare hand-written asyncio loop that makes the same calls.

    python bench/loop.py [--runs N]

One run is ten turns of two tool calls and a final text. The scripted model and the tools cost next to nothing, so what is left is
the loop. CPU time of the whole process (the store's thread included), best of several rounds; ratios are taken within one round.

How costs grow is measured with the Chat adapter, which writes every request in full and reads a whole answer; only the sockets
are left out. `--growth` measures nothing else.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring import Engine, tool
from mainspring.core.items import Json, Usage
from mainspring.providers.chat.provider import Chat
from mainspring.providers.http_client import HttpReply
from mainspring.providers.json_text import encode_body
from mainspring.providers.scripted import Scripted, call, turn

TURNS = 10
USAGE = Usage(10, 10)
DELTAS = 4000


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def script(deltas: int) -> Scripted:
    work = [turn(calls=[call("add", a=number, b=1), call("add", a=number, b=2)], usage=USAGE) for number in range(TURNS)]
    return Scripted(*work, turn(say="x" * deltas, usage=USAGE), repeat=True, chunk=1)


async def bare(runs: int, deltas: int) -> None:
    """The loop somebody writes in an afternoon: no log, no limits, no checks, no store, one reader."""

    async def model(messages: list[dict[str, object]]) -> AsyncIterator[dict[str, object]]:
        turns = sum(message["role"] == "assistant" for message in messages)
        if turns < TURNS:
            for index in range(2):
                yield {"call": {"id": f"c{turns}{index}", "name": "add", "arguments": ""}}
                for piece in json.dumps({"a": turns, "b": index + 1}):
                    yield {"arguments": piece}
        else:
            for _ in range(deltas):
                yield {"text": "x"}

    for _ in range(runs):
        messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
        while True:
            text, calls = [], []
            async for chunk in model(messages):
                if "text" in chunk:
                    text.append(chunk["text"])
                elif "call" in chunk:
                    calls.append(chunk["call"])
                else:
                    calls[-1]["arguments"] += chunk["arguments"]  # type: ignore[index]
            messages.append({"role": "assistant", "content": "".join(map(str, text)), "tool_calls": calls})
            if not calls:
                break
            results = await asyncio.gather(*[add(**json.loads(made["arguments"])) for made in calls])  # type: ignore[index]
            for made, result in zip(calls, results, strict=True):
                messages.append({"role": "tool", "tool_call_id": made["id"], "content": str(result)})  # type: ignore[index]


async def mainspring(runs: int, deltas: int, database: Path | None) -> None:
    async with Engine(script(deltas), tools=[add], database=database) as engine:
        for _ in range(runs):
            handle = await engine.ask("go", max_turns=TURNS + 1)
            async for _record in handle.events():
                pass
            assert handle.run.status == "completed", handle.run.error


def cpu(work: Callable[[], Awaitable[None]]) -> float:
    async def main() -> float:
        began = time.process_time()
        await work()
        return time.process_time() - began

    return asyncio.run(main())


def measured(name: str, work: Callable[[int, int], Awaitable[None]], runs: int) -> tuple[str, float, float]:
    """CPU microseconds per turn and per delta: the second from the difference that more deltas make."""
    short = min(cpu(lambda: work(runs, 1)) for _ in range(3)) / runs
    long = min(cpu(lambda: work(runs, DELTAS)) for _ in range(3)) / runs
    return name, short / (TURNS + 1) * 1e6, (long - short) / DELTAS * 1e6


class Answer:
    """An answer that has arrived already."""

    def __init__(self, message: Json) -> None:
        self.headers = {"Content-Type": "text/event-stream"}
        finish = "tool_calls" if "tool_calls" in message else "stop"
        ended = {"choices": [{"index": 0, "delta": message, "finish_reason": finish}]}
        counted = {"choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 10, "total_tokens": 20}}
        self._rest = f"data: {json.dumps(ended)}\n\ndata: {json.dumps(counted)}\n\ndata: [DONE]\n\n".encode()

    async def read(self) -> bytes:
        rest, self._rest = self._rest, b""
        return rest

    def close(self) -> None:
        pass


class WrittenChat(Chat):
    """The Chat adapter without a backend: each request is written as it would be sent. The model makes `calls`, then speaks."""

    def __init__(self, calls: int = 0) -> None:
        super().__init__("http://backend.invalid/v1")
        self._calls = calls
        self._asked = 0

    async def _post(self, path: str, body: Json, query: object = None) -> HttpReply:
        encode_body(body)
        self._asked += 1
        message: Json = {"role": "assistant", "content": "yes"}
        if self._asked <= self._calls:
            function = {"name": "add", "arguments": json.dumps({"a": self._asked, "b": 1})}
            message = {"role": "assistant", "tool_calls": [{"index": 0, "id": f"call_{self._asked}", "function": function}]}
        return HttpReply(Answer(message), path, 1.0)  # type: ignore[arg-type]


async def chain(database: Path | None, length: int) -> list[float]:
    """CPU of each response in a chain of `length`, one turn each."""
    costs = []
    async with Engine(WrittenChat(), database=database) as engine:
        previous: str | None = None
        for _ in range(length):
            began = time.process_time()
            run = await engine.run("and?", previous=previous)
            costs.append(time.process_time() - began)
            previous = run.spec.id
    return costs


async def long_run(database: Path | None, turns: int) -> list[float]:
    """CPU of each turn in one run of many turns, one tool call each."""
    moments = []
    async with Engine(WrittenChat(calls=turns), tools=[add], database=database) as engine:
        handle = await engine.ask("go", max_turns=turns + 1)
        async for record in handle.events():
            if type(record.event).__name__ == "TurnEnded":
                moments.append(time.process_time())
        assert handle.run.status == "completed", handle.run.error
    return [after - before for before, after in pairwise(moments)]


def report_growth(name: str, costs: list[float]) -> None:
    """The tenth and the last, each as the median of those around it."""
    first, last = sorted(costs[5:15])[5], sorted(costs[-10:])[5]
    print(f"{name:34} 10th {first * 1e6:7.0f} us   last {last * 1e6:7.0f} us   last/10th {last / first:5.2f}")


def report_loop(runs: int, database: Path) -> None:
    rows = [
        measured("bare asyncio loop", bare, runs),
        measured("mainspring, memory", lambda runs, deltas: mainspring(runs, deltas, None), runs),
        measured("mainspring, SQLite", lambda runs, deltas: mainspring(runs, deltas, database), runs),
    ]
    bare_turn, bare_delta = rows[0][1], rows[0][2]
    memory_turn, memory_delta = rows[1][1], rows[1][2]
    print(f"{'CPU time':22} {'us/turn':>9} {'x bare':>7} {'x memory':>9} {'us/delta':>9} {'x bare':>7} {'x memory':>9}")
    for name, turn_us, delta_us in rows:
        print(
            f"{name:22} {turn_us:9.1f} {turn_us / bare_turn:7.1f} {turn_us / memory_turn:9.2f}"
            f" {delta_us:9.2f} {delta_us / bare_delta:7.1f} {delta_us / memory_delta:9.2f}"
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--length", type=int, default=1000, help="turns of the long chain")
    parser.add_argument("--growth", action="store_true", help="only how costs grow")
    options = parse_options(parser)
    with tempfile.TemporaryDirectory() as folder:
        if not options.growth:
            report_loop(options.runs, Path(folder, "bench.db"))
        report_growth(f"chain of {options.length}, memory", asyncio.run(chain(None, options.length)))
        report_growth(f"chain of {options.length}, SQLite", asyncio.run(chain(Path(folder, "chain.db"), options.length)))
        report_growth(f"run of {options.length} turns, memory", asyncio.run(long_run(None, options.length)))
        report_growth(f"run of {options.length} turns, SQLite", asyncio.run(long_run(Path(folder, "long.db"), options.length)))


if __name__ == "__main__":
    main()
