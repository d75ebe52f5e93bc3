"""Chat Completions as a door to the same runs: what is asked is honoured or refused by the name it has there."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from openai import APIError, APIStatusError, AsyncOpenAI
from tests.agents.world import written
from tests.doors.chatting import WEATHER, opened
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import RateLimited, Unavailable
from mainspring.core.events import ItemDone, ItemStarted, TextDelta, TurnEnded
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputImage,
    InputText,
    Message,
    Reasoning,
    ReasoningText,
    ToolDefinition,
    assistant,
)
from mainspring.http.auth import Keys
from mainspring.providers.scripted import Scripted, call, calls, fail, raw, refuse, say, stall, turn
from mainspring.storage.memory_runs import MemoryStore

ASK: Any = [{"role": "user", "content": "What time is it?"}]
ON = {"Mainspring-Extensions": "on"}
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def test_the_servers_tools_work_behind_a_plain_answer() -> None:
    script = Scripted(
        turn(think="Hm.", say="Let me look.", calls=[call("clock")]), say("It is half past nine.", expect="[output] half past")
    )
    async with opened(script) as place:
        answer = await place.client.chat.completions.create(model="scripted", messages=ASK)
        run = await place.engine.store.load(answer.id.replace("chatcmpl_", "resp_"))
    choice = answer.choices[0]
    assert choice.message.content == "Let me look.\n\nIt is half past nine."
    assert (choice.finish_reason, choice.message.tool_calls, run.status) == ("stop", None, "completed")
    assert (choice.message.model_extra or {})["reasoning_content"] == "Hm."
    assert "mainspring_output" not in (choice.message.model_extra or {})
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens > 0
    assert answer.usage.completion_tokens_details is not None


async def test_what_the_servers_tools_did_is_shown_on_request_and_can_be_sent_back() -> None:
    script = Scripted(turn(calls=[call("clock")]), say("Half past nine."), say("I looked.", expect="[output] half past nine"))
    async with opened(script) as place:
        create = place.client.chat.completions.create
        first = (await create(model="scripted", messages=ASK, extra_headers=ON)).choices[0].message.model_dump(exclude_unset=True)
        assert [item["type"] for item in first["mainspring_output"]] == ["mcp_call", "message"]
        back: Any = [*ASK, first, {"role": "user", "content": "How do you know?"}]
        await create(model="scripted", messages=back)
    seen = script.requests[-1].items
    assert [type(item) for item in seen] == [Message, FunctionCall, FunctionCallOutput, Message, Message]


async def test_the_clients_calls_end_the_turn_and_their_results_come_back_in_messages() -> None:
    script = Scripted(turn(say="I ask.", calls=[call("clock"), call("weather", city="Oslo")]), say("Rain."))
    async with opened(script) as place:
        create = place.client.chat.completions.create
        choice = (await create(model="scripted", messages=ASK, tools=[WEATHER])).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert choice.message.tool_calls is not None
        (made,) = choice.message.tool_calls
        assert made.type == "function"
        assert (made.function.name, made.function.arguments) == ("weather", '{"city":"Oslo"}')
        told: Any = {"role": "tool", "tool_call_id": made.id, "content": [{"type": "text", "text": "wet"}]}
        back: Any = [*ASK, choice.message.model_dump(exclude_none=True), told]
        assert (await create(model="scripted", messages=back, tools=[WEATHER])).choices[0].message.content == "Rain."
    _, said, asked, output = script.requests[-1].items
    assert isinstance(said, Message)
    assert isinstance(asked, FunctionCall)
    assert isinstance(output, FunctionCallOutput)
    assert (said.text, asked.call_id, output.output) == ("I ask.", made.id, "wet")


async def test_a_call_that_a_policy_denies_never_reaches_the_client() -> None:
    script = Scripted(calls(call("weather", city="Atlantis")), say("There is none.", expect="there is no such city"))
    async with opened(script) as place:
        stream = await place.client.chat.completions.create(model="scripted", messages=ASK, tools=[WEATHER], stream=True)
        chunks = [chunk.choices[0] async for chunk in stream]
    assert "".join([choice.delta.content or "" for choice in chunks]) == "There is none."
    assert not any(choice.delta.tool_calls for choice in chunks)
    assert chunks[-1].finish_reason == "stop"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_call_that_waits_for_a_person_is_told_in_words(is_streamed: bool) -> None:
    async with opened(Scripted(turn(say="I wipe.", calls=[call("wipe")]))) as place:
        if is_streamed:
            async with place.client.chat.completions.stream(model="scripted", messages=ASK) as stream:
                answer: Any = await stream.get_final_completion()
        else:
            answer = await place.client.chat.completions.create(model="scripted", messages=ASK)
    choice = answer.choices[0]
    said, _, note = choice.message.content.partition("\n\n")
    assert (said, choice.finish_reason, choice.message.tool_calls) == ("I wipe.", "stop", None)
    assert "`wipe` waits" in note
    assert "mcpr_" in note


async def test_every_kind_of_message_becomes_what_the_model_is_shown() -> None:
    script = Scripted(say("Fine."))
    picture = {"type": "image_url", "image_url": {"url": PIXEL}}
    history: Any = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "name": "ann", "content": [{"type": "text", "text": "See"}, picture]},
        {"role": "assistant", "content": "A dot.", "reasoning_content": "I look."},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}},
            {"id": "c2", "type": "custom", "custom": {"name": "grep", "input": "x+"}},
        ]},
        {"role": "tool", "tool_call_id": "c1", "content": "wet"},
        {"role": "tool", "tool_call_id": "c2", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]},
        {"role": "user", "content": "So?"},
    ]  # fmt: skip
    grep: Any = {"type": "custom", "custom": {"name": "grep", "description": "Searches."}}
    async with opened(script) as place:
        raw = await place.client.chat.completions.with_raw_response.create(
            model="scripted", messages=history, tools=[WEATHER, grep]
        )
    assert raw.headers["Mainspring-Ignored"] == "messages[1].name"
    items = script.requests[0].items
    assert [type(item).__name__ for item in items] == [
        "Message", "Message", "Reasoning", "Message", "FunctionCall", "FunctionCall", "FunctionCallOutput", "FunctionCallOutput",
        "Message",
    ]  # fmt: skip
    assert isinstance(items[1], Message)
    assert items[1].content == (InputText("See"), InputImage(PIXEL))
    assert isinstance(items[2], Reasoning)
    assert items[2].content == (ReasoningText("I look."),)
    assert isinstance(items[5], FunctionCall)
    assert (items[5].form, items[5].arguments) == ("custom", '{"input":"x+"}')
    assert isinstance(items[7], FunctionCallOutput)
    assert items[7].output == (InputImage(PIXEL),)


def asked(part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [part]}]}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"n": 2}, "n", "unsupported_value"),
    ({"messages": []}, "messages", "array_below_min_length"),
    ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role", "unsupported_value"),
    ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0]", "invalid_type"),
    (
        {"messages": [{"role": "system", "content": [{"type": "file", "file": {}}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
    (asked({"type": "file", "file": {"file_id": 5}}), "messages[0].content[0]", "invalid_type"),
    (asked({"type": "image_url", "image_url": {"url": PIXEL, "detail": [1]}}), "messages[0].content[0]", "invalid_type"),
    (asked({"type": "text", "text": "x", "txet": 1}), "messages[0].content[0].txet", "unknown_parameter"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "missing_required_parameter"),
    ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]", "invalid_type"),
    ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages[0].function_call", "unsupported_value"),
    ({"messages": [{"role": "user", "contnet": "x"}]}, "messages[0].contnet", "unknown_parameter"),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}]}]},
        "messages[0].content[0].type",
        "unsupported_value",
    ),
    ({"functions": [{"name": "f"}]}, "functions", "unknown_parameter"),
    ({"temprature": 1}, "temprature", "unknown_parameter"),
    ({"max_output_tokens": 5}, "max_output_tokens", "unknown_parameter"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"modalities": ["text", "audio"]}, "modalities", "unsupported_value"),
    ({"response_format": {"type": "yaml"}}, "response_format", "invalid_value"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "towel"}}}},
        "response_format.schema",
        "invalid_request_error",
    ),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "missing_required_parameter"),
    ({"tools": [{"type": "shell"}]}, "tools[0].type", "unsupported_value"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "invalid_request_error"),
    ({"tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice", "invalid_request_error"),
    ({"seed": 1}, "seed", "unsupported_value"),
    ({"logprobs": True}, "logprobs", "unsupported_value"),
    ({"model": "agent:nobody"}, "model", "not_found"),
]


async def test_what_cannot_be_honoured_is_refused_by_its_own_name() -> None:
    async with opened(Scripted()) as place:
        for body, param, code in REFUSED:
            with pytest.raises(APIStatusError) as refused:
                await place.client.post("/chat/completions", body={"messages": ASK, **body}, cast_to=object)
            told: Any = refused.value.body
            assert (told["param"], told["code"]) == (param, code), body


async def test_options_that_say_nothing_are_taken() -> None:
    async with opened(Scripted(say("Hi."))) as place:
        empty: Any = {"logit_bias": {}, "functions": [], "function_call": None}
        answer = await place.client.chat.completions.create(model="scripted", messages=ASK, extra_body=empty)
    assert answer.choices[0].message.content == "Hi."


async def test_limits_choices_and_formats_reach_the_run() -> None:
    script = Scripted(say('{"a": 1}'))
    form: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    options: Any = {"tool_choice": {"type": "function", "function": {"name": "weather"}}, "parallel_tool_calls": False}
    async with opened(script) as place:
        answer = await place.client.chat.completions.create(
            model="scripted", messages=ASK, tools=[WEATHER], response_format=form, reasoning_effort="low", max_tokens=3,
            temperature=0.5, metadata={"case": "7"}, extra_body={"max_turns": 2}, **options,
        )  # fmt: skip
        events = await place.engine.store.events(answer.id.replace("chatcmpl_", "resp_"))
    asked, spec = script.requests[0], events[0].event.spec  # type: ignore[union-attr]
    assert (asked.tool_choice.name, asked.parallel_tool_calls, asked.max_output_tokens) == ("weather", False, 3)
    assert (asked.text or {})["format"] == {"type": "json_schema", "name": "x", "schema": {"type": "object"}}
    assert (asked.reasoning, asked.temperature) == ({"effort": "low"}, 0.5)
    assert (spec.limits.max_turns, spec.metadata) == (2, {"case": "7"})


async def test_what_nobody_reads_is_listed_and_a_function_is_nothing_else() -> None:
    script = Scripted(say("Fine."))
    body: Any = {
        **asked({"type": "text", "text": "Hi.", "cache_control": {"type": "ephemeral"}}),
        "tools": [{"type": "function", "function": {"name": "f", "type": "shell"}}],
        "max_tokens": 5,
        "max_completion_tokens": 9,
    }
    async with opened(script) as place:
        answer = await place.client.chat.completions.with_raw_response.create(model="scripted", **body)
    assert answer.headers["Mainspring-Ignored"] == "max_tokens, messages[0].content[0].cache_control"
    assert "f" in [tool.name for tool in script.requests[0].tools if isinstance(tool, ToolDefinition)]
    assert script.requests[0].max_output_tokens == 9


async def test_endings_have_their_reasons() -> None:
    script = Scripted(say("Once", finish="length"), say("Hm", finish="content_filter"), refuse("I would rather not."))
    async with opened(script) as place:
        told = [(await place.client.chat.completions.create(model="scripted", messages=ASK)).choices[0] for _ in range(3)]
    assert [choice.finish_reason for choice in told] == ["length", "content_filter", "stop"]
    assert (told[2].message.refusal, told[2].message.content) == ("I would rather not.", None)


@pytest.mark.parametrize("cut", [1, 4, 9])
async def test_an_answer_ends_before_a_stop_sequence_wherever_its_pieces_are_cut(cut: int) -> None:
    said = "One, two, th END of it."
    texts = [TextDelta("m", said[start : start + cut]) for start in range(0, len(said), cut)]
    ended = raw([ItemStarted(Message("assistant", id="m")), *texts, ItemDone(assistant(said, id="m")), TurnEnded()])
    async with opened(Scripted(ended, ended, ended)) as place:
        options: Any = {"model": "scripted", "messages": ASK}
        whole = await place.client.chat.completions.create(**options, stop=["END", "END of", "three"])
        pieces = [piece async for piece in await place.client.chat.completions.create(**options, stop="END", stream=True)]
        unmet = await place.client.chat.completions.create(**options, stop=["of it.!", "thr"])
    assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("One, two, th ", "stop")
    assert "".join([piece.choices[0].delta.content or "" for piece in pieces]) == "One, two, th "
    assert unmet.choices[0].message.content == said


async def test_failures_have_their_status_or_end_the_stream() -> None:
    slow = fail(RateLimited("slow down", retry_after=3))
    async with opened(Scripted(slow, turn(say="Well,", fail=Unavailable("down")), slow)) as place:
        create = place.client.chat.completions.create
        with pytest.raises(APIStatusError) as limited:
            await create(model="scripted", messages=ASK)
        assert (limited.value.status_code, limited.value.response.headers["retry-after"]) == (429, "3")
        with pytest.raises(APIStatusError) as down:
            await create(model="scripted", messages=ASK)
        assert down.value.status_code in (502, 503)
        with pytest.raises(APIError) as broken:
            async for _ in await create(model="scripted", messages=ASK, stream=True):
                pass
    assert broken.value.code == "rate_limit_exceeded"


async def test_a_client_that_leaves_cancels_its_run_and_one_with_a_key_finds_it_again() -> None:
    async with opened(Scripted(stall(), say("Done."))) as place:
        stream = await place.client.chat.completions.create(model="scripted", messages=ASK, stream=True)
        first = await anext(stream)
        handle = await place.engine.attach(first.id.replace("chatcmpl_", "resp_"))
        await stream.close()
        with anyio.fail_after(PATIENCE):
            assert (await handle.wait()).status == "cancelled"
        key = {"Idempotency-Key": "k"}
        answers = [
            await place.client.chat.completions.create(model="scripted", messages=ASK, extra_headers=key) for _ in range(2)
        ]
    assert answers[0] == answers[1]


async def test_stored_completions_are_listed_read_and_deleted_by_their_tenant_alone() -> None:
    store = MemoryStore()
    keys = Keys(store)
    ours, theirs = await keys.create(tenant="ours"), await keys.create(tenant="theirs")
    async with opened(Scripted(say("Hi."), repeat=True), keys=keys, api_key=ours) as place:
        completions = place.client.chat.completions
        made = [await completions.create(model="scripted", messages=ASK) for _ in range(2)]
        unkept = await completions.create(model="scripted", messages=ASK, store=False)
        assert [each.id async for each in completions.list(limit=1)] == [made[0].id, made[1].id]
        assert [each.id async for each in completions.list(order="desc")] == [made[1].id, made[0].id]
        assert await completions.retrieve(made[0].id) == made[0]
        async with AsyncOpenAI(base_url=place.url, api_key=theirs, max_retries=0) as other:
            assert [each async for each in other.chat.completions.list()] == []
            for id in (made[0].id, unkept.id):
                with pytest.raises(APIStatusError, match="not found"):
                    await other.chat.completions.retrieve(id)
            with pytest.raises(APIStatusError, match="not found"):
                await other.chat.completions.delete(made[0].id)
        assert (await completions.delete(made[0].id)).deleted
        with pytest.raises(APIStatusError, match="not found"):
            await completions.retrieve(made[0].id)


async def test_the_metadata_of_a_stored_completion_can_be_changed_and_searched_for() -> None:
    store = MemoryStore()
    keys = Keys(store)
    ours, theirs = await keys.create(tenant="ours"), await keys.create(tenant="theirs")
    async with opened(Scripted(say("Hi."), repeat=True), keys=keys, api_key=ours) as place:
        completions = place.client.chat.completions
        made = [await completions.create(model="scripted", messages=ASK, metadata={"of": str(n), "all": "yes"}) for n in range(3)]
        changed = await completions.update(made[1].id, metadata={"of": "2"})
        assert changed == made[1].model_copy(update={"metadata": {"of": "2"}})
        assert await completions.retrieve(made[1].id) == changed
        assert [each.id async for each in completions.list(limit=1, metadata={"of": "2"})] == [made[1].id, made[2].id]
        assert [each.id async for each in completions.list(metadata={"of": "2", "all": "yes"})] == [made[2].id]
        assert [each async for each in completions.list(metadata={"of": "1"})] == []
        assert (await completions.update(made[2].id, metadata=None)).metadata == {}
        async with AsyncOpenAI(base_url=place.url, api_key=theirs, max_retries=0) as other:
            with pytest.raises(APIStatusError, match="not found"):
                await other.chat.completions.update(made[1].id, metadata={"of": "them"})
            with pytest.raises(APIStatusError, match="not found"):
                await other.chat.completions.update("chatcmpl_none", metadata={})
        assert (await place.client.responses.retrieve(made[1].id.replace("chatcmpl", "resp"))).metadata == made[1].metadata


async def test_the_messages_of_a_stored_completion_are_listed_to_its_tenant_alone() -> None:
    store = MemoryStore()
    keys = Keys(store)
    ours, theirs = await keys.create(tenant="ours"), await keys.create(tenant="theirs")
    picture = {"type": "image_url", "image_url": {"url": PIXEL, "detail": "auto"}}
    weather = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    parts = [{"type": "text", "text": "See"}, picture]
    history: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": "A dot.", "reasoning_content": "I look.", "tool_calls": [weather]},
        {"role": "tool", "tool_call_id": "c1", "content": "wet"},
        {"role": "assistant", "content": None, "refusal": "No."},
        {"role": "user", "content": "So?"},
    ]
    async with opened(Scripted(say("Fine.")), keys=keys, api_key=ours) as place:
        made = await place.client.chat.completions.create(model="scripted", messages=history)
        # OpenAI's own type says that every stored message is of the assistant, so this client must not hold it against that.
        async with AsyncOpenAI(base_url=place.url, api_key=ours, max_retries=0) as client:
            listed = client.chat.completions.messages.list
            told = [each.model_dump(exclude_none=True) async for each in listed(made.id, limit=2)]
            newest = (await listed(made.id, limit=1, order="desc")).data
            with pytest.raises(APIStatusError, match="No item"):
                await listed(made.id, after="chatcmpl_none-0")
        async with AsyncOpenAI(base_url=place.url, api_key=theirs, max_retries=0) as other:
            with pytest.raises(APIStatusError, match="not found"):
                await other.chat.completions.messages.list(made.id)
    assert [each.pop("id") for each in told] == [f"{made.id}-{place}" for place in range(6)]
    assert told[1] == {"role": "user", "content": "See", "content_parts": parts}
    assert told[4] == {"role": "assistant", "refusal": "No."}
    assert [told[place] for place in (0, 2, 3, 5)] == [history[place] for place in (0, 2, 3, 5)]
    assert [each.content for each in newest] == ["So?"]


async def test_an_agent_answers_by_its_name(tmp_path: Path) -> None:
    written(tmp_path, "bee", prompts={"system": "You are a bee."})
    script = Scripted(say("Bzz."), say("Bzz, for sure."))
    async with opened(script, agents=[tmp_path]) as place:
        answer = await place.client.chat.completions.create(model="agent:bee", messages=ASK)
    assert (answer.choices[0].message.content or "").startswith("Bzz")
    assert "You are a bee." in str(script.requests[0].instructions) + str(script.requests[0].items)
