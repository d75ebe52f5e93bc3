"""The Messages API as a door to the same runs: what is asked is honoured or refused by the name it has there."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import openai
import pytest
from anthropic import APIStatusError, AsyncAnthropic, AuthenticationError, NotFoundError, beta_async_tool
from anthropic.lib.tools import BetaAsyncAbstractMemoryTool
from anthropic.types import ToolUseBlock
from tests.agents.world import written
from tests.doors.chatting import Place, opened
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import RateLimited
from mainspring.core.events import ItemDone, ItemStarted, ReasoningDelta, TextDelta, TurnEnded
from mainspring.core.items import (
    FunctionCall,
    FunctionCallOutput,
    InputFile,
    InputImage,
    InputText,
    Item,
    Message,
    OutputText,
    Reasoning,
    ReasoningText,
    ToolDefinition,
    Usage,
    assistant,
)
from mainspring.http.auth import Keys
from mainspring.ports import Provider
from mainspring.providers.anthropic.request import build_body
from mainspring.providers.scripted import Scripted, call, calls, fail, raw, refuse, say, stall, turn
from mainspring.storage.memory_runs import MemoryStore

ASK: Any = [{"role": "user", "content": "What time is it?"}]
ON = {"Mainspring-Extensions": "on"}
WEATHER: Any = {
    "name": "weather",
    "description": "How it is there.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@asynccontextmanager
async def entered(model: Provider, **options: Any) -> AsyncIterator[tuple[AsyncAnthropic, Place]]:
    """The server, and Anthropic's client for it."""
    async with opened(model, **options) as place:
        settings: Any = {"base_url": place.url.removesuffix("/v1"), "max_retries": 0, "timeout": 30}
        async with AsyncAnthropic(
            api_key=options.get("api_key", "unused"), _strict_response_validation=True, **settings
        ) as client:
            yield client, place


def signed(*items: Item) -> Any:
    """A turn that says these items, thoughts with what their vendor wants back."""
    told: list[Any] = []
    for item in items:
        if isinstance(item, Reasoning):
            told.append(ItemStarted(Reasoning(id=item.id)))
            told += [ReasoningDelta(item.id, part.text) for part in item.content or ()]
        elif isinstance(item, Message):
            told += [ItemStarted(Message("assistant", id=item.id)), TextDelta(item.id, item.text)]
        told.append(ItemDone(item))
    return raw([*told, TurnEnded()])


STOPPED = [TurnEnded(usage=Usage(3, 1), stop_sequence=", two")]


class Notes(BetaAsyncAbstractMemoryTool):
    """A memory that holds one note."""

    async def view(self, command: Any) -> str:
        return f"{command.path}: Buy bread."

    async def _refuse(self, command: Any) -> str:
        raise AssertionError("nobody asked for this")

    create = str_replace = insert = delete = rename = _refuse


async def test_the_apis_own_tools_are_told_to_any_model_and_performed_by_the_client() -> None:
    script = Scripted(
        turn(calls=[call("memory", command="view", path="/memories")]), say("Bread.", expect="[output] /memories: Buy bread.")
    )
    more: Any = [
        {"type": "bash_20250124", "name": "bash", "cache_control": {"type": "ephemeral"}},
        {"type": "text_editor_20250728", "name": "str_replace_based_edit_tool", "max_characters": 100},
        {"type": "tool_search_tool_regex_20251119", "name": "tool_search_tool_regex"},
    ]
    async with entered(script) as (client, _):
        options: Any = {"model": "scripted", "max_tokens": 50, "messages": ASK, "tools": [Notes(), *more]}
        final = await client.beta.messages.tool_runner(**options).until_done()
        answer = await client.messages.with_raw_response.count_tokens(model="scripted", messages=ASK, tools=more)
    assert [block.text for block in final.content if block.type == "text"] == ["Bread."]
    assert answer.headers["Mainspring-Ignored"] == "tools[1].max_characters, tools[2]"
    known: dict[str, Any] = {tool.name: tool.parameters for tool in script.requests[0].tools if isinstance(tool, ToolDefinition)}
    assert known.keys() == {"clock", "wipe", "memory", "bash", "str_replace_based_edit_tool"}
    assert known["bash"]["properties"].keys() == {"command", "restart"}
    assert "insert_text" in known["str_replace_based_edit_tool"]["properties"]
    assert known["memory"]["properties"].keys() >= {"old_path", "new_path"}


