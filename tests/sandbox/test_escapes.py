"""Getting out: every attempt fails in every sandbox that holds, though most succeed without one."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.sandbox.attacks import ESCAPES, FORBIDDEN, Bait, attack, laid_out
from tests.sandbox.traces import Traces

from mainspring.core.sandbox import SandboxSpec
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.probe import Mode, open_sandbox

# A user namespace is needed to show what one would permit, and not every machine grants them.
NEED_NAMESPACES = {name for name in ESCAPES if "namespace" in name}


@asynccontextmanager
async def baited(sandbox: LocalSandbox) -> AsyncIterator[Bait]:
    async with sandbox.acquire() as neighbour:
        await neighbour.put("theirs", b"belongs-to-the-host")
        with laid_out(sandbox._owner.uid, neighbour._slot.place.workspace / "theirs") as bait:
            yield bait


@pytest.fixture(scope="module")
async def bait(sandbox: LocalSandbox) -> AsyncIterator[Bait]:
    async with baited(sandbox) as laid:
        yield laid


@pytest.fixture(scope="module")
async def unsafe_bait(unsafe: LocalSandbox) -> AsyncIterator[Bait]:
    async with baited(unsafe) as laid:
        yield laid


@pytest.mark.parametrize("name", [*ESCAPES, *FORBIDDEN])
async def test_attempt_fails_and_leaves_nothing_behind(sandbox: LocalSandbox, bait: Bait, name: str) -> None:
    async with sandbox.acquire() as lease:
        traces = Traces.of(sandbox, lease)
        result = await lease.execute(attack(bait, (ESCAPES | FORBIDDEN)[name]), timeout=20)
        assert "ESCAPED" not in result.stdout, f"it could {name}"
        assert "held:" in result.stdout or result.exit.is_error, result.text
        await lease.release()
        assert traces.left(sandbox) == []


@pytest.mark.slow
async def test_a_granted_network_is_the_internet_and_nothing_else_of_the_host(sandbox: LocalSandbox, bait: Bait) -> None:
    async with sandbox.acquire(SandboxSpec(network=True)) as lease:
        for name, code in ESCAPES.items():
            result = await lease.execute(attack(bait, code), timeout=20)
            is_network = "loopback" in name or "datagram" in name
            assert ("ESCAPED" in result.stdout) == is_network, f"{name}: {result.text}"


@pytest.mark.parametrize("name", ESCAPES)
async def test_attempt_succeeds_without_a_sandbox(unsafe: LocalSandbox, unsafe_bait: Bait, name: str) -> None:
    async with unsafe.acquire() as lease:
        result = await lease.execute(attack(unsafe_bait, ESCAPES[name]), timeout=20)
    if name in NEED_NAMESPACES and "ESCAPED" not in result.stdout:
        pytest.skip("this machine grants no user namespaces, so this cannot be shown")
    assert result.stdout == "ESCAPED\n", result.text


NEIGHBOUR = """
import os
path, folder = {path!r}, os.path.dirname({path!r})
attempts = {{
    "chmod": lambda: os.chmod(path, 0o777),
    "chmod its folder": lambda: os.chmod(folder, 0o777),
    "chmod by descriptor": lambda: os.chmod(f"/proc/self/fd/{{os.open(path, os.O_PATH)}}", 0o777),
    "chown": lambda: os.chown(path, os.getuid(), os.getgid()),
    "utime": lambda: os.utime(path, (1, 1)),
    "set an attribute": lambda: os.setxattr(path, "user.note", b"mine"),
    "rename": lambda: os.rename(path, path + "2"),
    "link": lambda: os.link(path, "mine"),
    "unlink": lambda: os.unlink(path),
    "truncate": lambda: os.truncate(path, 0),
    "read": lambda: open(path).read(),
}}
for name, attempt in attempts.items():
    try:
        attempt()
        print("could", name)
    except OSError:
        pass
"""
OWN = "import os\nopen('own', 'w').close()\nos.chmod('own', 0o700)\nos.utime('own', (1, 1))\nprint('fine')"


@pytest.mark.parametrize("mode", ["bwrap", "landlock"])
async def test_a_lease_cannot_touch_the_files_of_another_though_it_knows_their_names(mode: Mode) -> None:
    """With users as the server has them: other tests choose one, so that nothing but the sandbox itself protects files."""
    async with open_sandbox(mode, warm=0) as sandbox, sandbox.acquire() as victim, sandbox.acquire() as lease:
        await victim.put("theirs", b"private")
        path = victim._slot.place.workspace / "theirs"
        before = path.stat()
        result = await lease.execute(NEIGHBOUR.format(path=str(path)))
        assert (result.stdout, result.exit.is_error) == ("", False), result.text
        assert path.stat() == before
        assert path.read_bytes() == b"private"
        if os.getuid() == 0:
            assert (await lease.execute(OWN)).stdout == "fine\n"
            assert (await victim.execute("print(open('theirs').read())")).stdout == "private\n"
