"""langchain-openai, unmodified, told to use the Responses API."""

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr
from tests.clients.upstream import Model, calls, says


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def chat(url: str, model: Model) -> ChatOpenAI:
    return ChatOpenAI(
        model=model.name, base_url=url, api_key=SecretStr("unused"), use_responses_api=True, max_retries=0, timeout=30
    )


def test_invoke_answers_with_usage(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you.", thinking="They greet me."))
    answer = chat(url, model).invoke([SystemMessage("Be kind."), HumanMessage("Hello")])
    assert answer.text == "Good morning to you."
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] == 11
    assert model.messages() == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


def test_stream_tells_the_answer_piece_by_piece(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    chunks = list(chat(url, model).stream("Hello"))
    assert [chunk.text for chunk in chunks if chunk.text] == ["Good", " morning", " to", " you."]


async def test_astream_tells_calls_piece_by_piece(url: str, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    whole: AIMessageChunk | None = None
    async for chunk in chat(url, model).bind_tools([weather]).astream("Oslo"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert [call["args"] for call in whole.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]


def test_bound_tools_are_called_until_there_is_an_answer(url: str, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain in Oslo", says("Take an umbrella."))
    model.hears("Thanks", says("Welcome."))
    bound = chat(url, model).bind_tools([weather])
    messages: list[BaseMessage] = [HumanMessage("How is Oslo?")]
    answer = called(bound.invoke(messages))
    messages += [answer, *[weather.invoke(call) for call in answer.tool_calls]]
    answer = called(bound.invoke(messages))
    assert answer.text == "Take an umbrella."
    messages += [answer, HumanMessage("Thanks")]
    assert called(bound.invoke(messages)).text == "Welcome."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "assistant", "user"]
    assert model.messages()[1]["content"] == "Let me see."


class City(BaseModel):
    """A city."""

    name: str
    people: int


def test_structured_output_becomes_the_client_s_own_type(url: str, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    answer = chat(url, model).with_structured_output(City).invoke("Oslo?")
    assert answer == City(name="Oslo", people=717710)
    assert model.asked[0]["response_format"]["type"] == "json_schema"


def test_the_server_may_keep_the_conversation(url: str, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    asked = chat(url, model)
    first = asked.invoke("My name is Ada")
    assert asked.invoke("What is my name?", previous_response_id=first.response_metadata["id"]).text == "Ada."
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "user"]


def called(message: BaseMessage) -> AIMessage:
    assert isinstance(message, AIMessage)
    return message
