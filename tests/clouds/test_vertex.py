"""Vertex AI through a real server: Gemini and Claude at Google Cloud's addresses, with every kind of its credentials."""

import json
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import openai
import pytest
from anyio import to_thread
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from tests.clouds.stand import Asked, Reply, Site, Stand, ask, sse, standing, whole

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.features.models.backends import make_provider
from mainspring.features.models.settings import ProviderSettings
from mainspring.providers.vertex.google_credentials import CredentialsFile, make_source

KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)
PEM = KEY.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
TOKEN = "vertex-token-{}-0123456789abcdef"
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GEMINI, CLAUDE = "gemini-3-flash", "claude-sonnet-4-5@20250929"
GOOGLE = "/v1/projects/our-project/locations/global/publishers/google/models"
ANTHROPIC = "/v1/projects/our-project/locations/us-east5/publishers/anthropic/models"


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as running:
        yield running


def settings(stand: Stand, *lines: str) -> str:
    return "\n".join(["[providers.gcp]", 'kind = "vertex"', f'base_url = "{stand.url}"', "attempts = 1", *lines, ""])


def give_tokens(stand: Stand, path: str, check: Callable[[Asked], None], seconds: int = 3600) -> None:
    def answer(asked: Asked) -> Reply:
        check(asked)
        return whole({"access_token": TOKEN.format(len(stand.find(path))), "expires_in": seconds, "token_type": "Bearer"})

    stand.on(path, answer)


def gemini(*parts: Json, reason: str = "STOP") -> bytes:
    """Chunks in the shape that Google publishes for `streamGenerateContent`; written by hand."""
    chunks = [{"candidates": [{"content": {"role": "model", "parts": [part]}, "index": 0}]} for part in parts]
    usage = {"promptTokenCount": 20, "candidatesTokenCount": 5, "totalTokenCount": 25, "trafficType": "ON_DEMAND"}
    return sse(*chunks, {"candidates": [{"finishReason": reason, "index": 0}], "usageMetadata": usage})


