"""openai for Python, sending a request again: there is one run for it, whatever went wrong on the way."""

import pytest
from openai import ConflictError, OpenAI
from tests.clients.upstream import Model, says


def test_a_request_sent_again_gets_the_response_of_the_first(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    headers = {"Idempotency-Key": model.name}
    first = client.responses.create(model=model.name, input="Hello", extra_headers=headers)
    assert client.responses.create(model=model.name, input="Hello", extra_headers=headers) == first
    assert len(model.asked) == 1


def test_a_stream_asked_for_again_is_the_same_stream(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi there."))
    headers = {"Idempotency-Key": model.name}
    told = []
    for _ in range(2):
        with client.responses.create(model=model.name, input="Hello", stream=True, extra_headers=headers) as stream:
            told.append(list(stream))
    assert told[0] == told[1]
    assert len(model.asked) == 1


def test_another_request_under_the_same_key_is_a_conflict_that_is_not_tried_again(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi."))
    headers = {"Idempotency-Key": model.name}
    client.responses.create(model=model.name, input="Hello", extra_headers=headers)
    with pytest.raises(ConflictError) as caught:
        client.with_options(max_retries=2).responses.create(model=model.name, input="Hello again", extra_headers=headers)
    assert caught.value.response.headers["x-should-retry"] == "false"
    assert len(model.asked) == 1
