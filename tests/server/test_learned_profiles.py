"""What a backend has shown is known again after a restart, told, and forgotten, at a real server with a real store."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread
import openai
import pytest
from tests.cli.command import Result, Shell
from tests.server.process import Served, serving
from tests.server.test_connections import create_key
from tests.test_backends import listening
from tests.zoo.animal import MODEL, NOON
from tests.zoo.animal import serving as keeping
from tests.zoo.requests import NoStreamOptions

from mainspring.core.items import Json
from mainspring.ports import Document
from mainspring.providers.profile_documents import KIND
from mainspring.storage.sqlite_runs import SqliteStore


class Picky(NoStreamOptions):
    """Counts what it refuses."""

    def __init__(self) -> None:
        self.asked = self.refused = 0

    def refuse(self, body: Json) -> str | None:
        words = super().refuse(body)
        self.asked += 1
        self.refused += words is not None
        return words


@asynccontextmanager
async def served(folder: Path, *options: str) -> AsyncIterator[Served]:
    server = serving(folder, [], *options)
    process = await anyio.to_thread.run_sync(server.__enter__)
    try:
        yield process
        assert await anyio.to_thread.run_sync(process.stop) == 0
    finally:
        await anyio.to_thread.run_sync(partial(server.__exit__, None, None, None))


async def ask(process: Served) -> str:
    """Asks the model, and returns the id of the response."""
    async with openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client:
        response = await client.responses.create(model=MODEL, input="What time is it?")
    assert response.output_text == NOON
    return response.id


async def test_a_server_that_was_restarted_sends_no_request_that_was_refused_before(tmp_path: Path) -> None:
    animal, other = Picky(), Picky()
    async with keeping(animal) as url, keeping(other) as elsewhere:
        for _ in range(2):
            async with served(tmp_path, "--base-url", url, "--model", MODEL) as process:
                await ask(process)
                await ask(process)
        assert (animal.asked, animal.refused) == (5, 1)
        async with served(tmp_path, "--base-url", elsewhere, "--model", MODEL) as process:
            await ask(process)
        assert (other.asked, other.refused) == (2, 1)


async def test_what_was_learned_long_ago_is_tried_anew(tmp_path: Path) -> None:
    animal = Picky()
    async with keeping(animal) as url:
        async with served(tmp_path, "--base-url", url, "--model", MODEL) as process:
            await ask(process)
        store = SqliteStore(tmp_path / "served.db")
        await store.open()
        (document,) = await store.documents(KIND)
        assert b"noon" not in document.body
        assert b"What time" not in document.body
        old = document.body.replace(b'"until":', b'"until":1.0,"never":')
        await store.put([Document(KIND, document.id, old)])
        await store.close()
        async with served(tmp_path, "--base-url", url, "--model", MODEL) as process:
            await ask(process)
    assert (animal.asked, animal.refused) == (4, 2)


async def test_a_profile_is_told_with_its_reasons_and_forgotten(tmp_path: Path) -> None:
    animal = Picky()
    async with keeping(animal) as url:
        async with served(tmp_path, "--base-url", url, "--model", MODEL) as process:
            adapted = await ask(process)
            async with openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client:
                model = await client.models.retrieve(MODEL)
                (profile,) = (model.model_extra or {})["profiles"]
                assert (model.id, model.object, profile["values"]["stream_options"]) == (MODEL, "model", False)
                fact = profile["facts"]["stream_options"]
                assert (fact["value"], fact["source"]) == (False, "learned")
                assert fact["until"] - fact["at"] == 30 * 86_400
                assert "refused" in fact["evidence"]
                assert url not in model.model_dump_json()
                gone = await client.delete(f"/models/{MODEL}/profile", cast_to=dict[str, object])
                assert gone["forgotten"] == 1
            await ask(process)
        assert (animal.asked, animal.refused) == (4, 2)
        shell, options = Shell(tmp_path), ("--base-url", url, "--database", "served.db")
        for command in (("show",), ("traces", "show")):
            assert "changed stream_options = False, attempt 1" in (await run(shell, *command, adapted, *options[2:])).out
        told = await run(shell, "models", "show", MODEL, *options, "--json")
        assert json.loads(told.out)["facts"]["stream_options"]["source"] == "learned"
        seen = await run(shell, "models", "show", MODEL, *options)
        assert "stream_options" in seen.out
        assert "learned" in seen.out
        assert (await run(shell, "models", "forget", MODEL, *options)).code == 0
        told = await run(shell, "models", "show", MODEL, *options, "--json")
        assert "facts" not in json.loads(told.out) or not json.loads(told.out)["facts"]
        async with served(tmp_path, "--base-url", url, "--model", MODEL) as process:
            await ask(process)
    assert (animal.asked, animal.refused) == (6, 3)


async def test_a_tenant_cannot_forget_what_all_tenants_use(tmp_path: Path) -> None:
    keys = {tenant: create_key(tmp_path, tenant).decode() for tenant in ("", "acme")}
    async with keeping(Picky()) as url, served(tmp_path, "--base-url", url, "--model", MODEL) as process:
        async with openai.AsyncOpenAI(base_url=process.url, api_key=keys["acme"], max_retries=0) as client:
            await client.responses.create(model=MODEL, input="What time is it?")
            with pytest.raises(openai.PermissionDeniedError):
                await client.delete(f"/models/{MODEL}/profile", cast_to=dict[str, object])
        async with openai.AsyncOpenAI(base_url=process.url, api_key=keys[""], max_retries=0) as client:
            gone = await client.delete(f"/models/{MODEL}/profile", cast_to=dict[str, object])
    assert gone["forgotten"] == 1


async def run(shell: Shell, *arguments: str) -> Result:
    return await anyio.to_thread.run_sync(partial(shell.run, *arguments))


async def test_what_the_operator_has_set_holds_and_says_so(tmp_path: Path) -> None:
    animal = Picky()
    async with keeping(animal) as url:
        settings = (
            f'[providers.house]\nbase_url = "{url}"\n[providers.house.profiles."{MODEL}"]\nstream_options = true\nwindow = 9000\n'
        )
        (tmp_path / "mainspring.toml").write_text(settings)
        async with (
            served(tmp_path, "--model", f"house/{MODEL}") as process,
            openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client,
        ):
            with pytest.raises(openai.BadRequestError):
                await client.responses.create(model=f"house/{MODEL}", input="What time is it?")
            model = await client.models.retrieve(f"house/{MODEL}")
            with pytest.raises(openai.NotFoundError) as missing:
                await client.models.retrieve("nowhere/x")
    assert missing.value.code == "model_not_found"
    (profile,) = (model.model_extra or {})["profiles"]
    assert {field: fact["source"] for field, fact in profile["facts"].items()} == {
        "stream_options": "operator",
        "window": "operator",
    }
    assert (animal.asked, animal.refused) == (1, 1)


async def test_a_model_is_there_if_its_backend_lists_it_or_has_no_list(tmp_path: Path) -> None:
    async with keeping(Picky()) as url, listening({"data": [{"id": "small"}]}) as (other, _):
        settings = f'[providers.house]\nbase_url = "{url}"\n[providers.other]\nbase_url = "{other}/v1"\n'
        (tmp_path / "mainspring.toml").write_text(settings)
        async with (
            served(tmp_path, "--model", "other/small") as process,
            openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client,
        ):
            assert [(await client.models.retrieve(name)).id for name in ("house/any", "other/small")] == [
                "house/any",
                "other/small",
            ]
            with pytest.raises(openai.NotFoundError) as missing:
                await client.models.retrieve("other/large")
    assert missing.value.code == "model_not_found"
