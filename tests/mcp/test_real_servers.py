"""Servers as they come from the registries, unmodified: in Python and in Node, of both eras of the protocol, by every way."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.clients import node
from tests.kit.waiting import until
from tests.mcp.conftest import Connect, give

from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import InputImage, InputText, Json
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.mcp.result_content import render_answer
from mainspring.tools.mcp.server_specs import ServerSpec, Transport
from mainspring.tools.sandbox.grants import Wrap

FOLDER = Path(__file__).parent / "node"
PROGRAMS = FOLDER / "node_modules" / ".bin"


@pytest.fixture(scope="session")
def node_servers() -> None:
    node.install(FOLDER)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Wind the spring"], check=True)
    give(tmp_path)
    return tmp_path


@pytest.fixture
async def wrap() -> AsyncIterator[Wrap]:
    async with BuiltinTools(wraps=True) as builtins:
        yield builtins.wrap


def python(module: str, *arguments: str, **grants: Any) -> ServerSpec:
    return ServerSpec(module, "stdio", command=sys.executable, args=("-m", module, *arguments), trusted=True, **grants)


def program(name: str, *arguments: str, **grants: Any) -> ServerSpec:
    return ServerSpec(name, "stdio", command="node", args=(str(PROGRAMS / name), *arguments), trusted=True, **grants)


@pytest.mark.slow
async def test_the_time_server_tells_the_time(connect: Connect, wrap: Wrap) -> None:
    connection = connect(python("mcp_server_time"), wrap=wrap)
    listing = await connection.list_tools()
    assert {tool.name: tool.is_read_only for tool in listing.tools} == {"get_current_time": True, "convert_time": True}
    asked = {"source_timezone": "Europe/Berlin", "time": "12:00", "target_timezone": "Asia/Tokyo"}
    told = json.loads(str(render_answer(await connection.call("convert_time", asked))))
    assert told["target"]["timezone"] == "Asia/Tokyo"
    refused = await connection.call("get_current_time", {"timezone": "Mars/Olympus"})
    assert refused.is_error


@pytest.mark.slow
async def test_the_git_server_reads_a_repository(connect: Connect, repository: Path, wrap: Wrap) -> None:
    connection = connect(python("mcp_server_git", "--repository", str(repository), reads=(str(repository),)), wrap=wrap)
    assert "git_log" in {tool.name for tool in (await connection.list_tools()).tools}
    assert "Wind the spring" in str(render_answer(await connection.call("git_log", {"repo_path": str(repository)})))


@pytest.mark.slow
@pytest.mark.usefixtures("node_servers")
async def test_the_filesystem_server_keeps_to_its_folder(connect: Connect, tmp_path: Path, wrap: Wrap) -> None:
    (tmp_path / "note.txt").write_text("tick")
    give(tmp_path)
    connection = connect(program("mcp-server-filesystem", str(tmp_path), folders=(str(tmp_path),)), wrap=wrap)
    assert len((await connection.list_tools()).tools) >= 10
    assert render_answer(await connection.call("read_text_file", {"path": str(tmp_path / "note.txt")})) != ""
    await connection.call("write_file", {"path": str(tmp_path / "new.txt"), "content": "tock"})
    assert (tmp_path / "new.txt").read_text() == "tock"
    outside = await connection.call("read_text_file", {"path": "/etc/hostname"})
    assert outside.is_error
    assert "denied" in str(render_answer(outside))


@pytest.mark.slow
@pytest.mark.usefixtures("node_servers")
async def test_the_everything_server_is_understood(connect: Connect, wrap: Wrap) -> None:
    connection = connect(program("mcp-server-everything"), wrap=wrap)
    await connection.list_tools()
    assert render_answer(await connection.call("echo", {"message": "tick"})) == "Echo: tick"
    image = render_answer(await connection.call("get-tiny-image", {}))
    assert isinstance(image, tuple)
    assert [type(part) for part in image] == [InputText, InputImage, InputText][: len(image)]
    weather = render_answer(await connection.call("get-structured-content", {"location": "Chicago"}))
    assert json.loads(str(weather))["temperature"]
    links = str(render_answer(await connection.call("get-resource-links", {"count": 2})))
    assert links.count("demo://") == 2
    told: list[str] = []
    await connection.call("trigger-long-running-operation", {"duration": 0.2, "steps": 2}, progress=told.append)
    assert told == ["1 of 2", "2 of 2"]
    environment = json.loads(str(render_answer(await connection.call("get-env", {}))))
    usual = {"PATH", "HOME", "USER", "LANG", "TZ", "TMPDIR", "PWD", "LD_LIBRARY_PATH", "PYTHONDONTWRITEBYTECODE"}
    # A Python between the two may set locale variables of its own (PEP 538).
    assert {name for name in environment if not name.startswith("LC_")} <= usual


@pytest.mark.slow
@pytest.mark.usefixtures("node_servers")
@pytest.mark.parametrize(("mode", "path", "transport"), [("streamableHttp", "/mcp", "http"), ("sse", "/sse", "sse")])
async def test_the_everything_server_is_understood_by_http(mode: str, path: str, transport: Transport, connect: Connect) -> None:
    with everything(mode) as port:
        url = f"http://127.0.0.1:{port}{path}"
        connection = connect(ServerSpec("everything", transport, url=url, trusted=True))
        assert render_answer(await connection.call("echo", {"message": "tick"})) == "Echo: tick"
        answers = await asyncio.gather(*[connection.call("get-sum", {"a": number, "b": 1}) for number in range(8)])
        assert [f"is {number + 1}." in str(render_answer(answer)) for number, answer in enumerate(answers)] == [True] * 8
        await connection.close()


@pytest.mark.slow
async def test_a_server_of_the_stateless_protocol_tells_of_new_tools(connect: Connect) -> None:
    with modern() as url:
        connection = connect(ServerSpec("modern", url=url, trusted=True))
        assert [tool.name for tool in (await connection.list_tools()).tools] == ["add", "learn", "ask"]
        assert render_answer(await connection.call("add", {"a": 1, "b": 2})) == "3"
        await connection.call("learn", {"name": "whistle"})
        await until(lambda: connection._listing is None)
        assert [tool.name for tool in (await connection.list_tools()).tools] == ["add", "learn", "ask", "whistle"]
        await connection.close()


@pytest.mark.slow
async def test_a_question_is_declined_and_an_endless_one_cut_off(connect: Connect) -> None:
    async def answered(question: Json) -> Json:
        return {"name": question["message"]}

    with modern() as url:
        spec = ServerSpec("modern", url=url, trusted=True)
        silent, talkative = connect(spec), connect(spec, elicit=answered)
        with pytest.raises(ToolUnavailable, match="refused the call of `ask`: Elicitation not supported"):
            await silent.call("ask", {})
        with pytest.raises(ToolUnavailable, match="for more than 10 rounds"):
            await talkative.call("ask", {})
        assert render_answer(await silent.call("add", {"a": 1, "b": 2})) == "3"
        await silent.close()
        await talkative.close()


@pytest.mark.slow
async def test_a_stateless_server_that_was_restarted_goes_on_answering(connect: Connect) -> None:
    with modern() as url:
        connection = connect(ServerSpec("modern", url=url, trusted=True))
        await connection.list_tools()
    with modern(port=urlsplit(url).port or 0):
        assert render_answer(await connection.call("add", {"a": 1, "b": 2}, repeatable=True)) == "3"
        await connection.close()


@pytest.mark.slow
async def test_a_server_that_is_gone_is_told_in_words(connect: Connect) -> None:
    with modern() as url:
        connection = connect(ServerSpec("modern", url=url, trusted=True))
        await connection.list_tools()
    with pytest.raises(ToolUnavailable, match=r"MCP server `modern` (was lost during the call|cannot be used)"):
        await connection.call("add", {"a": 1, "b": 2})


@contextmanager
def modern(port: int = 0) -> Iterator[str]:
    script = Path(__file__).parent / "modern.py"
    process = subprocess.Popen([sys.executable, str(script), str(port)], stdout=subprocess.PIPE, text=True, cwd="/")
    with process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()


@contextmanager
def everything(mode: str) -> Iterator[int]:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = int(found.getsockname()[1])
    process = subprocess.Popen(
        ["node", str(PROGRAMS / "mcp-server-everything"), mode],
        env={**os.environ, "PORT": str(port)},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            for line in process.stderr:
                if str(port) in line:
                    break
            yield port
        finally:
            process.kill()
