"""Which models are found, configured and named: real servers on loopback, and nothing but the given environment."""

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from tests.kit.waiting import PATIENCE

from mainspring.core.errors import InvalidRequest, ProviderError
from mainspring.core.events import TurnEnded
from mainspring.core.items import Json, user
from mainspring.core.model_request import ModelRequest
from mainspring.features.models import backends, discovery, model_choice
from mainspring.features.models.backends import FoundBackend
from mainspring.features.models.discovery import ModelServer
from mainspring.features.models.settings import ModelSettings, ProviderSettings
from mainspring.ports import Provider

QUESTION = ModelRequest(run_id="resp_1", model="m", items=(user("Hello", id="msg_1"),))
KEY = "sk-something-secret"


class Asked:
    """A backend that lists models and answers chats, and remembers what it was asked."""

    def __init__(self, listed: Json) -> None:
        self.listed = listed
        self.bodies: list[Json] = []
        self.keys: list[str | None] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.keys.append(request.headers.get("Authorization"))
        if request.method == "GET":
            return web.json_response(self.listed)
        self.bodies.append(await request.json())
        chunk = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi."}, "finish_reason": "stop"}]}\n\ndata: [DONE]\n\n'
        return web.Response(body=chunk, content_type="text/event-stream")


@asynccontextmanager
async def listening(listed: Json) -> AsyncIterator[tuple[str, Asked]]:
    asked = Asked(listed)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", asked.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def nobody() -> str:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


async def answer_of(provider: Provider, model: str) -> None:
    events = [event async for event in provider.stream(ModelRequest("resp_1", model, (user("Hello", id="msg_1"),)))]
    await provider.close()
    assert isinstance(events[-1], TurnEnded)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, {}),
        ({"OPENAI_API_KEY": ""}, {}),
        ({"OPENAI_API_KEY": KEY}, {"openai": ("responses", backends.OPENAI)}),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://me/v1"}, {"openai": ("chat", "http://me/v1")}),
        ({"OPENAI_BASE_URL": "http://me/v1"}, {"openai": ("chat", "http://me/v1")}),
        ({"ANTHROPIC_API_KEY": KEY}, {"anthropic": ("anthropic", None)}),
        ({"GOOGLE_API_KEY": KEY}, {"gemini": ("gemini", None)}),
        ({"GEMINI_API_KEY": KEY, "OPENAI_API_KEY": KEY}, {"openai": ("responses", backends.OPENAI), "gemini": ("gemini", None)}),
    ],
)
def test_keys_in_the_environment_are_found(environment: dict[str, str], found: dict[str, tuple[str, str | None]]) -> None:
    got = discovery.find_in_environment(environment)
    assert {name: (entry.backend.kind, entry.backend.base_url) for name, entry in got.items()} == found
    assert KEY not in repr(got)


async def test_servers_on_this_machine_are_found_by_what_they_say() -> None:
    ollama = {"models": [{"name": "qwen3:4b", "model": "qwen3:4b"}]}
    vllm = {"object": "list", "data": [{"id": "qwen", "object": "model", "owned_by": "vllm"}]}
    async with listening(ollama) as (first, _), listening(vllm) as (second, _), listening(vllm) as (other, _):
        servers = {
            "ollama": ModelServer("ollama", first),
            "lmstudio": ModelServer("chat", f"{nobody()}/v1"),
            "vllm": ModelServer("chat", f"{second}/v1", "vllm"),
            "llamacpp": ModelServer("chat", f"{other}/v1", "llamacpp"),
        }
        found = await discovery.find_on_this_machine({}, servers, PATIENCE)
    assert {name: entry.backend.model for name, entry in found.items()} == {"ollama": "qwen3:4b", "vllm": "qwen"}
    assert backends.pick_default_model(found) == "ollama/qwen3:4b"


@pytest.mark.parametrize("host", ["{host}", "http://{host}", "http://{host}/"])
async def test_ollama_is_looked_for_where_its_own_variable_says(host: str) -> None:
    async with listening({"models": [{"name": "qwen3:4b", "model": "qwen3:4b"}]}) as (url, _):
        environment = {"OLLAMA_HOST": host.format(host=url.removeprefix("http://"))}
        found = await discovery.find_on_this_machine(environment, {"ollama": ModelServer("ollama", nobody())}, PATIENCE)
    assert list(found) == ["ollama"]


async def test_a_server_that_never_answers_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}/v1"
        assert await discovery.find_on_this_machine({}, {"lmstudio": ModelServer("chat", url)}) == {}


async def test_what_is_found_first_answers_and_the_others_are_named() -> None:
    known = {
        "vllm": FoundBackend(ProviderSettings(base_url="http://127.0.0.1:1/v1", model="qwen"), "it answers"),
        "local": FoundBackend(ProviderSettings(base_url="http://127.0.0.1:1/v1", model="small"), "it runs"),
    }
    answering = model_choice.choose_discovered(known)
    assert answering is not None
    assert answering.model == "vllm/qwen"
    assert "also local" in answering.told
    await answering.provider.close()
    assert model_choice.choose_discovered({}) is None


async def test_a_model_goes_to_the_backend_at_the_base_url_by_its_own_name() -> None:
    async with listening({}) as (url, asked):
        await answer_of(model_choice.resolve_provider("meta/llama-3", f"{url}/v1", KEY, environment={}), "meta/llama-3")
    assert [body["model"] for body in asked.bodies] == ["meta/llama-3"]
    assert asked.keys == [f"Bearer {KEY}"]


