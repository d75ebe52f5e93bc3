"""The same attacks 200 times in a row: what leaks a little each time shows here."""

import os
from itertools import cycle, islice
from pathlib import Path

import pytest
from tests.sandbox.attacks import ESCAPES, FORBIDDEN, Bait, attack, laid_out
from tests.sandbox.test_resources import GIGABYTE_OF_OUTPUT, LOCKED, SURVIVOR, TWO_GIGABYTES
from tests.sandbox.traces import mounts, processes_of

from mainspring.core.sandbox import SandboxLimits, SandboxSpec
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox

TIMES = 200
LIMITS = SandboxLimits(memory=64 << 20, output=100_000)


def attacks(bait: Bait) -> list[str]:
    quick = {name: code for name, code in (ESCAPES | FORBIDDEN).items() if "datagram" not in name and "metadata" not in name}
    return [*(attack(bait, code) for code in quick.values()), SURVIVOR, LOCKED, TWO_GIGABYTES, GIGABYTE_OF_OUTPUT]


async def attacked(sandbox: LocalSandbox, bait: Bait) -> set[Path]:
    """Returns the control groups that were made."""
    groups: set[Path] = set()
    for number, code in enumerate(islice(cycle(attacks(bait)), TIMES)):
        async with sandbox.acquire(SandboxSpec(limits=LIMITS)) as lease:
            groups.update(lease._slot.group.folders if lease._slot.group else ())
            result = await lease.execute(code)
            assert "ESCAPED" not in result.stdout, f"attack {number}"
            assert result.stdout or result.stderr or result.exit.code is not None, f"attack {number}: {result}"
    return groups


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_two_hundred_attacks_in_a_row_leave_nothing_behind(mode: Mode) -> None:
    async with open_sandbox(mode, uid=26_000 + os.getpid() % 900, warm=2) as sandbox:
        await sandbox.wait_until_warm()
        descriptors, mounted = len(os.listdir("/proc/self/fd")), mounts(sandbox)
        async with sandbox.acquire() as neighbour:
            await neighbour.put("theirs", b"belongs-to-the-host")
            with laid_out(sandbox._owner.uid, neighbour._slot.place.workspace / "theirs") as bait:
                groups = await attacked(sandbox, bait)
            await neighbour.release()
        await sandbox._pool.close()
        for removal in list(sandbox._removals):
            await removal
        assert processes_of(sandbox) == ()
        assert {path.name for path in sandbox.data.iterdir()} <= {"etc"}
        assert not any(group.exists() for group in groups)
        assert mounts(sandbox) == mounted
        # The pool's own pipes are closed by now, so there are fewer than before.
        assert len(os.listdir("/proc/self/fd")) <= descriptors
        folder = sandbox._folder
    assert not folder.exists()
