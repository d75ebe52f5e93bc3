"""`models`, `doctor`, and a run whose model is found instead of named."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import openai
import pytest
from tests.cli.command import Result, Shell
from tests.kit.waiting import PATIENCE
from tests.server import process
from tests.test_backends import listening
from tests.zoo import requests
from tests.zoo.animal import Animal, say, serving

from mainspring.core.items import Json
from mainspring.providers.local.provider import is_available

KEY = "sk-something-secret"
LISTED = {"object": "list", "data": [{"id": "small", "object": "model"}, {"id": "large", "object": "model"}]}


async def ran(shell: Shell, *arguments: str, **options: Any) -> Result:
    return await anyio.to_thread.run_sync(partial(shell.run, *arguments, **options))


async def test_models_lists_what_every_configured_provider_offers(shell: Shell) -> None:
    async with listening(LISTED) as (url, asked):
        configure(shell.folder, f'[providers.mine]\nbase_url = "{url}/v1"\nkey_env = "MY_KEY"\nmodel = "large"\n')
        result = await ran(shell, "models", env={"MY_KEY": KEY})
        lines = await ran(shell, "models", "--json", env={"MY_KEY": KEY})
    assert result.out == "mine  chat, configured\n  mine/small\n  mine/large  (for requests that name none)\n"
    assert [json.loads(line)["id"] for line in lines.out.splitlines()] == ["mine/small", "mine/large"]
    assert set(asked.keys) == {f"Bearer {KEY}"}


async def test_models_of_a_backend_that_is_down_are_an_error_with_its_name(shell: Shell) -> None:
    result = await ran(shell, "models", "--base-url", "http://127.0.0.1:9/v1")
    assert (result.code, result.out) == (1, "")
    assert "default: no server answers at http://127.0.0.1:9/v1" in result.err


async def test_the_doctor_says_what_a_model_can_and_what_to_do_about_the_rest(shell: Shell) -> None:
    async with listening(LISTED) as (url, asked):
        result = await ran(shell, "doctor", "--base-url", f"{url}/v1", "--model", "small")
    assert result.code == 1
    marks = [line.split(maxsplit=1) for line in result.out.splitlines() if line.startswith(("  ✓", "  ✗"))]
    assert [mark + " " + text.split("  ")[0] for mark, text in marks] == [
        "✓ ends",
        "✓ thinks",
        "✗ calls a tool",
        "✗ keeps to a schema",
        "✓ takes any history",
        "✓ can be stopped",
        "✓ holds code",
    ]
    assert "  · answers                 Hi." in result.out
    assert "Use a model that can call tools" in result.out
    assert "Not for conversation, tools and agents" in result.out
    assert "tool_choice" in asked.bodies[2]
    assert asked.bodies[6]["response_format"]["type"] == "json_schema"


async def test_the_doctor_names_the_habits_of_a_backend(shell: Shell) -> None:
    async with serving(requests.NoStreamOptions()) as url:
        result = await ran(shell, "doctor", "--base-url", url, "--model", "small", "--json")
    told = [json.loads(line) for line in result.out.splitlines()]
    assert ["no stream_options", "`stream_options` is refused.", "It is left out."] in [each.get("quirk") for each in told]


async def test_what_the_doctor_has_learned_is_heeded_from_then_on(shell: Shell) -> None:
    refused: list[str] = []

    class Picky(Animal):
        def refuse(self, body: Json) -> str | None:
            wrong = next(
                (field for field in ("stream_options", "temperature", "top_p", "reasoning_effort") if field in body), None
            )
            refused.extend([wrong] if wrong else [])
            return f"Unsupported parameter: {wrong} is not supported" if wrong else None

        def first(self, body: Json) -> bytes:
            return say("Blue.")

    async with serving(Picky()) as url:
        asked = ("doctor", "--base-url", url, "--model", "small", "--database", "learned.db")
        await ran(shell, *asked)
        assert not (shell.folder / "learned.db").exists()
        first = len(refused)
        result = await ran(shell, *asked, "--learn", "--export")
        assert len(refused) == 2 * first
        await ran(shell, *asked)
        assert len(refused) == 2 * first
    (case,) = [json.loads(line) for line in result.out.splitlines()]
    assert case["profiles"][0]["values"]["stream_options"] is False
    assert case["profiles"][0]["facts"]["stream_options"]["source"] == "learned"
    assert "no stream_options" in [quirk[0] for quirk in case["quirks"]]


async def test_the_doctor_writes_findings_and_a_case_if_both_are_asked_for(shell: Shell) -> None:
    async with serving(requests.NoStreamOptions()) as url:
        result = await ran(shell, "doctor", "--base-url", url, "--model", "small", "--json", "--export")
    told = [json.loads(line) for line in result.out.splitlines()]
    assert len([each for each in told if "profiles" in each]) == 1
    assert len([each for each in told if "finding" in each and each["model"] != "sandbox"]) == len(told_case(told)["findings"])
    assert [each["quirk"] for each in told if "quirk" in each] == told_case(told)["quirks"]


def told_case(told: list[Any]) -> Any:
    return next(each for each in told if "profiles" in each)


async def test_a_running_server_and_its_check_heed_what_the_doctor_learns_meanwhile(shell: Shell) -> None:
    """A real server, and a doctor that is another process on the same database."""
    sent: list[Json] = []

    class Quiet(requests.NoStreamOptions):
        def refuse(self, body: Json) -> str | None:
            sent.append(body)
            # The server's own questions teach it nothing.
            return None if body["messages"][-1]["content"] == "Anything." else super().refuse(body)

    async with serving(Quiet()) as url:
        options = ("--base-url", url, "--model", "small")
        with process.serving(shell.folder, [], *options) as served:
            async with openai.AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
                await client.responses.create(input="Anything.")
                assert "stream_options" in sent[-1]
                await ran(shell, "doctor", *options, "--database", "served.db", "--learn")
                with anyio.fail_after(PATIENCE):
                    while "stream_options" in sent[-1]:
                        await client.responses.create(input="Anything.")
                        await anyio.sleep(0.2)
        sent.clear()
        await ran(shell, "serve", "--check", *options, "--database", "served.db")
    assert sent
    assert not any("stream_options" in body for body in sent)


async def test_serve_examines_every_configured_backend_if_asked_to(shell: Shell) -> None:
    async with serving(requests.NoStreamOptions()) as url:
        configure(
            shell.folder, f'[providers.one]\nbase_url = "{url}"\nmodel = "a"\n[providers.two]\nbase_url = "{url}"\nmodel = "b"\n'
        )
        result = await ran(shell, "serve", "--check")
    assert result.code == 1
    assert [line for line in result.out.splitlines() if line[:1].strip()] == ["one/a", "two/b", "sandbox"]
    assert result.out.count("~ no stream_options") == 2


async def test_the_doctor_heeds_the_configured_model(shell: Shell) -> None:
    (shell.folder / "script.json").write_text('{"turns": [{"say": "Blue."}]}')
    configure(shell.folder, 'model = "scripted:script.json"\n')
    result = await ran(shell, "doctor")
    assert result.out.startswith("scripted:script.json\n  ✓ answers")
    assert "holds code" in result.out, "whichever model it is"


async def test_the_doctor_fails_for_a_model_that_does_not_answer(shell: Shell) -> None:
    result = await ran(shell, "doctor", "--base-url", "http://127.0.0.1:9/v1", "--model", "small", "--json")
    assert result.code == 1
    line, sandbox = [json.loads(line) for line in result.out.splitlines()]
    assert sandbox["model"] == "sandbox"
    assert line["finding"]["verdict"] == "failed"
    assert "Is the server running" in line["finding"]["advice"]


@pytest.mark.slow
@pytest.mark.skipif(not is_available(), reason="the local runtime has no wheel for this machine")
async def test_a_run_without_a_model_asks_the_one_on_this_machine(shell: Shell) -> None:
    result = await ran(shell, "run", "Say hello.", env={"OLLAMA_HOST": "127.0.0.1:9"})
    # So small a model may go on until it is cut off: what it says, and how it ends, is its own affair.
    assert result.code == 0 or "cut off at the output limit" in result.err, result.err
    assert "asking local/smollm2" in result.err
    assert result.out.strip()


def configure(folder: Path, text: str) -> None:
    (folder / "mainspring.toml").write_text(text)
