"""openai for Python: streams, whole and resumed, and runs in the background."""

from collections.abc import Iterator

import pytest
from openai import APIError, AsyncOpenAI, OpenAI
from openai.types.responses import Response, ResponseCompletedEvent, ResponseStreamEvent
from pydantic import BaseModel
from tests.clients.samples import WEATHER
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, fails, hangs, says
from tests.kit.waiting import PATIENCE


def kinds(events: list[ResponseStreamEvent]) -> list[str]:
    return [event.type.removeprefix("response.") for event in events]


def test_a_stream_tells_every_event_in_order(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Hi there.", thinking="Aha."))
    with client.responses.create(model=model.name, input="Hello", stream=True) as stream:
        events = list(stream)
    assert kinds(events) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done", "content_part.done",
        "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta", "output_text.done",
        "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event.sequence_number for event in events] == list(range(len(events)))
    last = events[-1]
    assert isinstance(last, ResponseCompletedEvent)
    assert client.responses.retrieve(last.response.id) == last.response


def test_the_stream_helper_gathers_text_and_the_final_response(client: OpenAI, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    with client.responses.stream(model=model.name, input="Hello") as stream:
        said = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert said == ["Good", " morning", " to", " you."]
    assert final.output_text == "Good morning to you."


async def test_the_async_stream_helper_does_the_same(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    async with (
        AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=30, _strict_response_validation=True) as client,
        client.responses.stream(model=model.name, input="Hello") as stream,
    ):
        said = [event.delta async for event in stream if event.type == "response.output_text.delta"]
        final = await stream.get_final_response()
    assert "".join(said) == final.output_text == "Good morning to you."


class City(BaseModel):
    name: str


def test_the_stream_helper_parses_structured_output_and_arguments(client: OpenAI, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo"}'))
    model.hears("weather", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"})))
    with client.responses.stream(model=model.name, input="Tell me of Oslo", text_format=City) as stream:
        assert stream.get_final_response().output_parsed == City(name="Oslo")
    with client.responses.stream(model=model.name, input="The weather?", tools=[WEATHER]) as calling:
        final = calling.get_final_response()
    wanted = [item.parsed_arguments for item in final.output if item.type == "function_call"]
    assert wanted == [{"city": "Oslo"}, {"city": "Rome"}]


def test_a_failing_backend_is_an_error_in_the_stream_and_a_failed_response_afterwards(
    client: OpenAI, model: Model, tap: Tap
) -> None:
    model.hears("Hello", fails(400))
    with (
        pytest.raises(APIError, match="unwell") as caught,
        client.responses.create(model=model.name, input="Hello", stream=True) as stream,
    ):
        list(stream)
    assert caught.value.code is not None
    first = tap.streams()[0].answer.partition(b'"id":"')[2].partition(b'"')[0].decode()
    kept = client.responses.retrieve(first)
    assert kept.status == "failed"
    assert kept.error is not None
    assert "unwell" in kept.error.message


def test_a_client_that_hangs_up_stops_the_model(client: OpenAI, model: Model) -> None:
    model.hears("Hello", hangs("Well,"))
    with client.responses.create(model=model.name, input="Hello", stream=True) as stream:
        run_id = started(stream).id
        next(event for event in stream if event.type == "response.output_text.delta")
    assert model.gone.wait(PATIENCE)
    assert finished(client, run_id).status == "cancelled"


def test_a_run_in_the_background_is_polled_until_it_is_done(client: OpenAI, model: Model) -> None:
    model.hears("Hello", hangs("Well,", "hello."))
    answer = client.responses.create(model=model.name, input="Hello", background=True)
    assert answer.status in ("queued", "in_progress")
    assert (answer.background, answer.output, answer.usage) == (True, [], None)
    model.release()
    done = finished(client, answer.id)
    assert (done.status, done.output_text) == ("completed", "Well,hello.")


def test_a_run_in_the_background_is_cancelled_and_the_model_with_it(client: OpenAI, model: Model) -> None:
    model.hears("Hello", hangs("Well,"))
    with client.responses.create(model=model.name, input="Hello", background=True, stream=True) as stream:
        run_id = started(stream).id
        next(event for event in stream if event.type == "response.output_text.delta")
        cancelled = client.responses.cancel(run_id)
    assert cancelled.status == "cancelled"
    assert model.gone.wait(PATIENCE)
    assert client.responses.retrieve(run_id) == cancelled
    assert client.responses.cancel(run_id).status == "cancelled"


def test_a_stream_cut_short_is_taken_up_where_it_stopped(client: OpenAI, model: Model) -> None:
    model.hears("Count", hangs("one two three", " four five"))
    with client.responses.create(model=model.name, input="Count", background=True, stream=True) as stream:
        run_id = started(stream).id
        last = next(event.sequence_number for event in stream if event.type == "response.output_text.delta")
    model.release()
    with client.responses.retrieve(run_id, stream=True, starting_after=last) as rest:
        events = list(rest)
    assert [event.sequence_number for event in events] == list(range(last + 1, last + 1 + len(events)))
    final = events[-1]
    assert isinstance(final, ResponseCompletedEvent)
    assert final.response.output_text == "one two three four five"


def test_the_stream_helper_takes_up_a_run_too(client: OpenAI, model: Model) -> None:
    model.hears("Count", says("one two three"))
    run_id = client.responses.create(model=model.name, input="Count", background=True).id
    with client.responses.stream(response_id=run_id) as stream:
        assert stream.get_final_response().output_text == "one two three"


def test_a_finished_run_is_streamed_again_from_the_start(client: OpenAI, model: Model) -> None:
    model.hears("Count", says("one two three"))
    with client.responses.create(model=model.name, input="Count", stream=True) as stream:
        first = list(stream)
    created = first[0]
    assert created.type == "response.created"
    with client.responses.retrieve(created.response.id, stream=True) as again:
        assert list(again) == first


def started(stream: Iterator[ResponseStreamEvent]) -> Response:
    event = next(stream)
    assert event.type == "response.created"
    return event.response


def finished(client: OpenAI, run_id: str) -> Response:
    """The response once it is at its end; asked for again and again, as a client does."""
    for _ in range(2000):
        answer = client.responses.retrieve(run_id)
        if answer.status not in ("queued", "in_progress"):
            return answer
    raise AssertionError(f"{run_id} never ends: {answer.status}")
