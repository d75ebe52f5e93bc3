"""How long tests wait: generously, because a busy machine is no failure, and never longer than what they wait for takes."""

from collections.abc import Callable

import anyio

PATIENCE = 60.0
"""Seconds after which what a test waits for is taken never to happen."""

GROWING = (0.2, 1.0, 5.0, 25.0)
"""Time limits to try one after the other, where something has to get so far before its time is up: mostly the first will do."""


async def until(condition: Callable[[], bool]) -> None:
    """Polls for what happens in another process, which can set no event."""
    with anyio.fail_after(PATIENCE):
        while not condition():  # noqa: ASYNC110
            await anyio.sleep(0.002)
