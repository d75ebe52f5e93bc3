"""What schedules cost: ten thousand that are not due, and one that is.

    python bench/triggers.py [--schedules N] [--firings N] [--seconds N]

`load` is what a start needs to know all schedules, `idle` what a process uses while none is due, by CPU of a second, `look` what
it costs to find out that other processes have changed nothing, once a second, and `firing` what one due time costs from the clock
to the stored state, without the run that it starts. Where APScheduler is installed, it is measured on the same file system, with
its SQLAlchemy store in a file and a job that does nothing. Times are CPU of this process with its threads.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from anyio import create_task_group, move_on_after
from bench.processes import parse_options
from msgspec import Raw
from msgspec.structs import replace

from mainspring import Engine
from mainspring.core.items import Json, encode
from mainspring.features.triggers.due_times import find_next
from mainspring.features.triggers.marks import Mark, Marks
from mainspring.features.triggers.schedule import ScheduleDefinition, ScheduleFacts, ScheduleState
from mainspring.features.triggers.schedules import SCHEDULE, ScheduleClock, Schedules
from mainspring.features.triggers.targets import Target, Targets
from mainspring.http.auth import ApiCaller, Keys
from mainspring.ports import Document
from mainspring.providers.scripted import Scripted
from mainspring.tools.builtin.leased_documents import LeasedBody

YEARLY = ScheduleDefinition(name="yearly", agent="nobody", cron="0 0 1 1 *", timezone="Europe/Berlin")


class NoTargets(Targets):
    """Starts nothing."""

    async def find_started(self, target: Target, word: str, tenant: str) -> str | None:
        return None

    async def start(self, target: Target, inputs: Json, word: str, caller: ApiCaller, metadata: dict[str, str]) -> str:
        return "resp_none"


async def measure_ours(file: Path, count: int, firings: int, seconds: float) -> dict[str, float]:
    async with Engine(Scripted(), database=file) as engine:
        schedules = Schedules(engine.store, engine.core.presence, engine.core.new_id)
        documents: list[Document] = []
        targets = NoTargets(engine.agents, engine.workflows, Keys(engine.store))
        made_at = time.time()
        due_at = find_next(YEARLY.make_timing(made_at), made_at)
        for number in range(count):
            state = ScheduleState(replace(YEARLY, name=f"yearly-{number}"), made_at, due_at)
            body = LeasedBody(0, "", Raw(encode(ScheduleFacts(f"sched_{number}", made_at))), Raw(encode(state)))
            documents.append(Document(SCHEDULE, f"yearly-{number}", encode(body)))
        await engine.store.put(documents)
        clock = ScheduleClock(schedules, targets, engine.store, lambda *told: None)
        used: dict[str, float] = {}
        began = time.process_time()
        await clock.load([""])
        used["load"] = time.process_time() - began
        async with create_task_group() as group:
            began = time.process_time()
            with move_on_after(seconds):
                await clock.run()
            used["idle"] = (time.process_time() - began) / seconds
            group.cancel_scope.cancel()
        marks = Marks(engine.store)
        began = time.process_time()
        for _ in range(firings):
            await marks.heed_new(heed_nothing)
        used["look"] = (time.process_time() - began) / firings
        made = await schedules.create("", replace(YEARLY, name="hourly", cron="0 * * * *", overlap="allow"))
        due = made.state.next_due or 0.0
        began = time.process_time()
        for hour in range(firings):
            await schedules.fire(("", "hourly"), targets, due + hour * 3600, lambda *told: None)
        used["firing"] = (time.process_time() - began) / firings
        assert len((await schedules.get("", "hourly")).state.recent) == min(firings, 20)
        return used


def nothing() -> None:
    pass


async def heed_nothing(marks: Sequence[Mark]) -> None:
    pass


async def measure_apscheduler(file: Path, count: int, firings: int, seconds: float) -> dict[str, float] | None:
    try:
        from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore  # type: ignore[import-not-found,unused-ignore]
        from apscheduler.schedulers.asyncio import AsyncIOScheduler  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return None
    stores = {"default": SQLAlchemyJobStore(url=f"sqlite:///{file}")}
    scheduler = AsyncIOScheduler(jobstores=stores)
    scheduler.start(paused=True)
    for number in range(count):
        scheduler.add_job(
            "bench.triggers:nothing", "cron", month=1, day=1, hour=0, timezone="Europe/Berlin", id=f"yearly-{number}"
        )
    used: dict[str, float] = {}
    scheduler.shutdown()
    scheduler = AsyncIOScheduler(jobstores={"default": SQLAlchemyJobStore(url=f"sqlite:///{file}")})
    began = time.process_time()
    scheduler.start()
    await asyncio.sleep(0)
    used["load"] = time.process_time() - began
    began = time.process_time()
    await asyncio.sleep(seconds)
    used["idle"] = (time.process_time() - began) / seconds
    came = 0
    done = asyncio.Event()

    def tell(event: object) -> None:
        nonlocal came
        came += 1
        if came >= firings:
            done.set()

    from apscheduler.events import EVENT_JOB_EXECUTED  # type: ignore[import-not-found,unused-ignore]

    scheduler.add_listener(tell, EVENT_JOB_EXECUTED)
    began = time.process_time()
    scheduler.add_job("bench.triggers:nothing", "interval", seconds=0.02, id="often", max_instances=100, misfire_grace_time=60)
    await done.wait()
    used["firing"] = (time.process_time() - began) / firings
    scheduler.shutdown()
    await asyncio.sleep(0.1)  # it stops in the loop, a little later
    return used


async def main(count: int, firings: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ours = await measure_ours(Path(folder) / "runs.db", count, firings, seconds)
        theirs = await measure_apscheduler(Path(folder) / "jobs.db", count, firings, seconds)
    print(f"{count} schedules, {firings} firings; CPU in ms")
    for name, value in ours.items():
        other = None if theirs is None else theirs.get(name)
        beside = "" if other is None else f"   APScheduler {other * 1000:10.3f}   ratio {value / max(other, 1e-9):.2f}"
        print(f"{name:8} {value * 1000:10.3f}{beside}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--firings", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parse_options(parser)
    asyncio.run(main(options.schedules, options.firings, options.seconds))
