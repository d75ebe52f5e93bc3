"""Runs are kept as long as the settings say, and no longer."""

from pathlib import Path

import openai
from tests.kit.waiting import until
from tests.server.process import Script, serving

from mainspring.storage.sqlite_runs import SqliteStore

TURNS: Script = [{"say": "Hello."}] * 3


async def count_runs(folder: Path) -> int:
    async with SqliteStore(folder / "served.db") as store:
        return len((await store.list()).runs)


async def test_runs_that_ended_long_ago_are_deleted_by_the_server(tmp_path: Path) -> None:
    settings = tmp_path / "mainspring.toml"
    settings.write_text("keep_days = 30\n")
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none") as client:
        kept = client.responses.create(model="any", input="hi")
        assert served.stop() == 0
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none") as client:
        assert client.responses.retrieve(kept.id).id == kept.id
        assert served.stop() == 0
    assert await count_runs(tmp_path) == 1
    settings.write_text("keep_days = 0.0000001\n")
    with serving(tmp_path, TURNS) as served, openai.OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:

        def is_gone() -> bool:
            try:
                client.responses.retrieve(kept.id)
            except openai.NotFoundError:
                return True
            return False

        await until(is_gone)
