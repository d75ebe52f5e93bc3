"""Tools that the server runs: clients see that they were called, and take none of them for their own."""

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from agents import Agent, OpenAIResponsesModel, RunConfig, Runner
from anyio.from_thread import BlockingPortal
from openai import AsyncOpenAI, OpenAI
from tests.clients import node
from tests.clients.process import served
from tests.clients.standard import Event, Response
from tests.clients.tap import lint, tapping
from tests.clients.upstream import Model, Upstream, calls, says
from tests.server.linter import events_of, linted

TOOLS = '''
from mainspring import tool


@tool
def departure(city: str) -> str:
    """When the next train leaves for a city."""
    return f"at noon, for {city}"
'''


@pytest.fixture
def url(portal: BlockingPortal, upstream: Upstream, tmp_path: Path) -> Iterator[str]:
    """A server that has a tool of its own."""
    (tmp_path / "timetable.py").write_text(TOOLS)
    with (
        served(tmp_path, upstream.url, ["--tool", "timetable"]) as running,
        portal.wrap_async_context_manager(tapping(running.port)) as tap,
    ):
        yield tap.url
    lint(tap.streams())


@pytest.fixture(autouse=True)
def trip(model: Model) -> None:
    model.hears("Oslo", calls(("departure", {"city": "Oslo"}), saying="Let me look."))
    model.hears("at noon, for Oslo", says("Be there at noon."))


def test_openai_gets_the_answer_in_one_go_and_can_go_on_from_it(client: OpenAI, model: Model) -> None:
    model.hears("Thanks", says("Have a good trip."))
    first = client.responses.create(model=model.name, input="How do I get to Oslo?")
    assert first.output_text == "Let me look.Be there at noon."
    second = client.responses.create(model=model.name, input="Thanks", previous_response_id=first.id)
    assert second.output_text == "Have a good trip."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]


def test_the_stream_helper_of_openai_follows_the_whole_loop(client: OpenAI, model: Model) -> None:
    with client.responses.stream(model=model.name, input="How do I get to Oslo?") as stream:
        assert stream.get_final_response().output_text == "Let me look.Be there at noon."


async def test_a_client_of_the_standard_is_told_of_nothing_that_the_standard_does_not_know(url: str, model: Model) -> None:
    body = {"model": model.name, "input": "How do I get to Oslo?"}
    async with aiohttp.ClientSession(headers={"OpenResponses-Version": "latest"}) as session:
        async with session.post(f"{url}/responses", json=body) as answer:
            made = msgspec.json.decode(await answer.read(), type=Response)
        async with session.post(f"{url}/responses", json={**body, "stream": True}) as answer:
            events = events_of(await answer.read())
    kinds = ["Message", "FunctionCall", "FunctionCallOutput", "Message"]
    assert [type(item).__name__ for item in made.output] == kinds
    for event in events:
        msgspec.convert(event, Event)
    told = msgspec.convert(linted(events), Response)
    assert [type(item).__name__ for item in told.output] == kinds


async def test_openai_agents_leaves_alone_the_calls_that_the_server_ran(url: str, model: Model) -> None:
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        agent = Agent("Guide", model=OpenAIResponsesModel(model.name, client))
        result = await Runner.run(agent, "How do I get to Oslo?", run_config=RunConfig(tracing_disabled=True))
    assert result.final_output == "Be there at noon."


@pytest.mark.usefixtures("node_clients")
@pytest.mark.parametrize("provider", ["openai", "open-responses"])
@pytest.mark.parametrize("scenario", ["tools", "stream"])
def test_the_ai_sdk_leaves_alone_the_calls_that_the_server_ran(url: str, model: Model, provider: str, scenario: str) -> None:
    told = node.run("ai.mjs", provider, scenario, url=url, model=model.name)
    assert told["text"].endswith("Be there at noon.")
    assert len(model.asked) == 2
