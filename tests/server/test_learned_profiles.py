"""What a backend has shown is known again after a restart, at a real server with a real store."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import anyio.to_thread
import openai
from tests.server.process import Served, serving
from tests.zoo.animal import MODEL, NOON
from tests.zoo.requests import NoStreamOptions
from tests.zoo.test_zoo import serving as keeping

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


async def ask(process: Served) -> None:
    async with openai.AsyncOpenAI(base_url=process.url, api_key="none", max_retries=0) as client:
        assert (await client.responses.create(model=MODEL, input="What time is it?")).output_text == NOON


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
