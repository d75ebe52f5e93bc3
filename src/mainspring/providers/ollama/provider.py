"""Ollama's own wire format: `/api/chat`, answered in JSON lines."""

import re
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final, Unpack

from mainspring.core.errors import ModelNotFound
from mainspring.core.items import Adaptation
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.adapted_request import RULES
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpOptions, HttpProvider
from mainspring.providers.ollama.reply import OllamaReply
from mainspring.providers.ollama.request import build_body
from mainspring.providers.profiles import RefusalRule


class Ollama(HttpProvider):
    """A backend that speaks Ollama's format. `base_url` is what `/api/chat` is appended to.

    `num_ctx` is the context it shall load a model with; what does not fit into it, Ollama leaves out without a word.
    """

    name = "ollama"
    default_url = "http://localhost:11434"
    features: ClassVar = frozenset({"seed"})
    owner = "library"

    def __init__(self, base_url: str | None = None, *, num_ctx: int | None = None, **options: Unpack[HttpOptions]) -> None:
        super().__init__(base_url, **options)
        self._num_ctx = num_ctx

    def _reader(self, request: ModelRequest) -> OllamaReply:
        return OllamaReply(self._turn(request, leaks=True), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        """Sends the request without the fields that the model does not take."""
        build = partial(build_body, request, self._num_ctx)
        try:
            return await self._post_adapted("api/chat", request.model, build, REFUSALS, notes)
        except ModelNotFound as error:
            raise ModelNotFound(f"{error.message}, or pull it: `ollama pull {request.model}`") from error

    async def models(self) -> Sequence[ModelInfo]:
        """The models on the machine. Raises a `ProviderError` if there is no such list."""
        return await self._list_named_models("api/tags")


REFUSALS: Final = (
    RefusalRule("reasoning_effort", False, re.compile(r"does not support thinking|\bthink value\b|ChatRequest\.think\b")),
    RefusalRule("response_format", "none", re.compile(r"ChatRequest\.format\b|invalid format")),
    RefusalRule("call_ids", True, re.compile(r"tool.call.id\b", re.IGNORECASE)),
    # Its types of schemas are those of Go.
    RefusalRule("schemas", "bare", re.compile(r"unmarshal .*\.parameters\b")),
    *RULES,
)
