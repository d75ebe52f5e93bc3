"""A browser session goes on in the browser of another process: with its address and its cookies, in one of them at a time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.browser.site import Site, guard

from mainspring.engine.presence import Presence
from mainspring.storage.sqlite_runs import SqliteStore
from mainspring.tools.builtin.builtins import BuiltinTools
from mainspring.tools.contract import Tool, ToolContext

pytestmark = pytest.mark.slow

ANN = ToolContext(tenant="a", scope="conv_1")
BOB = ToolContext(tenant="b", scope="conv_1")


class Processes:
    """Servers on one store, each with a browser of its own."""

    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder, self._stack = folder, stack
        self.presences: list[Presence] = []
        self.builtins: list[BuiltinTools] = []

    async def start(self) -> Tool:
        store = SqliteStore(self._folder / "runs.db")
        await store.open()
        self._stack.push_async_callback(store.close)
        self.presences.append(Presence(store))
        self._stack.push_async_callback(self.presences[-1].leave)
        self.builtins.append(BuiltinTools(["browser"], guard=guard()))
        self.builtins[-1].keep_in(store, self.presences[-1])
        await self._stack.enter_async_context(self.builtins[-1])
        return self.builtins[-1].tools[0]


@pytest.fixture
async def processes(builtins: BuiltinTools, tmp_path: Path) -> AsyncIterator[Processes]:
    async with AsyncExitStack() as stack:
        yield Processes(tmp_path, stack)


async def told(tool: Tool, context: ToolContext, operation: str, **arguments: object) -> str:
    result = await tool.execute({"operation": operation, **arguments}, context)
    return str(result.output) or result.error


async def test_a_session_goes_on_in_another_browser_with_its_address_and_cookies(site: Site, processes: Processes) -> None:
    first, second = await processes.start(), await processes.start()
    site.pages["/login"] = "<title>Set</title><script>document.cookie = 'who=ann'</script>"
    await told(first, ANN, "open", url=f"{site.url}/login")
    await told(first, ANN, "open", url=f"{site.url}/next?page=2")
    seen = await told(second, ANN, "text")
    assert seen.startswith(f"# Next\n{site.url}/next?page=2\nThe page was opened anew in another browser")
    assert "The next page for ann." in seen
    assert "opened anew" not in await told(second, ANN, "text"), "it is told once"
    assert "no page is open" in await told(second, BOB, "text"), "which is another tenant"
    clicked = await told(second, ANN, "click", number=1)
    assert clicked.startswith(f"# The shop\n{site.url}/\n")
    assert (await told(first, ANN, "text")).startswith(f"# The shop\n{site.url}/\nThe page was opened anew")
    assert "for ann" in await told(second, ANN, "open", url=f"{site.url}/next")


async def test_a_session_that_is_closed_is_closed_everywhere(site: Site, processes: Processes) -> None:
    first, second = await processes.start(), await processes.start()
    site.pages["/login"] = "<title>Set</title><script>document.cookie = 'who=ann'</script>"
    await told(first, ANN, "open", url=f"{site.url}/login")
    await told(second, ANN, "close")
    assert "no page is open" in await told(first, ANN, "text")
    assert "for nobody" in await told(first, ANN, "open", url=f"{site.url}/next")


async def test_what_is_idle_is_forgotten_and_what_has_moved_is_closed(
    site: Site, processes: Processes, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = await processes.start(), await processes.start()
    await told(first, ANN, "open", url=f"{site.url}/next")
    await told(second, ANN, "text")
    [one, two] = [tools._browser for tools in processes.builtins]
    assert one is not None
    assert two is not None
    await one.expire()
    assert (one.pid, two.pid is None) == (None, False), "nothing is left to do for the first browser"
    assert one._shared is not None
    monkeypatch.setattr(one._shared, "_idle_seconds", 1e-6)
    await one.expire()
    assert "no page is open" in await told(first, ANN, "text")
