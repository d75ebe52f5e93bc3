"""Amazon Bedrock through a real server: every request is signed rightly, and every kind of answer understood."""

import json
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import openai
import pytest
from anyio import to_thread
from msgspec.structs import replace
from tests.clouds.aws import MIME, START, call, check_signature, delta, end, event, exception, fail, find_model, say, stream
from tests.clouds.stand import Asked, Reply, Site, Stand, ask, standing, whole
from tests.net.servers import proxying
from tests.providers.backend import QUESTION

from mainspring.core.errors import InvalidRequest, Unavailable
from mainspring.core.items import FunctionCall, FunctionCallOutput, Json, Reasoning, ToolDefinition, user
from mainspring.core.spec import ToolChoice
from mainspring.features.models.backends import make_provider
from mainspring.features.models.settings import ProviderSettings
from mainspring.providers.bedrock.aws_credentials import find_source
from mainspring.providers.bedrock.provider import Bedrock
from mainspring.providers.bedrock.request import build_body

ID, SECRET, SESSION = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "session-token-{}-0123456789abcdef"
ENV = {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1"}
NOVA = "amazon.nova-lite-v1:0"
CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
ARN = "arn:aws:bedrock:us-east-1:123456789012:inference-profile/us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PNG = "iVBORw0KGgo="


@pytest.fixture
async def stand() -> AsyncIterator[Stand]:
    async with standing() as running:
        yield running


def settings(stand: Stand, *lines: str) -> str:
    return "\n".join(["[providers.aws]", 'kind = "bedrock"', f'base_url = "{stand.url}"', "attempts = 1", *lines, ""])


def tell(*answers: Reply, check: Callable[[Asked], None] | None = None, token: str | None = None) -> Callable[[Asked], Reply]:
    """Answers in order, each to a request that is signed rightly."""
    left = list(answers)

    def answer(asked: Asked) -> Reply:
        check_signature(asked, ID, SECRET, token)
        assert asked.method == "POST"
        if check is not None:
            check(asked)
        return left.pop(0)

    return answer


def outputs(asked: Asked) -> list[Json]:
    return [block["toolResult"] for block in asked.json["messages"][-1]["content"] if "toolResult" in block]


@pytest.mark.parametrize("model", [NOVA, CLAUDE, ARN])
async def test_calls_over_several_turns_with_every_request_signed(stand: Stand, tmp_path: Path, model: str) -> None:
    def check(asked: Asked) -> None:
        assert find_model(asked) == model
        assert asked.path.endswith("/converse-stream")
        assert ":" not in asked.path
        assert [tool["toolSpec"]["name"] for tool in asked.json["toolConfig"]["tools"] if "toolSpec" in tool] == ["get_time"]

    two = stream(START, call(("tooluse_a", '{"zone": "UTC"}'), ("tooluse_b", '{"zone": "CET"}')))
    one = stream(START, call(("tooluse_c", '{"zone": "JST"}')))
    stand.on("/model/", tell(two, one, stream(say("It is ", "noon.", cacheReadInputTokens=7)), check=check))
    site = Site(tmp_path, settings(stand), ENV)
    async with site.serve() as client:
        told = await ask(client, f"aws/{model}")
    assert (told.status, told.output_text, sorted(site.zones)) == ("completed", "It is noon.", ["CET", "JST", "UTC"])
    assert (told.usage.input_tokens, told.usage.output_tokens) == (67, 15)
    assert told.usage.input_tokens_details.cached_tokens == 7
    results = {result["toolUseId"]: result["content"] for result in outputs(stand.asked[1])}
    assert results == {"tooluse_a": [{"text": "12:00 UTC"}], "tooluse_b": [{"text": "12:00 CET"}]}


async def test_signed_thoughts_return_to_the_model_that_had_them_and_to_no_other(stand: Stand, tmp_path: Path) -> None:
    thought = [delta(0, {"reasoningContent": {"text": word}}) for word in ("The clock", " tells.")]
    thought += [delta(0, {"reasoningContent": {"signature": "c2lnbmVk"}}), event("contentBlockStop", {"contentBlockIndex": 0})]
    hidden = [
        delta(1, {"reasoningContent": {"redactedContent": "aGlkZGVu"}}),
        event("contentBlockStop", {"contentBlockIndex": 1}),
    ]
    first = stream(START, *thought, *hidden, call(("tooluse_a", '{"zone": "UTC"}'), index=2))
    stand.on("/model/", tell(first, stream(say("It is noon.")), stream(say("Still."))))
    async with Site(tmp_path, settings(stand), ENV).serve() as client:
        told = await ask(client, f"aws/{CLAUDE}", reasoning={"effort": "low"})
        assert told.status == "completed"
        again = await ask(client, f"aws/{NOVA}", previous_response_id=told.id)
    assert again.output_text == "Still."
    asked = [request.json for request in stand.asked]
    assert asked[0]["additionalModelRequestFields"] == {"thinking": {"type": "enabled", "budget_tokens": 2048}}
    signed = {"reasoningContent": {"reasoningText": {"text": "The clock tells.", "signature": "c2lnbmVk"}}}
    assert asked[1]["messages"][1]["content"][:2] == [signed, {"reasoningContent": {"redactedContent": "aGlkZGVu"}}]
    assert "reasoningContent" not in json.dumps(asked[2])


async def test_images_and_documents_are_sent_as_bedrock_takes_them(stand: Stand, tmp_path: Path) -> None:
    stand.on("/model/", tell(*[stream(say("Seen."))] * 2))
    pdf, text = b64encode(b"%PDF-1.7").decode(), b64encode(b"a,b").decode()
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "input_file", "filename": "our plan_(v2).pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
        {"type": "input_file", "filename": "plan.pdf", "file_data": f"data:application/pdf;base64,{pdf}"},
    ]
    table = {"type": "input_file", "filename": "t.csv", "file_data": f"data:text/csv;base64,{text}"}
    async with Site(tmp_path, settings(stand), ENV).serve() as client:
        for shown in (content, [table]):
            assert (await ask(client, f"aws/{NOVA}", input=[{"role": "user", "content": shown}])).output_text == "Seen."
        far = {"type": "input_image", "image_url": "https://example.com/a.png"}
        with pytest.raises(openai.BadRequestError) as caught:
            await ask(client, f"aws/{NOVA}", input=[{"role": "user", "content": [far]}])
    assert "data URL" in caught.value.message
    blocks = stand.asked[0].json["messages"][0]["content"]
    assert blocks[0] == {"image": {"format": "png", "source": {"bytes": PNG}}}
    assert blocks[1] == {"document": {"format": "pdf", "name": "our plan (v2) 1", "source": {"bytes": pdf}}}
    assert blocks[2] == {"document": {"format": "pdf", "name": "plan 2", "source": {"bytes": pdf}}}
    assert "text" in blocks[3]
    # Text is text to every model, also to those that take no documents.
    assert stand.asked[1].json["messages"][0]["content"] == [{"text": "[file t.csv]\na,b"}]


