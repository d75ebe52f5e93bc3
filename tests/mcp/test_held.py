"""Servers that are processes run in the sandbox unless the operator says otherwise: they see what they were granted, no more."""

import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import pytest
from msgspec import convert
from tests.kit.waiting import until
from tests.sandbox.conftest import opened
from tests.sandbox.traces import everything, mounts

from mainspring.core.errors import InvalidRequest, SandboxError, ToolUnavailable
from mainspring.features.mcp.settings import McpServerSettings, make_server_specs
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.result_content import render_answer
from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.sandbox.grants import Wrap
from mainspring.tools.sandbox.local import LocalSandbox
from mainspring.tools.sandbox.wrap import wrap_program

pytestmark = pytest.mark.slow

SPY = Path(__file__).parent / "spy.py"

Attempt = Callable[..., Awaitable[str]]


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["bwrap", "landlock"])
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[LocalSandbox]:
    async for entered in opened(request.param):
        yield entered


@pytest.fixture
def wrap(sandbox: LocalSandbox) -> Wrap:
    return partial(wrap_program, sandbox)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the sandbox's user could reach and read, were it not held."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "secret").write_text("hush")
        yield folder


def given(folder: Path, sandbox: LocalSandbox) -> Path:
    """The folder, made, and the sandbox's user's own."""
    folder.mkdir(exist_ok=True)
    if sandbox._owner.uid is not None:
        os.chown(folder, sandbox._owner.uid, sandbox._owner.uid)
    return folder


@pytest.fixture
async def spy(wrap: Wrap, place: Path, sandbox: LocalSandbox) -> AsyncIterator[Callable[..., Attempt]]:
    """A spy in the sandbox, with these grants: what it is to attempt, and with what."""
    (place / "program").mkdir()
    script = place / "program" / "spy.py"
    script.write_text(SPY.read_text())
    connections: list[McpConnection] = []

    def started(**grants: Any) -> Attempt:
        connection = McpConnection(server(sandbox, str(script), **grants), wrap=wrap)
        connections.append(connection)

        async def attempt(what: str, given: object = "") -> str:
            return str(render_answer(await connection.call("attempt", {"what": what, "with": str(given)})))

        return attempt

    yield started
    for connection in connections:
        await connection.close()


def server(sandbox: LocalSandbox, *arguments: str, **grants: Any) -> ServerSpec:
    """One in Python, and such a one as this sandbox can reach."""
    return ServerSpec("spy", "stdio", command=sandbox.backend.python.executable, args=arguments, trusted=True, **grants)


def refused(told: str) -> bool:
    return any(word in told for word in ("FileNotFoundError", "PermissionError", "OSError", "ConnectionRefusedError"))


async def test_a_server_sees_none_of_the_hosts_files(spy: Callable[..., Attempt], place: Path) -> None:
    attempt = spy()
    for path in (place / "secret", "/etc/shadow", "/root/.bashrc", f"/proc/{os.getpid()}/environ"):
        assert refused(await attempt("read", path)), path
    for path in ("/usr/mine", "/etc/mine", place / "program" / "mine"):
        assert refused(await attempt("write", path)), path
    await attempt("write", place / "mine")
    assert not (place / "mine").exists(), "what it calls /tmp is its own"
    assert "spy.py" in await attempt("list", place / "program"), "its own program it may read"
    assert await attempt("write", "mine") == "written", "and where it starts it may write"


