"""Following a log that another process may be writing: what is there, then each time there is more, until its end."""

from collections.abc import AsyncGenerator, Awaitable, Callable

from anyio import sleep

from mainspring.core.events import Recorded, RunEnded
from mainspring.ports import RunStore

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.2


async def follow_log(
    store: RunStore,
    run_id: str,
    after: int,
    wait: Callable[[float], Awaitable[None]] = sleep,
    longest: float = LONGEST_PAUSE,
) -> AsyncGenerator[list[Recorded], None]:
    """Asks the store again and again. `wait` is told for how long at most, and may know sooner that there is more."""
    pause, seen = FIRST_PAUSE, max(after, -1)
    found = await store.events(run_id, seen - 1)  # with the last one seen, which may be the end
    while True:
        if records := [record for record in found if record.seq > seen]:
            yield records
            pause, seen = FIRST_PAUSE, records[-1].seq
        if found and isinstance(found[-1].event, RunEnded):
            return
        if not records:
            await wait(pause)
            pause = min(2 * pause, longest)
        found = await store.events(run_id, seen)
