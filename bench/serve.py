"""What the server costs, in CPU of its process, beside two forwarders in the same run. Under three minutes.

    python -m bench.serve [SCENARIO ...] [--quick] [--rounds N] [--big N] [--peers] [--markdown] [--json FILE]

The *calibrator* is a bare ASGI application on uvicorn that forwards with an aiohttp client, the *floor* copies bytes; both are
started here, as are a fast backend and an MCP server, each as a process of its own. The load comes from this process. Rounds are
interleaved, so that a busy machine is busy for all; `x` is the median of the rounds' ratios to the calibrator, which moves far
less than microseconds do, and `+-` is how far the rounds are apart. Scenarios, all of them unless some are named:

    s1      a small request, not streamed, stored
    s2      a streamed delta, in a burst
    s3      a turn with two calls: in the process, and of an MCP server over HTTP
    s4      paced streams of 20 deltas a second: 100 and 1,000 of them; how many get through, and how late
    s5      memory of an open stream: idle, and after 160 deltas; memory at the start, and after the first MCP request
    growth  the 1,000th response of a chain and the 1,000th turn of a run, beside the 10th
    bytes   what a delta and a small response take in the database
    tables  lists of 100,000 responses (or `--big 1000000`), filter by filter, and a request while such a list is read

It needs Linux, and of the developers' packages aiohttp; `--peers` needs a package registry, and OGX Python 3.12 or 3.13.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path

import uvloop

try:
    import aiohttp
except ImportError:
    sys.exit("bench/serve.py needs aiohttp, for the load and the calibrator: pip install aiohttp")

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.big_tables import measure_tables
from bench.peers import peers
from bench.processes import parse_options
from bench.scenarios import (
    Context,
    Row,
    draw_table,
    measure_bytes,
    measure_deltas,
    measure_growth,
    measure_memory,
    measure_pace,
    measure_requests,
    measure_turns,
)
from bench.targets import Load, forwarders, mainspring, surroundings

Scenario = Callable[[Context], Awaitable[list[Row]]]
SHARED: dict[str, Scenario] = {
    "s1": measure_requests,
    "s2": measure_deltas,
    "s3": measure_turns,
    "growth": measure_growth,
}
ALONE: dict[str, Scenario] = {"s4": measure_pace, "s5": measure_memory, "bytes": measure_bytes, "tables": measure_tables}
HEADER = f"{'':46} {'mainspring':>14} {'calibrator':>11} {'floor':>9} {'x':>6} {'+-':>5}   aim"


async def attempt(name: str, scenario: Scenario, context: Context, rows: list[Row]) -> bool:
    """Measures and prints; what fails is told, and the next is measured."""
    try:
        async with asyncio.timeout(context.scenario_seconds):
            found = await scenario(context)
    except (RuntimeError, OSError, aiohttp.ClientError, TimeoutError) as error:
        print(f"{name}: failed: {type(error).__name__} {error}", flush=True)
        return False
    for row in found:
        print(row, flush=True)
    rows += found
    return True


async def measure(options: argparse.Namespace) -> bool:
    rows = list[Row]()
    wanted = options.scenarios or [*SHARED, *ALONE]
    results = []
    print(HEADER, flush=True)
    connector = aiohttp.TCPConnector(limit=0)
    with ExitStack() as stack:
        ports = stack.enter_context(surroundings())
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=120)) as session:
            context = Context(Load(session), ports, options.quick, options.rounds or (3 if options.quick else 5), options.big)
            if shared := [name for name in SHARED if name in wanted]:
                with ExitStack() as servers:
                    context.targets = [
                        servers.enter_context(mainspring(ports)),
                        *servers.enter_context(forwarders(ports)),
                        *(servers.enter_context(peers(ports, options.peers_folder)) if options.peers else []),
                    ]
                    for name in shared:
                        results.append(await attempt(name, SHARED[name], context, rows))
            for name in [name for name in ALONE if name in wanted]:
                results.append(await attempt(name, ALONE[name], context, rows))
    if options.markdown:
        print(draw_table(rows))
    if options.json:
        options.json.write_text(json.dumps([row._asdict() for row in rows], indent=1) + "\n")
    return all(results)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [*SHARED, *ALONE]
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"one of {', '.join(names)}")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions, 100 paced streams, 20,000 responses; under 40 s")
    parser.add_argument("--rounds", type=int, help="how often all take turns (default 5, quick 3)")
    parser.add_argument(
        "--big", type=int, help="responses in the large table (default 100,000; a million takes minutes and 4 GB)"
    )
    parser.add_argument("--peers-folder", type=Path, metavar="FOLDER", help="keep their environments there for the next time")
    parser.add_argument(
        "--peers", action="store_true", help="install OGX and LiteLLM into a throw-away place, and measure them too"
    )
    parser.add_argument("--markdown", action="store_true", help="print the table once more, as docs/performance.md has it")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there as well")
    options, began = parse_options(parser, 1800), time.monotonic()
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}; known: {', '.join(names)}")
    if sys.platform != "linux":
        sys.exit("bench/serve.py reads the CPU time of other processes from Linux, and needs it")
    is_done = uvloop.run(measure(options))
    print(f"{time.monotonic() - began:.0f} s in all")
    sys.exit(0 if is_done else 1)


if __name__ == "__main__":
    main()
