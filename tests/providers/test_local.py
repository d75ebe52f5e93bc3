"""The real thing: llama.cpp in a child process, with the default model, asked as any other provider is."""

import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import anyio
import msgspec
import pytest
from aiohttp import ClientSession
from jsonschema_rs import validator_for
from msgspec.structs import replace
from tests.providers.backend import QUESTION as CLOCKWORK
from tests.providers.backend import events_of

from mainspring import Engine, tool
from mainspring.core.errors import BadOutput, ContextOverflow, InvalidRequest, Refused, Unavailable
from mainspring.core.events import ItemDone, ModelEvent, TextDelta, TurnEnded
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Json,
    Message,
    ToolDefinition,
    user,
)
from mainspring.core.model_request import ModelRequest
from mainspring.core.spec import ToolChoice
from mainspring.ports import Provider
from mainspring.providers.local import provider as module
from mainspring.providers.local.model_process import ModelOrder
from mainspring.providers.local.provider import Local, is_available
from mainspring.providers.local.weights import STYLES, fetch_weights, find_cache_folder, find_source

QUESTION = replace(CLOCKWORK, model="local")

DIALECT = "https://json-schema.org/draft/2020-12/schema"
HELLO = replace(QUESTION, items=(user("Say hello."),), max_output_tokens=12, temperature=0.0)


def schema(*required: str, **properties: Json) -> Json:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT: Json = {"type": "string", "maxLength": 40}
DEGREES: Json = {"enum": ["celsius", "fahrenheit"]}
URGENCY: Json = {"type": "integer", "minimum": 1, "maximum": 5}
PEOPLE: Json = {"type": "array", "items": TEXT, "minItems": 1, "maxItems": 2}
LEG = schema("day", day={"type": "string", "format": "date"}, to={"type": "string", "pattern": "^[A-Z]{3}$"})
LEGS: Json = {"type": "array", "items": {"$ref": "#/$defs/leg"}, "minItems": 1, "maxItems": 2}
MONEY: Json = {"allOf": [{"enum": ["EUR", "USD", "JPY"]}], "title": "To"}
TOOLS = (
    ToolDefinition("get_weather", "Tells the weather of a city.", schema("city", city=TEXT, unit=DEGREES)),
    ToolDefinition("add_task", "Adds a task.", schema("title", "urgency", title=TEXT, urgency=URGENCY, done={"type": "boolean"})),
    ToolDefinition("send_mail", "Sends a mail.", schema("to", "about", to=PEOPLE, about={"anyOf": [TEXT, {"type": "null"}]})),
    ToolDefinition("book", "Books a trip.", {"$schema": "draft-07", **schema("legs", legs=LEGS), "$defs": {"leg": LEG}}),
    ToolDefinition("convert", "Converts money.", schema("amount", "to", amount={"type": "number"}, to=MONEY)),
    ToolDefinition("now", "Tells the time.", {"type": "object"}),
)
ODD = ToolDefinition("odd", "", schema("a", a={"type": "file"}))
PROMPTS = (
    "What is the weather in Paris?", "Remind me to buy milk.", "Write to Ann about lunch.", "I want to fly to Rome on Monday.",
    "How much is 20 dollars in euros?", "What time is it?", "Hello!", "Tell me a joke.", "", "äöü 😀 \"quoted\" \\ back",
)  # fmt: skip


@pytest.fixture(scope="session")
def weights() -> Path:
    """The default model, from the user's cache, where it stays."""
    if not is_available():
        pytest.skip("the local runtime has no wheel for this machine: pip install 'mainspring[local]'")

    async def fetch() -> Path:
        return await fetch_weights(find_source("smollm2"), find_cache_folder(), print)

    try:
        return anyio.run(fetch)
    except Unavailable as error:
        pytest.skip(f"the weights of the default model cannot be had: {error}")


@pytest.fixture
async def model(weights: Path) -> AsyncIterator[Local]:
    local = Local(str(weights), context_tokens=2048)
    yield local
    await local.close()


def texts(events: list[ModelEvent]) -> list[str]:
    return [event.delta for event in events if isinstance(event, TextDelta)]


