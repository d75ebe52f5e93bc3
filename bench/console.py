"""What people who watch cost the server: live runs with and without ten consoles that follow them. Under two minutes.

    python bench/console.py [--people N] [--streams N] [--seconds S] [--rounds N]
    python bench/console.py --long [--rounds N]

The work is runs whose answers come at 20 pieces a second, each streamed to the client that asked. A person has what an open page
of the console has: the feed of changes, the events of one live run, and a look at the approvals now and then. Rounds with and
without them take turns on one server, so a busy machine is busy for both; the figure is CPU of the server's process.

With `--long`, what it takes to open a run of 10,000 events and to scroll through it, in Debian's Chromium: CPU of the server and
of the page's process. Wall time is told as well, and means something on a quiet machine only.
"""

import argparse
import asyncio
import json
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import NamedTuple

import aiohttp

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.processes import cpu_of, parse_options
from bench.targets import Target, mainspring, surroundings, wait_until_quiet
from playwright.async_api import Browser, CDPSession, async_playwright
from tests.console.conftest import FLAGS
from tests.console.test_long_run import RUN, make_log
from tests.store.logs import answer

from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.browser.chromium import find_chromium

RATE = 20
AIM = 0.05
SECONDS_BETWEEN_LOOKS = 10
PACE = 200  # milliseconds, as the console asks for
FRAMES, STEP = 300, 400
# Goes down the page by a step in each frame, and tells the times between frames.
SCROLL = """([frames, step]) => new Promise((done) => {
    const gaps = [];
    let last = performance.now();
    const draw = () => {
        const now = performance.now();
        gaps.push(now - last);
        last = now;
        window.scrollBy(0, step);
        if (gaps.length < frames) requestAnimationFrame(draw); else done(gaps);
    };
    requestAnimationFrame(draw);
})"""


class Round:
    """So many live runs, streamed to those who asked for them, and the ids of those that have begun."""

    def __init__(self, session: aiohttp.ClientSession, server: Target) -> None:
        self._session, self._server = session, server
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.deltas = 0
        self.events = 0

    async def stream(self, seconds: float) -> None:
        url, body = self._server.write(f"paced {RATE} {round(RATE * seconds)}", stream=True)
        async with self._session.post(url, json=body, read_bufsize=1 << 20) as answer:
            async for line in answer.content:
                if line.startswith(b'data: {"type":"response.created"'):
                    self.begun.put_nowait(json.loads(line[6:])["response"]["id"])
                self.deltas += line.startswith(b"event: response.output_text.delta")

    async def watch(self) -> None:
        """A person with the console open on one of the runs."""
        run, base = await self.begun.get(), self._server.base
        await asyncio.gather(
            self._read(f"{base}/runs/changes"),
            self._read(f"{base}/runs/{run}/events?stream=true&pace={PACE}"),
            self._look(f"{base}/approvals"),
        )

    async def _read(self, url: str) -> None:
        async with self._session.get(url, read_bufsize=1 << 20) as answer:
            answer.raise_for_status()
            async for line in answer.content:
                self.events += line.startswith(b"data:")

    async def _look(self, url: str) -> None:
        while True:
            async with self._session.get(url, params={"state": "pending", "limit": "100"}) as answer:
                answer.raise_for_status()
                await answer.read()
            await asyncio.sleep(SECONDS_BETWEEN_LOOKS)


async def measure(session: aiohttp.ClientSession, server: Target, options: argparse.Namespace, people: int) -> float:
    """CPU seconds of a round."""
    work = Round(session, server)
    before = cpu_of(server.pid)
    watchers = [asyncio.create_task(work.watch()) for _ in range(people)]
    try:
        await asyncio.gather(*[work.stream(options.seconds) for _ in range(options.streams)])
    finally:
        for watcher in watchers:
            watcher.cancel()
        for watcher in watchers:
            with suppress(asyncio.CancelledError):
                await watcher
    spent = cpu_of(server.pid) - before
    if people and work.events < people * options.seconds:
        raise RuntimeError(f"{people} people saw {work.events} events only")
    await wait_until_quiet(server.pid)
    return spent


