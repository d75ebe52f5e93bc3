"""The Responses API over a WebSocket, as openai for Python and openai-agents use it."""

from collections.abc import Iterator

from agents import Agent, OpenAIResponsesWSModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, OpenAI
from openai.types.responses import Response
from tests.clients.upstream import Model, calls, says
from tests.server.linter import linted


def test_one_connection_of_openai_serves_turn_after_turn(client: OpenAI, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    with client.responses.connect(max_retries=0) as connection:
        connection.response.create(model=model.name, input="My name is Ada.", store=False)
        first = completed(iter(connection))
        connection.response.create(model=model.name, input="What is my name?", store=False, previous_response_id=first.id)
        second = completed(iter(connection))
    assert (first.output_text, second.output_text) == ("Hello Ada.", "Ada.")
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "user"]


def test_openai_is_told_what_a_socket_refuses_and_goes_on(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    with client.responses.connect(max_retries=0) as connection:
        connection.response.create(model=model.name, input="Hello", previous_response_id="resp_unknown")
        refusal = connection.recv()
        assert refusal.type == "error"
        assert "previous_response_not_found" in refusal.to_json()
        connection.response.create(model=model.name, input="Hello")
        assert completed(iter(connection)).output_text == "Hi."


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def test_openai_agents_runs_its_loop_over_a_socket(url: str, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain in Oslo", says("Take an umbrella.", thinking="Wet."))
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        asked = OpenAIResponsesWSModel(model.name, client)
        agent = Agent("Guide", tools=[weather], model=asked)
        try:
            result = await Runner.run(agent, "How is Oslo?", run_config=RunConfig(tracing_disabled=True))
        finally:
            await asked.close()
    assert result.final_output == "Take an umbrella."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool"]


def completed(events: Iterator[object]) -> Response:
    """The response of one turn, whose events are checked one by one."""
    told = []
    for event in events:
        told.append(event.to_dict())  # type: ignore[attr-defined]
        if told[-1]["type"] == "response.completed":
            break
    linted(told)
    return event.response  # type: ignore[attr-defined, no-any-return]
