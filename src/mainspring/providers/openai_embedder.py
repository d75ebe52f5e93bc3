"""Embeddings from an OpenAI-compatible backend: `POST BASE/embeddings`."""

from collections.abc import Sequence
from contextlib import closing
from typing import Final

import anyio
import msgspec
from anyio.lowlevel import checkpoint
from msgspec import Struct

from mainspring.core.errors import BadOutput, ProviderError, Unavailable
from mainspring.core.items import encode
from mainspring.core.json_values import count_values
from mainspring.providers.http_client import Http

SECONDS: Final = 30.0
AT_ONCE: Final = 64
MOST_BYTES: Final = 32 * 1024 * 1024
MOST_DIMENSIONS: Final = 8_192
# Of what is around the vectors.
SPARE_VALUES: Final = 4_096


class _Embedding(Struct):
    embedding: tuple[float, ...]
    index: int = 0


class _Answer(Struct):
    data: tuple[_Embedding, ...]


class OpenAIEmbedder:
    """An `Embedder`. `base_url` is as for models, up to `/v1`."""

    def __init__(self, model: str, base_url: str, api_key: str | None = None) -> None:
        self.model = model
        self._http = Http(base_url, api_key=api_key, timeout=SECONDS)
        self._url = f"{self._http.url}/embeddings"

    async def embed(self, texts: Sequence[str]) -> Sequence[tuple[float, ...]]:
        found: list[tuple[float, ...]] = []
        for at in range(0, len(texts), AT_ONCE):
            found += await self._embed(texts[at : at + AT_ONCE])
        return found

    async def close(self) -> None:
        await self._http.close()

    async def _embed(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        # Some backends refuse an empty text; a space says as little.
        body = {"model": self.model, "input": [text or " " for text in texts], "encoding_format": "float"}
        try:
            with anyio.fail_after(SECONDS), closing(await self._http.send("embeddings", encode(body))) as reply:
                told = await reply.body(MOST_BYTES)
                await self._check_size(told, len(texts))
                return self._parse_vectors(told, len(texts))
        except ProviderError as error:
            raise type(error)(f"no embeddings of the model `{self.model}`: {error.message}") from error
        except TimeoutError as error:
            raise Unavailable(f"no embeddings from {self._url} within {SECONDS:g} s; is it running?") from error

    async def _check_size(self, told: bytes, count: int) -> None:
        """Raises `BadOutput` for more numbers than so many vectors have. Others have a turn while they are counted."""
        most = count * MOST_DIMENSIONS + SPARE_VALUES
        for values in count_values(told, most):
            if values > most:
                raise BadOutput(f"{self._url} answered more than {most} values for {count} texts; no vectors are that long")
            await checkpoint()

    def _parse_vectors(self, told: bytes, count: int) -> list[tuple[float, ...]]:
        try:
            data = sorted(msgspec.json.decode(told, type=_Answer).data, key=lambda each: each.index)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadOutput(f"{self._url} answered what are no embeddings: {error}") from error
        sizes = {len(each.embedding) for each in data}
        if len(data) != count or len(sizes) != 1 or 0 in sizes:
            raise BadOutput(
                f"{self._url} answered {len(data)} vectors of {len(sizes)} sizes for {count} texts; one each was asked for"
            )
        return [each.embedding for each in data]