def claude(block: Json, *deltas: Json, reason: str = "end_turn", tokens: int = 20) -> bytes:
    """Events in the shape that Anthropic publishes for Messages; written by hand."""
    start = {
        "type": "message_start",
        "message": {"id": "msg_vrtx_1", "type": "message", "usage": {"input_tokens": tokens, "output_tokens": 1}},
    }
    return sse(
        start,
        {"type": "ping"},
        {"type": "content_block_start", "index": 0, "content_block": block},
        *[{"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas],
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
        named=True,
    )


NOON = gemini({"text": "It is "}, {"text": "noon."})


def tell_gemini(asked: Asked) -> Reply:
    assert asked.path == f"{GOOGLE}/{GEMINI}:streamGenerateContent"
    assert asked.asks == {"alt": "sse"}
    contents = asked.json["contents"]
    assert '"id"' not in json.dumps(contents)
    if len(contents) == 1:
        call = {"functionCall": {"name": "get_time", "args": {"zone": "UTC"}}, "thoughtSignature": "c2lnbg=="}
        return Reply([gemini(call, {"functionCall": {"name": "get_time", "args": {"zone": "CET"}}})])
    assert contents[1]["parts"][0]["thoughtSignature"] == "c2lnbg=="
    answers = [part["functionResponse"]["response"] for part in contents[2]["parts"]]
    assert answers == [{"output": "12:00 UTC"}, {"output": "12:00 CET"}]
    return Reply([NOON])


def write_account(folder: Path, stand: Stand, **fields: object) -> str:
    file = folder / "account.json"
    account = {
        "type": "service_account", "project_id": "our-project", "private_key_id": "key-1", "private_key": PEM,
        "client_email": "agent@our-project.iam.gserviceaccount.com", "token_uri": f"{stand.url}/token", **fields,
    }  # fmt: skip
    file.write_text(json.dumps(account))
    return str(file)


def check_assertion(stand: Stand) -> Callable[[Asked], None]:
    """The assertion is judged by a library that has no part in writing it."""

    def check(asked: Asked) -> None:
        assert asked.form["grant_type"] == "urn:ietf:params:oauth:grant-type:jwt-bearer"
        assertion = asked.form["assertion"]
        claims = jwt.decode(assertion, KEY.public_key(), algorithms=["RS256"], audience=f"{stand.url}/token")
        assert claims["iss"] == "agent@our-project.iam.gserviceaccount.com"
        assert claims["scope"] == SCOPE
        assert 0 < claims["exp"] - claims["iat"] <= 3600
        assert jwt.get_unverified_header(assertion) == {"alg": "RS256", "typ": "JWT", "kid": "key-1"}

    return check


async def test_gemini_is_asked_with_the_token_of_a_service_account(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        assert asked.headers["authorization"] == f"Bearer {TOKEN.format(1)}"
        assert "x-goog-api-key" not in asked.headers
        return tell_gemini(asked)

    give_tokens(stand, "/token", check_assertion(stand))
    stand.on(GOOGLE, answer)
    site = Site(tmp_path, settings(stand, f'credentials_file = "{write_account(tmp_path, stand)}"'), {})
    async with site.serve() as client:
        for _ in range(2):
            told = await ask(client, f"gcp/{GEMINI}")
            assert (told.status, told.output_text) == ("completed", "It is noon.")
    assert sorted(site.zones) == ["CET", "CET", "UTC", "UTC"]
    assert len(stand.find("/token")) == 1


async def test_claude_is_asked_by_its_own_format_with_the_version_in_the_body(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        assert asked.path == f"{ANTHROPIC}/{CLAUDE}:streamRawPredict"
        assert "model" not in asked.json
        assert (asked.json["anthropic_version"], asked.json["stream"]) == ("vertex-2023-10-16", True)
        assert "x-api-key" not in asked.headers
        if len(asked.json["messages"]) > 1:
            assert asked.json["messages"][2]["content"][0]["tool_use_id"] == "toolu_vrtx_1"
            return Reply([claude({"type": "text", "text": ""}, {"type": "text_delta", "text": "It is noon."})])
        use = {"type": "tool_use", "id": "toolu_vrtx_1", "name": "get_time", "input": {}}
        return Reply([claude(use, {"type": "input_json_delta", "partial_json": '{"zone": "UTC"}'}, reason="tool_use")])

    give_tokens(stand, "/token", check_assertion(stand))
    stand.on(ANTHROPIC, answer)
    env = {"GOOGLE_APPLICATION_CREDENTIALS": write_account(tmp_path, stand), "GOOGLE_CLOUD_LOCATION": "us-east5"}
    site = Site(tmp_path, settings(stand), env)
    async with site.serve() as client:
        told = await ask(client, f"gcp/{CLAUDE}")
    assert (told.status, told.output_text, site.zones) == ("completed", "It is noon.", ["UTC"])
    assert (told.usage.input_tokens, told.usage.output_tokens) == (40, 10)


async def test_what_is_learned_of_claude_is_kept_shown_and_forgotten(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        answered = {"type": "text", "text": ""}, {"type": "text_delta", "text": "It is noon."}
        return Reply([claude(*answered, tokens=2048)])

    give_tokens(stand, "/token", lambda _: None)
    stand.on(ANTHROPIC, answer)
    stand.on("/v1beta1/publishers/", lambda _: whole({}))
    lines = f'credentials_file = "{write_account(tmp_path, stand)}"', 'region = "us-east5"'
    site = Site(tmp_path, settings(stand, *lines), {})
    async with site.serve() as client:
        told = await ask(client, f"gcp/{CLAUDE}", input="What time is it? " * 20_000)
        assert (told.status, "without a word" in told.error.message) == ("failed", True)
        shown = await client.get(f"/models/gcp/{CLAUDE}", cast_to=Json)
    (profile,) = shown["profiles"]
    assert profile["facts"]["window"]["source"] == "learned"
    named = f"gcp/{CLAUDE}", "--database", "served.db"
    kept = await to_thread.run_sync(lambda: [site.run("models", what, *named) for what in ("show", "forget", "show")])
    assert "learned" in kept[0]
    assert "1 field of the profile" in kept[1]
    assert "learned" not in kept[2]


async def test_an_express_key_needs_no_project_and_asks_no_claude(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        assert asked.headers["x-goog-api-key"] == "express-key-0123456789"
        assert "authorization" not in asked.headers
        return Reply([NOON])

    stand.on(f"/v1/publishers/google/models/{GEMINI}:streamGenerateContent", answer)
    site = Site(tmp_path, settings(stand, 'key_env = "EXPRESS"'), {"EXPRESS": "express-key-0123456789"})
    async with site.serve() as client:
        assert (await ask(client, f"gcp/{GEMINI}")).output_text == "It is noon."
        with pytest.raises(openai.BadRequestError, match="project"):
            await ask(client, f"gcp/{CLAUDE}")


async def test_the_metadata_server_gives_tokens_and_a_refused_one_is_replaced(stand: Stand, tmp_path: Path) -> None:
    def check(asked: Asked) -> None:
        assert (asked.method, asked.headers["metadata-flavor"]) == ("GET", "Google")

    def answer(asked: Asked) -> Reply:
        if asked.headers["authorization"] != f"Bearer {TOKEN.format(2)}":
            error = {"code": 401, "message": "Request had invalid authentication credentials.", "status": "UNAUTHENTICATED"}
            return whole([{"error": error}], 401)
        return Reply([NOON])

    path = "/computeMetadata/v1/instance/service-accounts/default/token"
    give_tokens(stand, path, check)
    stand.on("/v1/projects/other/locations/europe-west4/publishers/google/models", answer)
    env = {"GCE_METADATA_HOST": stand.url.removeprefix("http://")}
    site = Site(tmp_path, settings(stand, 'project = "other"', 'region = "europe-west4"'), env)
    async with site.serve() as client:
        assert (await ask(client, f"gcp/{GEMINI}")).output_text == "It is noon."
    assert len(stand.find(path)) == 2


async def test_a_federated_workload_becomes_a_service_account(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / "subject").write_text(json.dumps({"access": "signed-elsewhere"}))
    audience = "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q"

    def check(asked: Asked) -> None:
        assert asked.form == {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "audience": audience, "scope": SCOPE,
            "requested_token_type": "urn:ietf:params:oauth:token-type:access_token", "subject_token": "signed-elsewhere",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        }  # fmt: skip

    def impersonate(asked: Asked) -> Reply:
        assert asked.headers["authorization"] == f"Bearer {TOKEN.format(1)}"
        assert asked.json == {"scope": [SCOPE]}
        until = (datetime.now(UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
        return whole({"accessToken": "impersonated-0123456789", "expireTime": until})

    def answer(asked: Asked) -> Reply:
        assert asked.headers["authorization"] == "Bearer impersonated-0123456789"
        return Reply([NOON])

    give_tokens(stand, "/sts", check)
    stand.on("/impersonate", impersonate)
    stand.on(GOOGLE, answer)
    form = {"type": "json", "subject_token_field_name": "access"}
    file = tmp_path / "workload.json"
    workload = {
        "type": "external_account", "audience": audience, "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
        "token_url": f"{stand.url}/sts", "service_account_impersonation_url": f"{stand.url}/impersonate:generateAccessToken",
        "credential_source": {"file": str(tmp_path / "subject"), "format": form},
    }  # fmt: skip
    file.write_text(json.dumps(workload))
    env = {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "GOOGLE_CLOUD_PROJECT": "our-project"}
    async with Site(tmp_path, settings(stand), env).serve() as client:
        assert (await ask(client, f"gcp/{GEMINI}")).output_text == "It is noon."


async def test_the_credentials_of_a_user_are_found_where_gcloud_leaves_them(stand: Stand, tmp_path: Path) -> None:
    def check(asked: Asked) -> None:
        assert asked.form == {
            "grant_type": "refresh_token", "client_id": "c", "client_secret": "s", "refresh_token": "refresh-0123456789"
        }  # fmt: skip

    def answer(asked: Asked) -> Reply:
        assert asked.headers["x-goog-user-project"] == "our-project"
        return Reply([NOON])

    give_tokens(stand, "/token", check)
    stand.on(GOOGLE, answer)
    folder = tmp_path / ".config" / "gcloud"
    folder.mkdir(parents=True)
    user = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "refresh-0123456789"}
    user |= {"quota_project_id": "our-project", "token_uri": f"{stand.url}/token"}
    (folder / "application_default_credentials.json").write_text(json.dumps(user))
    async with Site(tmp_path, settings(stand), {}).serve() as client:
        assert (await ask(client, f"gcp/{GEMINI}")).output_text == "It is noon."


@pytest.mark.parametrize(
    ("reply", "code", "words"),
    [
        (
            whole({"error": {"code": 403, "message": "denied", "status": "PERMISSION_DENIED"}}, 403),
            "provider_unauthorized",
            "aiplatform.user",
        ),
        (
            whole([{"error": {"code": 429, "message": "quota", "status": "RESOURCE_EXHAUSTED"}}], 429),
            "rate_limit_exceeded",
            "quota",
        ),
        (whole({"error": {"code": 404, "message": "Publisher Model `x` was not found"}}, 404), "model_not_found", "not found"),
        (Reply([gemini({"text": ""}, reason="MALFORMED_FUNCTION_CALL")]), "provider_bad_output", "MALFORMED"),
        (Reply([sse({"candidates": []})], ending="abort"), "provider_unavailable", "try again"),
    ],
)
async def test_failures_have_our_codes(stand: Stand, tmp_path: Path, reply: Reply, code: str, words: str) -> None:
    give_tokens(stand, "/token", lambda _: None)
    stand.on(GOOGLE, lambda _: reply)
    site = Site(tmp_path, settings(stand, f'credentials_file = "{write_account(tmp_path, stand)}"'), {})
    async with site.serve() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, f"gcp/{GEMINI}")
    assert caught.value.code == code
    assert words in caught.value.message
    assert TOKEN.format(1) not in caught.value.message


async def test_a_refused_account_is_told_what_to_check_and_no_key_is_shown(stand: Stand, tmp_path: Path) -> None:
    stand.on("/token", lambda _: whole({"error": "invalid_grant", "error_description": "Invalid JWT Signature."}, 400))
    site = Site(tmp_path, settings(stand, f'credentials_file = "{write_account(tmp_path, stand)}"', f'model = "{GEMINI}"'), {})
    shown = await to_thread.run_sync(lambda: site.run("doctor") + site.run("config", "show") + site.run("config", "explain"))
    assert "Invalid JWT Signature" in shown
    assert "agent@our-project" in shown
    assert PEM[40:80] not in shown


async def test_models_of_both_publishers_are_listed(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        publisher = asked.path.split("/")[3]
        names = [GEMINI, "text-embedding-005"] if publisher == "google" else [CLAUDE.partition("@")[0]]
        return whole({"publisherModels": [{"name": f"publishers/{publisher}/models/{name}"} for name in names]})

    give_tokens(stand, "/token", lambda _: None)
    stand.on("/v1beta1/publishers/", answer)
    site = Site(tmp_path, settings(stand, f'credentials_file = "{write_account(tmp_path, stand)}"'), {})
    shown = await to_thread.run_sync(lambda: site.run("models"))
    assert "vertex, configured" in shown
    assert f"gcp/{GEMINI}" in shown
    assert "gcp/claude-sonnet-4-5" in shown
    assert "embedding" not in shown


@pytest.mark.parametrize(
    "backend",
    [
        ProviderSettings(kind="vertex"),
        ProviderSettings(kind="vertex", project="a/../b"),
        ProviderSettings(kind="vertex", project="a", region="evil.example/x"),
        ProviderSettings(kind="gemini", project="a"),
    ],
)
def test_settings_that_cannot_work_are_refused(backend: ProviderSettings, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_provider("gcp", backend, {"HOME": str(tmp_path)})
    assert caught.value.param == "providers"


@pytest.mark.parametrize("lines", [(), ('project = "our-project"',)], ids=["project of the file", "project set"])
async def test_credentials_that_cannot_be_read_cost_only_the_models_that_need_them(
    stand: Stand, tmp_path: Path, lines: tuple[str, ...]
) -> None:
    (tmp_path / "script.json").write_text('{"turns": [{"say": "It is noon."}]}')
    other = '[providers.other]\nkind = "scripted"\nmodel = "script.json"\n'
    site = Site(tmp_path, settings(stand, 'credentials_file = "missing.json"', *lines) + other, {})
    async with site.serve() as client:
        assert (await ask(client, "other")).output_text == "It is noon."
        with pytest.raises(openai.InternalServerError, match=r"missing\.json") as caught:
            await ask(client, f"gcp/{GEMINI}")
    assert caught.value.code == "provider_unauthorized"
    assert "credentials_file" in caught.value.message


@pytest.mark.parametrize(
    "file",
    [
        CredentialsFile("service_account", private_key=PEM, token_uri="http://evil.example/token"),
        CredentialsFile("service_account", private_key="no key"),
        CredentialsFile("external_account", credential_source={"executable": {"command": "rm"}}),
        CredentialsFile("external_account", credential_source={"file": "x"}, token_url="http://10.0.0.1/"),
        CredentialsFile("impersonated_service_account"),
    ],
)
def test_credentials_that_are_not_safe_or_not_known_are_refused(file: CredentialsFile) -> None:
    with pytest.raises(InvalidRequest):
        make_source({}, file)


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.1", "169.254.169.254@evil.example"])
def test_no_token_is_asked_for_in_the_clear_of_a_far_address(host: str) -> None:
    with pytest.raises(InvalidRequest, match="GCE_METADATA_HOST"):
        make_source({"GCE_METADATA_HOST": host}, None)
