"""Spans and metrics as an OpenTelemetry collector gets them from a real server process."""

import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import aiohttp
import anyio
import pytest
from tests.server.process import Script, Served, serving
from tests.trace.receiver import CLIENT, ERROR, INTERNAL, Collector, Span, collecting

from mainspring import Engine
from mainspring.core.errors import InvalidRequest
from mainspring.features.traces.otel import Exporter, is_wanted, name_provider
from mainspring.features.traces.trace_record import TraceRecord
from mainspring.providers.scripted import Scripted, say

TOOLS = '''
from mainspring import tool


@tool
def add(a: int, b: int) -> int:
    """Adds."""
    return a + b


@tool
def crash() -> str:
    """Fails."""
    raise RuntimeError("the secret plan is out")
'''
SCRIPT: Script = [
    {
        "when": "sum",
        "calls": [{"name": "add", "arguments": {"a": 2, "b": 3}}, {"name": "crash", "arguments": {}}],
        "usage": {"input_tokens": 20, "output_tokens": 5, "cached_tokens": 4},
    },
    {"when": "sum", "say": "It is five.", "usage": {"input_tokens": 30, "output_tokens": 4}},
    {"when": "wrong", "calls": [{"name": "add", "arguments": {"a": "x"}}]},
    {"when": "wrong", "say": "Sorry."},
    {"when": "fail", "fail": {"code": "provider_unauthorized", "message": "no such key"}},
    {"when": "stall", "say": "I begin", "stall": True},
    {"when": "locate", "calls": [{"name": "locate", "arguments": {}}]},
]
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
REQUIRED = {
    "invoke_agent": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.id"},
    "chat": {"gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.request.stream"},
    "execute_tool": {"gen_ai.operation.name", "gen_ai.tool.name", "gen_ai.tool.call.id", "gen_ai.tool.type"},
}


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    async with collecting() as collector:
        yield collector


def environment(collector: Collector, **more: str) -> dict[str, str]:
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "20", "PYTHONPATH": "."}
    return {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **quick, **more}


async def asked(
    http: aiohttp.ClientSession, served: Served, text: str, headers: dict[str, str] | None = None, **body: Any
) -> Any:
    given = {"model": "m", "input": text, **body}
    async with http.post(f"{served.url}/responses", json=given, headers=headers or {}) as answer:
        return await answer.json()


async def stopped(served: Served) -> int:
    """A polite stop, while the collector goes on listening in this process."""
    return await anyio.to_thread.run_sync(served.stop)


def named(spans: list[Span], name: str) -> Span:
    (found,) = [span for span in spans if span.name == name]
    return found


def checked(spans: list[Span]) -> None:
    """What holds for the spans of any run: the required attributes, one root, the rest inside it in time and in the tree."""
    (root,) = [span for span in spans if span.attributes["gen_ai.operation.name"] == "invoke_agent"]
    assert len({span.id for span in spans}) == len(spans)
    for span in spans:
        operation = str(span.attributes["gen_ai.operation.name"])
        assert REQUIRED[operation] <= set(span.attributes), span.name
        assert span.kind == (CLIENT if operation == "chat" else INTERNAL)
        assert span.trace_id == root.trace_id
        assert root.start <= span.start <= span.end <= root.end
        assert (span.status == ERROR) is ("error.type" in span.attributes)
        assert span.scope == "mainspring"
        assert span is root or span.parent == root.id
        assert span.message == "", "a message may quote what was said"


