"""openai for Python, unmodified, with its validation of answers switched on: asking, tools, images, what is stored."""

import asyncio
import base64
import json
from typing import Any, Literal

import pytest
from openai import AsyncOpenAI, BadRequestError, NotFoundError, OpenAI
from openai.types.responses import ResponseFunctionToolCall, ResponseInputParam
from pydantic import BaseModel
from tests.clients.samples import ASKED_WEATHER, PIXEL, WEATHER
from tests.clients.upstream import Model, calls, is_cut, says


def test_a_question_is_answered_with_usage(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    answer = client.responses.create(model=model.name, input="Hello", instructions="Be kind.")
    assert answer.output_text == "Good morning to you."
    assert (answer.status, answer.model, answer.instructions) == ("completed", model.name, "Be kind.")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (11, 4, 15)
    assert model.messages() == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


async def test_the_async_client_asks_several_things_at_once(url: str, model: Model) -> None:
    words = ["one", "two", "three", "four", "five"]
    for word in words:
        model.hears(f"Say {word}", says(word))
    async with AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client:
        answers = await asyncio.gather(*[client.responses.create(model=model.name, input=f"Say {word}") for word in words])
    assert [answer.output_text for answer in answers] == words


def test_an_answer_that_does_not_fit_its_schema_has_failed_and_says_where(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", says('{"city": "Oslo"}'))
    schema = {"type": "object", "properties": {"city": {"type": "integer"}}, "required": ["city"], "additionalProperties": False}
    form: Any = {"format": {"type": "json_schema", "name": "city", "strict": True, "schema": schema}}
    answer = client.responses.create(model=model.name, input="Oslo", text=form)
    assert answer.status == "failed"
    assert answer.error is not None
    assert "city" in answer.error.message
    assert answer.output_text == '{"city": "Oslo"}'
    assert model.asked[0]["response_format"]["json_schema"]["schema"] == schema


def test_a_schema_that_is_none_is_refused_before_anything_runs(client: OpenAI, model: Model) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "city", "schema": {"type": "towel"}}}
    with pytest.raises(BadRequestError) as refused:
        client.responses.create(model=model.name, input="Oslo", text=form)
    assert refused.value.param == "text.format.schema"
    assert "text.format.schema is not a JSON Schema: type:" in str(refused.value)


def test_every_option_reaches_the_model_or_comes_back(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    answer = client.responses.create(
        model=model.name,
        input="Hello",
        temperature=0.5,
        top_p=0.25,
        max_output_tokens=100,
        reasoning={"effort": "low"},
        metadata={"ticket": "7"},
        parallel_tool_calls=False,
        truncation="disabled",
        safety_identifier="someone",
        prompt_cache_key="key",
        include=["reasoning.encrypted_content"],
        service_tier="auto",
        top_logprobs=2,
        text={"verbosity": "low"},
    )
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.25, 100)
    assert answer.metadata == {"ticket": "7"}
    assert answer.parallel_tool_calls is False
    assert (answer.safety_identifier, answer.prompt_cache_key, answer.top_logprobs) == ("someone", "key", 2)
    assert answer.reasoning is not None
    assert answer.reasoning.effort == "low"
    assert answer.text is not None
    assert answer.text.verbosity == "low"
    asked = model.asked[0]
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"], asked["reasoning_effort"]) == (0.5, 0.25, 100, "low")
    assert (asked["logprobs"], asked["top_logprobs"]) == (True, 2)


