"""Azure OpenAI through a real server: deployments, versions, keys, tokens of Entra, and what its filters say."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import openai
import pytest
from anyio import to_thread
from tests.clouds.stand import Asked, Reply, Site, Stand, ask, sse, standing, whole
from tests.providers.backend import DONE, call_piece, chunk, usage_chunk

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.models.backends import make_provider
from mainspring.features.models.settings import ProviderSettings
from mainspring.providers.azure.entra import make_signer

KEY = "azure-key-0123456789abcdef"
SECRET = "entra-secret-0123456789abcdef"
TOKEN = "entra-token-{}-0123456789abcdef"
SAFE = {name: {"filtered": False, "severity": "safe"} for name in ("hate", "self_harm", "sexual", "violence")}
JAILBREAK = {"jailbreak": {"filtered": False, "detected": False}}
PROMPT: Json = {
    "choices": [], "created": 0, "id": "", "model": "", "object": "",
    "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {**SAFE, **JAILBREAK}}],
}  # fmt: skip
FILTER_CHUNK: Json = {
    "id": "", "object": "", "created": 0, "model": "",
    "choices": [{"index": 0, "finish_reason": None, "content_filter_results": SAFE,
                 "content_filter_offsets": {"check_offset": 44, "start_offset": 44, "end_offset": 198}}],
}  # fmt: skip
CALL = (
    sse(PROMPT, chunk(call_piece(0, id="call_1", name="get_time", arguments='{"zone":"UTC"}')), chunk(finish="tool_calls")) + DONE
)
NOON = sse(PROMPT, chunk({"content": "It is noon."}), FILTER_CHUNK, chunk(finish="stop"), usage_chunk(20, 5)) + DONE


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as running:
        yield running


def tell(check: Callable[[Asked], None]) -> Callable[[Asked], Reply]:
    """Calls the tool, then answers, if the check has nothing against it."""

    def answer(asked: Asked) -> Reply:
        assert asked.method == "POST"
        check(asked)
        roles = [message["role"] for message in asked.json["messages"]]
        assert roles in (["user"], ["user", "assistant", "tool"])
        return Reply([NOON if roles[-1] == "tool" else CALL])

    return answer


def settings(stand: Stand, *lines: str) -> str:
    return "\n".join(["[providers.work]", 'kind = "azure"', f'base_url = "{stand.url}"', "attempts = 1", *lines, ""])


async def test_the_v1_surface_is_asked_by_deployment_with_a_key(stand: Stand, tmp_path: Path) -> None:
    def check(asked: Asked) -> None:
        assert (asked.path, asked.query) == ("/openai/v1/chat/completions", "")
        assert asked.headers["api-key"] == KEY
        assert "authorization" not in asked.headers
        assert asked.json["model"] == "our-gpt"

    stand.on("/openai/v1/chat/completions", tell(check))
    site = Site(tmp_path, settings(stand, 'key_env = "WORK_KEY"', 'deployments = { "gpt-5" = "our-gpt" }'), {"WORK_KEY": KEY})
    async with site.serve() as client:
        told = await ask(client, "work/gpt-5", temperature=0.5)
    assert (told.status, told.output_text, site.zones) == ("completed", "It is noon.", ["UTC"])
    # What is known of the model by its name holds, whatever its deployment is called.
    assert ["temperature" in asked.json for asked in stand.asked] == [False, False]


async def test_a_dated_version_has_the_deployment_in_its_path(stand: Stand, tmp_path: Path) -> None:
    def check(asked: Asked) -> None:
        assert asked.path == "/openai/deployments/our%20gpt/chat/completions"
        assert asked.asks == {"api-version": "2024-10-21"}

    stand.on("/openai/deployments/", tell(check))
    lines = ['key_env = "WORK_KEY"', 'api_version = "2024-10-21"', 'deployments = { "gpt-4.1" = "our gpt" }']
    site = Site(tmp_path, settings(stand, *lines), {"WORK_KEY": KEY})
    async with site.serve() as client:
        told = await ask(client, "work/gpt-4.1")
    assert (told.status, site.zones) == ("completed", ["UTC"])


@pytest.mark.parametrize(("version", "path"), [(None, "/openai/v1/responses"), ("2025-04-01-preview", "/openai/responses")])
async def test_the_responses_api_is_asked_where_the_settings_say_so(
    stand: Stand, tmp_path: Path, version: str | None, path: str
) -> None:
    item: Json = {"type": "message", "id": "msg_a", "role": "assistant", "status": "completed"}
    item["content"] = [{"type": "output_text", "text": "It is noon.", "annotations": []}]
    done = {"id": "resp_a", "status": "completed", "output": [item], "usage": {"input_tokens": 9, "output_tokens": 4}}

    def answer(asked: Asked) -> Reply:
        assert (asked.path, asked.headers["api-key"]) == (path, KEY)
        assert asked.asks == ({"api-version": version} if version else {})
        assert asked.json["model"] == "our-gpt"
        return Reply([sse({"type": "response.completed", "sequence_number": 0, "response": done}, named=True)])

    stand.on("/openai/", answer)
    lines = ['api = "responses"', 'deployments = { "gpt-5" = "our-gpt" }', f'api_version = "{version}"' if version else ""]
    site = Site(tmp_path, settings(stand, *lines), {"AZURE_OPENAI_API_KEY": KEY})
    async with site.serve() as client:
        told = await ask(client, "work/gpt-5")
    assert (told.status, told.output_text) == ("completed", "It is noon.")


ENTRA = {"AZURE_TENANT_ID": "tenant-1", "AZURE_CLIENT_ID": "client-1"}


def give_tokens(stand: Stand, path: str, check: Callable[[Asked], None], seconds: object = 3600) -> None:
    """Gives another token each time."""

    def answer(asked: Asked) -> Reply:
        check(asked)
        return whole({"access_token": TOKEN.format(len(stand.find(path))), "expires_in": seconds, "token_type": "Bearer"})

    stand.on(path, answer)


async def test_tokens_of_a_client_secret_are_fetched_once_and_again_when_refused(stand: Stand, tmp_path: Path) -> None:
    def check_form(asked: Asked) -> None:
        scope = "https://cognitiveservices.azure.com/.default"
        assert asked.form == {
            "grant_type": "client_credentials", "client_id": "client-1", "client_secret": SECRET, "scope": scope
        }  # fmt: skip

    refused: list[str] = []

    def answer(asked: Asked) -> Reply:
        assert "api-key" not in asked.headers
        token = asked.headers["authorization"].removeprefix("Bearer ")
        if token == TOKEN.format(1) and stand.find("/openai/")[0] is not asked:
            refused.append(token)
            return whole({"error": {"code": "401", "message": f"token {token} has expired"}}, 401)
        return tell(lambda _: None)(asked)

    give_tokens(stand, "/tenant-1/oauth2/v2.0/token", check_form)
    stand.on("/openai/v1/chat/completions", answer)
    env = {**ENTRA, "AZURE_CLIENT_SECRET": SECRET, "AZURE_AUTHORITY_HOST": stand.url}
    site = Site(tmp_path, settings(stand), env)
    async with site.serve() as client:
        told = await ask(client, "work/our-gpt")
        assert (told.status, site.zones) == ("completed", ["UTC"])
        several = await asyncio.gather(*[ask(client, "work/our-gpt") for _ in range(5)])
    assert [each.status for each in several] == ["completed"] * 5
    assert refused
    assert len(stand.find("/tenant-1/")) == 2
    assert SECRET not in (tmp_path / "served.db").read_bytes().decode(errors="replace")


async def test_a_token_that_ends_soon_is_replaced_before_it_does(stand: Stand, tmp_path: Path) -> None:
    give_tokens(stand, "/tenant-1/", lambda _: None, seconds="0")
    stand.on("/openai/v1/chat/completions", tell(lambda _: None))
    site = Site(tmp_path, settings(stand), {**ENTRA, "AZURE_CLIENT_SECRET": SECRET, "AZURE_AUTHORITY_HOST": stand.url})
    async with site.serve() as client:
        assert (await ask(client, "work/our-gpt")).status == "completed"
    assert [asked.headers["authorization"][-18:] for asked in stand.find("/openai/")] == [
        "1-0123456789abcdef",
        "2-0123456789abcdef",
    ]


async def test_a_federated_token_is_read_anew_each_time(stand: Stand, tmp_path: Path) -> None:
    file = tmp_path / "federated"
    file.write_text("signed-by-the-cluster\n")

    def check(asked: Asked) -> None:
        assert asked.form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        assert asked.form["client_assertion"] == file.read_text().strip()
        file.write_text("signed-another-day\n")

    give_tokens(stand, "/tenant-1/oauth2/v2.0/token", check, seconds=0)
    stand.on("/openai/v1/chat/completions", tell(lambda _: None))
    env = {**ENTRA, "AZURE_FEDERATED_TOKEN_FILE": str(file), "AZURE_AUTHORITY_HOST": stand.url}
    async with Site(tmp_path, settings(stand), env).serve() as client:
        assert (await ask(client, "work/our-gpt")).status == "completed"
    assert len(stand.find("/tenant-1/")) == 2


@pytest.mark.parametrize("place", ["app", "machine"])
async def test_a_managed_identity_gives_tokens(stand: Stand, tmp_path: Path, place: str) -> None:
    header, secret = ("x-identity-header", "header-secret") if place == "app" else ("metadata", "true")
    version = "2019-08-01" if place == "app" else "2018-02-01"

    def check(asked: Asked) -> None:
        assert (asked.method, asked.headers[header]) == ("GET", secret)
        assert asked.asks == {"api-version": version, "resource": "https://cognitiveservices.azure.com", "client_id": "user-1"}

    path = "/msi/token" if place == "app" else "/metadata/identity/oauth2/token"
    give_tokens(stand, path, check, seconds="86400")
    stand.on("/openai/v1/chat/completions", tell(lambda _: None))
    app = {"IDENTITY_ENDPOINT": f"{stand.url}/msi/token", "IDENTITY_HEADER": secret}
    env = app if place == "app" else {"AZURE_POD_IDENTITY_AUTHORITY_HOST": stand.url}
    async with Site(tmp_path, settings(stand), {**env, "AZURE_CLIENT_ID": "user-1"}).serve() as client:
        assert (await ask(client, "work/our-gpt")).status == "completed"
    assert len(stand.find(path)) == 1


async def test_a_refused_client_is_told_what_to_check_and_no_secret_is_shown(stand: Stand, tmp_path: Path) -> None:
    said = {"error": "invalid_client", "error_description": f"AADSTS7000215: Invalid client secret {SECRET}."}
    stand.on("/tenant-1/", lambda _: whole(said, 401))
    env = {**ENTRA, "AZURE_CLIENT_SECRET": SECRET, "AZURE_AUTHORITY_HOST": stand.url}
    site = Site(tmp_path, settings(stand, 'model = "our-gpt"'), env)
    async with site.serve() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client, "work/our-gpt")
    assert caught.value.code == "provider_unauthorized"
    assert "AADSTS7000215" in caught.value.message
    assert "AZURE_CLIENT_SECRET" in caught.value.message
    shown = await to_thread.run_sync(lambda: site.run("doctor") + site.run("config", "explain") + site.run("config", "show"))
    assert "AADSTS7000215" in shown
    assert SECRET not in caught.value.message + shown


@pytest.mark.parametrize("has_key", [True, False])
async def test_a_refused_request_names_the_credentials_that_azure_has(stand: Stand, tmp_path: Path, has_key: bool) -> None:
    stand.on("/tenant-1/", lambda _: whole({"access_token": "a-token-0123456789", "expires_in": 3600}))
    stand.on("/openai/", lambda _: whole({"error": {"code": "PermissionDenied", "message": "Access denied."}}, 403))
    env = {**ENTRA, "AZURE_CLIENT_SECRET": SECRET, "AZURE_AUTHORITY_HOST": stand.url}
    site = Site(tmp_path, settings(stand), {"AZURE_OPENAI_API_KEY": "key-0123456789"} if has_key else env)
    async with site.serve() as client:
        with pytest.raises(openai.InternalServerError) as caught:
            await ask(client, "work/our-gpt")
    assert caught.value.code == "provider_unauthorized"
    assert ("AZURE_OPENAI_API_KEY" in caught.value.message) is has_key
    assert ("API key" in caught.value.message) is has_key
    shown = await to_thread.run_sync(lambda: site.run("run", "Hello", "--model", "work/our-gpt"))
    assert " OPENAI_API_KEY" not in shown


async def test_a_refused_prompt_says_which_filter_stopped_it(stand: Stand, tmp_path: Path) -> None:
    found = {**SAFE, "violence": {"filtered": True, "severity": "medium"}, "jailbreak": {"filtered": True, "detected": True}}
    inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": found}
    error = {
        "message": "The response was filtered due to the prompt.",
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
    }
    stand.on("/openai/", lambda _: whole({"error": {**error, "innererror": inner}}, 400))
    site = Site(tmp_path, settings(stand, f'key = "{KEY}"'), {})
    async with site.serve() as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, "work/our-gpt")
    assert caught.value.code == "invalid_prompt"
    assert "violence (medium), jailbreak" in caught.value.message


@pytest.mark.parametrize("is_late", [False, True])
async def test_an_answer_that_is_stopped_says_which_filter_did_it(stand: Stand, tmp_path: Path, is_late: bool) -> None:
    found = {**SAFE, "hate": {"filtered": True, "severity": "high"}}
    stopped = {"index": 0, "finish_reason": None if is_late else "content_filter", "content_filter_results": found}
    last = sse({"id": "", "object": "", "choices": [stopped if is_late else {**stopped, "delta": {}}]})
    stand.on("/openai/", lambda _: Reply([sse(PROMPT, chunk({"content": "I think"})), last, DONE]))
    async with Site(tmp_path, settings(stand, f'key = "{KEY}"'), {}).serve() as client:
        told = await ask(client, "work/our-gpt")
    assert (told.status, told.incomplete_details.reason) == ("incomplete", "content_filter")
    parts = told.output[0].content
    assert [part.type for part in parts] == ["output_text", "refusal"]
    assert "hate (high)" in parts[1].refusal


async def test_a_cut_stream_and_a_missing_deployment_are_errors(stand: Stand, tmp_path: Path) -> None:
    missing = {"error": {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}}
    stand.on("/openai/deployments/gone/", lambda _: whole(missing, 404))
    stand.on("/openai/deployments/cut/", lambda _: Reply([sse(PROMPT)], ending="abort"))
    site = Site(tmp_path, settings(stand, f'key = "{KEY}"', 'api_version = "2024-10-21"'), {})
    async with site.serve() as client:
        with pytest.raises(openai.NotFoundError) as caught:
            await ask(client, "work/gone")
        assert caught.value.code == "model_not_found"
        with pytest.raises(openai.InternalServerError) as broken:
            await ask(client, "work/cut")
        assert broken.value.code == "provider_unavailable"


async def test_models_and_the_doctor_name_the_deployments(stand: Stand, tmp_path: Path) -> None:
    stand.on("/openai/v1/chat/completions", lambda _: Reply([NOON]))
    lines = [f'key = "{KEY}"', 'deployments = { "gpt-5" = "our-gpt" }', 'model = "gpt-5"']
    site = Site(tmp_path, settings(stand, *lines), {})
    shown = await to_thread.run_sync(lambda: site.run("models"))
    assert "work/gpt-5" in shown
    assert "azure, configured" in shown
    assert "It is noon." in await to_thread.run_sync(lambda: site.run("doctor"))
    assert KEY not in await to_thread.run_sync(lambda: site.run("config", "show"))


@pytest.mark.parametrize(
    "backend",
    [
        ProviderSettings(kind="azure"),
        ProviderSettings(kind="chat", base_url="http://127.0.0.1:1/v1", api_version="2024-10-21"),
        ProviderSettings(kind="responses", deployments={"a": "b"}),
    ],
)
def test_settings_that_cannot_work_are_refused(backend: ProviderSettings) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_provider("work", backend, {})
    assert caught.value.param == "providers"


@pytest.mark.parametrize(
    "environment",
    [
        {"IDENTITY_ENDPOINT": "http://evil.example/token", "IDENTITY_HEADER": "x"},
        {"IDENTITY_ENDPOINT": "http://10.0.0.1/token", "IDENTITY_HEADER": "x"},
        {"AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://169.254.169.254.evil.example"},
        {"AZURE_POD_IDENTITY_AUTHORITY_HOST": "ftp://127.0.0.1"},
        {"AZURE_CLIENT_SECRET": SECRET},
    ],
)
def test_no_token_is_asked_for_in_the_clear_of_a_far_address(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        make_signer(environment)
