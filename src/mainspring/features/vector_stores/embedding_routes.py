"""`/v1/embeddings`: vectors of texts, by the model that passages are found by."""

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, Struct
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from mainspring.core.errors import InvalidRequest, ModelNotFound
from mainspring.core.tokens import tokens_of_text
from mainspring.http.auth import Keys, get_caller
from mainspring.http.bodies import Name
from mainspring.http.endpoints import MODEL_ERRORS, Endpoint
from mainspring.http.faults import json_response
from mainspring.http.ignored import read_known
from mainspring.ports import Embedder

MOST_TEXTS: Final = 2048
MOST_CHARS: Final = 300_000
Text = Annotated[str, Meta(max_length=MOST_CHARS)]


class CreateEmbedding(Struct):
    """The body of `POST /v1/embeddings`."""

    input: Text | Annotated[tuple[Text, ...], Meta(max_length=MOST_TEXTS)]
    model: Name
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Meta(ge=1)] | None = None
    user: Name | None = None


class EmbeddingObject(Struct, frozen=True):
    embedding: Sequence[float] | str
    index: int
    object: str = "embedding"


class EmbeddingUsage(Struct, frozen=True):
    """An estimate: not every backend counts."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingPage(Struct, frozen=True):
    data: Sequence[EmbeddingObject]
    model: str
    usage: EmbeddingUsage
    object: str = "list"


class EmbeddingRoutes:
    def __init__(self, embedder: Embedder | None, keys: Keys) -> None:
        self._embedder, self._keys = embedder, keys

    def endpoints(self) -> tuple[Endpoint, ...]:
        answer, body = EmbeddingPage, CreateEmbedding
        return (Endpoint("POST", "/v1/embeddings", self.create, "responses", answer, body, errors=(404, *MODEL_ERRORS)),)

    async def create(self, request: Request) -> HttpResponse:
        """Creates embeddings of texts."""
        body, headers = await read_known(request, CreateEmbedding)
        if self._embedder is None or body.model != self._embedder.model:
            known = "" if self._embedder is None else f"; known: `{self._embedder.model}`"
            raise ModelNotFound(
                f"no embedding model `{body.model[:80]}` is configured{known}; its operator can name one under `[vector_stores]`"
            )
        texts = (body.input,) if isinstance(body.input, str) else body.input
        if not texts or not all(texts):
            raise InvalidRequest(
                "input must be a text, or a list of texts, none of them empty", param="input", code="invalid_value"
            )
        vectors = await self._embedder.embed(texts)
        if body.dimensions not in (None, len(vectors[0])):
            told = f"this model makes vectors of {len(vectors[0])} numbers; leave `dimensions` out"
            raise InvalidRequest(told, param="dimensions", code="unsupported_value")
        count = sum([tokens_of_text(text) for text in texts])
        self._keys.note_tokens(get_caller(request), count)
        data = [EmbeddingObject(_write(vector, body.encoding_format), index) for index, vector in enumerate(vectors)]
        page = EmbeddingPage(data, body.model, EmbeddingUsage(count, count))
        return json_response(page, headers=headers)


def _write(vector: Sequence[float], encoding: str) -> Sequence[float] | str:
    return vector if encoding == "float" else b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
