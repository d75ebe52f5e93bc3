"""An engine to be killed: it opens a sandbox, lets a program run with a survivor in the background, and a session
rest, and says where all that is.

python engine.py MODE UID
"""

import asyncio
import json
import sys
from typing import cast

from tests.sandbox.test_resources import SURVIVOR

from mainspring.tools.sandbox.lease import LocalLease, LocalSession
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox


async def main() -> None:
    mode, uid = cast("Mode", sys.argv[1]), int(sys.argv[2])
    async with (
        open_sandbox(mode, uid=uid, warm=2) as sandbox,
        sandbox.acquire() as lease,
        sandbox.acquire() as resting,
        resting.session() as session,
    ):
        await serve(sandbox, lease, resting, session)


async def serve(sandbox: LocalSandbox, lease: LocalLease, resting: LocalLease, session: LocalSession) -> None:
    await session.run_cell("x = 1")
    await sandbox.wait_until_warm()
    output = lease.run(f"{SURVIVOR}\ntime.sleep(600)")
    await anext(output)
    supervisor = sandbox.processes._supervisor
    assert supervisor is not None
    groups = [str(folder) for slot in (lease._slot, resting._slot) if slot.group for folder in slot.group.folders]
    print(json.dumps({"supervisor": supervisor.pid, "folder": str(sandbox._folder), "groups": groups}), flush=True)
    await asyncio.sleep(600)


asyncio.run(main())
