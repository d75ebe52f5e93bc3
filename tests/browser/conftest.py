"""A browser and a site for each module of tests. Without Chromium, or a sandbox that holds it, there is nothing to test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import count

import pytest
from msgspec import Struct
from tests.browser.site import Site, guard, opened_site

from mainspring.core.errors import ToolUnavailable
from mainspring.core.items import Part
from mainspring.tools.browser.chromium import find_chromium
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import Tool, ToolContext


class Said(Struct, frozen=True):
    """A result, with what is not text apart."""

    success: bool
    output: str
    error: str
    parts: tuple[Part, ...] = ()


Ask = Callable[..., Awaitable[Said]]

_conversations = count()


@pytest.fixture(scope="session")
def chromium() -> None:
    try:
        find_chromium()
    except ToolUnavailable as error:
        pytest.skip(error.message)


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """For a whole module, so that a browser can serve all its tests."""
    return "asyncio"


@pytest.fixture(scope="module")
async def site() -> AsyncIterator[Site]:
    async with opened_site() as opened:
        yield opened


@pytest.fixture(scope="module")
async def builtins(chromium: None) -> AsyncIterator[BuiltinTools]:
    async with BuiltinTools(["browser"], guard=guard()) as opened:
        health = await opened.health()
        assert health is not None
        if health.backend != "bwrap":
            pytest.skip(f"no sandbox holds a browser here: {'; '.join(health.refused)}")
        yield opened


@pytest.fixture
def tool(builtins: BuiltinTools) -> Tool:
    return builtins.tools[0]


@pytest.fixture
async def ask(tool: Tool) -> AsyncIterator[Ask]:
    """Calls the tool in a conversation of the test's own."""
    context = ToolContext(scope=f"conversation-{next(_conversations)}")

    async def asked(operation: str, **arguments: object) -> Said:
        result = await tool.execute({"operation": operation, **arguments}, context)
        if isinstance(result.output, str):
            return Said(result.success, result.output, result.error)
        return Said(result.success, "", result.error, result.output)

    yield asked
    await asked("close")