async def test_a_streamed_run_becomes_a_tree_of_spans_inside_that_of_its_caller(
    tmp_path: Path, http: aiohttp.ClientSession, collector: Collector
) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    with serving(tmp_path, SCRIPT, "--tool", "mytools", env=environment(collector)) as served:
        body = {"model": "m", "input": "sum it", "stream": True}
        async with http.post(f"{served.url}/responses", json=body, headers={"traceparent": PARENT}) as answer:
            assert b"response.completed" in await answer.read()
        spans = await collector.wait_for(5)
        assert await stopped(served) == 0
    checked(spans)
    root = named(spans, "invoke_agent")
    assert (root.trace_id, root.parent) == (PARENT.split("-")[1], PARENT.split("-")[2])
    assert root.resource["service.name"] == "mainspring"
    assert root.attributes["gen_ai.usage.input_tokens"] == 50
    assert root.attributes["gen_ai.usage.output_tokens"] == 9
    first, second = sorted([span for span in spans if span.name == "chat m"], key=lambda span: span.start)
    assert first.attributes["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert first.attributes["gen_ai.usage.cache_read.input_tokens"] == 4
    assert second.attributes["gen_ai.response.finish_reasons"] == ["stop"]
    assert second.attributes["gen_ai.response.time_to_first_chunk"] >= 0  # type: ignore[operator]
    add, crash = named(spans, "execute_tool add"), named(spans, "execute_tool crash")
    assert first.end <= add.start
    assert add.end <= second.start
    assert add.attributes["gen_ai.tool.type"] == "extension"
    assert "error.type" not in add.attributes
    assert crash.attributes["error.type"] == "tool_error"
    assert root.status != ERROR, "the run was completed, whatever it got over on the way"
    exported = json.dumps([span.attributes for span in spans]) + "".join([span.message for span in spans])
    for said in ("sum it", "It is five", "secret plan", '"a"'):
        assert said not in exported, "content is exported only when it is asked for"


@pytest.mark.slow
async def test_failed_cancelled_denied_and_handed_over_are_told_apart(
    tmp_path: Path, http: aiohttp.ClientSession, collector: Collector
) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    with serving(tmp_path, SCRIPT, "--tool", "mytools", env=environment(collector)) as served:
        assert (await asked(http, served, "fail"))["error"]["code"] == "provider_unauthorized"
        failed = list(await collector.wait_for(2))
        await asked(http, served, "wrong")
        denied = (await collector.wait_for(6))[2:]
        locate = {"type": "function", "name": "locate", "parameters": {"type": "object"}}
        await asked(http, served, "locate", tools=[locate])
        handed = (await collector.wait_for(8))[6:]
        background = await asked(http, served, "stall", background=True)
        await cancelled(http, served, background["id"])
        stalled = (await collector.wait_for(10))[8:]
        assert await stopped(served) == 0
    for spans in (failed, denied, handed, stalled):
        checked(spans)
    assert named(failed, "chat m").attributes["error.type"] == "provider_unauthorized"
    assert named(failed, "invoke_agent").attributes["error.type"] == "provider_error"
    assert named(failed, "invoke_agent").attributes["mainspring.failure.code"] == "TL08"
    refused = named(denied, "execute_tool add").attributes
    assert (refused["error.type"], refused["mainspring.policy"]) == ("denied", "valid_arguments")
    assert named(denied, "invoke_agent").status != ERROR
    assert [span.name for span in handed] == ["invoke_agent", "chat m"]
    assert named(handed, "invoke_agent").attributes["mainspring.run.status"] == "requires_action"
    assert named(stalled, "chat m").attributes["error.type"] == "aborted"
    assert named(stalled, "invoke_agent").attributes["mainspring.run.status"] == "cancelled"
    assert named(stalled, "invoke_agent").status != ERROR, "somebody wanted it"


async def cancelled(http: aiohttp.ClientSession, served: Served, run_id: str) -> None:
    """Cancels the run once it has begun to speak."""
    async with http.get(f"{served.url}/responses/{run_id}?stream=true") as stream:
        while b"output_text.delta" not in await stream.content.readline():
            pass
    async with http.post(f"{served.url}/responses/{run_id}/cancel") as answer:
        assert (await answer.json())["status"] == "cancelled"


async def test_stopping_flushes_spans_and_metrics_with_the_conventions_buckets(
    tmp_path: Path, http: aiohttp.ClientSession, collector: Collector
) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    slow = environment(collector, OTEL_BSP_SCHEDULE_DELAY="600000", OTEL_SERVICE_NAME="desk")
    with serving(tmp_path, SCRIPT, "--tool", "mytools", env=slow) as served:
        await asked(http, served, "sum it")
        assert collector.spans == []
        assert await stopped(served) == 0
    checked(collector.spans)
    assert {span.resource["service.name"] for span in collector.spans} == {"desk"}
    tokens = {point.attributes["gen_ai.token.type"]: point for point in collector.points_of("gen_ai.client.token.usage")}
    assert {kind: (point.count, point.sum, point.unit) for kind, point in tokens.items()} == {
        "input": (2, 50.0, "{token}"),
        "output": (2, 9.0, "{token}"),
    }
    assert tokens["input"].bounds[:4] == (1, 4, 16, 64)
    assert tokens["input"].bounds[-1] == 67108864
    required = {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "scripted", "gen_ai.request.model": "m"}
    for metric in ("gen_ai.client.operation.duration", "gen_ai.client.operation.time_to_first_chunk"):
        (turns,) = collector.points_of(metric)
        assert (turns.count, turns.unit, turns.attributes) == (2, "s", required)
        assert (turns.bounds[0], turns.bounds[-1]) == (0.01, 81.92)
    (run,) = collector.points_of("gen_ai.invoke_agent.duration")
    assert (run.count, run.bounds[0], run.bounds[-1]) == (1, 0.1, 409.6)
    calls = {point.attributes["gen_ai.tool.name"]: point for point in collector.points_of("gen_ai.execute_tool.duration")}
    assert calls["crash"].attributes["error.type"] == "tool_error"
    assert "error.type" not in calls["add"].attributes


async def test_content_is_exported_when_an_operator_says_so(
    tmp_path: Path, http: aiohttp.ClientSession, collector: Collector
) -> None:
    (tmp_path / "mytools.py").write_text(TOOLS)
    (tmp_path / "mainspring.toml").write_text(f'[otel]\nendpoint = "{collector.url}"\ncontent = true\n')
    with serving(tmp_path, SCRIPT, "--tool", "mytools", env={"PYTHONPATH": "."}) as served:
        await asked(http, served, "sum it")
        assert await stopped(served) == 0
    root, add = named(collector.spans, "invoke_agent"), named(collector.spans, "execute_tool add")
    assert json.loads(str(root.attributes["gen_ai.input.messages"])) == [
        {"role": "user", "parts": [{"type": "text", "content": "sum it"}]}
    ]
    assert "It is five." in str(root.attributes["gen_ai.output.messages"])
    assert json.loads(str(add.attributes["gen_ai.tool.call.arguments"])) == {"a": 2, "b": 3}
    assert add.attributes["gen_ai.tool.call.result"] == "5"


async def test_content_is_exported_without_secrets(tmp_path: Path, http: aiohttp.ClientSession, collector: Collector) -> None:
    key, (secret, password) = f"sk-proj-{'a1B2' * 8}", ("hunter2secret", "correct-horse")
    script: Script = [
        {"when": "use", "calls": [{"name": "log_in", "arguments": {"user": "ada", "password": password}}]},
        {"when": "use", "say": f"Your key is {key}."},
    ]
    (tmp_path / "mytools.py").write_text(
        "from mainspring import tool\n\n\n@tool\ndef log_in(user: str, password: str) -> str:\n"
        f'    """Logs in."""\n    raise RuntimeError("postgres://ada:{secret}@db/x refused")\n'
    )
    (tmp_path / "mainspring.toml").write_text(f'[otel]\nendpoint = "{collector.url}"\ncontent = true\n')
    with serving(tmp_path, script, "--tool", "mytools", env={"PYTHONPATH": "."}) as served:
        await asked(http, served, f"use {key}")
        assert await stopped(served) == 0
    exported = json.dumps([[span.attributes, span.message] for span in collector.spans])
    assert [word for word in (key, secret, password) if word in exported] == []
    assert exported.count("[redacted]") == 4
    assert "Your key is" in exported


@pytest.mark.slow
@pytest.mark.parametrize("is_silent", [False, True], ids=["gone", "silent"])
async def test_a_collector_that_is_gone_or_silent_holds_up_no_run_and_no_stop(
    tmp_path: Path, http: aiohttp.ClientSession, is_silent: bool
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if is_silent:
            deaf.listen(1)  # it takes connections, and never says a word
        address = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "1", "OTEL_BSP_MAX_QUEUE_SIZE": "8"}
        env |= {"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
        with serving(tmp_path, [{"when": "", "say": "Hello."}], env=env) as served:
            with anyio.fail_after(60):
                for _ in range(20):
                    assert (await asked(http, served, "hello"))["status"] == "completed"
            assert await stopped(served) == 0


async def test_a_sampled_out_caller_is_followed(tmp_path: Path, http: aiohttp.ClientSession, collector: Collector) -> None:
    with serving(tmp_path, [{"when": "", "say": "Hello."}], env=environment(collector)) as served:
        await asked(http, served, "hello", {"traceparent": f"{PARENT[:-2]}00"})
        await asked(http, served, "hello", {"traceparent": "nonsense"})
        assert await stopped(served) == 0
    assert len(collector.spans) == 2
    checked(collector.spans)
    assert named(collector.spans, "invoke_agent").parent == ""


def test_what_cannot_be_exported_to_is_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(InvalidRequest, match=r"OTEL_EXPORTER_OTLP_PROTOCOL is `grpc`.*http/protobuf"):
        Exporter(lambda model: "scripted", endpoint="http://127.0.0.1:1")


def test_without_opentelemetry_it_is_said_how_to_get_it() -> None:
    code = """
import sys
sys.modules["opentelemetry"] = None
from mainspring.core.errors import InvalidRequest
from mainspring.features.traces.otel import Exporter
try:
    Exporter(str, endpoint="http://127.0.0.1:1")
except InvalidRequest as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "pip install 'mainspring[otel]'" in said


class Clumsy:
    """An exporter that fails at all it does."""

    def add(self, trace: TraceRecord) -> None:
        raise RuntimeError("no room left")

    async def close(self) -> None:
        pass


async def test_an_exporter_that_fails_is_logged_and_the_run_is_none_the_worse(caplog: pytest.LogCaptureFixture) -> None:
    async with Engine(Scripted(say("Hi.")), exporter=cast(Exporter, Clumsy())) as engine:
        run = await engine.run("go")
    assert run.status == "completed"
    assert run.spec.id in caplog.text
    assert "no room left" in caplog.text


def test_a_server_that_exports_nothing_does_not_load_the_sdk() -> None:
    code = "import sys, mainspring.app.serve; print('opentelemetry.sdk' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert said.strip() == "False"


def test_nothing_is_exported_unless_somebody_says_whereto() -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}
    assert not is_wanted(None, {})
    assert is_wanted("http://127.0.0.1:4318", {})
    assert is_wanted(None, endpoint)
    assert not is_wanted(None, {**endpoint, "OTEL_SDK_DISABLED": "true"})


@pytest.mark.parametrize(
    ("model", "provider", "name"),
    [
        ("gemini/gemini-2.5-flash", "router", "gcp.gemini"),
        ("qwen3", "chat", "openai"),
        ("org/qwen3", "ollama", "ollama"),
        ("anthropic/claude", "router", "anthropic"),
    ],
)
def test_backends_have_the_conventions_names(model: str, provider: str, name: str) -> None:
    assert name_provider(model, provider) == name


KEY = f"sk-proj-{'z9Y8' * 8}"


@pytest.mark.parametrize("content", [False, True])
async def test_no_place_of_a_request_or_an_answer_carries_a_secret_out(
    tmp_path: Path, http: aiohttp.ClientSession, collector: Collector, *, content: bool
) -> None:
    script: Script = [
        {"when": "use", "calls": [{"name": "leak", "arguments": {"token": KEY}}, {"name": KEY, "arguments": {KEY: KEY}}]},
        {"when": "use", "say": f"It is {KEY}."},
        {"when": "fail", "fail": {"code": "provider_unauthorized", "message": f"Incorrect API key provided: {KEY}"}},
    ]
    (tmp_path / "mytools.py").write_text(
        "from mainspring import tool\n\n\n@tool\ndef leak(token: str) -> str:\n"
        f'    """Says {KEY}."""\n    raise RuntimeError("refused: authorization: Bearer {KEY}")\n'
    )
    (tmp_path / "mainspring.toml").write_text(
        f'[otel]\nendpoint = "{collector.url}"\ncontent = {"true" if content else "false"}\n'
    )
    everywhere: dict[str, Any] = {
        "instructions": f"The key is {KEY}.",
        "metadata": {"key": KEY},
        "user": KEY,
        "safety_identifier": KEY,
        "prompt_cache_key": KEY,
        "tools": [{"type": "function", "name": KEY, "parameters": {"type": "object"}, "description": KEY}],
    }
    headers = {"x-request-id": KEY, "tracestate": f"key={KEY}", "baggage": f"key={KEY}", "user-agent": KEY}
    with serving(tmp_path, script, "--tool", "mytools", env={"PYTHONPATH": "."}) as served:
        for text in ("use it", f"use {KEY}", f"fail with {KEY}"):
            await asked(http, served, text, headers, **everywhere)
        await asked(http, served, "use it", headers, model=KEY)
        await asked(http, served, "use it", headers, previous_response_id=f"resp_{KEY}")
        assert await stopped(served) == 0
    assert collector.spans
    leaks = [(span.name, name) for span in collector.spans for name, value in span.attributes.items() if KEY in str(value)]
    assert leaks == []
    assert [span.name for span in collector.spans if KEY in f"{span.name} {span.message} {span.resource}"] == []
    assert [point for point in collector.points.values() if KEY in str(point.attributes)] == []
