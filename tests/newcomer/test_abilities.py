"""What the doctor finds a model unable to do is remembered, and what needs it refuses the model with the ways out."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import openai
import pytest
from anyio import to_thread
from tests.agents.world import written
from tests.cli.command import Result, Shell
from tests.kit.waiting import PATIENCE
from tests.server import process
from tests.test_backends import listening

from mainspring.providers.local.provider import is_available

SCHEMA: Any = {"format": {"type": "json_schema", "name": "city", "schema": {"type": "object"}}}


async def ran(shell: Shell, *arguments: str) -> Result:
    return await to_thread.run_sync(partial(shell.run, *arguments))


async def wait_for_refusal(client: openai.AsyncOpenAI) -> openai.BadRequestError:
    """A running server learns of it within seconds."""
    with anyio.fail_after(PATIENCE):
        while True:
            try:
                await client.responses.create(input="Hello.", model="small", text=SCHEMA)
            except openai.BadRequestError as error:
                return error
            await anyio.sleep(0.2)


async def test_agents_structured_output_and_tasks_refuse_a_model_that_cannot(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    (tmp_path / "mytools.py").write_text('def add(a: int, b: int) -> int:\n    """Adds."""\n    return a + b\n')
    written(tmp_path / "agents", "bee", description="Busy.")
    async with listening({"object": "list", "data": [{"id": "small", "object": "model"}]}) as (url, _):
        (tmp_path / "mainspring.toml").write_text(
            f'base_url = "{url}/v1"\nmodel = "small"\nagents = ["agents"]\ntools = ["mytools:add"]\ndatabase = "served.db"\n'
        )
        with process.serving(tmp_path, [], "--model", "small") as served:
            async with openai.AsyncOpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
                assert (await client.responses.create(input="Hello.", model="small", text=SCHEMA)).id
                examined = await ran(shell, "doctor")
                assert examined.code == 1
                refused = await wait_for_refusal(client)
                assert (refused.code, refused.param) == ("model_unable", "model")
                assert (await client.responses.create(input="Hello.", model="small")).output_text == "Hi."
        worked = await ran(shell, "agents", "run", "bee")
        assert worked.code == 2
        assert "mainspring models pull" in worked.err
        shown = json.loads((await ran(shell, "models", "show", "small", "--json")).out)
        assert (shown["values"]["calls"], shown["values"]["keeps_schemas"], shown["values"]["ends"]) == (False, False, True)
        assert (await ran(shell, "models", "forget", "small")).code == 0
        assert (await ran(shell, "agents", "run", "bee")).code == 0


async def test_a_doctor_in_a_folder_without_a_database_makes_none(tmp_path: Path) -> None:
    async with listening({"object": "list", "data": []}) as (url, _):
        await ran(Shell(tmp_path), "doctor", "--base-url", f"{url}/v1", "--model", "small")
    assert not (tmp_path / "mainspring.db").exists()


@pytest.mark.skipif(not is_available(), reason="the local runtime is not installed")
def test_the_model_that_comes_along_is_for_hello_and_keeps_no_tasks(tmp_path: Path) -> None:
    done = Shell(tmp_path).run("chat", "Remind me to call the dentist.", "--model", "local", "--folder", "data")
    assert (done.code, done.out) == (2, "")
    assert "cannot call tools" in done.err
    assert "mainspring models pull" in done.err
