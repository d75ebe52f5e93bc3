"""What the MCP tests share: servers of the zoo by name, connections that are closed behind each test."""

import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec import Struct

from mainspring.tools.mcp.server_connection import McpConnection
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.sandbox.local import NOBODY

ZOO = Path(__file__).parent / "zoo.py"


Connect = Callable[..., McpConnection]


class Zoo(Struct, frozen=True):
    """The folder in which the servers of a test keep their logs."""

    folder: Path

    def spec(self, animal: str, **more: Any) -> ServerSpec:
        fields = {"label": animal, "require_approval": "never", "sandboxed": False, **more}
        command = (str(ZOO), animal, str(self.log(animal)))
        self.log(animal).touch()
        return ServerSpec(transport="stdio", command=sys.executable, args=command, trusted=True, **fields)

    def log(self, animal: str) -> Path:
        return self.folder / f"{animal}.log"

    def pids(self, animal: str) -> list[int]:
        """The server's own process, and that of its child if it has one."""
        return [int(pid) for pid in self.log(animal).with_suffix(".pids").read_text().split()]

    def count(self, animal: str, method: str) -> int:
        """How many messages of a kind have reached the server."""
        return self.log(animal).read_text().count(f'"{method}"')


def give(folder: Path) -> None:
    """What belongs to root is not for the sandbox's user, who is another one then."""
    if os.getuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


@pytest.fixture
def zoo(tmp_path: Path) -> Zoo:
    return Zoo(tmp_path)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    opened: list[McpConnection] = []

    def connected(spec: ServerSpec, **options: Any) -> McpConnection:
        opened.append(McpConnection(spec, **options))
        return opened[-1]

    yield connected
    for connection in opened:
        await connection.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session