def make_history() -> tuple[object, ...]:
    return (user("Look."), FunctionCall("call.1:x", "look", "{}"), FunctionCallOutput("call.1:x", "12:00"), user("And?"))


LOOK = ToolDefinition("look", "Looks.", {"type": "object", "properties": {}})


@pytest.mark.parametrize("tools", [(), (LOOK,)])
def test_a_conversation_with_calls_keeps_tools_where_none_may_be_called(tools: tuple[ToolDefinition, ...]) -> None:
    asked = replace(QUESTION, model=NOVA, items=make_history(), tools=tools, tool_choice=ToolChoice("none"))
    body = build_body(asked)
    assert [tool["toolSpec"]["name"] for tool in body["toolConfig"]["tools"]] == ["look"]
    assert "toolChoice" not in body["toolConfig"]
    assert "Do not call" in body["system"][-1]["text"]
    plain = replace(QUESTION, model=NOVA, tools=tools, tool_choice=ToolChoice("none"))
    assert "toolConfig" not in build_body(plain)


def test_ids_and_choices_are_written_as_bedrock_takes_them() -> None:
    asked = replace(QUESTION, model=NOVA, items=make_history(), tools=(LOOK,), tool_choice=ToolChoice("required"))
    body = build_body(asked)
    assert body["toolConfig"]["toolChoice"] == {"any": {}}
    assert body["messages"][1]["content"][0]["toolUse"] == {"toolUseId": "call_1_x", "name": "look", "input": {}}
    assert body["messages"][2]["content"][0]["toolResult"]["toolUseId"] == "call_1_x"
    named = replace(asked, tool_choice=ToolChoice(name="look"), max_output_tokens=9, temperature=0.5, top_p=0.5)
    body = build_body(named)
    assert body["toolConfig"]["toolChoice"] == {"tool": {"name": "look"}}
    assert body["inferenceConfig"] == {"maxTokens": 9, "temperature": 0.5}
    foreign = Reasoning(id="rs_1", encrypted_content='mainspring.anthropic.{"type":"thinking","thinking":"x","signature":"y"}')
    claude = build_body(replace(QUESTION, model=CLAUDE, items=(user("Hi"), foreign, *make_history())))
    assert "reasoningContent" not in json.dumps(claude)


