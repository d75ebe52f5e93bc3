"""What each provider that stands before another adds to an event: CPU time beside the bare scripted model.

    python bench/wrappers.py [--events N]

The script hands out prepared events and never waits, so that nothing but the wrappers is left. Best of several rounds.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import parse_options

from mainspring.core.events import TextDelta
from mainspring.core.items import user
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider
from mainspring.providers.breaker import Breaker
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.deadlines import Deadlines
from mainspring.providers.rate_limits import RateLimiter
from mainspring.providers.retry import Retrying
from mainspring.providers.router import Router
from mainspring.providers.scripted import Scripted, raw

REQUEST = ModelRequest("resp_1", "a/m", (user("go"),))
ROUNDS = 7
EVERYTHING = BackendOptions(attempts=3, concurrency=8, per_minute=100_000, failures=5, first_seconds=60.0, idle_seconds=60.0)

WRAPPERS: dict[str, Callable[[Provider], Provider]] = {
    "bare": lambda provider: provider,
    "Router": lambda provider: Router({"a": provider}),
    "Retrying": Retrying,
    "Limited": lambda provider: RateLimiter(provider, concurrency=8, per_minute=100_000),
    "Breaker": Breaker,
    "Timed, first": lambda provider: Deadlines(provider, first=60.0),
    "Timed, first and idle": lambda provider: Deadlines(provider, first=60.0, idle=60.0),
    "compose, all but Router": lambda provider: compose(provider, EVERYTHING),
    "Router and all": lambda provider: Router({"a": compose(provider, EVERYTHING)}),
}


async def seconds_for(provider: Provider, rounds: int = 1) -> float:
    begun = time.process_time()
    for _ in range(rounds):
        async for _ in provider.stream(REQUEST):
            pass
    return time.process_time() - begun


def measured(wrap: Callable[[Provider], Provider], events: int) -> tuple[float, float]:
    """Nanoseconds for an event, and microseconds for a turn of one event."""
    many = wrap(Scripted(raw([TextDelta("msg_1", "x")] * events), repeat=True))
    one = wrap(Scripted(raw([TextDelta("msg_1", "x")]), repeat=True))

    async def best() -> tuple[float, float]:
        per_turn = min([await seconds_for(one, 500) for _ in range(ROUNDS)]) / 500
        return min([await seconds_for(many) for _ in range(ROUNDS)]) / events, per_turn

    per_event, per_turn = asyncio.run(best())
    return per_event * 1e9, per_turn * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--events", type=int, default=200_000)
    events = parse_options(parser).events
    rows = {name: measured(wrap, events) for name, wrap in WRAPPERS.items()}
    bare_event, bare_turn = rows["bare"]
    print(f"{'CPU time':24} {'ns/event':>9} {'added':>7} {'x bare':>7} {'us/turn':>9} {'added':>7}")
    for name, (event, turn) in rows.items():
        print(f"{name:24} {event:9.0f} {event - bare_event:7.0f} {event / bare_event:7.2f} {turn:9.1f} {turn - bare_turn:7.1f}")


if __name__ == "__main__":
    main()
