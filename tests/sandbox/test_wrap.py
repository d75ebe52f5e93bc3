"""A program that the engine starts itself, an MCP server above all, is held as sandboxed code is."""

import json
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest
from tests.sandbox.conftest import opened
from tests.sandbox.traces import processes_of

from mainspring.errors import SandboxError
from mainspring.tools.mcp.connection import Connection
from mainspring.tools.mcp.content import output_of
from mainspring.tools.mcp.servers import ServerSpec
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.wrap import wrapping

LOOK = """
import json, os, socket
def attempt(work):
    try:
        work()
    except OSError as error:
        return type(error).__name__
    return "done"
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "folder": os.getcwd(),
    "own": attempt(lambda: open("mine", "w").close()),
    "system": attempt(lambda: open("/usr/mine", "w").close()),
    "bait": attempt(lambda: open(BAIT).close()),
    "network": attempt(lambda: socket.create_connection(("127.0.0.1", PORT), 2).close()),
    "uid": os.getuid(),
    "rights": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "filter": status["Seccomp"].strip(),
    "names": sorted(os.environ),
    "given": os.environ.get("GIVEN"),
}))
"""


@pytest.fixture(scope="module")
async def bwrap() -> AsyncIterator[LocalSandbox]:
    async for entered in opened("bwrap"):
        yield entered


@pytest.fixture(scope="module")
async def landlock() -> AsyncIterator[LocalSandbox]:
    async for entered in opened("landlock"):
        yield entered


def look(argv: list[str]) -> dict[str, object]:
    done = subprocess.run(argv, capture_output=True, text=True, env={"GIVEN": "a key"}, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize("network", [False, True])
async def test_a_wrapped_program_sees_the_system_and_what_it_was_given_and_nothing_else(
    bwrap: LocalSandbox, tmp_path: Path, network: bool
) -> None:
    bait = tmp_path / "bait"
    bait.touch()
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        code = f"BAIT, PORT = {str(bait)!r}, {port}\n{LOOK}"
        argv = [*wrapping(bwrap, network=network)([sys.executable, "-c", code])]
        seen = await anyio.to_thread.run_sync(look, argv)
    assert seen["folder"] == "/workspace"
    assert (seen["own"], seen["system"], seen["bait"]) == ("done", "OSError", "FileNotFoundError")
    assert (seen["network"] == "done") is network
    assert (seen["uid"] != 0, seen["rights"], seen["filter"]) == (True, 0, "2")
    assert seen["given"] == "a key"
    own = {"GIVEN", "HOME", "LANG", "LC_CTYPE", "LD_LIBRARY_PATH", "PATH", "PWD", "PYTHONDONTWRITEBYTECODE", "TMPDIR", "USER"}
    assert isinstance(seen["names"], list)
    assert set(seen["names"]) <= own


async def test_a_given_workspace_is_what_the_program_works_on(bwrap: LocalSandbox) -> None:
    workspace = bwrap._data / "wrapped"
    workspace.mkdir(mode=0o777)
    workspace.chmod(0o777)
    await anyio.run_process(wrapping(bwrap, workspace=workspace)(["/bin/sh", "-c", "echo done > file"]))
    assert (workspace / "file").read_text() == "done\n"


@pytest.mark.slow
async def test_an_mcp_server_serves_from_the_sandbox_and_leaves_nothing(bwrap: LocalSandbox) -> None:
    before = processes_of(bwrap)
    spec = ServerSpec("time", "stdio", command=sys.executable, args=("-m", "mcp_server_time"), trusted=True, sandboxed=True)
    connection = Connection(spec, wrap=wrapping(bwrap))
    asked = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    told = json.loads(str(output_of(await connection.call("convert_time", asked))))
    assert told["target"]["timezone"] == "Asia/Tokyo"
    if bwrap._owner.uid is not None:
        assert set(processes_of(bwrap)) - set(before), "it runs as the sandbox's user"
    await connection.close()
    with anyio.fail_after(20):
        while set(processes_of(bwrap)) - set(before):  # noqa: ASYNC110 (processes set no event)
            await anyio.sleep(0.01)


async def test_unsafe_wraps_nothing(unsafe: LocalSandbox) -> None:
    assert list(wrapping(unsafe)(["server", "--flag"])) == ["server", "--flag"]


async def test_landlock_alone_refuses_with_what_to_install(landlock: LocalSandbox) -> None:
    with pytest.raises(SandboxError, match="install bubblewrap"):
        wrapping(landlock)