async def test_a_server_gets_the_environment_of_its_description_and_none_of_ours(
    spy: Callable[..., Attempt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUR_SECRET", "spring")
    found = json.loads(await spy(env={"THEIR_KEY": "gear", "HOME": "/workspace"})("environ"))
    assert (found["THEIR_KEY"], found["HOME"], found["USER"]) == ("gear", "/workspace", "sandbox")
    usual = {"PATH", "USER", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "PWD", "PYTHONDONTWRITEBYTECODE", "LD_LIBRARY_PATH"}
    assert set(found) - usual == {"THEIR_KEY", "HOME"}


@pytest.mark.parametrize("is_granted", [False, True])
async def test_a_server_has_a_network_if_it_is_granted(spy: Callable[..., Attempt], is_granted: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        told = await spy(network=is_granted)("connect", f"127.0.0.1:{listening.getsockname()[1]}")
    assert (told == "connected") is is_granted
    assert is_granted or refused(told)


async def test_what_is_granted_is_there_under_its_own_name_and_nothing_beside_it(
    spy: Callable[..., Attempt], place: Path, sandbox: LocalSandbox
) -> None:
    (place / "books").mkdir()
    (place / "books" / "one").write_text("page")
    notes = given(place / "notes", sandbox)
    attempt = spy(folders=(str(notes),), reads=(str(place / "books"),), cwd=str(place / "books"))
    assert (await attempt("read", "one"), await attempt("cwd")) == ("page", str(place / "books"))
    assert refused(await attempt("write", place / "books" / "two"))
    assert await attempt("write", notes / "two") == "written"
    assert (notes / "two").read_text() == "spy"
    assert refused(await attempt("read", place / "secret"))
    (notes / "link").symlink_to(place / "secret")
    assert refused(await attempt("read", notes / "link"))


@pytest.mark.skipif(os.getuid() != 0, reason="only root's sandbox runs as another user")
async def test_what_only_root_can_reach_is_shown_to_whom_it_is_granted(
    spy: Callable[..., Attempt], place: Path, sandbox: LocalSandbox
) -> None:
    (place / "locked").mkdir(mode=0o700)
    inner = given(place / "locked" / "inner", sandbox)
    attempt = spy(folders=(str(inner),))
    if sandbox.backend.name == "landlock":
        with pytest.raises(ToolUnavailable, match=r"cannot start in the sandbox: .* cannot reach .*let others enter"):
            await attempt("write", inner / "file")
        return
    assert await attempt("write", inner / "file") == "written"
    assert (inner / "file").read_text() == "spy"


async def test_nothing_a_server_started_outlives_it(sandbox: LocalSandbox, wrap: Wrap) -> None:
    mark, before = token_hex(8), mounts(sandbox)
    connection = McpConnection(server(sandbox, str(SPY)), wrap=wrap)
    await connection.call("attempt", {"what": "leave", "with": mark})
    await until(lambda: bool(marked(mark)))
    await connection.close()
    await until(lambda: not marked(mark))
    assert mounts(sandbox) == before
    await until(lambda: not any(path.name != "etc" for path in sandbox.data.iterdir()))


async def test_closing_the_sandbox_ends_the_servers_that_are_still_in_it() -> None:
    mark = token_hex(8)
    async with BuiltinTools(wraps=True) as builtins:
        health = await builtins.health()
        if health is None or health.totals == "none":
            pytest.skip("there are no control groups here")
        spec = ServerSpec("spy", "stdio", command=sys.executable, args=(str(SPY),), trusted=True)
        connection = McpConnection(spec, wrap=builtins.wrap)
        await connection.call("attempt", {"what": "leave", "with": mark})
        await until(lambda: bool(marked(mark)))
    assert not marked(mark)
    await connection.close()


async def test_a_held_server_does_not_outlive_an_engine_that_was_killed() -> None:
    mark = token_hex(8)
    code = (
        "import asyncio, sys\nfrom mainspring.tools.mcp.server_connection import McpConnection\n"
        "from mainspring.tools.mcp.server_specs import ServerSpec\nfrom mainspring.tools.builtin.builtins import BuiltinTools\n"
        "async def main():\n    async with BuiltinTools(wraps=True) as builtins:\n"
        f"        spec = ServerSpec('s', 'stdio', command=sys.executable, args=({str(SPY)!r},), trusted=True)\n"
        "        connection = McpConnection(spec, wrap=builtins.wrap)\n"
        f"        await connection.call('attempt', {{'what': 'leave', 'with': {mark!r}}})\n"
        "        print(builtins._sandbox.target._folder, flush=True)\n        await asyncio.sleep(600)\n"
        "asyncio.run(main())\n"
    )
    async with await anyio.open_process([sys.executable, "-c", code], stderr=None) as engine:
        assert engine.stdout is not None
        folder = (await engine.stdout.receive()).decode().strip()
        await until(lambda: bool(marked(mark, SPY.name)))
        engine.kill()
        # The code of the engine itself has the mark in it, and goes as well.
        await until(lambda: not marked(mark))
        await until(lambda: not os.path.exists(folder))


async def test_without_a_sandbox_no_process_is_left_either() -> None:
    mark = token_hex(8)
    spec = ServerSpec("spy", "stdio", command=sys.executable, args=(str(SPY),), trusted=True, sandboxed=False)
    connection = McpConnection(spec)
    await connection.call("attempt", {"what": "leave", "with": mark})
    await until(lambda: bool(marked(mark)))
    await connection.close()
    assert not marked(mark)


def marked(mark: str, *without: str) -> list[int]:
    """The processes with this in their command line, and with none of that."""
    found = []
    for pid in everything():
        with suppress(OSError):
            line = Path(f"/proc/{pid}/cmdline").read_text()
            if mark in line and not any(word in line for word in without):
                found.append(pid)
    return found


async def test_a_server_that_fails_in_the_sandbox_is_told_with_what_can_be_granted(wrap: Wrap, sandbox: LocalSandbox) -> None:
    connection = McpConnection(server(sandbox, "-c", "open('/etc/shadow')"), wrap=wrap)
    with pytest.raises(ToolUnavailable) as raised:
        await connection.list_tools()
    told = raised.value.message
    assert "/etc/shadow" in told
    for word in ("it runs in the sandbox", "[mcp.spy]", "`network = true`", "`reads`", "`folders`", "`sandboxed = false`"):
        assert word in told
    await connection.close()


async def test_a_grant_that_cannot_be_given_is_named(wrap: Wrap, place: Path, sandbox: LocalSandbox) -> None:
    wanted = {place / "gone": "No such file"}
    if sandbox._owner.uid is not None:
        (place / "private").mkdir(mode=0o700)
        wanted[place / "private"] = f"chown -R {sandbox._owner.uid} {place / 'private'}"
    for folder, words in wanted.items():
        connection = McpConnection(server(sandbox, str(SPY), folders=(str(folder),)), wrap=wrap)
        with pytest.raises(ToolUnavailable, match="`spy` cannot start in the sandbox") as raised:
            await connection.list_tools()
        assert str(folder) in raised.value.message
        assert words in raised.value.message
        await connection.close()


async def test_a_script_beside_our_own_settings_is_all_that_a_server_gets(spy: Callable[..., Attempt], place: Path) -> None:
    attempt = spy()
    (place / "program" / "mainspring.toml").write_text("api_key = 'hush'")
    assert refused(await attempt("read", place / "program" / "mainspring.toml"))
    assert "hush" not in await attempt("run", f"cat {place}/program/*")


async def test_where_no_sandbox_holds_only_the_servers_that_need_one_are_refused() -> None:
    def absent(program: object) -> AbstractAsyncContextManager[tuple[str, ...]]:
        raise SandboxError("no sandbox holds here, so code is not run; install bubblewrap")

    held = ServerSpec("held", "stdio", command=sys.executable, args=(str(SPY),), trusted=True)
    free = ServerSpec("free", "stdio", command=sys.executable, args=(str(SPY),), trusted=True, sandboxed=False)
    tools = McpTools([held, free], wrap=absent)
    first, second = (await tools.collect_tools()).offers
    assert first.error is not None
    assert "`held` cannot start in the sandbox: no sandbox holds here" in first.error
    assert "install bubblewrap" in first.error
    assert "`sandboxed = false`" in first.error
    assert (second.error, [tool.name for tool in second.tools]) == (None, ["attempt"])
    await tools.close()


async def test_a_workshop_without_a_sandbox_says_why() -> None:
    async with BuiltinTools(wraps=True) as builtins:
        builtins._local.target = SandboxError("none holds")
        with pytest.raises(SandboxError, match="none holds"):
            builtins.wrap(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("table", "complaint"),
    [
        ({"command": "x", "folders": ["notes"]}, "`notes` cannot be granted; give the whole path"),
        ({"command": "x", "reads": ["/"]}, "`/` cannot be granted"),
        ({"command": "x", "sandboxed": False, "network": True}, "there is nothing to grant"),
        ({"url": "https://x.example/mcp", "network": True}, "a server with a url has no"),
    ],
)
def test_grants_that_make_no_sense_are_refused(table: dict[str, object], complaint: str) -> None:
    with pytest.raises(InvalidRequest, match=complaint):
        make_server_specs({"x": convert(table, McpServerSettings)})


def test_a_server_is_held_unless_its_table_says_otherwise() -> None:
    held, free, web = make_server_specs(
        {
            "a": McpServerSettings(command="x"),
            "b": McpServerSettings(command="x", sandboxed=False),
            "c": McpServerSettings(url="https://x.example/mcp"),
        }
    )
    assert [spec.is_held for spec in (held, free, web)] == [True, False, False]
