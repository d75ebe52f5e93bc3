"""A backend that is dead, elsewhere, misconfigured or tells secrets: at our door it is the backend's fault, in plain words."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket
from typing import Any

import openai
import pytest
from tests.providers.backend import Backend
from tests.server.hosting import hosted

from mainspring.app.engine import Engine
from mainspring.app.server import server
from mainspring.providers.chat.provider import Chat
from mainspring.providers.compose import BackendOptions, compose
from mainspring.providers.router import Router

SECRET = "sk-proj-4fT9zQ1xW8vB2nM6kL0pR3sD"
PASSWORD = "hunter2hunter2"


@asynccontextmanager
async def asking(url: str, database: Path | None = None) -> AsyncIterator[openai.AsyncOpenAI]:
    """A client of a server of ours that asks the backend at this address."""
    provider = Router({"house": compose(Chat(url), BackendOptions(failures=1, cool_seconds=0.001))}, default="house")
    engine = Engine(provider, default_model="clockwork", owns_provider=True, database=database)
    async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
        yield client


async def fault_of(client: openai.AsyncOpenAI) -> openai.APIStatusError:
    with pytest.raises(openai.APIStatusError) as caught:
        await client.responses.create(model="clockwork", input="What time is it?")
    return caught.value


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b'{"error": {"message": "The model `clockwork` does not exist.", "type": "NotFoundError", "code": 404}}'),
        (400, b'{"error": {"message": "The requested model is gone.", "code": "model_not_found", "param": "model"}}'),
        (404, b'{"error": "model \'clockwork\' not found, try pulling it first"}'),
    ],
)
async def test_a_model_that_the_backend_does_not_have_is_not_found(backend: Backend, status: int, body: bytes) -> None:
    backend.replies(body, status=status, mime="application/json")
    async with asking(backend.url) as client:
        fault = await fault_of(client)
    assert (fault.status_code, fault.code, fault.param, fault.type) == (404, "model_not_found", "model", "invalid_request_error")


async def test_a_model_that_nobody_is_configured_for_is_not_found() -> None:
    engine = Engine(Router({"house": Chat("http://127.0.0.1:9/v1")}), default_model="house/a", owns_provider=True)
    async with hosted(server(engine)) as near, openai.AsyncOpenAI(base_url=near, api_key="none", max_retries=0) as client:
        fault = await fault_of(client)
    assert (fault.status_code, fault.code, fault.param) == (404, "model_not_found", "model")


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (301, {"Location": "https://elsewhere/v1"}, b""),
        (302, {}, b""),
        (404, {}, b'{"detail": "Not Found"}'),
        (404, {}, b"<html>nginx</html>"),
        (405, {}, b""),
        (400, {}, b"Client sent an HTTP request to an HTTPS server."),
        (401, {}, b'{"error": {"message": "Invalid key"}}'),
        (402, {}, b'{"error": {"message": "Insufficient balance"}}'),
        (500, {}, b""),
    ],
)
async def test_what_a_backend_gets_wrong_is_its_own_fault(
    backend: Backend, status: int, headers: dict[str, str], body: bytes
) -> None:
    backend.replies(body, status=status, headers=headers, mime="application/json")
    async with asking(backend.url) as client:
        fault = await fault_of(client)
    assert fault.status_code == 502
    assert fault.code is not None
    assert fault.code.startswith("provider_")
    assert fault.type == "server_error"
    assert fault.param in (None, "model")


async def test_a_backend_that_does_not_speak_tls_is_misconfigured(backend: Backend) -> None:
    async with asking(backend.url.replace("http:", "https:")) as client:
        fault = await fault_of(client)
    assert (fault.status_code, fault.code) == (502, "provider_misconfigured")


@pytest.mark.parametrize("count", [b"1" + b"0" * 30, b"-5", b"1e300", b"1000000001"])
async def test_tokens_that_nobody_can_have_used_are_estimated_instead(backend: Backend, count: bytes) -> None:
    """What a backend says of them is what budgets and sums of usage go by."""
    answer = (
        b'{"choices": [{"index": 0, "message": {"role": "assistant", "content": "Noon."}, "finish_reason": "stop"}], "usage": %b}'
    )
    backend.replies(answer % (b'{"prompt_tokens": %b, "completion_tokens": %b}' % (count, count)), mime="application/json")
    async with asking(backend.url) as client:
        used = (await client.responses.create(model="clockwork", input="What time is it?")).usage
        [spent] = (await client.get("/usage", cast_to=dict[str, Any]))["data"]
    assert used is not None
    assert 0 < used.input_tokens < 100
    assert 0 < used.output_tokens < 100
    assert (spent["input_tokens"], spent["output_tokens"]) == (used.input_tokens, used.output_tokens)


async def test_a_dead_backend_is_unavailable() -> None:
    with socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    async with asking(f"http://127.0.0.1:{port}/v1") as client:
        fault = await fault_of(client)
    assert (fault.status_code, fault.code) == (502, "provider_unavailable")


@pytest.mark.parametrize("status", [400, 401, 404, 500, 301])
async def test_a_secret_in_a_backends_words_reaches_neither_client_nor_log_nor_store(
    backend: Backend, tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    words = f"Incorrect key {SECRET}, see https://admin:{PASSWORD}@host/log; {'x' * 470} {SECRET}"
    headers = {"Location": f"https://admin:{PASSWORD}@host/v1?key={SECRET}"}
    backend.replies(b'{"error": {"message": "%b"}}' % words.encode(), status=status, headers=headers, mime="application/json")
    database = tmp_path / "runs.db"
    with caplog.at_level("DEBUG", logger="mainspring"):
        async with asking(backend.url, database) as client:
            fault = await fault_of(client)
    kept = b"".join([path.read_bytes() for path in (database, database.with_name("runs.db-wal")) if path.exists()])
    for told in (fault.response.text, caplog.text, kept.decode(errors="replace")):
        assert SECRET[:16] not in told
        assert PASSWORD not in told
    assert b"redirects to" in kept if status == 301 else b"Incorrect key" in kept


async def test_a_secret_in_an_error_within_the_stream_is_masked_too(backend: Backend) -> None:
    backend.replies(b'data: {"error": {"message": "cannot use %b", "type": "server_error"}}\n\n' % SECRET.encode())
    async with asking(backend.url) as client:
        fault = await fault_of(client)
    assert "cannot use" in fault.message
    assert SECRET not in fault.message
