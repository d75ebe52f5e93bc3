"""The end of a process that we have started."""

import os
import signal
from contextlib import suppress

from anyio import move_on_after
from anyio.abc import Process

END_SECONDS = 5.0


async def end(process: Process) -> None:
    """Kills the process if it still runs and waits until it is gone, for a moment at most, even if we are cancelled."""
    with move_on_after(END_SECONDS, shield=True):
        if process.returncode is None:
            with suppress(ProcessLookupError):
                # Not `Process.kill`: that fetches the status of one that has just ended, and whoever waits for it gets none.
                os.kill(process.pid, signal.SIGKILL)
        await process.aclose()