async def test_configured_providers_are_asked_by_name_and_aliases_fall_back() -> None:
    async with listening({}) as (url, asked):
        tables = {
            "down": ProviderSettings(base_url=f"{nobody()}/v1", attempts=1),
            "up": ProviderSettings(base_url=f"{url}/v1", key=KEY, headers={"X-Team": "a"}, model="first"),
        }
        provider = backends.make_router(backends.list_configured(tables), aliases={"safe": ["down/x", "up/y"]}, default="up")
        for model in ("up/one", "up", "safe", "anything"):
            events = [event async for event in provider.stream(ModelRequest("resp_1", model, QUESTION.items))]
            assert isinstance(events[-1], TurnEnded)
        with pytest.raises(ProviderError, match="no server answers"):
            await anext(provider.stream(ModelRequest("resp_1", "down/x", QUESTION.items)))
        await provider.close()
    assert [body["model"] for body in asked.bodies] == ["one", "first", "y", "anything"]
    assert set(asked.keys) == {f"Bearer {KEY}"}


def test_a_vendor_s_name_brings_its_wire_format_along() -> None:
    found = backends.list_configured({"anthropic": ProviderSettings(key=KEY), "mine": ProviderSettings(kind="gemini", key=KEY)})
    assert [(entry.backend.kind, entry.backend.model) for entry in found.values()] == [
        ("anthropic", "claude-sonnet-5-5"),
        ("gemini", None),
    ]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: model_choice.resolve_provider("gpt-5", environment={}),
            "needs a backend: set OPENAI_API_KEY, ANTHROPIC_API_KEY",
        ),
        (
            lambda: model_choice.resolve_provider("antropic/claude-sonnet-5-5", environment={}),
            r"did you mean `anthropic/claude-sonnet-5-5`\? Or else set OPENAI_API_KEY",
        ),
        (lambda: model_choice.resolve_provider("anthropic/claude", environment={"OPENAI_API_KEY": KEY}), "set ANTHROPIC_API_KEY"),
        (
            lambda: backends.make_provider("x", ProviderSettings(kind="chat"), {}),
            "a backend of kind `chat` needs a `base_url`",
        ),
        (lambda: backends.make_provider("x", ProviderSettings(base_url="http://x", key_env="NOPE"), {}), "the variable NOPE"),
        (lambda: backends.make_provider("x", ProviderSettings(kind="scripted"), {}), "needs its file"),
    ],
)
def test_a_backend_that_cannot_be_had_says_what_to_set(make: Callable[[], Provider], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make()


async def test_a_script_is_a_provider_like_any_other(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text('{"turns": [{"say": "Hello."}]}')
    tables = {"play": ProviderSettings(kind="scripted", model=str(script))}
    await answer_of(backends.make_router(backends.list_configured(tables)), "play")


@pytest.mark.parametrize("model", ["anthropic/claude-sonnet-5-5", "gemini/gemini-2.5-flash"])
def test_a_named_vendor_is_asked_with_its_own_key_and_nobody_else_is(model: str) -> None:
    with pytest.raises(InvalidRequest, match="needs a backend"):
        model_choice.resolve_provider(model, environment={"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"})
    router = model_choice.resolve_provider(
        model, environment={"OPENAI_API_KEY": KEY, "ANTHROPIC_API_KEY": KEY, "GEMINI_API_KEY": KEY}
    )
    assert list(router._providers) == [model.partition("/")[0]]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        ("anthropic/claude", "anthropic"),
        ("claude-sonnet-5-5", "anthropic"),
        ("gemini-2.5-flash", "gemini"),
        ("gpt-5", "openai"),
        ("x", "openai"),
    ],
)
def test_a_key_that_is_given_goes_to_whom_the_name_means(model: str, asked: str) -> None:
    router = model_choice.resolve_provider(model, api_key=KEY, environment={})
    assert list(router._providers) == [asked]  # type: ignore[attr-defined]


async def test_a_model_on_this_machine_is_never_asked_elsewhere() -> None:
    environment = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://127.0.0.1:9/v1"}
    for model in ("local", "local/smollm2", "local:smollm2"):
        router = model_choice.resolve_provider(model, environment=environment)
        assert list(router._providers) == ["local"]  # type: ignore[attr-defined]
    async with listening({}) as (url, _):
        router = model_choice.resolve_provider("ollama/qwen3", environment={**environment, "OLLAMA_HOST": url})
        with pytest.raises(ProviderError, match=url):
            await anext(router.stream(ModelRequest("resp_1", "ollama/qwen3", QUESTION.items)))
        await router.close()


async def test_a_name_that_no_configured_provider_has_is_refused() -> None:
    house = ProviderSettings(base_url="http://127.0.0.1:9/v1", attempts=1)
    settings = ModelSettings(providers={"house": house}, aliases={"quick": "house/small"})
    answering = model_choice.choose_configured(settings)
    for model in ("nosuch/x", "typo"):
        with pytest.raises(ProviderError, match="is not configured"):
            await anext(answering.provider.stream(ModelRequest("resp_1", model, QUESTION.items)))
    await answering.provider.close()


async def test_a_model_that_only_embeds_is_not_taken_for_one_that_talks() -> None:
    listed = {"data": [{"id": "text-embedding-nomic"}, {"id": "bge-reranker"}, {"id": "qwen3-4b"}]}
    async with listening(listed) as (url, _):
        found = await discovery.find_on_this_machine({}, {"lmstudio": ModelServer("chat", f"{url}/v1")}, PATIENCE)
        assert found["lmstudio"].backend.model == "qwen3-4b"
        everything = await discovery.find_backends({"OPENAI_BASE_URL": f"{url}/v1", "OLLAMA_HOST": nobody()})
    assert everything["openai"].backend.model == "qwen3-4b"
