"""Embeddings from an OpenAI-compatible backend: `POST BASE/embeddings`."""

from collections.abc import Sequence
from typing import Final

import aiohttp
import msgspec
from msgspec import Struct

from mainspring.core.errors import BadOutput, ProviderError, RateLimited, Refused, Unauthorized, Unavailable

SECONDS: Final = 30.0
AT_ONCE: Final = 64
COMPLAINT_CHARS: Final = 300
MOST_BYTES: Final = 32 * 1024 * 1024

_ERRORS: Final[dict[int, type[ProviderError]]] = {
    **dict.fromkeys((400, 413, 422), Refused), **dict.fromkeys((401, 403), Unauthorized), 429: RateLimited,
}  # fmt: skip


class _Embedding(Struct):
    embedding: tuple[float, ...]
    index: int = 0


class _Answer(Struct):
    data: tuple[_Embedding, ...]


class OpenAIEmbedder:
    """An `Embedder`. `base_url` is as for models, up to `/v1`."""

    def __init__(self, model: str, base_url: str, api_key: str | None = None) -> None:
        self.model = model
        self._url = base_url.rstrip("/") + "/embeddings"
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for at in range(0, len(texts), AT_ONCE):
            found += await self._embed(texts[at : at + AT_ONCE])
        return found

    async def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        if self._session is None:
            # Not unpacked: a small answer may unpack to a huge one.
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=SECONDS),
                headers={**self._headers, "accept-encoding": "identity"},
                auto_decompress=False,
            )
        # Some backends refuse an empty text; a space says as little.
        body = {"model": self.model, "input": [text or " " for text in texts], "encoding_format": "float"}
        try:
            async with self._session.post(self._url, json=body, allow_redirects=False) as answer:
                told = await self._read(answer)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"no embeddings from {self._url} ({type(error).__name__}: {error}); is it running?") from error
        if answer.status != 200:
            said = told.decode(errors="replace")[:COMPLAINT_CHARS]
            kind = _ERRORS.get(answer.status, Unavailable)
            raise kind(f"{self._url} answered HTTP {answer.status} for the embedding model `{self.model}`: {said}")
        return self._parse_vectors(told, len(texts))

    async def _read(self, answer: aiohttp.ClientResponse) -> bytes:
        """The whole answer. Raises `BadOutput` for one that is too long, or compressed."""
        if (coding := answer.headers.get("content-encoding", "identity").lower()) != "identity":
            raise BadOutput(f"{self._url} answered compressed as `{coding[:40]}`, which was not asked for")
        told = bytearray()
        async for piece in answer.content.iter_any():
            told += piece
            if len(told) > MOST_BYTES:
                raise BadOutput(f"{self._url} answered with more than {MOST_BYTES} bytes where embeddings belong")
        return bytes(told)

    def _parse_vectors(self, told: bytes, count: int) -> list[tuple[float, ...]]:
        try:
            data = sorted(msgspec.json.decode(told, type=_Answer).data, key=lambda each: each.index)
        except msgspec.DecodeError as error:
            raise BadOutput(f"{self._url} answered what are no embeddings: {error}") from error
        sizes = {len(each.embedding) for each in data}
        if len(data) != count or len(sizes) != 1 or 0 in sizes:
            raise BadOutput(
                f"{self._url} answered {len(data)} vectors of {len(sizes)} sizes for {count} texts; one each was asked for"
            )
        return [each.embedding for each in data]