async def test_the_servers_tools_work_behind_a_plain_message() -> None:
    script = Scripted(
        turn(think="Hm.", say="Let me look.", calls=[call("clock")]), say("Half past nine.", expect="[output] half past")
    )
    async with entered(script) as (client, place):
        message = await client.messages.create(model="scripted", max_tokens=50, messages=ASK, system="Be brief.")
        run = await place.engine.store.load(message.id.replace("msg_", "resp_"))
    assert [block.type for block in message.content] == ["thinking", "text", "text"]
    assert (message.stop_reason, run.status) == ("end_turn", "completed")
    assert message.usage.input_tokens > 0
    assert script.requests[0].instructions == "Be brief."
    assert script.requests[0].max_output_tokens == 50


async def test_what_the_servers_tools_did_is_shown_on_request_and_can_be_sent_back() -> None:
    script = Scripted(turn(calls=[call("clock")]), say("Half past nine."), say("I looked.", expect="[output] half past nine"))
    async with entered(script) as (_, place), aiohttp.ClientSession(headers=ON) as session:
        body = {"model": "scripted", "max_tokens": 50, "messages": ASK}
        async with session.post(f"{place.url}/messages", json=body) as answer:
            content = (await answer.json())["content"]
        assert [block["type"] for block in content] == ["mcp_tool_use", "mcp_tool_result", "text"]
        assert content[1]["content"] == [{"type": "text", "text": "half past nine"}]
        back = [*ASK, {"role": "assistant", "content": content}, {"role": "user", "content": "How do you know?"}]
        async with session.post(f"{place.url}/messages", json={**body, "messages": back}) as answer:
            assert answer.status == 200, await answer.text()
    assert [type(item) for item in script.requests[-1].items] == [Message, FunctionCall, FunctionCallOutput, Message, Message]


async def test_the_tool_runner_performs_the_clients_calls_and_goes_on() -> None:
    @beta_async_tool
    async def weather(city: str) -> str:
        """How it is there."""
        return f"rain in {city}"

    script = Scripted(turn(say="I ask.", calls=[call("weather", city="Oslo")]), say("Rain.", expect="[output] rain in Oslo"))
    async with entered(script) as (client, _):
        options: Any = {"model": "scripted", "max_tokens": 50, "system": "Be brief.", "tools": [weather]}
        final = await client.beta.messages.tool_runner(messages=ASK, **options).until_done()
    assert [block.text for block in final.content if block.type == "text"] == ["Rain."]
    # It goes on with the thread, and sends only the result.
    first, second = script.requests
    assert (second.tools, second.instructions) == (first.tools, first.instructions) == (first.tools, "Be brief.")
    assert [type(item) for item in second.items] == [Message, Message, FunctionCall, FunctionCallOutput]


@pytest.mark.parametrize("secret", [{"authorization": "hunter2"}, {"headers": {"x-key": "hunter2"}}, {}])
async def test_a_thread_whose_mcp_server_had_credentials_goes_on_if_they_are_sent_again(secret: dict[str, Any]) -> None:
    server = {"type": "mcp", "server_label": "wiki", "server_url": "https://wiki.invalid/mcp", **secret}
    async with entered(Scripted(say("One."), say("Two."))) as (_, place), aiohttp.ClientSession(headers=ON) as session:

        async def post(**fields: Any) -> tuple[int, Any]:
            body = {"model": "scripted", "max_tokens": 50, "messages": ASK, **fields}
            async with session.post(f"{place.url}/messages", json=body) as answer:
                return answer.status, await answer.json()

        status, first = await post(tools=[server], thread={"type": "create"})
        assert status == 200, first
        thread = {"type": "continue", "previous_message_id": first["id"]}
        if secret:
            status, refused = await post(thread=thread)
            assert (status, refused["error"]["type"]) == (400, "invalid_request_error")
            assert "tools" in refused["error"]["message"]
            assert "hunter2" not in str(refused)
        assert (await post(thread=thread, **({"tools": [server]} if secret else {})))[0] == 200


