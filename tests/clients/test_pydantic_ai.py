"""pydantic-ai, unmodified, with its model for the Responses API."""

from collections.abc import AsyncIterator

import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, ModelHTTPError
from pydantic_ai.models.openai import OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from tests.clients.upstream import Model, calls, says


@pytest.fixture
async def asked(url: str, model: Model) -> AsyncIterator[OpenAIResponsesModel]:
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        yield OpenAIResponsesModel(model.name, provider=OpenAIProvider(openai_client=client))


def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def test_an_agent_calls_its_tools_and_remembers(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain in Oslo", says("Take an umbrella.", thinking="Wet."))
    model.hears("Thanks", says("Welcome."))
    agent = Agent(asked, tools=[weather], instructions="Be brief.")
    first = await agent.run("How is Oslo?")
    assert first.output == "Take an umbrella."
    second = await agent.run("Thanks", message_history=first.all_messages())
    assert second.output == "Welcome."
    assert [message["role"] for message in model.messages()] == ["system", "user", "assistant", "tool", "assistant", "user"]


async def test_an_agent_streams_its_answer(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain in Oslo", says("Take an umbrella.", thinking="Wet."))
    async with Agent(asked, tools=[weather]).run_stream("How is Oslo?") as result:
        said = [piece async for piece in result.stream_text(delta=True, debounce_by=None)]
    assert said == ["Take", " an", " umbrella."]


class City(BaseModel):
    name: str
    people: int


async def test_an_agent_with_an_output_type_gets_it_by_a_tool_call(asked: OpenAIResponsesModel, model: Model) -> None:
    model.hears("Oslo", calls(("final_result", {"name": "Oslo", "people": 717710})))
    assert (await Agent(asked, output_type=City).run("Oslo?")).output == City(name="Oslo", people=717710)
    assert model.asked[0]["tool_choice"] == "required"


async def test_a_refused_request_is_told_with_its_status(asked: OpenAIResponsesModel) -> None:
    with pytest.raises(ModelHTTPError) as caught:
        await Agent(asked).run("Hello", model_settings={"temperature": 7})
    assert caught.value.status_code == 400
