"""Conversations, as openai for Python and openai-agents use them."""

import pytest
from agents import Agent, OpenAIConversationsSession, OpenAIResponsesModel, RunConfig, Runner, function_tool
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import ResponseFunctionToolCall
from tests.clients.samples import WEATHER
from tests.clients.upstream import Model, calls, says


def test_a_conversation_is_made_changed_and_deleted(client: OpenAI) -> None:
    made = client.conversations.create(metadata={"topic": "trips"}, items=[{"role": "user", "content": "Hello"}])
    assert client.conversations.retrieve(made.id) == made
    assert client.conversations.update(made.id, metadata={"topic": "trains"}).metadata == {"topic": "trains"}
    assert client.conversations.delete(made.id).deleted is True
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(made.id)


def test_items_are_added_listed_read_and_taken_out(client: OpenAI) -> None:
    conversation = client.conversations.create().id
    added = client.conversations.items.create(conversation, items=[{"role": "user", "content": f"{n}"} for n in range(5)])
    assert len(added.data) == 5
    listed = list(client.conversations.items.list(conversation, limit=2, order="asc"))
    assert listed == added.data
    assert next(iter(client.conversations.items.list(conversation))) == added.data[-1]
    first = added.data[0]
    assert first.type == "message"
    assert client.conversations.items.retrieve(first.id, conversation_id=conversation) == first
    assert client.conversations.items.delete(first.id, conversation_id=conversation).id == conversation
    assert list(client.conversations.items.list(conversation, order="asc")) == added.data[1:]


def test_a_response_reads_its_conversation_and_adds_to_it(client: OpenAI, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    conversation = client.conversations.create(items=[{"role": "developer", "content": "Be brief."}]).id
    first = client.responses.create(model=model.name, input="My name is Ada.", conversation=conversation)
    assert first.conversation is not None
    assert first.conversation.id == conversation
    with client.responses.stream(model=model.name, input="What is my name?", conversation={"id": conversation}) as stream:
        assert stream.get_final_response().output_text == "Ada."
    assert model.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]
    kept = list(client.conversations.items.list(conversation, order="asc"))
    assert [item.role for item in kept if item.type == "message"] == ["developer", "user", "assistant", "user", "assistant"]


def test_a_tool_call_in_a_conversation_is_answered_there(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain", says("Take an umbrella."))
    conversation = client.conversations.create().id
    first = client.responses.create(model=model.name, input="Oslo?", tools=[WEATHER], conversation=conversation)
    call = first.output[0]
    assert isinstance(call, ResponseFunctionToolCall)
    second = client.responses.create(
        model=model.name,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        tools=[WEATHER],
        conversation=conversation,
    )
    assert second.output_text == "Take an umbrella."
    kept = list(client.conversations.items.list(conversation, order="asc"))
    assert [item.type for item in kept] == ["message", "function_call", "function_call_output", "message"]


def test_an_unknown_conversation_is_not_found(client: OpenAI, model: Model) -> None:
    with pytest.raises(NotFoundError):
        client.conversations.items.list("conv_unknown")
    with pytest.raises((NotFoundError, BadRequestError), match="conv_unknown"):
        client.responses.create(model=model.name, input="Hello", conversation="conv_unknown")


@function_tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


async def test_the_session_of_openai_agents_lives_on_the_server(url: str, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain in Oslo", says("Take an umbrella.", thinking="Wet."))
    model.hears("Thanks", says("Welcome."))
    quietly = RunConfig(tracing_disabled=True)
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        session = OpenAIConversationsSession(openai_client=client)
        agent = Agent("Guide", tools=[weather], model=OpenAIResponsesModel(model.name, client))
        await Runner.run(agent, "How is Oslo?", session=session, run_config=quietly)
        second = await Runner.run(agent, "Thanks", session=session, run_config=quietly)
        kept = await session.get_items()
    assert second.final_output == "Welcome."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]
    assert len(kept) >= 6


async def test_openai_agents_leaves_the_history_to_a_conversation(url: str, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    model.hears("rain in Oslo", says("Take an umbrella."))
    model.hears("Thanks", says("Welcome."))
    quietly = RunConfig(tracing_disabled=True)
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30) as client:
        conversation = (await client.conversations.create()).id
        agent = Agent("Guide", tools=[weather], model=OpenAIResponsesModel(model.name, client))
        await Runner.run(agent, "How is Oslo?", conversation_id=conversation, run_config=quietly)
        second = await Runner.run(agent, "Thanks", conversation_id=conversation, run_config=quietly)
    assert second.final_output == "Welcome."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]