async def test_a_thread_that_is_gone_is_begun_anew_by_the_client() -> None:
    script = Scripted(say("One."), say("Two.", expect="What time is it?"))
    async with entered(script) as (client, place):
        thread = client.beta.messages.thread(model="scripted", max_tokens=50)
        first = await thread.send(ASK[0])
        await place.engine.forget(first.id.replace("msg_", "resp_"))
        await thread.send({"role": "user", "content": "And now?"})
    assert [type(item) for item in script.requests[-1].items] == [Message, Message, Message]


async def test_a_thread_goes_on_with_what_was_sent_and_not_with_what_was_made_of_it(tmp_path: Path) -> None:
    written(tmp_path, "bee", prompts={"system": "You are a bee."})
    script = Scripted(say("Bzz."), repeat=True)
    async with entered(script, agents=[tmp_path]) as (client, _):
        thread = client.beta.messages.thread(model="agent:bee", max_tokens=50)
        for _ in range(3):
            await thread.send(ASK[0])
    first, *rest = [str(request.instructions) for request in script.requests]
    assert "You are a bee." in first
    assert rest == [first] * len(rest)


async def test_a_thread_goes_on_with_any_run_and_what_is_sent_anew_counts() -> None:
    script, kind = Scripted(say("Hi."), repeat=True), "Be kind. " * 1000
    async with entered(script) as (client, place):
        run = await place.engine.run("Hello.", instructions="Be brief.")
        more: Any = {"thread": {"type": "continue", "previous_message_id": run.spec.id.replace("resp_", "msg_")}}
        options: Any = {"model": "scripted", "max_tokens": 9, "messages": ASK, "extra_body": more}
        await client.messages.create(**options)
        last = await client.messages.create(**options, system=kind, tools=[WEATHER])
        more["thread"]["previous_message_id"] = last.id
        counted = await client.messages.count_tokens(model="scripted", messages=ASK, extra_body=more)
        assert counted.input_tokens > len(kind) // 10
    _, second, third = script.requests
    assert (second.instructions, third.instructions) == ("Be brief.", kind)
    assert "weather" in str(third.tools)


