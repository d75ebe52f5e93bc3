"""A real backend on this machine, asked through `--base-url`."""

from collections.abc import AsyncIterator
from typing import Any

import anyio
import msgspec
import pytest
from inline_snapshot import snapshot
from tests.cli.command import SECONDS, Shell
from tests.cli.test_run import masked
from tests.providers.backend import DONE, Backend, call_piece, chunk, serving, sse, usage_chunk

from mainspring import Engine
from mainspring.core.items import Json

KEY = "sk-local-0123456789"
ADD: Json = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}


@pytest.fixture
async def backend() -> AsyncIterator[Backend]:
    async with serving() as running:
        yield running
    running.check()


def asked(*messages: Json) -> Json:
    return {
        "model": "clockwork",
        "messages": [{"role": "user", "content": "What is 1 + 2?"}, *messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [ADD],
    }


async def test_a_run_with_tools_on_a_real_backend(shell: Shell, backend: Backend) -> None:
    call: Json = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    backend.replies(
        sse(chunk({"role": "assistant", "content": ""}), chunk(call_piece(0, id="call_1", name="add", arguments=""))),
        sse(chunk(call_piece(0, arguments='{"a": 1,')), chunk(call_piece(0, arguments=' "b": 2}'))),
        sse(chunk(finish="tool_calls"), usage_chunk(20, 10)) + DONE,
        expect=asked(),
    )
    backend.replies(
        sse(chunk({"role": "assistant", "content": ""}), chunk({"content": "It"}), chunk({"content": " is 3."})),
        sse(chunk(finish="stop"), usage_chunk(30, 5)) + DONE,
        expect=asked(
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": "3"},
        ),
    )
    arguments = ("run", "What is 1 + 2?", "--model", "clockwork", "--base-url", backend.url, "--tool", "mytools:add")
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            shell.command(arguments), cwd=shell.folder, env=shell.environment({"OPENAI_API_KEY": KEY}), check=False
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert masked(done.stdout.decode()) == snapshot("""\
» What is 1 + 2?

── turn 1 ──────────────────────────────────────────────────
→ add(a=1, b=2)
✓ 3  N ms

── turn 2 ──────────────────────────────────────────────────
  It is 3.

completed (final_answer) · 2 turns · 1 tool call · 65 tokens · N ms · resp_ID
""")
    assert [request.headers["Authorization"] for request in backend.received] == [f"Bearer {KEY}"] * 2


@pytest.mark.parametrize("option", ["--backend-key", "--api-key"])
async def test_the_option_of_the_backends_key_has_its_name_of_before_too(shell: Shell, backend: Backend, option: str) -> None:
    backend.replies(sse(chunk({"role": "assistant", "content": "3."})), sse(chunk(finish="stop")) + DONE, expect=asked())
    arguments = ("run", "What is 1 + 2?", "--model", "clockwork", "--base-url", backend.url, "--tool", "mytools:add")
    with anyio.fail_after(SECONDS):
        await anyio.run_process(shell.command((*arguments, f"{option}={KEY}")), cwd=shell.folder, env=shell.environment())
    assert [request.headers["Authorization"] for request in backend.received] == [f"Bearer {KEY}"]


@pytest.mark.parametrize("parameter", ["backend_key", "api_key"])
async def test_the_key_of_a_backend_may_be_given_to_an_engine_by_either_name(backend: Backend, parameter: str) -> None:
    question = {name: value for name, value in asked().items() if name != "tools"}
    backend.replies(sse(chunk({"role": "assistant", "content": "3."})), sse(chunk(finish="stop")) + DONE, expect=question)
    key: Any = {parameter: KEY}
    async with Engine("clockwork", base_url=backend.url, **key) as engine:
        assert (await engine.run("What is 1 + 2?")).text == "3."
    assert [request.headers["Authorization"] for request in backend.received] == [f"Bearer {KEY}"]


async def test_a_key_that_is_not_accepted_fails_the_run_and_stays_secret(shell: Shell, backend: Backend) -> None:
    body = msgspec.json.encode({"error": {"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}})
    backend.replies(body, status=401, mime="application/json", expect=asked())
    arguments = ("run", "What is 1 + 2?", "--model", "clockwork", "--base-url", backend.url, "--tool", "mytools:add")
    with anyio.fail_after(SECONDS):
        done = await anyio.run_process(
            shell.command((*arguments, "--backend-key", KEY)), cwd=shell.folder, env=shell.environment(), check=False
        )
    assert done.returncode == 1
    assert b" Correct the credentials (--backend-key, the vendor's variables, or `key_env` in the settings)\n" in done.stderr
    assert KEY.encode() not in done.stdout + done.stderr
