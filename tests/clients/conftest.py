"""What every client meets: a model that answers by script, a server in a process of its own, and a tap on the wire between."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from openai import OpenAI
from tests.clients import node
from tests.clients.process import Served, served
from tests.clients.tap import Tap, lint, tapping
from tests.clients.upstream import Model, Upstream, serving


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """No client finds an address or a key by itself, goes through a proxy, or reports home."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("OPENAI_")]:
            patch.delenv(name)
        for name in ("NO_PROXY", "no_proxy"):
            patch.setenv(name, "127.0.0.1")
        for name in ("LANGSMITH_TRACING", "LANGCHAIN_TRACING_V2"):
            patch.setenv(name, "false")
        yield


@pytest.fixture(scope="session")
def node_clients() -> None:
    """The clients that run on Node are there; else the test is skipped, before anything is started for it."""
    node.install()


@pytest.fixture(scope="session")
def portal() -> Iterator[BlockingPortal]:
    with start_blocking_portal() as running:
        yield running


@pytest.fixture(scope="session")
def upstream(portal: BlockingPortal) -> Iterator[Upstream]:
    with portal.wrap_async_context_manager(serving()) as running:
        yield running


@pytest.fixture(scope="session")
def mainspring(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("server"), upstream.url) as running:
        yield running
    assert "Traceback" not in running.complaints()


@pytest.fixture(scope="session")
def wire(portal: BlockingPortal, mainspring: Served) -> Iterator[Tap]:
    with portal.wrap_async_context_manager(tapping(mainspring.port)) as running:
        yield running


@pytest.fixture
def tap(wire: Tap) -> Iterator[Tap]:
    """The wire during this test. Every stream that passes is checked by a client that trusts nothing."""
    wire.exchanges.clear()
    yield wire
    lint(wire.streams())


@pytest.fixture
def url(tap: Tap) -> str:
    """Where clients find the server."""
    return tap.url


@pytest.fixture
def model(upstream: Upstream, request: pytest.FixtureRequest) -> Iterator[Model]:
    """The model of this test, asked for by its name."""
    name = re.sub(r"\W+", "-", request.node.name).strip("-")[:60]
    model = upstream.model(name)
    yield model
    model.check()


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    """OpenAI's own client, told to believe nothing that its types do not allow."""
    with OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client:
        yield client


@pytest.fixture(scope="module")
def sums() -> Iterator[str]:
    """An MCP server by HTTP that adds."""
    yield from _serve_sums()


@pytest.fixture(scope="module")
def sums_by_sse() -> Iterator[str]:
    """The same by the older transport, of HTTP and SSE."""
    yield from _serve_sums("sse")


def _serve_sums(*how: str) -> Iterator[str]:
    modern = Path(__file__).parents[1] / "mcp" / "modern.py"
    with subprocess.Popen([sys.executable, str(modern), "0", *how], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()
