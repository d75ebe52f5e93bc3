"""Clients of Chat Completions and of Messages, unmodified, against a server as its operator starts it."""

from typing import Any

import pytest
from anthropic import Anthropic
from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, SecretStr
from tests.clients import node
from tests.clients.samples import ASKED_WEATHER, PIXEL
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, says

HELLO: Any = [{"role": "user", "content": "Hello"}]
CALLED = calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}), saying="I look.")


class City(BaseModel):
    name: str
    people: int


def test_openai_asks_with_options_that_reach_the_model(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Good morning to you.", thinking="They greet me."))
    seen: Any = [{"type": "text", "text": "Hello"}, {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}}]
    answer = client.chat.completions.create(
        model=model.name,
        messages=[{"role": "system", "content": "Be kind."}, {"role": "user", "content": seen}],
        stop=["END"],
        seed=7,
        max_tokens=50,
        logprobs=True,
        top_logprobs=1,
    )
    choice = answer.choices[0]
    assert (choice.message.content, choice.finish_reason) == ("Good morning to you.", "stop")
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (11, 7)
    assert choice.logprobs is not None
    assert [entry.token for entry in choice.logprobs.content or ()] == ["Good", " morning", " to", " you."]
    asked = model.asked[0]
    assert (asked["stop"], asked["seed"], asked["max_tokens"]) == (["END"], 7, 50)
    assert asked["messages"] == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": seen}]


def test_the_helpers_of_openai_stream_and_parse(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    with client.chat.completions.stream(model=model.name, messages=HELLO) as stream:
        said = [event.delta for event in stream if event.type == "content.delta" and event.delta]
        final = stream.get_final_completion()
    assert (said, final.choices[0].message.content) == (["Good", " morning", " to", " you."], "Good morning to you.")
    oslo: Any = [{"role": "user", "content": "Oslo?"}]
    parsed = client.chat.completions.parse(model=model.name, messages=oslo, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Oslo", people=717710)


def test_openai_performs_calls_of_a_stream_and_goes_on(client: OpenAI, model: Model) -> None:
    model.hears("How is it", CALLED)
    model.hears("rain", says("Take an umbrella."))
    messages: Any = [{"role": "user", "content": "How is it?"}]
    tools: Any = [ASKED_WEATHER]
    with client.chat.completions.stream(model=model.name, messages=messages, tools=tools) as stream:
        message = stream.get_final_completion().choices[0].message
    assert message.tool_calls is not None
    assert [call.function.arguments for call in message.tool_calls] == ['{"city": "Oslo"}', '{"city": "Rome"}']
    results = [{"role": "tool", "tool_call_id": call.id, "content": "rain"} for call in message.tool_calls]
    back: Any = [*messages, message.model_dump(exclude_none=True, exclude={"parsed": True}), *results]
    answer = client.chat.completions.create(model=model.name, messages=back, tools=tools)
    assert answer.choices[0].message.content == "Take an umbrella."
    assert [each["role"] for each in model.messages()] == ["user", "assistant", "tool", "tool"]


def test_langchain_in_chat_mode_streams_and_goes_on_after_calls(url: str, model: Model) -> None:
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    model.hears("How is it", CALLED)
    model.hears("rain", says("Take an umbrella."))
    chat = ChatOpenAI(model=model.name, base_url=url, api_key=SecretStr("unused"), use_responses_api=False, max_retries=0)
    bound = chat.bind_tools([weather])
    said: list[BaseMessage] = [HumanMessage("How is it?")]
    answer = bound.invoke(said)
    said.append(answer)
    said += [ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"]) for call in answer.tool_calls]
    chunks = list(bound.stream(said))
    assert "".join([str(chunk.text) for chunk in chunks]) == "Take an umbrella."
    assert len(answer.tool_calls) == 2


def test_anthropic_streams_thoughts_words_and_calls(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you.", thinking="They greet me."))
    with (
        Anthropic(base_url=url.removesuffix("/v1"), api_key="unused", max_retries=0) as client,
        client.messages.stream(model=model.name, max_tokens=500, messages=HELLO, stop_sequences=["END"]) as stream,
    ):
        said = list(stream.text_stream)
        final = stream.get_final_message()
    assert said == ["Good", " morning", " to", " you."]
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert (final.usage.input_tokens, final.usage.output_tokens, final.stop_reason) == (11, 7, "end_turn")
    assert model.asked[0]["stop"] == ["END"]


@pytest.mark.usefixtures("node_clients")
def test_openai_for_node_streams_parses_and_runs_tools(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    model.hears("Oslo?", says('{"name": "Oslo", "people": 717710}'))
    model.hears("How is Oslo", CALLED)
    model.hears("rain", says("Take an umbrella."))
    assert node.run("openai.mjs", "chat", url=url, model=model.name) == {
        "deltas": ["Good", " morning", " to", " you."],
        "tokens": 15,
        "parsed": {"name": "Oslo", "people": 717710},
        "ran": "Take an umbrella.",
        "called": 2,
        "forwarded": "Good morning to you.",
    }


@pytest.mark.usefixtures("node_clients")
def test_anthropic_for_typescript_streams_and_runs_tools(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you.", thinking="They greet me."))
    model.hears("How is Oslo", CALLED)
    model.hears("rain", says("Take an umbrella."))
    model.hears("What is there to do", calls(("memory", {"command": "view", "path": "/memories"})))
    model.hears("bread", says("Buy bread."))
    model.hears("Oslo?", says('{"name": "Oslo", "people": 717710}'))
    assert node.run("anthropic.mjs", url=url, model=model.name) == {
        "deltas": ["Good", " morning", " to", " you."],
        "kinds": ["thinking", "text"],
        "stop": "end_turn",
        "ran": "Take an umbrella.",
        "refused": {"name": "BadRequestError", "status": 400, "type": "invalid_request_error"},
        "counts": True,
        "streamed": ["message_start", "message_start"],
        "remembered": "Buy bread.",
        "parsed": {"name": "Oslo", "people": 717710},
        "models": ["model"],
    }


@pytest.mark.usefixtures("node_clients")
@pytest.mark.parametrize("provider", ["chat", "anthropic"])
def test_the_ai_sdk_streams_and_runs_tools(url: str, model: Model, tap: Tap, provider: str) -> None:
    model.hears("How is Oslo", CALLED)
    model.hears("rain", says("Take an umbrella."))
    told = node.run("ai.mjs", provider, "stream", url=url, model=model.name)
    assert told["text"] == "Take an umbrella."
    assert (told["parts"]["tool-call"], told["parts"]["tool-result"]) == (2, 2)
    assert len(tap.exchanges) == 2
