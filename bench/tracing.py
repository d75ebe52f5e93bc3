"""What traces cost: CPU per turn and per delta with nothing told, with metrics, and with spans exported over OTLP.

    python bench/tracing.py [--runs N]

One run is ten turns of two tool calls and a final text, on a store in memory, so that little else is left. The collector is a
process of its own that swallows what it is sent; without OpenTelemetry (`mainspring[otel]`) that row is left out. With no
exporter, which is how a server runs by default, a turn should cost at most 10 % more than with nothing told. CPU time of the
whole process, best of several interleaved rounds.
"""

import argparse
import asyncio
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring import Engine, tool
from mainspring.core.items import Usage
from mainspring.engine.handle import Handle
from mainspring.features.traces.otel import Exporter
from mainspring.providers.scripted import Scripted, call, turn

LIMIT = 1.10
ROUNDS = 7
TURNS = 10
DELTAS = 4000
USAGE = Usage(10, 10)
SWALLOW = """
from http.server import BaseHTTPRequestHandler, HTTPServer
class Swallow(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()
    def log_message(self, *said): pass
server = HTTPServer(("127.0.0.1", 0), Swallow)
print(server.server_port, flush=True)
server.serve_forever()
"""


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Untold(Engine):
    """An engine that keeps what happened to itself."""

    def _tell_of(self, handle: Handle) -> None:
        pass


def script(deltas: int) -> Scripted:
    work = [turn(calls=[call("add", a=number, b=1), call("add", a=number, b=2)], usage=USAGE) for number in range(TURNS)]
    return Scripted(*work, turn(say="x" * deltas, usage=USAGE), repeat=True, chunk=1)


async def cost(kind: type[Engine], endpoint: str | None, runs: int, deltas: int) -> float:
    """CPU seconds per run."""
    exporter = None if endpoint is None else Exporter(str, endpoint=endpoint)
    async with kind(script(deltas), tools=[add], exporter=exporter) as engine:
        began = time.process_time()
        for _ in range(runs):
            run = await engine.run("go", max_turns=TURNS + 1)
            assert run.status == "completed", run.error
        spent = time.process_time() - began
    return spent / runs


def measured(kind: type[Engine], endpoint: str | None, runs: int) -> tuple[float, float]:
    """CPU microseconds per turn, and per delta."""
    short = asyncio.run(cost(kind, endpoint, runs, 1))
    long = asyncio.run(cost(kind, endpoint, max(runs // 4, 1), DELTAS))
    return short / (TURNS + 1) * 1e6, (long - short) / DELTAS * 1e6


def main(runs: int) -> None:
    with subprocess.Popen([sys.executable, "-c", SWALLOW], stdout=subprocess.PIPE, text=True) as collector:
        assert collector.stdout is not None
        endpoint = f"http://127.0.0.1:{collector.stdout.readline().strip()}"
        kinds: dict[str, tuple[type[Engine], str | None]] = {"nothing told": (Untold, None), "metrics": (Engine, None)}
        if find_spec("opentelemetry") and find_spec("opentelemetry.exporter.otlp"):
            kinds["metrics and OTLP"] = (Engine, endpoint)
        else:
            print("OTLP is left out: it needs OpenTelemetry, `pip install 'mainspring[otel]'`")
        rounds = [{name: measured(*kind, runs) for name, kind in kinds.items()} for _ in range(ROUNDS)]
        collector.kill()
    best = {name: (min(told[name][0] for told in rounds), min(told[name][1] for told in rounds)) for name in kinds}
    bare = best["nothing told"][0]
    print(f"{'CPU time':18} {'us/turn':>9} {'added':>8} {'x':>6} {'us/delta':>9}   limit x{LIMIT:.2f} without an exporter")
    for name, (per_turn, per_delta) in best.items():
        verdict = "" if name != "metrics" else "ok" if per_turn / bare <= LIMIT else "OVER"
        print(f"{name:18} {per_turn:9.1f} {per_turn - bare:8.1f} {per_turn / bare:6.2f} {per_delta:9.2f}   {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=40)
    main(parse_options(parser).runs)