REFUSALS = {
    "toolChoice": "This model doesn't support the toolConfig.toolChoice.any field. Remove it and try again.",
    "system": "This model doesn't support the system field. Remove system and try again.",
    "temperature": "The model returned the following errors: `temperature` is deprecated for this model.",
    "stream": "This model doesn't support tool use in streaming mode.",
}


@pytest.mark.parametrize("name", REFUSALS)
async def test_what_a_model_does_not_take_is_left_out_and_remembered(stand: Stand, tmp_path: Path, name: str) -> None:
    def is_wrong(asked: Asked) -> bool:
        body = asked.json
        return {
            "toolChoice": "toolChoice" in body.get("toolConfig", {}),
            "system": "system" in body,
            "temperature": "temperature" in body.get("inferenceConfig", {}),
            "stream": asked.path.endswith("-stream"),
        }[name]

    refused: list[Asked] = []

    def answer(asked: Asked) -> Reply:
        check_signature(asked, ID, SECRET)
        if is_wrong(asked):
            refused.append(asked)
            return fail("ValidationException", REFUSALS[name], 400)
        if asked.path.endswith("/converse"):
            message = {"role": "assistant", "content": [{"text": "It is noon."}]}
            usage = {"inputTokens": 3, "outputTokens": 4, "totalTokens": 7}
            return whole({"output": {"message": message}, "stopReason": "end_turn", "usage": usage})
        return stream(say("It is noon."))

    stand.on("/model/", answer)
    asks = {"instructions": "Be brief.", "temperature": 0.1, "tool_choice": "required" if name == "toolChoice" else "auto"}
    async with Site(tmp_path, settings(stand), ENV).serve() as client:
        for _ in range(2):
            told = await ask(client, f"aws/{NOVA}", **asks)
            assert (told.status, told.output_text) == ("completed", "It is noon.")
    assert len(refused) == 1
    assert "Be brief." in json.dumps(stand.asked[-1].json)


@pytest.mark.parametrize("reason", ["guardrail_intervened", "content_filtered"])
async def test_what_a_guardrail_stops_is_incomplete(stand: Stand, tmp_path: Path, reason: str) -> None:
    stand.on("/model/", tell(stream(say("Sorry, I cannot.", reason=reason))))
    async with Site(tmp_path, settings(stand), ENV).serve() as client:
        told = await ask(client, f"aws/{NOVA}")
    assert (told.status, told.incomplete_details.reason) == ("incomplete", "content_filter")
    assert told.output_text == "Sorry, I cannot."


CUT = START + delta(0, {"text": ""})
BROKEN = bytearray(say("It is noon."))
BROKEN[len(START) + 60] ^= 1


