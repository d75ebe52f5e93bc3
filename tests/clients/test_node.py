"""openai for Node and the AI SDK, unmodified. Each test runs one scenario of a script in `node/` and looks at what it prints."""

import pytest
from tests.clients import node
from tests.clients.tap import Tap
from tests.clients.upstream import Model, calls, fails, hangs, says

pytestmark = pytest.mark.usefixtures("node_clients")

PROVIDERS = ["openai", "open-responses"]


def test_openai_answers(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you."))
    answer = node.run("openai.mjs", "create", url=url, model=model.name)
    assert answer == {"text": "Good morning to you.", "status": "completed", "tokens": 15}
    assert model.messages()[0] == {"role": "system", "content": "Be kind."}


def test_the_stream_helper_of_openai_understands_every_event(url: str, model: Model) -> None:
    model.hears("Hello", says("Good morning to you.", thinking="They greet me."))
    told = node.run("openai.mjs", "stream", url=url, model=model.name)
    assert told == {
        "deltas": ["Good", " morning", " to", " you."],
        "text": "Good morning to you.",
        "types": ["reasoning", "message"],
    }


def test_openai_parses_structured_output(url: str, model: Model) -> None:
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    assert node.run("openai.mjs", "parse", url=url, model=model.name) == {"name": "Oslo", "people": 717710}
    assert model.asked[0]["response_format"]["json_schema"]["name"] == "city"


def test_openai_runs_tools_from_a_stream_and_goes_on(url: str, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Oslo"})))
    model.hears("rain in Oslo", says("Take an umbrella."))
    assert node.run("openai.mjs", "tools", url=url, model=model.name) == {"calls": 2, "text": "Take an umbrella."}
    assert [message["role"] for message in model.messages()] == ["user", "assistant", "tool", "tool"]


def test_the_tool_runner_of_openai_takes_every_item(url: str, model: Model) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Rome"}), saying="I look."))
    model.hears("rain in", says("Take an umbrella."))
    assert node.run("openai.mjs", "runner", url=url, model=model.name) == ["Take an umbrella."] * 2


def test_openai_takes_up_reads_and_deletes_a_run(url: str, model: Model) -> None:
    model.hears("Count", hangs("one", " two"))
    model.release()
    told = node.run("openai.mjs", "resume", url=url, model=model.name)
    assert told.pop("numbers") == list(range(11))
    assert told == {"text": "one two", "status": "completed", "said": "Count", "gone": 404}


def test_openai_sends_files_and_searches_them(url: str, model: Model) -> None:
    model.hears("When?", calls(("file_search", {"queries": ["office hours"]})))
    model.hears("opens at nine", says("At nine."))
    told = node.run("openai.mjs", "files", url=url, model=model.name)
    assert told == {
        "content": "abc",
        "counts": {"in_progress": 0, "completed": 2, "failed": 0, "cancelled": 0, "total": 2},
        "found": ["hours.txt"],
        "seen": [f"response.file_search_call.{name}" for name in ("in_progress", "searching", "completed")],
        "results": ["hours.txt"],
        "text": "At nine.",
    }


def test_openai_tells_a_bad_request_by_its_class(url: str, model: Model) -> None:
    told = node.run("openai.mjs", "error", url=url, model=model.name)
    assert told == {"name": "BadRequestError", "status": 400, "param": "temperature", "type": "invalid_request_error"}


def test_openai_throws_when_a_stream_fails(url: str, model: Model) -> None:
    model.hears("Hello", fails(400))
    told = node.run("openai.mjs", "failure", url=url, model=model.name)
    assert told["seen"] == ["response.created", "response.in_progress"]
    assert "unwell" in told["message"]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_generates_text(url: str, model: Model, provider: str) -> None:
    model.hears("Hello", says("Good morning to you."))
    told = node.run("ai.mjs", provider, "generate", url=url, model=model.name)
    assert told == {"text": "Good morning to you.", "finishReason": "stop", "tokens": 15}
    assert model.messages() == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_calls_tools_until_it_has_an_answer(url: str, model: Model, tap: Tap, provider: str) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), saying="Let me see."))
    model.hears("rain in Oslo", says("Take an umbrella."))
    told = node.run("ai.mjs", provider, "tools", url=url, model=model.name)
    assert told == {"text": "Take an umbrella.", "steps": ["tool-calls", "stop"]}
    assert len(tap.posted()) == 2
    question, called, output = model.messages()
    assert question == {"role": "user", "content": "How is Oslo?"}
    assert (called["content"], called["tool_calls"][0]["function"]["name"]) == ("Let me see.", "weather")
    id = called["tool_calls"][0]["id"]
    assert output == {"role": "tool", "tool_call_id": id, "name": "weather", "content": "rain in Oslo"}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_chats_over_several_turns(url: str, model: Model, provider: str) -> None:
    model.hears("My name is Ada", says("Hello Ada.", thinking="A name."))
    model.hears("What is my name", says("Ada."))
    assert node.run("ai.mjs", provider, "chat", url=url, model=model.name) == "Ada."
    assert model.messages() == [
        {"role": "user", "content": "My name is Ada."},
        {"role": "assistant", "content": "Hello Ada."},
        {"role": "user", "content": "What is my name?"},
    ]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_streams_text_and_tools(url: str, model: Model, provider: str) -> None:
    model.hears("How is Oslo", calls(("weather", {"city": "Oslo"}), ("weather", {"city": "Oslo"})))
    model.hears("rain in Oslo", says("Take an umbrella.", thinking="It is wet."))
    told = node.run("ai.mjs", provider, "stream", url=url, model=model.name)
    assert told["text"] == "Take an umbrella."
    assert (told["parts"]["tool-call"], told["parts"]["tool-result"], told["parts"]["text-delta"]) == (2, 2, 3)
    assert told["parts"]["finish-step"] == 2


@pytest.mark.parametrize("provider", PROVIDERS)
def test_the_ai_sdk_gets_an_object(url: str, model: Model, provider: str) -> None:
    model.hears("Oslo", says('{"name": "Oslo", "people": 717710}'))
    assert node.run("ai.mjs", provider, "object", url=url, model=model.name) == {"name": "Oslo", "people": 717710}
    assert model.asked[0]["response_format"]["type"] == "json_schema"


@pytest.mark.parametrize("provider", ["openai", "open-responses"])
def test_the_ai_sdk_tells_why_the_model_failed(url: str, model: Model, provider: str) -> None:
    model.hears("Hello", fails(400))
    assert "unwell" in node.run("ai.mjs", provider, "failure", url=url, model=model.name)["message"]