async def compare(options: argparse.Namespace) -> None:
    with surroundings() as ports, mainspring(ports) as server:
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
            await measure(session, server, options, 0)
            alone, watched = list[float](), list[float]()
            for _ in range(options.rounds):
                alone.append(await measure(session, server, options, 0))
                watched.append(await measure(session, server, options, options.people))
    more = median([mine / other for mine, other in zip(watched, alone, strict=True)]) - 1
    print(f"{options.streams} live runs, {RATE} pieces a second each, for {options.seconds:.0f} s: {median(alone):.2f} s of CPU")
    print(f"with {options.people} people who follow them: {median(watched):.2f} s, {more:+.1%} (aim {AIM:+.0%})")


class Opened(NamedTuple):
    """Seconds. `wall` is until the first turn is seen, `frame` the median between two frames while it is scrolled, `late` the
    longest but three."""

    wall: float
    page: float
    server: float
    scrolled: float
    frame: float
    late: float


async def open_long_run(browser: Browser, system: CDPSession, server: Target) -> Opened:
    async def page_cpu() -> float:
        told = await system.send("SystemInfo.getProcessInfo")
        return float(sum([each["cpuTime"] for each in told["processInfo"] if each["type"] == "renderer"]))

    context = await browser.new_context(viewport={"width": 1280, "height": 900})
    page = await context.new_page()
    await page.goto(f"{server.base.removesuffix('/v1')}/#/nothing")
    await page.get_by_text("There is nothing here.").wait_for()
    await wait_until_quiet(server.pid)
    mine, theirs, began = await page_cpu(), cpu_of(server.pid), perf_counter()
    await page.evaluate(f"location.hash = '#/runs/{RUN}'")
    await page.get_by_text("Page 0 comes next.").wait_for()
    wall = perf_counter() - began
    await page.get_by_text("The model gave its answer.").first.wait_for()
    opened = await page_cpu()
    gaps = sorted(await page.evaluate(SCROLL, [FRAMES, STEP]))
    found = Opened(
        wall, opened - mine, cpu_of(server.pid) - theirs, await page_cpu() - opened, median(gaps) / 1000, gaps[-4] / 1000
    )
    await context.close()
    return found


async def open_long_runs(rounds: int) -> None:
    log = make_log()
    with TemporaryDirectory() as folder, surroundings() as ports:
        database = Path(folder, "long.db")
        async with SqliteStore(database) as store:
            await store.append(RUN, log, answer(RUN, "That was **all** of it."))
        with mainspring(ports, database) as server:
            async with async_playwright() as playwright:
                browser = await playwright.chromium.launch(executable_path=str(find_chromium()), args=FLAGS)
                system = await browser.new_browser_cdp_session()
                found = [await open_long_run(browser, system, server) for _ in range(rounds)]
                await browser.close()
    wall, page, spent, scrolled, frame, late = [median(each) for each in zip(*found, strict=True)]
    soonest = min([each.wall for each in found])
    print(f"a run of {len(log):,} events opens with {page:.2f} s of CPU of the page and {spent:.2f} s of the server")
    print(f"{wall:.2f} s until its first turn is seen, {soonest:.2f} s at best (aim 1 s, on a quiet machine)")
    print(f"{FRAMES} frames of {STEP} pixels: {scrolled:.2f} s of CPU, {frame * 1000:.0f} ms a frame, late {late * 1000:.0f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--streams", type=int, default=100, help="live runs at a time (default 100)")
    parser.add_argument("--seconds", type=float, default=6.0, help="how long each run speaks (default 6)")
    parser.add_argument("--rounds", type=int, default=4, help="rounds with and without people (default 4)")
    parser.add_argument("--long", action="store_true", help="open a run of 10,000 events in a browser instead")
    options = parse_options(parser)
    asyncio.run(open_long_runs(options.rounds) if options.long else compare(options))


if __name__ == "__main__":
    main()
