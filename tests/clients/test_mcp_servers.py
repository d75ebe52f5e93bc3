"""Servers of the registries, unmodified, behind `POST /v1/responses`: in Python and in Node, streamed and not."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal
from openai import OpenAI
from tests.clients import node
from tests.clients.process import Served, served
from tests.clients.tap import lint, tapping
from tests.clients.upstream import Model, Upstream, calls, says
from tests.kit.waiting import PATIENCE
from tests.mcp.conftest import give

pytestmark = pytest.mark.slow

FOLDER = Path(__file__).parents[1] / "mcp" / "node"
PROGRAMS = FOLDER / "node_modules" / ".bin"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("work")
    git = ["git", "-C", str(folder), "-c", "user.name=A", "-c", "user.email=a@b.example"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "Wind the spring"], check=True)
    (folder / "note.txt").write_text("tick")
    give(folder)
    return folder


@pytest.fixture(scope="module")
def running(upstream: Upstream, work: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    node.install(FOLDER)
    folder = tmp_path_factory.mktemp("servers")
    servers = {
        "time": [sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"],
        "git": [sys.executable, "-m", "mcp_server_git", "--repository", str(work)],
        "files": ["node", str(PROGRAMS / "mcp-server-filesystem"), str(work)],
        "everything": ["node", str(PROGRAMS / "mcp-server-everything")],
    }
    grants = {"git": f"reads = [{json.dumps(str(work))}]\n", "files": f"folders = [{json.dumps(str(work))}]\n"}
    tables = [
        f"[mcp.{label}]\ncommand = {json.dumps(argv[0])}\nargs = {json.dumps(argv[1:])}\n{grants.get(label, '')}"
        for label, argv in servers.items()
    ]
    (folder / "mainspring.toml").write_text("\n".join(tables))
    with served(folder, upstream.url) as server:
        wait_for_servers(server.port, set(servers))
        yield server


def wait_for_servers(port: int, labels: set[str]) -> None:
    """Requests do not wait long for a server that starts; on a busy machine that takes its time."""
    end, ready = time.monotonic() + PATIENCE, set[str]()
    while not labels <= ready:
        assert time.monotonic() < end, f"only {ready} are ready"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/mcp_servers", timeout=PATIENCE) as answer:
            ready = {each["label"] for each in json.load(answer)["data"] if each["state"] == "ready"}
        time.sleep(0.1)


@pytest.fixture
def url(portal: BlockingPortal, running: Served) -> Iterator[str]:
    with portal.wrap_async_context_manager(tapping(running.port)) as tap:
        yield tap.url
    lint(tap.streams())


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("label", "tool", "arguments", "found"),
    [
        ("time", "convert_time", {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"}, "21:00"),
        ("git", "git_log", {"repo_path": "WORK"}, "Wind the spring"),
        ("files", "read_text_file", {"path": "WORK/note.txt"}, "tick"),
        ("everything", "get-sum", {"a": 2, "b": 3}, "5"),
    ],
)
def test_a_server_of_the_registry_is_called(
    client: OpenAI, model: Model, work: Path, label: str, tool: str, arguments: dict[str, Any], found: str, streamed: bool
) -> None:
    given = {name: value.replace("WORK", str(work)) if isinstance(value, str) else value for name, value in arguments.items()}
    model.hears("Do it", calls((tool, given)))
    model.hears(found, says("Done."))
    if streamed:
        with client.responses.stream(model=model.name, input="Do it") as stream:
            answer = stream.get_final_response()
    else:
        answer = client.responses.create(model=model.name, input="Do it")  # type: ignore[assignment]
    call = answer.output[0]
    assert call.type == "mcp_call"
    assert (call.server_label, call.name, call.status) == (label, tool, "completed")
    assert found in str(call.output)
    assert answer.output_text == "Done."