@pytest.mark.parametrize(
    "wanted", [{"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}, {"extra_body": {"logprobs": True}}]
)
def test_log_probabilities_come_back_with_the_text(client: OpenAI, model: Model, wanted: dict[str, Any]) -> None:
    model.hears("Hello", says("Hi you."))
    with client.responses.stream(model=model.name, input="Hello", **wanted) as stream:
        told = [chance.token for event in stream if event.type == "response.output_text.delta" for chance in event.logprobs]
        [message] = stream.get_final_response().output
    assert message.type == "message"
    [part] = message.content
    assert part.type == "output_text"
    assert [chance.token for chance in part.logprobs or ()] == told == ["Hi", " you."]
    assert [len(chance.top_logprobs) for chance in part.logprobs or ()] == [wanted.get("top_logprobs", 0)] * 2


def test_a_conversation_is_continued_by_its_last_response(client: OpenAI, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    first = client.responses.create(model=model.name, input="My name is Ada", instructions="Be brief.")
    second = client.responses.create(model=model.name, input="What is my name?", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.output_text == "Ada."
    assert model.messages() == [
        {"role": "user", "content": "My name is Ada"},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]


def test_a_history_is_sent_along_in_every_form_that_the_types_allow(client: OpenAI, model: Model) -> None:
    model.hears("And now", says("Fine."))
    history: ResponseInputParam = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"type": "message", "role": "assistant", "content": "Hi."},
        {"role": "user", "content": [{"type": "input_text", "text": "And now?"}]},
    ]
    assert client.responses.create(model=model.name, input=history, store=False).output_text == "Fine."
    assert model.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hi."},
        {"role": "user", "content": "And now?"},
    ]


def test_items_are_sent_along_by_reference(client: OpenAI, model: Model) -> None:
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    first = client.responses.create(model=model.name, input="My name is Ada.")
    said = first.output[0].id
    assert said is not None
    question: ResponseInputParam = [
        {"role": "user", "content": "My name is Ada."},
        {"type": "item_reference", "id": said},
        {"role": "user", "content": "What is my name?"},
    ]
    assert client.responses.create(model=model.name, input=question).output_text == "Ada."
    assert model.messages() == [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]


def test_a_reference_to_nothing_is_a_bad_request(client: OpenAI, model: Model) -> None:
    with pytest.raises(BadRequestError, match="msg_unknown") as caught:
        client.responses.create(model=model.name, input=[{"type": "item_reference", "id": "msg_unknown"}])
    assert caught.value.param == "input"


def test_a_tool_is_called_by_the_client_and_the_loop_goes_on_from_the_stored_response(client: OpenAI, model: Model) -> None:
    model.hears("weather in Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain", says("Take an umbrella."))
    first = client.responses.create(model=model.name, input="How is the weather in Oslo?", tools=[WEATHER])
    assert first.status == "completed"
    assert [item.type for item in first.output] == ["message", "function_call"]
    call = first.output[1]
    assert isinstance(call, ResponseFunctionToolCall)
    assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "Oslo"})
    second = client.responses.create(
        model=model.name,
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "rain"}],
        tools=[WEATHER],
    )
    assert second.output_text == "Take an umbrella."
    assert [asked["tools"] for asked in model.asked] == [[ASKED_WEATHER]] * 2
    function = {"name": "weather", "arguments": call.arguments}
    assert model.messages() == [
        {"role": "user", "content": "How is the weather in Oslo?"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [{"id": call.call_id, "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": call.call_id, "name": "weather", "content": "rain"},
    ]


def test_parallel_calls_are_answered_by_resending_everything(client: OpenAI, model: Model) -> None:
    model.hears("Oslo and Rome", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    model.hears("sun", says("Mixed."))
    history: ResponseInputParam = [{"role": "user", "content": "How is it in Oslo and Rome?"}]
    first = client.responses.create(model=model.name, input=history, tools=[WEATHER], store=False)
    history += [item.to_dict() for item in first.output]  # type: ignore[misc]
    for item, output in zip(first.output, ("rain", "sun"), strict=True):
        assert isinstance(item, ResponseFunctionToolCall)
        history.append({"type": "function_call_output", "call_id": item.call_id, "output": output})
    second = client.responses.create(model=model.name, input=history, tools=[WEATHER], store=False)
    assert second.output_text == "Mixed."
    assert [message["content"] for message in model.messages() if message["role"] == "tool"] == ["rain", "sun"]


@pytest.mark.parametrize(
    ("choice", "asked"),
    [
        ("required", "required"),
        ("none", "none"),
        ({"type": "function", "name": "weather"}, {"type": "function", "function": {"name": "weather"}}),
    ],
)
def test_the_choice_of_a_tool_reaches_the_model(
    client: OpenAI, model: Model, choice: Literal["required", "none"], asked: object
) -> None:
    model.hears("Oslo", says("Rain.") if choice == "none" else calls(("weather", {"city": "Oslo"})))
    answer = client.responses.create(model=model.name, input="Oslo", tools=[WEATHER], tool_choice=choice)
    assert answer.output[-1].type == ("message" if choice == "none" else "function_call")
    assert model.asked[0]["tool_choice"] == asked


class City(BaseModel):
    name: str
    people: int


def test_structured_output_is_parsed_into_the_client_s_own_type(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    answer = client.responses.parse(model=model.name, input="Tell me of Oslo", text_format=City)
    assert answer.output_parsed == City(name="Oslo", people=717710)
    form = model.asked[0]["response_format"]
    assert (form["type"], form["json_schema"]["name"], form["json_schema"]["strict"]) == ("json_schema", "City", True)
    assert form["json_schema"]["schema"]["required"] == ["name", "people"]


def test_a_json_object_is_asked_for(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo"}'))
    answer = client.responses.create(model=model.name, input="Oslo as JSON", text={"format": {"type": "json_object"}})
    assert json.loads(answer.output_text) == {"name": "Oslo"}
    assert model.asked[0]["response_format"] == {"type": "json_object"}


def test_images_and_files_are_shown_to_the_model(client: OpenAI, model: Model) -> None:
    model.hears("What are these", says("A pixel, a note and a paper."))
    text = "data:text/plain;base64," + base64.b64encode(b"a note").decode()
    pdf = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7").decode()
    answer = client.responses.create(
        model=model.name,
        input=[
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What are these?"},
                    {"type": "input_image", "image_url": PIXEL, "detail": "low"},
                    {"type": "input_file", "filename": "note.txt", "file_data": text},
                    {"type": "input_file", "filename": "paper.pdf", "file_data": pdf},
                ],
            }
        ],
    )
    assert answer.output_text == "A pixel, a note and a paper."
    assert model.messages()[0]["content"] == [
        {"type": "text", "text": "What are these?"},
        {"type": "image_url", "image_url": {"url": PIXEL, "detail": "low"}},
        {"type": "text", "text": "[file note.txt]\na note"},
        {"type": "file", "file": {"filename": "paper.pdf", "file_data": pdf}},
    ]


def test_reasoning_is_an_item_of_its_own(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi.", thinking="They greet me. I greet back."))
    answer = client.responses.create(model=model.name, input="Hello")
    thought, said = answer.output
    assert thought.type == "reasoning"
    assert thought.content is not None
    assert [part.text for part in thought.content] == ["They greet me. I greet back."]
    assert said.type == "message"
    assert answer.output_text == "Hi."


def test_an_answer_cut_by_its_limit_is_incomplete(client: OpenAI, model: Model) -> None:
    model.hears("Count", is_cut(says("One, two, three")))
    answer = client.responses.create(model=model.name, input="Count", max_output_tokens=16)
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output_text == "One, two, three"
    assert answer.output[-1].type == "message"
    assert answer.output[-1].status == "incomplete"


def test_a_response_is_kept_read_again_and_deleted(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    answer = client.responses.create(model=model.name, input="Hello", metadata={"ticket": "7"})
    assert client.responses.retrieve(answer.id) == answer
    client.responses.delete(answer.id)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(answer.id)


def test_responses_are_listed_newest_first(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    made = [client.responses.create(model=model.name, input=f"Hello {number}").id for number in range(3)]
    newest = client.get("/responses", cast_to=dict[str, Any], options={"params": {"limit": 2}})
    assert [answer["id"] for answer in newest["data"]] == [made[2], made[1]]
    assert newest["has_more"] is True
    older = client.get("/responses", cast_to=dict[str, Any], options={"params": {"limit": 1, "after": newest["last_id"]}})
    assert [answer["id"] for answer in older["data"]] == [made[0]]


def test_input_items_are_listed_page_by_page(client: OpenAI, model: Model) -> None:
    model.hears("number 4", says("Five."))
    given: ResponseInputParam = [{"role": "user", "content": f"This is number {number}."} for number in range(5)]
    answer = client.responses.create(model=model.name, input=given)
    pages = client.responses.input_items.list(answer.id, limit=2, order="asc")
    assert len(pages.data) == 2
    assert pages.has_more
    said = [item.content[0].text for item in pages if item.type == "message" and item.content[0].type == "input_text"]
    assert said == [f"This is number {number}." for number in range(5)]
    newest = client.responses.input_items.list(answer.id, limit=1).data[0]
    assert newest.type == "message"
    assert newest.content[0].to_dict() == {"type": "input_text", "text": "This is number 4."}


def test_a_long_conversation_is_compacted_and_goes_on(url: str, model: Model) -> None:
    # Its types know no user's message in what was compacted, though that is what OpenAI returns; so it is not to be strict.
    client = OpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30)
    model.hears("My name is Ada", says("Hello Ada."))
    model.hears("What is my name", says("Ada."))
    first = client.responses.create(model=model.name, input="My name is Ada.")
    model.hears("", says("The user is called Ada."))
    window = client.responses.compact(model=model.name, previous_response_id=first.id)
    assert window.output[-1].type == "compaction"
    history: list[Any] = [item.to_dict(warnings=False) for item in window.output]
    answer = client.responses.create(model=model.name, input=[*history, {"role": "user", "content": "What is my name?"}])
    assert answer.output_text == "Ada."
    assert "called Ada" in str(model.messages())
    client.close()


def test_the_tokens_of_a_question_are_counted_without_asking_it(client: OpenAI, model: Model) -> None:
    few = client.responses.input_tokens.count(model=model.name, input="Hello")
    many = client.responses.input_tokens.count(model=model.name, input="Hello " * 100, tools=[WEATHER])
    assert 0 < few.input_tokens < many.input_tokens
    assert model.asked == []


def test_models_are_those_of_the_backend(client: OpenAI, model: Model) -> None:
    assert model.name in [listed.id for listed in client.models.list()]
