"""What the tests of the memory share: observations to keep, a memory to keep them in, and an embeddings backend that is real."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from aiohttp import web
from msgspec.structs import replace
from tests.kit.databases import find_served

from mainspring.features.memory.memory import Memory, build_memory
from mainspring.features.memory.observation import Observation
from mainspring.features.memory.settings import MemorySettings
from mainspring.storage.location import Location

NOW = 1_800_000_000.0

# Words that mean the same are one number of a vector; words that are not here mean nothing.
MEANINGS = (
    {"car", "automobile", "vehicle", "sedan"},
    {"rain", "drizzle", "downpour", "wet"},
    {"bread", "loaf", "bakery", "baguette"},
    {"invoice", "bill", "payment"},
)


def seen(content: str, **fields: Any) -> Observation:
    base = Observation(id="", session_id="s", agent_name="scout", event_type="llm_response", content=content, timestamp=NOW)
    return replace(base, **fields)


def a_memory(path: Path | Location | None = None, **options: Any) -> Memory:
    """A memory as the server makes one: with the engine's own redaction."""
    return build_memory(path or find_served(), MemorySettings(enabled=True, **options))


class Embeddings:
    """An OpenAI-compatible embeddings endpoint on a free port. It checks what it is asked, and answers with what words mean.

    A status in `answers` is what the next request gets instead; `refuses` is a word whose texts it does not take.
    """

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.answers: list[int] = []
        self.refuses: str | None = None
        self.wrong: list[str] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.Response:
        try:
            body = self._checked(request, await request.read())
        except AssertionError as error:
            self.wrong.append(str(error))
            return web.json_response({"error": {"message": str(error)}}, status=400)
        texts: list[str] = body["input"]
        self.asked.append(texts)
        if self.answers and (status := self.answers.pop(0)) != 200:
            return web.json_response({"error": {"message": "not now"}}, status=status)
        if self.refuses is not None and any(self.refuses in text for text in texts):
            return web.json_response({"error": {"message": "this text is not taken"}}, status=400)
        data = [{"object": "embedding", "index": index, "embedding": vector(text)} for index, text in enumerate(texts)]
        # In whatever order: the index says which is which.
        return web.json_response({"object": "list", "model": "tiny", "data": data[::-1], "usage": {"prompt_tokens": 1}})

    def _checked(self, request: web.Request, raw: bytes) -> dict[str, Any]:
        assert request.method == "POST", request.method
        assert request.path == "/v1/embeddings", request.path
        assert request.headers.get("authorization") == "Bearer k1", "the key is missing"
        body: dict[str, Any] = msgspec.json.decode(raw)
        assert set(body) == {"model", "input", "encoding_format"}, body
        assert body["model"] == "tiny", body["model"]
        assert body["encoding_format"] == "float", body["encoding_format"]
        assert 1 <= len(body["input"]) <= 64, "a batch has 1 to 64 texts"
        assert all(isinstance(text, str) and 0 < len(text) <= 8000 for text in body["input"]), (
            "texts are neither empty nor endless"
        )
        return body

    def options(self) -> dict[str, Any]:
        return {"embedding_model": "tiny", "embedding_url": self.url, "embedding_key": "k1"}


def vector(text: str) -> list[float]:
    words = text.lower().split()
    return [0.01 + sum([word.strip(".,:") in meaning for word in words]) for meaning in MEANINGS]


@asynccontextmanager
async def embeddings() -> AsyncIterator[Embeddings]:
    backend = Embeddings()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", backend.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        backend.url = f"http://{host}:{port}/v1"
        yield backend
    finally:
        await runner.cleanup()
    assert backend.wrong == []
