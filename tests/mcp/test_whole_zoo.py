"""All bad servers at once: whatever they do, and however long, the calls of others and plain requests succeed meanwhile."""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.kit.waiting import PATIENCE, until
from tests.mcp.conftest import Zoo
from tests.mcp.menagerie import ANIMALS, make
from tests.mcp.wild_web import Wild, serve

from mainspring import Engine
from mainspring.core.errors import AskPerson
from mainspring.ports import CallContext, ToolCall, ToolResult
from mainspring.providers.scripted import Scripted, say
from mainspring.tools.mcp.executor import McpTools
from mainspring.tools.mcp.server_specs import ServerSpec
from mainspring.tools.mcp.session import MOST_PAGES
from mainspring.tools.mcp.toolset import ToolRoute

pytestmark = pytest.mark.slow

PROCESSES = ("mute", "stall", "crash", "garbage", "endless", "wrong", "deep", "notifier", "talker", "asker")
FOR_EVER = 3600.0
CALLS = 40
# Ten times what is measured. The animals' own code counts, too: those of the web are in this process.
LONGEST_HOLD = 0.5


def web_spec(label: str, wild: Wild) -> ServerSpec:
    secret = {"Authorization": f"Bearer secret of {label}"}
    return ServerSpec(label, url=wild.url, trusted=True, require_approval="never", timeout=FOR_EVER, headers=secret)


async def perform(tools: McpTools, route: ToolRoute, number: int, **arguments: object) -> ToolResult:
    asked = ToolCall(f"call_{number}", route.definition.name, json.dumps(arguments), arguments)
    return await tools.execute(asked, CallContext("resp_1", route.definition, lambda text: None))


class Holds:
    """How long each step of the event loop has kept all others waiting, in seconds of CPU: other programs do not count."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0.0
        self._run = asyncio.Handle._run
        monkeypatch.setattr(asyncio.Handle, "_run", lambda handle: self._measure(handle))

    def _measure(self, handle: asyncio.Handle) -> None:
        began = time.thread_time()
        self._run(handle)
        self.longest = max(self.longest, time.thread_time() - began)


def is_good(result: ToolResult) -> bool:
    return not result.is_error


@pytest.mark.parametrize(("animal", "most"), [("endless pages", MOST_PAGES), ("gigantic list", 10)])
async def test_a_list_without_end_or_reason_is_not_asked_for_by_every_run(animal: str, most: int) -> None:
    """Other runs do not pay for it: what failed is tried again in the background, with pauses."""
    async with serve(make(animal)) as wild:
        mcp = McpTools([web_spec("wild", wild)])
        offers = [(await mcp.collect_tools()).offers[0] for _ in range(20)]
        await mcp.close()
    assert all(offer.error is None for offer in offers) == (animal == "endless pages")
    assert wild.count("tools/list") <= most


async def test_more_than_thirty_bad_servers_leave_others_calls_and_plain_requests_alone(
    zoo: Zoo, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncExitStack() as stack:
        wilds = {name: await stack.enter_async_context(serve(make(name))) for name in ANIMALS}
        good = await stack.enter_async_context(serve(Wild(is_modern=True)))
        specs = [
            web_spec("good web", good),
            zoo.spec("good"),
            *[web_spec(name, wild) for name, wild in wilds.items()],
            *[zoo.spec(name, timeout=FOR_EVER) for name in PROCESSES],
        ]
        assert len(specs) - 2 >= 30
        mcp = McpTools(specs, connect_seconds=FOR_EVER, start_seconds=1.0)
        engine = await stack.enter_async_context(Engine(Scripted(say("Hello."), repeat=True), mcp=mcp))
        async with asyncio.timeout(2 * PATIENCE):
            assert (await engine.run("Hello?")).text == "Hello."
            # The good ones are there by now or soon; the others may never be.
            await until(lambda: {"good web", "good"} <= {state.label for state in mcp.states if state.state == "ready"})
            found = await mcp.collect_tools()
            mcp.bind("resp_1", found)
            routes = list(found.routes.values())
            bad = [route for route in routes if route.spec.label not in ("good web", "good")]
            animals = [asyncio.create_task(perform(mcp, route, number)) for number, route in enumerate(bad[:200])]
            plain: list[Any] = [engine.run("Hello?") for _ in range(CALLS)]
            ours = [route for route in routes if route.spec.label in ("good web", "good") and route.tool.name == "read"]
            assert len(ours) == 2
            calls = [perform(mcp, route, 1000 + number, text="a") for route in ours for number in range(CALLS)]
            holds = Holds(monkeypatch)
            results, runs = await asyncio.gather(asyncio.gather(*calls), asyncio.gather(*plain))
            assert sum(map(is_good, results)) == 2 * CALLS
            assert [run.text for run in runs] == ["Hello."] * CALLS
            assert holds.longest < LONGEST_HOLD
        waiting = [task for task in animals if not task.done()]
        ended = [task for task in animals if task.done()]
        # Those that hang still do: nobody has waited for them.
        assert len(waiting) >= 5
        for task in waiting:
            task.cancel()
        for task in ended:
            assert isinstance(task.exception(), AskPerson | None)
        await asyncio.gather(*animals, return_exceptions=True)
        # Nobody was sent what is for another, whatever they redirect to or pass on, and what nobody waits for is not kept.
        told = {name: {sent["authorization"] for sent in wild.headers} for name, wild in (("good web", good), *wilds.items())}
        assert told == {name: {f"Bearer secret of {name}"} for name in told}
        mcp.unbind("resp_1")
        assert not mcp._bound
        assert not mcp._held
