"""openai-agents, unmodified: tools, streams, sessions, handoffs and typed answers, over the Responses API."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesModel,
    RunConfig,
    Runner,
    RunResultStreaming,
    SQLiteSession,
    function_tool,
)
from openai import APIError, AsyncOpenAI, BadRequestError
from pydantic import BaseModel
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, fails, says

QUIETLY = RunConfig(tracing_disabled=True)


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return {"Oslo": "rain", "Rome": "sun"}[city]


@pytest.fixture
async def asked(url: str, model: Model) -> AsyncIterator[OpenAIResponsesModel]:
    """The test's model as an agent asks it."""
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client:
        yield OpenAIResponsesModel(model.name, client)


async def test_an_agent_calls_its_tools_until_it_has_an_answer(asked: OpenAIResponsesModel, model: Model, tap: Tap) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    model.hears("sun", says("Stay in Rome."))
    agent = Agent("Guide", instructions="Be brief.", tools=[weather], model=asked)
    result = await Runner.run(agent, "Oslo or Rome?", run_config=QUIETLY)
    assert result.final_output == "Stay in Rome."
    assert len(tap.posted()) == 2
    assert [message["role"] for message in model.messages()] == ["system", "user", "assistant", "tool", "tool"]
    assert [message["content"] for message in model.messages()[-2:]] == ["rain", "sun"]
    tool = model.asked[0]["tools"][0]["function"]
    assert (tool["name"], tool["description"], tool["strict"]) == ("weather", "The weather in a city.", True)
    assert result.context_wrapper.usage.requests == 2
    assert result.context_wrapper.usage.input_tokens == 22


async def test_an_agent_streams_its_steps(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain", says("Take an umbrella.", thinking="Wet."))
    agent = Agent("Guide", tools=[weather], model=asked)
    result = Runner.run_streamed(agent, "How is Oslo?", run_config=QUIETLY)
    steps, text = await watched(result)
    assert text == "Let me see.Take an umbrella."
    # The order in which the steps of one answer are announced is the client's own affair.
    assert sorted(steps) == sorted(
        ["message_output_created", "tool_called", "tool_output", "reasoning_item_created", "message_output_created"]
    )
    assert result.final_output == "Take an umbrella."


async def test_the_server_may_keep_the_conversation_for_the_agent(asked: OpenAIResponsesModel, model: Model, tap: Tap) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain", says("Take an umbrella."))
    model.hears("And then", says("Dry it."))
    agent = Agent("Guide", tools=[weather], model=asked)
    first = await Runner.run(agent, "How is Oslo?", auto_previous_response_id=True, run_config=QUIETLY)
    second = await Runner.run(agent, "And then?", previous_response_id=first.last_response_id, run_config=QUIETLY)
    assert second.final_output == "Dry it."
    assert [len(body["input"]) for body in tap.posted()] == [1, 1, 1]
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_session_remembers_what_was_said_with_the_tools(
    asked: OpenAIResponsesModel, model: Model, tmp_path: Path
) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain", says("Take an umbrella.", thinking="Wet."))
    model.hears("And then", says("Dry it."))
    session = SQLiteSession("one", tmp_path / "sessions.db")
    agent = Agent("Guide", tools=[weather], model=asked, model_settings=ModelSettings(store=False))
    try:
        await Runner.run(agent, "How is Oslo?", session=session, run_config=QUIETLY)
        second = await watched(Runner.run_streamed(agent, "And then?", session=session, run_config=QUIETLY))
    finally:
        session.close()
    assert second[1] == "Dry it."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]


async def test_a_handoff_is_a_tool_call_like_any_other(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("Bonjour", calls(("transfer_to_french", {})))
    model.hears("assistant", says("Salut!"))
    french = Agent("French", handoff_description="Speaks French.", model=asked)
    result = await Runner.run(Agent("Door", handoffs=[french], model=asked), "Bonjour", run_config=QUIETLY)
    assert result.last_agent is french
    assert result.final_output == "Salut!"


class City(BaseModel):
    name: str
    people: int


async def test_an_agent_with_an_output_type_gets_it(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    result = await Runner.run(Agent("Guide", output_type=City, model=asked), "Oslo?", run_config=QUIETLY)
    assert result.final_output == City(name="Oslo", people=717710)
    assert model.asked[0]["response_format"]["type"] == "json_schema"


async def test_a_failed_turn_is_an_exception_that_says_why(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("Hello", fails(400))
    agent = Agent("Guide", model=asked)
    with pytest.raises(BadRequestError, match="unwell"):
        await Runner.run(agent, "Hello", run_config=QUIETLY)
    with pytest.raises(APIError, match="unwell"):
        await watched(Runner.run_streamed(agent, "Hello", run_config=QUIETLY))


async def watched(result: RunResultStreaming) -> tuple[list[str], str]:
    """The steps of a run as they are announced, and its text as it is said."""
    steps: list[str] = []
    text = ""
    async for event in result.stream_events():
        if event.type == "run_item_stream_event":
            steps.append(event.name)
        elif event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
    return steps, text