@pytest.mark.parametrize(
    ("reply", "status", "code", "words"),
    [
        (fail("ThrottlingException", "Too many requests.", 429), 429, "rate_limit_exceeded", "Too many"),
        (fail("ValidationException", "Malformed input request.", 400), 400, "invalid_prompt", "Malformed"),
        (fail("ValidationException", "Input is too long for requested model.", 400), 400, "context_length_exceeded", "too long"),
        (fail("ValidationException", "The provided model identifier is invalid.", 400), 404, "model_not_found", "identifier"),
        (fail("AccessDeniedException", "You don't have access to it.", 403), 502, "provider_unauthorized", "bedrock:InvokeModel"),
        (fail("ModelErrorException", "The model failed.", 424), 502, "provider_unavailable", "failed"),
        (fail("ServiceUnavailableException", "Busy.", 503), 502, "provider_unavailable", "Busy"),
        (stream(START, exception("throttlingException", "Slow down.")), 429, "rate_limit_exceeded", "Slow down"),
        (stream(START, exception("modelStreamErrorException", "It broke.")), 502, "provider_unavailable", "It broke"),
        (stream(START, exception("validationException", "No such thing.")), 400, "invalid_prompt", "No such thing"),
        (stream(START, end("malformed_model_output")), 502, "provider_bad_output", "malformed"),
        (stream(bytes(BROKEN)), 502, "provider_bad_output", "checksum"),
        (stream(CUT), 502, "provider_unavailable", "ended before"),
        (stream(CUT[:-7]), 502, "provider_unavailable", "ended before"),
        (Reply([CUT[:-7]], MIME, ending="abort"), 502, "provider_unavailable", "try again"),
    ],
)
async def test_failures_have_our_codes(stand: Stand, tmp_path: Path, reply: Reply, status: int, code: str, words: str) -> None:
    stand.on("/model/", tell(reply))
    site = Site(tmp_path, settings(stand), ENV)
    async with site.serve() as client:
        with pytest.raises(openai.APIStatusError) as caught:
            await ask(client, f"aws/{NOVA}")
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert words in caught.value.message
    assert site.zones == []


async def test_throttling_is_tried_again(stand: Stand, tmp_path: Path) -> None:
    slow = replace(fail("ThrottlingException", "Too many requests.", 429), headers={"Retry-After": "0"})
    stand.on("/model/", tell(slow, slow, stream(say("It is noon."))))
    async with Site(tmp_path, settings(stand).replace("attempts = 1", "attempts = 3"), ENV).serve() as client:
        assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."


async def test_a_call_that_is_cut_off_does_not_run(stand: Stand, tmp_path: Path) -> None:
    begun = {"contentBlockIndex": 0, "start": {"toolUse": {"toolUseId": "a", "name": "get_time"}}}
    half = event("contentBlockStart", begun) + delta(0, {"toolUse": {"input": '{"zone": "U'}})
    stand.on("/model/", tell(stream(START, half)))
    site = Site(tmp_path, settings(stand), ENV)
    async with site.serve() as client:
        told = await ask(client, f"aws/{NOVA}")
    assert (told.status, site.zones) == ("failed", [])


# Credentials.


def give_keys(number: int, until: datetime | None = None) -> Json:
    until = until or datetime.now(UTC) + timedelta(hours=1)
    keys = {"AccessKeyId": ID, "SecretAccessKey": SECRET, "Token": SESSION.format(number)}
    return {**keys, "Code": "Success", "Expiration": until.strftime("%Y-%m-%dT%H:%M:%SZ")}


async def test_a_bearer_key_is_sent_instead_of_a_signature(stand: Stand, tmp_path: Path) -> None:
    def answer(asked: Asked) -> Reply:
        assert asked.headers["authorization"] == "Bearer bedrock-api-key-0123456789"
        assert "x-amz-date" not in asked.headers
        return stream(say("It is noon."))

    stand.on("/model/", answer)
    env = {"AWS_BEARER_TOKEN_BEDROCK": "bedrock-api-key-0123456789", "AWS_DEFAULT_REGION": "us-east-1"}
    async with Site(tmp_path, settings(stand), env).serve() as client:
        assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."