def calls(events: list[ModelEvent]) -> list[FunctionCall]:
    return [event.item for event in events if isinstance(event, ItemDone) and isinstance(event.item, FunctionCall)]


async def listened(model: Local, request: ModelRequest) -> tuple[list[ModelEvent], BadOutput | None]:
    """What is heard of an answer, and how it failed."""
    heard: list[ModelEvent] = []
    try:
        async for event in model.stream(request):
            heard.append(event)
    except BadOutput as error:
        return heard, error
    return heard, None


def end_of(pid: int) -> select.poll:
    """What becomes ready when the process, whoever's child it is, has ended."""
    ended = select.poll()
    ended.register(os.pidfd_open(pid), select.POLLIN)
    return ended


def test_without_the_runtime_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUNTIME", "no_such_runtime")
    assert not is_available()
    with pytest.raises(InvalidRequest, match=re.escape("pip install 'mainspring[local]'")):
        Local()


def test_making_one_starts_nothing_and_imports_no_runtime(weights: Path) -> None:
    code = f"import sys; from mainspring.providers.local.provider import Local; print(Local({str(weights)!r}).pid, *sys.modules)"
    pid, *loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout.split()
    assert pid == "None"
    assert "mainspring.providers.local.provider" in loaded
    assert "xllamacpp" not in loaded


