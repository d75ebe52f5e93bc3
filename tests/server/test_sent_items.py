"""Items as real clients send them back: with nulls in the place of what is open, half announced, or once more."""

from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.server.linter import Json
from tests.server.process import Served, serving
from tests.server.test_serve import HELLO, WEATHER, post

OUTPUT: Json = {"type": "function_call_output", "call_id": "call_1", "output": "22 degrees"}
CALL: Json = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": '{"city": "Paris"}'}
SAMPLES: dict[str, Json] = {
    "Message": {"type": "message", "role": "user", "content": "hello"},
    "FunctionCall": CALL,
    "FunctionCallOutput": OUTPUT,
    "Reasoning": {"type": "reasoning"},
    "ApprovalRequest": {"type": "mcp_approval_request", "id": "mcpr_1", "name": "weather", "arguments": "{}"},
    "InputText": {"type": "input_text", "text": "hello"},
    "InputImage": {"type": "input_image", "image_url": "https://example.org/a.png"},
    "InputFile": {"type": "input_file", "file_id": "file_1"},
    "OutputText": {"type": "output_text", "text": "hello"},
    "Refusal": {"type": "refusal", "refusal": "no"},
}
HELLO_AGAIN: Json = {"role": "user", "content": "hello"}


async def send(served: Served, path: str, body: Json) -> tuple[int, Json]:
    async with aiohttp.ClientSession() as session, session.post(f"{served.url}{path}", json=body) as answer:
        return answer.status, await answer.json()


async def read_document(served: Served) -> dict[str, Json]:
    async with aiohttp.ClientSession() as session, session.get(served.url.removesuffix("/v1") + "/openapi.json") as answer:
        document: Json = await answer.json()
        schemas: dict[str, Json] = document["components"]["schemas"]
        return schemas


def list_kinds(schemas: dict[str, Json], name: str) -> list[str]:
    """The kinds of items or parts that the document describes, but for answers to approvals, which need a request."""
    named = [each["$ref"].rpartition("/")[2] for each in schemas[name]["anyOf"] if "$ref" in each]
    return [kind for kind in named if kind != "ApprovalResponse"]


def is_nullable(schema: Json) -> bool:
    return {"type": "null"} in schema.get("anyOf", ())


def around(kind: str, value: Json) -> list[Json]:
    """An input that holds this item or part, and is complete."""
    if kind == "FunctionCall":
        return [value, OUTPUT, HELLO_AGAIN]
    if kind == "FunctionCallOutput":
        return [CALL, value, HELLO_AGAIN]
    if kind in ("Message", "Reasoning", "ApprovalRequest"):
        return [value, HELLO_AGAIN]
    return [{"role": "assistant" if kind in ("OutputText", "Refusal") else "user", "content": [value]}, HELLO_AGAIN]


async def test_null_is_taken_wherever_the_document_says_so(tmp_path: Path) -> None:
    tried: set[tuple[str, str]] = set()
    with serving(tmp_path, HELLO) as served:
        schemas = await read_document(served)
        for kind in (*list_kinds(schemas, "Item"), *list_kinds(schemas, "Part")):
            for field, schema in schemas[kind]["properties"].items():
                if is_nullable(schema):
                    status, answer = await post(served, {"input": around(kind, {**SAMPLES[kind], field: None})})
                    assert status == 200, (kind, field, answer)
                    tried.add((kind, field))
    assert tried >= {
        ("Message", "id"), ("Message", "status"), ("InputImage", "detail"), ("OutputText", "annotations"),
        ("FunctionCall", "status"), ("FunctionCallOutput", "id"), ("Reasoning", "summary"),
    }  # fmt: skip


@pytest.mark.parametrize("status", ["in_progress", "incomplete"])
async def test_a_call_as_it_was_announced_counts_as_made_when_its_output_follows(tmp_path: Path, status: str) -> None:
    announced = {**CALL, "id": "fc_1", "status": status, "arguments": ""}
    with serving(tmp_path, [{"when": "hello", "say": "Warm.", "expect": "22 degrees"}] * 2) as served:
        given, answer = await post(served, {"input": [announced, OUTPUT, HELLO_AGAIN], "tools": [WEATHER]})
        assert (given, answer["status"]) == (200, "completed")
        conversation = (await send(served, "/conversations", {"items": [announced]}))[1]["id"]
        await send(served, f"/conversations/{conversation}/items", {"items": [OUTPUT]})
        given, answer = await post(served, {"input": "hello", "conversation": conversation})
        assert (given, answer["status"]) == (200, "completed")


@pytest.mark.parametrize(("again", "expected"), [("[1.0, true]", 200), ("[true, true]", 400), ("[1, 1]", 400), ("[1]", 400)])
async def test_a_call_that_is_sent_again_is_compared_as_json(tmp_path: Path, again: str, expected: int) -> None:
    script: list[Json] = [{"calls": [{"name": "weather", "arguments": {"city": {"days": [1, True]}}}]}, {"say": "Sunny."}]
    with serving(tmp_path, script) as served:
        _, paused = await post(served, {"input": "weather?", "tools": [WEATHER]})
        [made] = paused["output"]
        sent = {**made, "arguments": f'{{"city": {{"days": {again}}}}}'}
        body = {"input": [sent, {**OUTPUT, "call_id": made["call_id"]}], "previous_response_id": paused["id"]}
        assert (await post(served, body))[0] == expected


CHANGES: list[tuple[Json, int]] = [
    ({}, 200),
    ({"arguments": "", "status": "in_progress"}, 200),
    ({"arguments": '{ "city" : "Paris" }'}, 200),
    ({"arguments": '{"city": "Oslo"}'}, 400),
    ({"name": "other"}, 400),
]


@pytest.mark.parametrize(("change", "expected"), CHANGES)
async def test_a_call_of_the_previous_response_may_be_sent_again_if_it_is_the_same(
    tmp_path: Path, change: Json, expected: int
) -> None:
    with serving(tmp_path, HELLO) as served:
        _, paused = await post(served, {"input": "weather in Paris?", "tools": [WEATHER]})
        [made] = paused["output"]
        output = {**OUTPUT, "call_id": made["call_id"]}
        body = {"input": [{**made, **change}, output], "previous_response_id": paused["id"], "tools": [WEATHER]}
        status, answer = await post(served, body)
    assert status == expected
    if status == 200:
        assert answer["output"][0]["content"][0]["text"] == "Sunny."
    else:
        assert answer["error"]["param"] == "input[0]"


async def test_a_socket_takes_a_call_again_that_it_has_not_stored(tmp_path: Path) -> None:
    with serving(tmp_path, HELLO) as served:
        async with aiohttp.ClientSession() as session, session.ws_connect(f"{served.url}/responses") as socket:

            async def ask(**body: Any) -> Json:
                await socket.send_json({"type": "response.create", "tools": [WEATHER], **body})
                while (event := await socket.receive_json(timeout=30))["type"] not in ("response.completed", "error"):
                    pass
                told: Json = event
                return told

            paused = (await ask(input="weather in Paris?", store=False))["response"]
            [made] = paused["output"]
            output = {**OUTPUT, "call_id": made["call_id"]}
            done = await ask(input=[made, output], previous_response_id=paused["id"])
    assert done["response"]["output"][0]["content"][0]["text"] == "Sunny."
