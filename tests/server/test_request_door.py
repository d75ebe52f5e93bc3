"""Everything that a request says is honoured, refused by name, or listed as ignored: nothing is dropped in silence."""

import json
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
from tests.server.linter import Json
from tests.server.process import Served, serving
from tests.server.test_serve import HELLO, WEATHER, post

from mainspring.http.ignored import MOST_LOOKED_UP

IGNORED = "Mainspring-Ignored"
TOOLS = '''
from mainspring import tool


@tool
def clock() -> str:
    """Tells the time."""
    return "half past nine"


@tool
def wipe() -> str:
    """Must not run."""
    open("wiped", "w").close()
    return "wiped"
'''


async def send(served: Served, body: Json, path: str = "/responses", **headers: str) -> tuple[int, str | None, str]:
    """The status of an answer, what it says was ignored, and its text."""
    async with aiohttp.ClientSession(headers=headers) as session, session.post(f"{served.url}{path}", json=body) as answer:
        return answer.status, answer.headers.get(IGNORED), await answer.text()


def said(*parts: Json) -> Json:
    return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello"}, *parts]}]}


REFUSED: list[tuple[Json, str, str]] = [
    ({"temprature": 0.1}, "temprature", "`temperature`"),
    ({"Store": False}, "Store", "`store`"),
    ({"previousResponseId": "resp_1"}, "previousResponseId", "`previous_response_id`"),
    ({"max-turns": 1}, "max-turns", "`max_turns`"),
    ({"text": {"fromat": {"type": "json_object"}}}, "text.fromat", "`format`"),
    ({"conversation_id": "conv_1"}, "conversation_id", "`conversation`"),
    ({"agent": "bee"}, "agent", "agent:NAME"),
    ({"messages": []}, "messages", "`input`"),
    ({"max_tokens": 100}, "max_tokens", "`max_output_tokens`"),
    ({"stop": ["."]}, "stop", "leave it out"),
    ({"reasoning": {"efort": "low"}}, "reasoning.efort", "`effort`"),
    ({"tools": [{**WEATHER, "paramters": {}}]}, "tools[0].paramters", "`parameters`"),
    ({"tools": [WEATHER, {"type": "web_search"}]}, "tools[1].type", "web_search"),
    ({"tools": [{"type": "namespace", "name": "n" * 513, "tools": [WEATHER]}]}, "tools[0].name", "512"),
    ({"tools": [{"type": "websearch"}]}, "tools[0].type", "websearch"),
    ({"tools": [{"type": "funktion", "name": "f"}]}, "tools[0].type", "`function`"),
    ({"tools": [{"type": "file_search", "vector_store_ids": []}]}, "tools", "file_search"),
    ({"tools": [{"type": "image_generation"}]}, "tools[0].type", "image_generation"),
    ({"tools": [WEATHER], "allowed_tools": ["wether"]}, "tool_choice", "`weather`"),
    (
        {"tools": [WEATHER], "allowed_tools": ["weather"], "tool_choice": {"type": "allowed_tools", "tools": [WEATHER]}},
        "allowed_tools",
        "one of them",
    ),
    (
        {"tools": [WEATHER], "allowed_tools": ["weather"], "tool_choice": {"type": "function", "name": "other"}},
        "tool_choice",
        "`other`",
    ),
    ({"tools": [WEATHER], "tool_choice": {"type": "image_generation"}}, "tool_choice", "allowed_tools"),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mod": "required", "tools": [WEATHER]}},
        "tool_choice.mod",
        "`mode`",
    ),
    (
        {"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [WEATHER, "other"]}},
        "tool_choice",
        "allowed_tools",
    ),
    ({"tools": [{"type": "custom", "name": "q", "format": {"type": "text", "syntx": "x"}}]}, "tools[0].format.syntx", "`syntax`"),
    ({"input": [{"type": "web_search_call", "id": "ws_1"}]}, "input[0].type", "web_search_call"),
    ({"input": [{"type": "mesage", "role": "user", "content": "hello"}]}, "input[0].type", "`message`"),
    (said({"type": "input_video", "video_url": "x"}), "input[0].content[1].type", "input_video"),
    (said({"type": ""}), "input[0].content[1].type", "empty"),
    (said({"type": "text", "text": "x"}), "input[0].content[1].type", "`input_text`"),
    (said({"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}), "input[0].content[1].type", "sound"),
    (
        {"input": [{"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]}]},
        "input[0].content[0].type",
        "message of the user",
    ),
    (
        {
            "input": [
                {"type": "custom_tool_call", "call_id": "c", "name": "query", "input": "x"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_video"}]},
            ]
        },
        "input[1].output[0].type",
        "input_video",
    ),
    (
        {
            "input": [
                {"type": "function_call", "call_id": "c", "name": "weather", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_audio", "input_audio": {}}]},
            ]
        },
        "input[1].output[0].type",
        "input_audio",
    ),
    ({"tools": [{"type": "custom", "name": "query", "format": {"type": "regex"}}]}, "tools[0].format", "grammar"),
    ({"presence_penalty": 0.5}, "presence_penalty", "leave it out"),
    ({"frequency_penalty": -0.5}, "frequency_penalty", "leave it out"),
    ({"include": ["reasoning.encrypted"]}, "include[0]", "`reasoning.encrypted_content`"),
    ({"include": ["message.output_text.logprobs"]}, "include[0]", "log probabilities"),
    ({"top_logprobs": 2}, "top_logprobs", "log probabilities"),
    ({"logprobs": True}, "logprobs", "log probabilities"),
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    script: list[Json] = [{"when": "Write a summary", "say": "They said hello."}, *HELLO]
    with serving(tmp_path_factory.mktemp("door"), script) as running:
        yield running


@pytest.mark.parametrize(("body", "param", "words"), REFUSED, ids=[f"{param}-{words}" for _, param, words in REFUSED])
async def test_what_cannot_be_honoured_is_refused_with_what_to_do(served: Served, body: Json, param: str, words: str) -> None:
    status, answer = await post(served, {"input": "hello", **body})
    assert (status, answer["error"]["param"]) == (400, param)
    assert words in answer["error"]["message"]


PASSED: list[tuple[Json, str | None]] = [
    ({}, None),
    ({"temprature": None, "agent": None}, None),
    ({"client_metadata": {"session": "1"}, "prompt_cache_retention": "24h"}, "client_metadata, prompt_cache_retention"),
    ({"tools": [{**WEATHER, "allowed_callers": ["direct"], "strict": False}]}, "tools[0].allowed_callers"),
    ({"reasoning": {"effort": "low", "mode": "x"}, "text": {"verbosity": "low"}}, "reasoning.mode, text.verbosity"),
    (
        {"tools": [{"type": "shell", "environment": {"type": "local", "skills": []}}], "presence_penalty": 0},
        "tools[0].environment.skills",
    ),
    (
        {"tools": [{"type": "namespace", "name": "n", "description": "d", "tools": [{**WEATHER, "hue": 1}]}]},
        "tools[0].tools[0].hue",
    ),
    ({"context_management": [{"type": "compaction", "hue": 1}]}, "context_management[0].hue"),
    ({"tools": [WEATHER], "tool_choice": {"type": "function", "name": "weather", "hue": 1}}, "tool_choice.hue"),
    ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools", "mode": None, "tools": [WEATHER]}}, None),
    ({"service_tier": "priority"}, "service_tier"),
    ({"service_tier": "auto"}, None),
    ({"include": ["computer_call_output.output.image_url", "reasoning.encrypted_content"]}, "include[0]"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hello", "hue": 1}], "mood": "good"}]},
        "input[0].mood, input[0].content[0].hue",
    ),
    ({"f\u00fc\n, r": 1}, "f\\xfc\\n, r"),
]


@pytest.mark.parametrize(("body", "ignored"), PASSED)
async def test_what_is_ignored_is_listed_in_a_header_of_every_answer(served: Served, body: Json, ignored: str | None) -> None:
    body = {"input": "hello", **body}
    for stream in (False, True):
        assert (await send(served, {**body, "stream": stream}))[:2] == (200, ignored)
    async with aiohttp.ClientSession() as session, session.ws_connect(f"{served.url}/responses") as socket:
        await socket.send_json({"type": "response.create", **body})
        created, second = [await socket.receive_json(timeout=30) for _ in range(2)]
    told = created.get("mainspring_ignored")
    assert (None if told is None else ", ".join(told)) == ignored
    assert "mainspring_ignored" not in second


async def test_a_list_of_what_is_ignored_stays_short(served: Served) -> None:
    body = {"input": "hello", **{f"unheard_of_{number}{'x' * 500}": number for number in range(500)}}
    status, ignored, _ = await send(served, body)
    assert (status, ignored is not None and ignored.endswith("and 480 more")) == (200, True)
    assert len(ignored or "") < 2000


async def test_among_very_many_fields_no_slip_is_looked_for(served: Served) -> None:
    for count, status in ((MOST_LOOKED_UP - 1, 400), (MOST_LOOKED_UP, 200)):
        unknown = {f"q{number}x": 1 for number in range(count)}
        assert (await send(served, {"input": "hello", **unknown, "instrctions": "x"}))[0] == status


async def test_counting_compacting_and_conversations_list_what_they_ignore(served: Served) -> None:
    told = {"model": "m", "input": "hello", "shade": 1}
    assert (await send(served, told, "/responses/input_tokens"))[:2] == (200, "shade")
    assert (await send(served, {**told, "tools": []}, "/responses/compact"))[:2] == (200, "shade, tools")
    items = {"items": [{"role": "user", "content": "hello", "mood": "good"}]}
    status, ignored, text = await send(served, {**items, "shade": 1}, "/conversations")
    assert (status, ignored) == (200, "items[0].mood, shade")
    assert (await send(served, items, f"/conversations/{json.loads(text)['id']}/items"))[:2] == (200, "items[0].mood")
    video = {"role": "user", "content": [{"type": "input_video"}]}
    status, _, text = await send(served, {"items": [video]}, "/conversations")
    assert (status, json.loads(text)["error"]["param"]) == (400, "items[0].content[0].type")


@pytest.mark.parametrize(
    ("path", "body", "slip"),
    [
        ("/chat", {"content": "hello"}, "conversation"),
        ("/decisions", {"message": "hello", "conversation_id": "c"}, "pending_confirmaton"),
        ("/conversations/CONVERSATION", {"metadata": {}}, "metadatas"),
    ],
)
async def test_every_other_door_lists_what_it_ignores_and_refuses_a_slip(
    served: Served, path: str, body: Json, slip: str
) -> None:
    _, _, made = await send(served, {}, "/conversations")
    path = path.replace("CONVERSATION", json.loads(made)["id"])
    assert (await send(served, {**body, "shade": 1, "hue": None}, path))[:2] == (200, "shade")
    status, _, text = await send(served, {**body, slip: "x"}, path)
    error = json.loads(text)["error"]
    assert (status, error["param"], error["code"]) == (400, slip, "unknown_parameter")


@pytest.mark.parametrize("headers", [{"originator": "codex_exec"}, {"Mainspring-Unavailable-Tools": "ignore"}])
async def test_a_client_that_offers_tools_unasked_is_told_which_are_left_out(served: Served, headers: dict[str, str]) -> None:
    body = {"input": "hello", "tools": [{"type": "web_search"}, WEATHER, {"type": "image_generation"}]}
    status, ignored, text = await send(served, body, **headers)
    assert (status, ignored) == (200, "tools[0], tools[2]")
    assert [tool["type"] for tool in json.loads(text)["tools"]] == ["function"]


@pytest.mark.requirement("A27")
async def test_allowed_tools_keeps_the_model_from_calling_any_other(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text(TOOLS)
    script: list[Json] = [
        {"calls": [{"name": "wipe", "arguments": {}}, {"name": "clock", "arguments": {}}]},
        {"say": "Half past nine.", "expect": "half past nine"},
    ] * 2
    with serving(tmp_path, script, "--tool", "tools") as running:
        _, answer = await post(running, {"input": "What time is it?", "allowed_tools": ["clock"]})
        calls = {item["name"]: item for item in answer["output"] if item["type"] == "mcp_call"}
        assert calls["clock"]["output"] == "half past nine"
        assert "not allowed" in json.dumps(calls["wipe"]["error"])
        assert not (tmp_path / "wiped").exists()
        assert answer["tool_choice"] == {
            "type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "clock"}],
        }  # fmt: skip
        await post(running, {"input": "And now?", "allowed_tools": []})
    assert (tmp_path / "wiped").exists()
