"""A process to be killed: `python -m tests.store.appender DATABASE` drives runs without end and prints what is durable."""

import asyncio
import sys
from itertools import count

from tests.store.logs import answer, begin, end, pieces, say

from mainspring.core.events import Recorded
from mainspring.ports import Segment, Snapshot, Store
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location

LENGTH = 24


def log_of(id: str) -> list[Recorded]:
    return [*begin(id), *say(1, *[f"{id} says {place} " * 20 for place in range(LENGTH - 2)]), *end(LENGTH - 1)]


def answer_of(id: str) -> Snapshot:
    return answer(id, f"{id} says " * 100)


async def drive(store: Store, lane: int) -> None:
    for number in count():
        id = f"{lane}-{number}"
        for segment in pieces(log_of(id), range(1, LENGTH, 2 + lane)):
            last = segment[-1].seq
            await store.append(id, segment, answer_of(id) if last == LENGTH - 1 else None)
            print(id, last, flush=True)


async def drive_together(store: Store, runs: int) -> None:
    """Runs whose deltas come at the same time."""
    for number in count():
        ids = [f"{lane}-of-{runs}-{number}" for lane in range(runs)]
        for seq in range(LENGTH):
            segments = [Segment(id, log_of(id)[seq : seq + 1], answer_of(id) if seq == LENGTH - 1 else None) for id in ids]
            assert await store.append_all(segments) == [None] * runs
            for id in ids:
                print(id, seq, flush=True)


async def main(database: str) -> None:
    async with open_store(parse_location(database)) as store:
        await asyncio.gather(*[drive(store, lane) for lane in range(4)], drive_together(store, 6))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
