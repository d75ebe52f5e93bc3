"""openai for Python: whose fault it is, as the exceptions that its users catch."""

import httpx2
import pytest
from openai import APIError, APIStatusError, BadRequestError, InternalServerError, NotFoundError, OpenAI, RateLimitError
from tests.clients.samples import WEATHER
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, fails, says


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": 7}, "temperature"),
        ({"max_output_tokens": 1}, "max_output_tokens"),
        ({"input": 7}, "input"),
        ({"metadata": {"a": "b" * 600}}, "metadata"),
        ({"tools": [{"type": "function", "name": "not a name"}]}, "tools[0].name"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"text": {"format": {"type": "poem"}}}, "text.format"),
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
    ],
)
def test_what_cannot_be_honoured_is_a_bad_request_that_names_the_field(
    client: OpenAI, model: Model, fields: dict[str, object], param: str
) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=model.name, input="Hello", extra_body=fields)
    assert caught.value.param == param
    assert caught.value.type == "invalid_request_error"
    assert caught.value.request_id


@pytest.mark.parametrize("fields", [{}, {"input": []}, {"input": None}])
def test_a_question_that_asks_nothing_is_a_bad_request(client: OpenAI, model: Model, fields: dict[str, object]) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=model.name, extra_body=fields)
    assert caught.value.param == "input"


def test_an_unknown_previous_response_is_a_bad_request_with_its_own_code(client: OpenAI, model: Model) -> None:
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=model.name, input="Hello", previous_response_id="resp_unknown")
    assert (caught.value.code, caught.value.param) == ("previous_response_not_found", "previous_response_id")


def test_an_output_for_no_call_is_a_bad_request(client: OpenAI, model: Model) -> None:
    with pytest.raises(BadRequestError, match="No tool call found for function call output with call_id call_x"):
        client.responses.create(model=model.name, input=[{"type": "function_call_output", "call_id": "call_x", "output": "rain"}])


def test_a_call_without_its_output_is_a_bad_request(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", calls(("weather", {"city": "Oslo"})))
    first = client.responses.create(model=model.name, input="Oslo", tools=[WEATHER])
    with pytest.raises(BadRequestError, match="No tool output found for function call"):
        client.responses.create(model=model.name, input="Well?", previous_response_id=first.id, tools=[WEATHER])


def test_an_unknown_response_is_not_found(client: OpenAI) -> None:
    for ask in (client.responses.retrieve, client.responses.delete, client.responses.cancel, client.responses.input_items.list):
        with pytest.raises(NotFoundError) as caught:
            ask("resp_unknown")
        assert caught.value.type == "invalid_request_error"


def test_a_response_that_was_not_to_be_stored_is_not_found(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    answer = client.responses.create(model=model.name, input="Hello", store=False)
    with pytest.raises(NotFoundError):
        client.responses.retrieve(answer.id)
    with pytest.raises(BadRequestError) as caught:
        client.responses.create(model=model.name, input="And?", previous_response_id=answer.id)
    assert caught.value.code == "previous_response_not_found"


def test_only_what_runs_in_the_background_can_be_cancelled_and_only_while_it_runs(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    foreground = client.responses.create(model=model.name, input="Hello")
    with pytest.raises(BadRequestError, match="background"):
        client.responses.cancel(foreground.id)
    background = client.responses.create(model=model.name, input="Hello", background=True)
    with client.responses.retrieve(background.id, stream=True) as stream:
        list(stream)
    with pytest.raises(BadRequestError, match="Cannot cancel a completed response"):
        client.responses.cancel(background.id)


def test_a_body_that_is_no_json_object_is_refused(client: OpenAI) -> None:
    with pytest.raises(APIStatusError) as form:
        client.post("/responses", cast_to=httpx2.Response, options={"headers": {"content-type": "text/plain"}}, body={"a": 1})
    assert form.value.status_code == 415


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, BadRequestError, "invalid_prompt"),
        (429, RateLimitError, "rate_limit_exceeded"),
        (500, InternalServerError, "provider_unavailable"),
    ],
)
def test_a_backend_that_fails_before_it_says_anything_fails_the_request(
    client: OpenAI, model: Model, status: int, error: type[APIStatusError], code: str
) -> None:
    model.hears("Hello", fails(status))
    with pytest.raises(error, match="unwell") as caught:
        client.responses.create(model=model.name, input="Hello")
    assert caught.value.code == code


def test_a_request_that_failed_at_the_backend_is_not_sent_again_unasked(client: OpenAI, model: Model, tap: Tap) -> None:
    model.hears("Hello", fails(500))
    with pytest.raises(InternalServerError):
        client.with_options(max_retries=2).responses.create(model=model.name, input="Hello")
    assert len(tap.posted()) == 1
    # The server itself has tried the backend as often as it does by default.
    assert len(model.asked) == 3


def test_a_run_that_fails_in_the_background_says_why(client: OpenAI, model: Model) -> None:
    model.hears("Hello", fails(429))
    run_id = client.responses.create(model=model.name, input="Hello", background=True).id
    with pytest.raises(APIError, match="unwell"), client.responses.retrieve(run_id, stream=True) as stream:
        list(stream)
    kept = client.responses.retrieve(run_id)
    assert kept.status == "failed"
    assert kept.error is not None
    assert kept.error.code == "rate_limit_exceeded"
    assert "unwell" in kept.error.message