async def test_a_call_of_the_servers_without_a_result_is_not_lost() -> None:
    script = Scripted(say("Well.", expect="[output]"))
    use = {"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "clock", "server_name": "mainspring", "input": {}}
    history: Any = [*ASK, {"role": "assistant", "content": [use]}, *ASK]
    async with entered(script) as (client, _):
        await client.messages.create(model="scripted", max_tokens=9, messages=history)
    assert [type(item) for item in script.requests[0].items] == [Message, FunctionCall, FunctionCallOutput, Message]


async def test_calls_in_a_stream_come_whole_and_only_those_that_no_policy_denies() -> None:
    script = Scripted(
        calls(call("weather", city="Atlantis")), turn(say="Then", calls=[call("weather", city="Oslo"), call("clock")])
    )
    async with (
        entered(script) as (client, _),
        client.messages.stream(model="scripted", max_tokens=50, messages=ASK, tools=[WEATHER]) as stream,
    ):
        kinds = [event.type async for event in stream]
        final = await stream.get_final_message()
    assert final.stop_reason == "tool_use"
    (made,) = [block for block in final.content if isinstance(block, ToolUseBlock)]
    assert (made.name, made.input) == ("weather", {"city": "Oslo"})
    assert kinds[-5:] == ["content_block_delta", "input_json", "content_block_stop", "message_delta", "message_stop"]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_thoughts_keep_their_signatures_both_ways(is_streamed: bool) -> None:
    secret = 'mainspring.anthropic.{"type":"thinking","thinking":"Deep.","signature":"S1"}'
    hidden = 'mainspring.anthropic.{"type":"redacted_thinking","data":"R1"}'
    deep = Reasoning("rs_1", content=(ReasoningText("Deep."),), encrypted_content=secret)
    turns = signed(deep, Reasoning("rs_2", encrypted_content=hidden), assistant("So.", id="msg_1"))
    script = Scripted(turns, say("Yes."))
    async with entered(script) as (client, _):
        options: Any = {"model": "scripted", "max_tokens": 5000, "thinking": {"type": "adaptive"}}
        if is_streamed:
            async with client.messages.stream(messages=ASK, **options) as stream:
                first: Any = await stream.get_final_message()
        else:
            first = await client.messages.create(messages=ASK, **options)
        assert [block.type for block in first.content] == ["thinking", "redacted_thinking", "text"]
        said: Any = {"role": "assistant", "content": first.content}
        await client.messages.create(messages=[*ASK, said, {"role": "user", "content": "Sure?"}], **options)
    asked = script.requests[-1]
    assert [type(item) for item in asked.items] == [Message, Reasoning, Reasoning, Message, Message]
    assert asked.reasoning == {"effort": "high"}
    back = build_body(asked)["messages"][1]["content"]
    assert back[:2] == [{"type": "thinking", "thinking": "Deep.", "signature": "S1"}, {"type": "redacted_thinking", "data": "R1"}]


async def test_every_block_becomes_what_the_model_is_shown() -> None:
    script = Scripted(say("Fine."))
    pdf = b64encode(b"%PDF-1.4").decode()
    history: Any = [
        {"role": "user", "content": [
            {"type": "text", "text": "See", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
            {"type": "document", "title": "a.pdf", "source": {"type": "base64", "media_type": "application/pdf", "data": pdf}},
            {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "hi"}, "context": "A note."},
            {"type": "document", "title": "Bits", "source": {"type": "content", "content": [{"type": "text", "text": "One."}]}},
        ]},
        {"role": "assistant", "content": [
            {"type": "text", "text": "I ask."}, {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "So?"},
        ]},
    ]  # fmt: skip
    blocks: Any = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Be kind."}]
    async with entered(script) as (client, _):
        await client.messages.create(model="scripted", max_tokens=9, system=blocks, messages=history, tools=[WEATHER])
    asked = script.requests[0]
    assert asked.instructions == "Be brief.\n\nBe kind."
    told, said, made, output, more = asked.items
    assert isinstance(told, Message)
    assert told.content == (
        InputText("See"),
        InputImage("data:image/png;base64,AAAA"),
        InputFile("a.pdf", f"data:application/pdf;base64,{pdf}"),
        InputText("[about the document that follows]\nA note."),
        InputText("[file document.txt]\nhi"),
        InputText("[file Bits]"),
        InputText("One."),
    )
    assert isinstance(said, Message)
    assert said.content == (OutputText("I ask."),)
    assert isinstance(made, FunctionCall)
    assert (made.call_id, made.arguments) == ("t1", '{"city":"Oslo"}')
    assert isinstance(output, FunctionCallOutput)
    assert (output.output, output.is_error) == ("no", True)
    assert isinstance(more, Message)
    assert build_body(asked)["tools"][-1]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def said(*blocks: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(blocks)}]}


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"max_tokens": None}, "max_tokens", "missing_required_parameter"),
    ({"max_tokens": 0}, "max_tokens", "integer_below_min_value"),
    ({"messages": [{"role": "usr", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": [], "content": "x"}]}, "messages[0].role", "invalid_value"),
    (
        {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": 5}]}, *ASK]},
        "messages[0].content[0]",
        "invalid_type",
    ),
    ({"messages": [*ASK, {"role": "assistant", "content": "It is"}]}, "messages[1].role", "unsupported_value"),
    ({"messages": [{"role": "user", "content": 7}]}, "messages[0].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"type": "video"}]}]}, "messages[0].content[0].type", "invalid_value"),
    (said({"type": "image", "source": {}}), "messages[0].content[0].source", "invalid_value"),
    (said({"type": "tool_result"}), "messages[0].content[0].tool_use_id", "missing_required_parameter"),
    ({"system": [{"type": "image"}]}, "system[0].type", "invalid_value"),
    ({"system": [{"type": "text"}]}, "system[0]", "invalid_type"),
    ({"output_config": {"effort": 5}}, "output_config.effort", "invalid_type"),
    ({"user": "me"}, "user", "unknown_parameter"),
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unknown_parameter"),
    ({"tools": [{"type": [], "name": "f"}]}, "tools[0].type", "unsupported_value"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema", "missing_required_parameter"),
    ({"tools": [{"type": "bash_20990101", "name": "bash"}]}, "tools[0].type", "unsupported_value"),
    ({"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]}, "tools[0].type", "unsupported_value"),
    ({"tools": [{"type": "web_search_20250305", "blocked_domains": ["a.b"]}]}, "tools[0].blocked_domains", "unsupported_value"),
    ({"tool_choice": {"type": "tool", "name": "no"}}, "tool_choice", "invalid_request_error"),
    ({"tool_choice": {"type": "perhaps"}}, "tool_choice", "invalid_value"),
    ({"thinking": {"type": "enabled"}}, "thinking", "invalid_value"),
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format", "invalid_value"),
    ({"temperature": 1.5}, "temperature", "decimal_above_max_value"),
    ({"cache_control": {"type": "ephemeral", "ttl": "7d"}}, "cache_control.ttl", "invalid_value"),
    ({"system": [{"type": "text", "text": "a", "cache_control": {"ttl": [7]}}]}, "cache_control.ttl", "invalid_value"),
    ({"top_k": 3}, "top_k", "unknown_parameter"),
    ({"max_tokns": 3}, "max_tokns", "unknown_parameter"),
]  # fmt: skip


async def test_what_cannot_be_honoured_is_refused_by_its_own_name() -> None:
    async with entered(Scripted()) as (client, _):
        for body, param, code in REFUSED:
            with pytest.raises(APIStatusError) as refused:
                await client.post("/v1/messages", body={"max_tokens": 9, "messages": ASK, **body}, cast_to=object)
            told: Any = refused.value.body
            assert (told["type"], told["error"]["type"]) == ("error", "invalid_request_error"), body
            assert (told["error"]["param"], told["error"]["code"]) == (param, code), body
        with pytest.raises(NotFoundError) as missing:
            await client.messages.create(model="agent:nobody", max_tokens=9, messages=ASK)
        assert missing.value.type == "not_found_error"
        old = {"anthropic-version": "2023-01-01"}
        with pytest.raises(APIStatusError, match="2023-06-01"):
            await client.messages.create(model="scripted", max_tokens=9, messages=ASK, extra_headers=old)


async def test_endings_have_their_reasons_and_failures_their_types() -> None:
    slow = fail(RateLimited("slow down", retry_after=3))
    script = Scripted(say("Once", finish="length"), refuse("I would rather not."), slow, slow)
    async with entered(script) as (client, _):
        options: Any = {"model": "scripted", "max_tokens": 50, "messages": ASK}
        told = [await client.messages.create(**options) for _ in range(2)]
        assert [message.stop_reason for message in told] == ["max_tokens", "refusal"]
        with pytest.raises(APIStatusError) as limited:
            await client.messages.create(**options)
        assert (limited.value.status_code, limited.value.type) == (429, "rate_limit_error")
        with pytest.raises(APIStatusError) as broken:
            async with client.messages.stream(**options) as stream:
                await stream.until_done()
    assert "rate_limit_error" in str(broken.value.body)


async def test_a_stop_sequence_that_has_ended_the_message_is_told() -> None:
    told = raw([ItemStarted(Message("assistant", id="m")), TextDelta("m", "One"), ItemDone(assistant("One", id="m")), *STOPPED])
    script = Scripted(say("One, two, three."), say("One, two, three."), told, say("One."))
    async with entered(script) as (client, _):
        options: Any = {"model": "scripted", "max_tokens": 50, "messages": ASK, "stop_sequences": ["four", ", two"]}
        whole = await client.messages.create(**options)
        async with client.messages.stream(**options) as stream:
            streamed = await stream.get_final_message()
        by_backend, unmet = await client.messages.create(**options), await client.messages.create(**options)
    for answer in (whole, streamed, by_backend):
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", ", two")
        assert [block.model_dump()["text"] for block in answer.content] == ["One"]
    assert (unmet.stop_reason, unmet.stop_sequence) == ("end_turn", None)


async def test_models_are_listed_as_the_api_lists_them(tmp_path: Path) -> None:
    written(tmp_path, "bee", prompts={"system": "You are a bee."})
    async with entered(Scripted(), agents=[tmp_path]) as (client, place):
        listed = [model async for model in client.models.list(limit=1)]
        assert [(model.type, model.lifecycle, model.created_at.tzinfo is not None) for model in listed] == [
            ("model", "active", True)
        ] * 2
        assert [await client.models.retrieve(model.id) for model in listed] == listed
        assert [model.id async for model in place.client.models.list()] == [model.id for model in listed]
        with pytest.raises(NotFoundError):
            await client.models.retrieve("nobody")


async def test_a_client_that_leaves_cancels_its_run() -> None:
    async with entered(Scripted(stall())) as (client, place):
        stream = await client.messages.create(model="scripted", max_tokens=9, messages=ASK, stream=True)
        first: Any = await anext(aiter(stream))
        handle = await place.engine.attach(first.message.id.replace("msg_", "resp_"))
        await stream.close()
        with anyio.fail_after(PATIENCE):
            assert (await handle.wait()).status == "cancelled"


async def test_keys_come_in_either_header_and_what_is_wrong_is_told_in_the_apis_shape() -> None:
    keys = Keys(MemoryStore())
    key = await keys.create(tenant="ours")
    async with entered(Scripted(say("Hi."), repeat=True), keys=keys, api_key=key) as (client, place):
        options: Any = {"model": "scripted", "max_tokens": 9, "messages": ASK}
        await client.messages.create(**options)
        async with AsyncAnthropic(base_url=client.base_url, auth_token=key, max_retries=0) as other:
            message = await other.messages.create(**options)
        assert (await place.engine.store.load(message.id.replace("msg_", "resp_"))).tenant == "ours"
        async with AsyncAnthropic(base_url=client.base_url, api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(AuthenticationError) as refused:
                await stranger.messages.create(**options)
    body: Any = refused.value.body
    assert (body["error"]["type"], body["error"]["code"]) == ("authentication_error", "invalid_api_key")


async def test_what_is_refused_elsewhere_is_told_in_the_shape_of_the_api_that_the_client_speaks() -> None:
    keys = Keys(MemoryStore())
    ours, theirs = await keys.create(tenant="ours"), await keys.create(tenant="theirs")
    async with entered(Scripted(), keys=keys, api_key=ours) as (client, place):
        made = await client.files.upload(file=("note.md", b"forty-two", "text/markdown"))
        for path, status, kind in [
            ("/v1/files/file-none", 404, "not_found_error"),
            ("/v1/models/nobody", 404, "not_found_error"),
            ("/v1/nothing", 404, "not_found_error"),
            ("/v1/messages", 405, "invalid_request_error"),
        ]:
            with pytest.raises(APIStatusError) as refused:
                await client.get(path, cast_to=object)
            assert (refused.value.status_code, refused.value.type) == (status, kind)
            assert refused.value.response.headers.get("allow") == ("POST" if status == 405 else None)
        async with AsyncAnthropic(base_url=client.base_url, api_key="wrong", max_retries=0) as nobody:
            with pytest.raises(AuthenticationError) as unknown:
                await nobody.files.list()
        assert unknown.value.type == "authentication_error"
        async with AsyncAnthropic(base_url=client.base_url, api_key=theirs, max_retries=0) as stranger:
            shown: Any = [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": made.id}}]}]
            with pytest.raises(NotFoundError) as hidden:
                await stranger.messages.create(model="scripted", max_tokens=9, messages=shown)
        told: Any = hidden.value.body
        assert (told["error"]["type"], told["error"]["param"]) == ("not_found_error", "messages")
        with pytest.raises(openai.NotFoundError) as plain:
            await place.client.files.retrieve("file-none")
        assert (plain.value.type, plain.value.param) == ("invalid_request_error", "file_id")


async def test_files_are_uploaded_listed_and_shown_as_the_api_does() -> None:
    keys = Keys(MemoryStore())
    ours, theirs = await keys.create(tenant="ours"), await keys.create(tenant="theirs")
    script = Scripted(say("Forty-two."))
    async with entered(script, keys=keys, api_key=ours) as (client, place):
        made = await client.files.upload(file=("note.md", b"forty-two", "text/markdown; charset=utf-8"), expires_in_seconds=7200)
        assert (made.type, made.filename, made.mime_type, made.size_bytes) == ("file", "note.md", "text/markdown", 9)
        assert made.expires_at is not None
        assert (made.expires_at - made.created_at).total_seconds() == 7200
        other = await client.beta.files.upload(file=("x.bin", b"x", "no type"))
        assert (other.mime_type, other.expires_at) == ("application/octet-stream", None)
        assert await client.files.retrieve_metadata(made.id) == made
        assert [file.id async for file in client.files.list(limit=1)] == [other.id, made.id]
        assert [file.id async for file in client.files.list(ids=["file-none", made.id])] == [made.id]
        assert await (await client.files.download(made.id)).read() == b"forty-two"
        seen = await place.client.files.retrieve(made.id)
        assert (seen.purpose, seen.bytes) == ("user_data", 9)
        shown: Any = [{"role": "user", "content": [{"type": "document", "source": {"type": "file", "file_id": made.id}}]}]
        await client.messages.create(model="scripted", max_tokens=9, messages=shown)
        assert "forty-two" in str(script.requests[0].items)
        with pytest.raises(APIStatusError, match="expires_in_seconds"):
            await client.files.upload(file=b"x", expires_in_seconds=60)
        async with AsyncAnthropic(base_url=client.base_url, api_key=theirs, max_retries=0) as stranger:
            assert [file async for file in stranger.files.list(ids=[made.id])] == []
            assert [file async for file in stranger.files.list()] == []
            with pytest.raises(NotFoundError):
                await stranger.files.delete(made.id)
        gone = await client.files.delete(made.id)
        assert (gone.id, gone.type) == (made.id, "file_deleted")
        with pytest.raises(NotFoundError):
            await client.files.retrieve_metadata(made.id)


async def test_an_answer_has_the_id_of_its_request_where_the_client_looks() -> None:
    async with entered(Scripted(say("Hi."))) as (client, _):
        message = await client.messages.create(model="scripted", max_tokens=9, messages=ASK)
        assert (message._request_id or "").startswith("req_")
        with pytest.raises(APIStatusError) as refused:
            await client.messages.create(model="scripted", max_tokens=0, messages=ASK)
    assert (refused.value.request_id or "").startswith("req_")


async def test_tokens_are_counted_and_nothing_runs() -> None:
    script = Scripted()
    async with entered(script) as (client, place):
        short, long = [
            (await client.messages.count_tokens(model="scripted", messages=[{"role": "user", "content": text}])).input_tokens
            for text in ("Hi.", "Hi. " * 400)
        ]
        assert (await place.engine.store.list(limit=9)).runs == ()
    assert 0 < short < long
    assert script.requests == []


async def test_an_answer_has_the_shape_that_is_asked_for_and_what_nobody_reads_is_listed() -> None:
    script = Scripted(say('{"n": 1}'))
    form: Any = {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}}
    thinking = {"type": "adaptive", "display": "omitted"}
    more: Any = {"context_management": {"edits": []}, "service_tier": "standard_only", "thinking": thinking}
    async with entered(script) as (client, _):
        raw_answer = await client.messages.with_raw_response.create(
            model="scripted", max_tokens=9, messages=ASK, output_config=form, extra_body=more, metadata={"user_id": "u"}
        )
    asked = script.requests[0]
    assert (asked.text or {})["format"] == {"type": "json_schema", "name": "answer", "schema": {"type": "object"}}
    assert asked.reasoning == {"effort": "low"}
    assert raw_answer.headers["Mainspring-Ignored"] == "context_management, thinking.display, service_tier"