async def test_a_profile_of_the_shared_files_is_used(stand: Stand, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text("[profile work]\nregion = eu-central-1\n")
    keys = f"aws_access_key_id = {ID}\naws_secret_access_key = {SECRET}\naws_session_token = {SESSION}\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\naws_access_key_id = other\n[work]\n{keys}")

    def answer(asked: Asked) -> Reply:
        check_signature(asked, ID, SECRET, SESSION, "eu-central-1")
        return stream(say("It is noon."))

    stand.on("/model/", answer)
    async with Site(tmp_path, settings(stand, 'aws_profile = "work"'), {}).serve() as client:
        assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."


async def test_a_web_identity_becomes_keys_and_those_that_expired_are_replaced(stand: Stand, tmp_path: Path) -> None:
    file = tmp_path / "identity"
    file.write_text("signed-by-the-cluster")

    def assume(asked: Asked) -> Reply:
        assert asked.form == {
            "Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15", "RoleArn": "arn:aws:iam::1:role/work",
            "RoleSessionName": "night", "WebIdentityToken": "signed-by-the-cluster",
        }  # fmt: skip
        keys = give_keys(len(stand.find("/sts")))
        told = "".join([f"<{name}>{keys[name]}</{name}>" for name in ("AccessKeyId", "SecretAccessKey", "Expiration")])
        told += f"<SessionToken>{keys['Token']}</SessionToken>"
        body = f'<R xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Result><Credentials>{told}</Credentials></Result></R>'
        return Reply([body.encode()], "text/xml")

    def answer(asked: Asked) -> Reply:
        token = SESSION.format(len(stand.find("/sts")))
        check_signature(asked, ID, SECRET, token)
        if len(stand.find("/model/")) == 2:
            return fail("ExpiredTokenException", "The security token included in the request is expired", 403)
        return stream(say("It is noon."))

    stand.on("/sts", assume)
    stand.on("/model/", answer)
    env = {
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(file), "AWS_ROLE_ARN": "arn:aws:iam::1:role/work", "AWS_ROLE_SESSION_NAME": "night",
        "AWS_ENDPOINT_URL_STS": f"{stand.url}/sts", "AWS_REGION": "us-east-1",
    }  # fmt: skip
    async with Site(tmp_path, settings(stand), env).serve() as client:
        for _ in range(3):
            assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."
    assert len(stand.find("/sts")) == 2


async def test_the_container_gives_keys(stand: Stand, tmp_path: Path) -> None:
    def give(asked: Asked) -> Reply:
        assert asked.headers["authorization"] == "pod-token"
        return whole(give_keys(1))

    stand.on("/v1/credentials", give)
    stand.on("/model/", tell(stream(say("It is noon.")), token=SESSION.format(1)))
    (tmp_path / "token").write_text("pod-token")
    url, file = f"{stand.url}/v1/credentials", str(tmp_path / "token")
    env = {"AWS_CONTAINER_CREDENTIALS_FULL_URI": url, "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": file, "AWS_REGION": "us-east-1"}
    async with Site(tmp_path, settings(stand), env).serve() as client:
        assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."


async def test_the_machine_gives_keys_to_whoever_has_its_token(stand: Stand, tmp_path: Path) -> None:
    def open_session(asked: Asked) -> Reply:
        assert (asked.method, asked.headers["x-aws-ec2-metadata-token-ttl-seconds"]) == ("PUT", "21600")
        return Reply([b"metadata-token"], "text/plain")

    def give(asked: Asked) -> Reply:
        assert (asked.method, asked.headers["x-aws-ec2-metadata-token"]) == ("GET", "metadata-token")
        return whole(give_keys(1)) if asked.path.endswith("/our-role") else Reply([b"our-role"], "text/plain")

    stand.on("/latest/api/token", open_session)
    stand.on("/latest/meta-data/iam/security-credentials/", give)
    stand.on("/model/", tell(stream(say("It is noon.")), token=SESSION.format(1)))
    env = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": stand.url, "AWS_REGION": "us-east-1"}
    async with Site(tmp_path, settings(stand), env).serve() as client:
        assert (await ask(client, f"aws/{NOVA}")).output_text == "It is noon."


