"""What a step of a workflow costs: beside a loop that a user would write, with a checkpoint in SQLite behind every step.

    python -m bench.workflows [--steps N] [--rounds N]

All evaluate the same expression, with the same template engine, once per step. `bare` keeps nothing; `checkpoint` commits each
result to a SQLite file in WAL mode, with the durability that our store has; `workflow` is the whole: definition, log, resume,
events. `request` steps send a request to a server in this process: as a step, which is a run of the engine with its verdicts and
its audit, and by a bare client with a checkpoint before and after. Reading a definition, and compiling its expressions, is done
once for each file and not counted. CPU and wall time of this process, the best of several rounds in which all take turns; what
counts is the ratio to `checkpoint`.
"""

import argparse
import asyncio
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import aiohttp
from aiohttp import web
from bench.processes import parse_options
from jinja2.environment import TemplateExpression
from jinja2.sandbox import SandboxedEnvironment

from mainspring.app.engine import Engine
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.addresses import AddressGuard
from mainspring.tools.builtin.builtins import BuiltinTools

Work = Callable[[Path], AsyncGenerator[None, None]]
ENVIRONMENT = SandboxedEnvironment()


def compiled(steps: int) -> list[TemplateExpression]:
    return [ENVIRONMENT.compile_expression(f"steps.s{n - 1} + 1") for n in range(1, steps)]


def bare(steps: int) -> Work:
    async def work(folder: Path) -> AsyncGenerator[None, None]:
        results: dict[str, object] = {"s0": 0}
        expressions = compiled(steps)
        yield
        for n in range(1, steps):
            results[f"s{n}"] = expressions[n - 1](steps=results)

    return work


def opened(folder: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(folder / "checkpoints.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    connection.execute("CREATE TABLE checkpoints (step TEXT PRIMARY KEY, result TEXT)")
    return connection


def checkpoint(steps: int) -> Work:
    async def work(folder: Path) -> AsyncGenerator[None, None]:
        connection = opened(folder)
        results: dict[str, object] = {"s0": 0}
        expressions = compiled(steps)
        yield
        for n in range(1, steps):
            results[f"s{n}"] = expressions[n - 1](steps=results)
            connection.execute("INSERT INTO checkpoints VALUES (?, ?)", (f"s{n}", str(results[f"s{n}"])))
        connection.close()

    return work


def engine(folder: Path, definition: str) -> Engine:
    (folder / "flows").mkdir()
    (folder / "flows" / "bench.yaml").write_text(definition)
    builtins = BuiltinTools(guard=AddressGuard(("127.0.0.1",)))
    return Engine(Scripted(say("unasked")), database=folder / "runs.db", workflows=[folder / "flows"], builtins=builtins)


def workflow(steps: int) -> Work:
    lines = ["name: bench", "steps:", "  - {id: s0, action: transform, value: 0}"]
    lines += [f"  - {{id: s{n}, action: transform, value: '{{{{ steps.s{n - 1}.output + 1 }}}}'}}" for n in range(1, steps)]

    async def work(folder: Path) -> AsyncGenerator[None, None]:
        async with engine(folder, "\n".join(lines)) as running:
            assert running.workflows.folders.problems == ()
            yield
            run = await running.workflows.run("bench")
            assert run.steps[f"s{steps - 1}"].output == steps - 1

    return work


def request_steps(steps: int, url: str) -> Work:
    lines = ["name: bench", "execution: {mode: sequential}", "steps:"]
    lines += [f"  - {{id: s{n}, action: http-request, method: POST, url: '{url}'}}" for n in range(steps)]

    async def work(folder: Path) -> AsyncGenerator[None, None]:
        async with engine(folder, "\n".join(lines)) as running:
            assert running.workflows.folders.problems == ()
            yield
            assert (await running.workflows.run("bench")).status == "success"

    return work


def bare_requests(steps: int, url: str) -> Work:
    async def work(folder: Path) -> AsyncGenerator[None, None]:
        connection = opened(folder)
        yield
        for n in range(steps):
            connection.execute("INSERT INTO checkpoints VALUES (?, 'begun')", (f"s{n}",))
            async with aiohttp.ClientSession() as session, session.post(url) as response:
                text = await response.text()
            connection.execute("UPDATE checkpoints SET result = ? WHERE step = ?", (text, f"s{n}"))
        connection.close()

    return work


async def timed(work: Work) -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        begun = work(Path(folder))
        await anext(begun)
        cpu, wall = time.process_time(), time.perf_counter()
        async for _ in begun:
            pass
        return time.process_time() - cpu, time.perf_counter() - wall


async def best(works: dict[str, Work], rounds: int) -> dict[str, tuple[float, float]]:
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in works}
    for _ in range(rounds):
        for name, work in works.items():
            found[name].append(await timed(work))
    return {name: (min([cpu for cpu, _ in each]), min([wall for _, wall in each])) for name, each in found.items()}


def tell(found: dict[str, tuple[float, float]], steps: int, beside: str) -> None:
    for name, (cpu, wall) in found.items():
        ratios = f"{cpu / found[beside][0]:6.2f} x CPU {wall / found[beside][1]:6.2f} x wall"
        print(f"{name:<22} {cpu / steps * 1e6:8.0f} µs CPU {wall / steps * 1e6:8.0f} µs wall per step  {ratios}")


async def answered(request: web.Request) -> web.Response:
    return web.json_response({"ok": True})


async def main(steps: int, rounds: int) -> None:
    works = {"checkpoint": checkpoint(steps), "bare": bare(steps), "workflow": workflow(steps)}
    tell(await best(works, rounds), steps, "checkpoint")
    app = web.Application()
    app.router.add_post("/", answered)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
    few = max(steps // 4, 1)
    requests = {"request, checkpoint": bare_requests(few, url), "request, workflow": request_steps(few, url)}
    tell(await best(requests, rounds), few, "request, checkpoint")
    await runner.cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    given = parse_options(parser)
    asyncio.run(main(given.steps, given.rounds))
