"""Approvals of MCP calls, by unmodified clients that keep the history themselves."""

from collections.abc import Iterator
from typing import Any

import pytest
from agents import Agent, HostedMCPTool, ModelSettings, OpenAIResponsesModel, RunConfig, Runner, RunState
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI
from tests.clients import node
from tests.clients.process import Served, served
from tests.clients.tap import Tap, lint, tapping
from tests.clients.upstream import Model, Upstream, calls, says

QUIET = RunConfig(tracing_disabled=True)


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("approvals"), upstream.url, ["--allow-host", "127.0.0.1"]) as server:
        yield server


@pytest.fixture
def tap(portal: BlockingPortal, running: Served) -> Iterator[Tap]:
    with portal.wrap_async_context_manager(tapping(running.port)) as tap:
        yield tap
    lint(tap.streams())


@pytest.fixture(params=[True, False], ids=["approved", "refused"])
def answer(request: pytest.FixtureRequest, model: Model) -> bool:
    """What the person says; the model is prepared for it."""
    model.hears("2 and 3", calls(("add", {"a": 2, "b": 3})))
    model.hears(*(("5", says("It is five.")) if request.param else ("refused", says("Then not."))))
    model.hears("Thanks", says("Gladly."))
    return bool(request.param)


SAID = {True: "It is five.", False: "Then not."}


def server(url: str) -> Any:
    return {"type": "mcp", "server_label": "sums", "server_url": url, "require_approval": "always"}


async def run(agent: Agent[Any], given: Any, streamed: bool) -> Any:
    if not streamed:
        return await Runner.run(agent, given, run_config=QUIET)
    result = Runner.run_streamed(agent, given, run_config=QUIET)
    async for _ in result.stream_events():
        pass
    return result


@pytest.fixture(params=[None, False], ids=["stored", "unstored"])
async def adder(request: pytest.FixtureRequest, tap: Tap, model: Model) -> Any:
    async with AsyncOpenAI(base_url=tap.url, api_key="unused", max_retries=0, timeout=30) as client:
        settings = ModelSettings(store=request.param)
        yield lambda tool: Agent("Adder", tools=[tool], model=OpenAIResponsesModel(model.name, client), model_settings=settings)


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_agents_callback(adder: Any, tap: Tap, sums: str, answer: bool, streamed: bool) -> None:
    agent = adder(HostedMCPTool(server(sums), on_approval_request=lambda _: {"approve": answer}))
    result = await run(agent, "What is 2 and 3?", streamed)
    assert result.final_output == SAID[answer]
    assert [[item["type"] for item in body["input"] if "type" in item] for body in tap.posted()] == [
        [],
        ["mcp_list_tools", "mcp_approval_request", "mcp_approval_response"],
    ]
    assert "previous_response_id" not in tap.posted()[1]
    thanked = await run(agent, [*result.to_input_list(), {"role": "user", "content": "Thanks"}], streamed)
    assert thanked.final_output == "Gladly."


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
async def test_agents_state(adder: Any, sums: str, answer: bool, streamed: bool) -> None:
    """A run that was put away as text and taken up again."""
    agent = adder(HostedMCPTool(server(sums)))
    paused = await run(agent, "What is 2 and 3?", streamed)
    [asked] = paused.interruptions
    state = await RunState.from_string(agent, paused.to_state().to_string())
    [asked] = state.get_interruptions()
    if answer:
        state.approve(asked)
    else:
        state.reject(asked)
    result = await run(agent, state, streamed)
    assert result.final_output == SAID[answer]
    thanked = await run(agent, [*result.to_input_list(), {"role": "user", "content": "Thanks"}], streamed)
    assert thanked.final_output == "Gladly."


@pytest.mark.usefixtures("node_clients")
@pytest.mark.parametrize(
    ("scenario", "flags"),
    [("callback", ["streamed"]), ("callback", ["unstored"]), ("state", []), ("state", ["unstored", "streamed"])],
)
def test_agents_js(tap: Tap, model: Model, sums: str, answer: bool, scenario: str, flags: list[str]) -> None:
    words = (scenario, "approve" if answer else "refuse", sums, *flags)
    told = node.run("agents.mjs", *words, url=tap.url, model=model.name)
    assert told == {"asked": scenario == "state", "text": SAID[answer], "thanked": "Gladly."}
    assert not [body for body in tap.posted() if "previous_response_id" in body]


@pytest.mark.usefixtures("node_clients")
@pytest.mark.parametrize("flags", [[], ["streamed"]], ids=["whole", "streamed"])
def test_ai_sdk(tap: Tap, model: Model, sums: str, answer: bool, flags: list[str]) -> None:
    words = ("approval", "approve" if answer else "refuse", sums, *flags)
    told = node.run("ai.mjs", "openai", *words, url=tap.url, model=model.name)
    assert told == {"asked": 1, "text": SAID[answer], "thanked": "Gladly."}
    # This client refers to the items of the answer instead of sending them.
    assert {"item_reference", "mcp_approval_response"} == {item["type"] for item in tap.posted()[1]["input"] if "type" in item}