async def test_models_and_the_doctor_list_models_and_profiles_and_show_no_secret(stand: Stand, tmp_path: Path) -> None:
    def models(asked: Asked) -> Reply:
        check_signature(asked, ID, SECRET)
        assert asked.asks == {"byOutputModality": "TEXT"}
        one = {"modelId": NOVA, "providerName": "Amazon", "inferenceTypesSupported": ["ON_DEMAND"]}
        return whole({"modelSummaries": [one, {"modelId": "only.by-profile", "inferenceTypesSupported": ["INFERENCE_PROFILE"]}]})

    def profiles(asked: Asked) -> Reply:
        check_signature(asked, ID, SECRET)
        page = {"inferenceProfileSummaries": [{"inferenceProfileId": CLAUDE if "nextToken" in asked.asks else "us.first"}]}
        return whole(page if "nextToken" in asked.asks else {**page, "nextToken": "a/b=="})

    stand.on("/foundation-models", models)
    stand.on("/inference-profiles", profiles)
    stand.on("/model/", lambda _: fail("AccessDeniedException", f"{ID} may not", 403))
    site = Site(tmp_path, settings(stand, f'model = "{NOVA}"'), ENV)
    shown = await to_thread.run_sync(lambda: site.run("models"))
    assert all(f"aws/{name}" in shown for name in (NOVA, CLAUDE, "us.first"))
    assert "by-profile" not in shown
    shown = await to_thread.run_sync(lambda: site.run("doctor") + site.run("config", "show") + site.run("config", "explain"))
    assert "bedrock:InvokeModel" in shown
    assert SECRET not in shown
    assert ID not in shown


@pytest.mark.parametrize(
    ("backend", "environment"),
    [
        (ProviderSettings(kind="bedrock"), {"AWS_ACCESS_KEY_ID": ID, "AWS_SECRET_ACCESS_KEY": SECRET}),
        (ProviderSettings(kind="bedrock", region="us-east-1/../evil"), {}),
        (ProviderSettings(kind="bedrock", region="us-east-1", aws_profile="nobody"), {}),
        (ProviderSettings(kind="anthropic", region="us-east-1"), {}),
        (ProviderSettings(kind="azure", base_url="https://a.example", aws_profile="x"), {}),
    ],
)
def test_settings_that_cannot_work_are_refused(backend: ProviderSettings, environment: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as caught:
        make_provider("aws", backend, {"HOME": str(tmp_path), **environment})
    assert caught.value.param == "providers"


@pytest.mark.parametrize("line", ["credential_process = rm -rf /", "sso_session = ours", "source_profile = base"])
def test_a_profile_that_needs_more_than_files_is_refused_with_advice(line: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "config").write_text(f"[profile work]\n{line}\n")
    with pytest.raises(InvalidRequest, match="export-credentials"):
        find_source({"HOME": str(tmp_path)}, "work", "us-east-1")


@pytest.mark.parametrize("variable", ["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_EC2_METADATA_SERVICE_ENDPOINT"])
@pytest.mark.parametrize("url", ["http://evil.example/", "http://10.1.2.3/", "http://[2001:db8::1]/", "file:///etc/passwd"])
def test_no_keys_are_asked_for_in_the_clear_of_a_far_address(variable: str, url: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=variable):
        find_source({"HOME": str(tmp_path), variable: url}, None, "us-east-1")


async def test_models_are_listed_through_the_proxy_of_the_backend() -> None:
    async with proxying(b"403 Forbidden") as proxy:
        address = f"http://127.0.0.1:{proxy.port}"
        bedrock = Bedrock("https://bedrock.invalid", "us-east-1", api_key="bedrock-key-0123", proxy=address)
        with pytest.raises(Unavailable, match="answered HTTP 403"):
            await bedrock.models()
        await bedrock.close()
    assert proxy.asked[0][0].startswith(b"CONNECT bedrock.invalid:443")