@pytest.mark.slow
async def test_the_smallest_model_is_asked_as_its_maker_advises(weights: Path) -> None:
    style = STYLES["smollm2"]
    order = ModelOrder(str(weights), 512, 2, "key", "smollm2", 1, style.temperature, style.top_p)
    command = [sys.executable, "-m", "mainspring.providers.local.model_process"]
    async with await anyio.open_process(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        await process.stdin.send(msgspec.json.encode(order) + b"\n")
        address = (await process.stdout.receive()).decode().strip()
        head = {"Authorization": "Bearer key"}
        async with (
            ClientSession() as session,
            session.post(f"{address}/completion", json={"prompt": "a", "n_predict": 1}, headers=head) as reply,
        ):
            used = (await reply.json())["generation_settings"]
        await process.stdin.aclose()
    assert (used["temperature"], used["top_p"]) == (pytest.approx(0.2), pytest.approx(0.9))
    assert style.most_tokens is not None


@pytest.mark.slow
async def test_it_answers_in_a_stream_and_counts_its_tokens(model: Local) -> None:
    provider: Provider = model
    events = await events_of(provider, HELLO)
    assert len(texts(events)) > 3
    ended = events[-1]
    assert isinstance(ended, TurnEnded)
    assert ended.usage is not None
    assert 0 < ended.usage.output_tokens <= 12
    assert [info.id.endswith(".gguf") for info in await model.models()] == [True]


@pytest.mark.slow
async def test_many_requests_at_once_start_one_child_and_say_so_once(weights: Path) -> None:
    said: list[str] = []
    local = Local(str(weights), progress=said.append)
    answered: list[str] = []

    async def ask() -> None:
        answered.append("".join(texts(await events_of(local, HELLO))))

    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(ask)
    await local.close()
    assert len(answered) == 4
    assert all(answered)
    assert said[0] == f"loading {weights.name} (98 MB) ..."
    assert said[1].endswith("is ready")
    assert len(said) == 2


@pytest.mark.slow
async def test_who_gives_up_while_it_loads_leaves_the_next_one_a_fresh_start(weights: Path) -> None:
    with anyio.CancelScope() as patience:
        local = Local(str(weights), progress=lambda _: patience.cancel())
        await events_of(local, HELLO)
    assert patience.cancelled_caught
    assert local.pid is None
    assert texts(await events_of(local, HELLO))
    await local.close()


@pytest.mark.slow
async def test_structured_output_has_its_schema(model: Local) -> None:
    form = schema("city", "people", city=TEXT, people={"type": "integer"})
    request = ModelRequest(
        run_id="resp_1",
        model="local",
        items=(user("Paris has two million people."),),
        max_output_tokens=100,
        text={"format": {"type": "json_schema", "name": "city", "schema": form}},
    )
    answer = msgspec.json.decode("".join(texts(await events_of(model, request))))
    assert validator_for(form).is_valid(answer), answer


@pytest.mark.slow
async def test_forced_calls_are_valid_for_their_schema_at_every_temperature(model: Local) -> None:
    validators = {tool.name: validator_for({**(tool.parameters or {}), "$schema": DIALECT}) for tool in TOOLS}
    # Tool by tool, so that the model need not read its instructions anew each time.
    choices = [*[ToolChoice(name=tool.name) for tool in TOOLS], *[ToolChoice("required")] * 3]
    cut_off = 0
    for number, choice in enumerate(choices):
        asking = replace(HELLO, items=(user(PROMPTS[number % len(PROMPTS)]),), temperature=number % 3 / 2, max_output_tokens=150)
        events = await events_of(model, replace(asking, tools=TOOLS, tool_choice=choice))
        if isinstance(ended := events[-1], TurnEnded) and ended.finish == "length":
            # A model of chance may ramble until it is cut off; what it has said of a call then is none.
            assert calls(events) == []
            cut_off += 1
            continue
        [call] = calls(events)
        assert choice.name in (None, call.name)
        assert validators[call.name].is_valid(msgspec.json.decode(call.arguments)), call
    assert cut_off <= 2


THREE: Json = {"type": "string", "maxLength": 3}
AWKWARD = {
    "pattern": schema("x", x={"type": "string", "pattern": r"^\d{3}$"}),
    "multipleOf": schema("x", x={"type": "integer", "multipleOf": 7, "minimum": 1}),
    "exclusiveMinimum": schema("x", x={"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "not": schema("x", x={**THREE, "not": {"enum": ["f"]}}),
    "oneOf": {**schema(a=THREE, b=THREE), "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "allOf": {"allOf": [{"type": "object", "properties": {name: URGENCY}, "required": [name]} for name in ("a", "b")]},
}


@pytest.mark.slow
async def test_a_call_that_no_grammar_can_hold_to_its_schema_is_valid_or_not_made(model: Local) -> None:
    made: set[str] = set()
    for name, parameters in AWKWARD.items():
        request = replace(HELLO, tools=(ToolDefinition("f", "Does it.", parameters),), tool_choice=ToolChoice("required"))
        heard, failed = await listened(model, replace(request, items=(user("Use f."),), max_output_tokens=100))
        if failed is None:
            [call] = calls(heard)
            assert validator_for(parameters).is_valid(msgspec.json.decode(call.arguments)), call
            made.add(name)
        else:
            assert "called `f` 3 times with arguments that do not fit its schema" in failed.message
            assert heard == []
    assert made >= {"pattern", "oneOf", "allOf"}


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (Message("user", (InputText("What is it?"), InputImage("data:image/png;base64,AA=="))), "the input has an image"),
        (FunctionCallOutput("call_1", (InputFile(filename="a.pdf", file_data="AA=="),)), "the input has a file"),
    ],
)
async def test_what_has_to_be_looked_at_is_refused_before_anything_starts(weights: Path, item: Item, words: str) -> None:
    local = Local(str(weights))
    with pytest.raises(Refused, match=f"{words}; leave it out, or use a model behind an API"):
        await events_of(local, replace(HELLO, items=(item,)))
    assert local.pid is None


@pytest.mark.slow
async def test_a_forced_call_is_made_performed_and_answered_in_words(model: Local) -> None:
    @tool
    def get_weather(city: str) -> str:
        """Tells the weather of a city."""
        return f"It rains in {city}."

    async with Engine(model, tools=[get_weather]) as engine:
        forced = ToolChoice(name="get_weather")
        run = await engine.run("What is the weather in Paris?", tool_choice=forced, max_turn_tokens=60, temperature=0.0)
    items = [entry.item for entry in run.transcript]
    called = next(item for item in items if isinstance(item, FunctionCall))
    output = next(item for item in items if isinstance(item, FunctionCallOutput))
    assert called.name == "get_weather"
    assert str(output.output).startswith("It rains in ")
    assert isinstance(items[-1], Message)
    assert items[-1].role == "assistant"
    assert items[-1].text


@pytest.mark.slow
async def test_a_child_that_dies_fails_its_request_and_is_started_anew_for_the_next(
    model: Local, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Refused):
        await events_of(model, replace(HELLO, tools=(ODD,)))
    stream = model.stream(replace(HELLO, items=(user("Tell me a long story."),), max_output_tokens=1000))
    await anext(stream)
    first = model.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    with pytest.raises(Unavailable) as caught:
        [event async for event in stream]
    assert caught.value.message == (
        "the local model's process was ended by SIGKILL while it answered; ask again, and it is started anew"
    )
    assert [record.getMessage().partition(";")[0] for record in caplog.records if record.name == module.__name__] == [
        "the local model's process was ended by SIGKILL"
    ]
    assert texts(await events_of(model, HELLO))
    assert model.pid not in (None, first)


@pytest.mark.slow
async def test_all_requests_of_a_child_that_dies_fail_in_words(model: Local) -> None:
    streams = [model.stream(replace(HELLO, max_output_tokens=1000)) for _ in range(2)]
    await anext(streams[0])
    pid = model.pid
    assert pid is not None
    waiting: list[str] = []

    async def wait(stream: AsyncGenerator[ModelEvent, None]) -> None:
        with pytest.raises(Unavailable) as caught:
            [event async for event in stream]
        waiting.append(caught.value.message)

    async with anyio.create_task_group() as tasks:
        for stream in streams:
            tasks.start_soon(wait, stream)
        await anyio.wait_all_tasks_blocked()
        os.kill(pid, signal.SIGKILL)
    assert ["ended by SIGKILL" in words for words in waiting] == [True, True]


@pytest.mark.slow
async def test_closing_ends_the_child(model: Local) -> None:
    await events_of(model, HELLO)
    pid = model.pid
    assert pid is not None
    ended = end_of(pid)
    await model.close()
    assert (model.pid, model.address) == (None, None)
    assert await anyio.to_thread.run_sync(ended.poll, 30_000)


@pytest.mark.slow
def test_the_child_goes_with_a_parent_that_is_killed(weights: Path) -> None:
    code = f"""
import anyio
from mainspring.core.items import user
from mainspring.core.model_request import ModelRequest
from mainspring.providers.local.provider import Local

async def main():
    local = Local({str(weights)!r})
    async for _ in local.stream(ModelRequest("resp_1", "local", (user("Hi"),), max_output_tokens=1)):
        pass
    print(local.pid, flush=True)
    await anyio.sleep_forever()

anyio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        ended = end_of(int(parent.stdout.readline()))
        assert not ended.poll(0)
        parent.kill()
    assert ended.poll(30_000)


@pytest.mark.slow
@pytest.mark.usefixtures("weights")
async def test_a_file_that_holds_no_model_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 1000)
    local = Local(str(broken))
    with pytest.raises(
        Unavailable, match=r"broken\.gguf` could not be loaded: the process ended with status 1; is it a whole GGUF file"
    ):
        await events_of(local, HELLO)
    await local.close()
    [record] = [record for record in caplog.records if record.name == module.__name__]
    assert "ended with status 1; its last words: " in record.getMessage()
    assert "none" not in record.getMessage()  # which of them are the last is for its threads to decide


@pytest.mark.slow
async def test_what_does_not_fit_and_what_cannot_be_enforced_is_said(model: Local) -> None:
    with pytest.raises(ContextOverflow):
        await events_of(model, replace(HELLO, items=(user("word " * 4000),)))
    with pytest.raises(Refused, match=r"tool_1_odd.*unrecognized type file"):
        await events_of(model, replace(HELLO, tools=(ODD,)))


@pytest.mark.slow
async def test_only_we_can_ask_the_child(model: Local) -> None:
    await events_of(model, HELLO)
    address = model.address
    assert address is not None
    assert address.startswith("http://127.0.0.1:")
    async with ClientSession() as session, session.post(f"{address}/v1/chat/completions", json={"messages": []}) as reply:
        assert reply.status == 401
