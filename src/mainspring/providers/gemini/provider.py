"""Gemini's own wire format: `generateContent` of the Gemini API, streamed.

Thoughts come with signatures that Gemini wants back; they travel in reasoning items, see `gemini.request`.
"""

import re
from collections.abc import Sequence
from functools import partial
from typing import ClassVar, Final

import msgspec
from msgspec import Struct

from mainspring.core.items import Adaptation, Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ModelInfo
from mainspring.providers.adapted_request import RULES
from mainspring.providers.gemini.reply import GeminiReply
from mainspring.providers.gemini.request import build_body, name_resource
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider
from mainspring.providers.json_text import encode_body
from mainspring.providers.profiles import MOST_OUTPUT, ModelProfile, RefusalRule


class Gemini(HttpProvider):
    """A backend that speaks Gemini's format. `base_url` is what `/v1beta/models/...` is appended to."""

    name = "gemini"
    default_url = "https://generativelanguage.googleapis.com"
    key_header = "x-goog-api-key"
    owner = "google"
    features: ClassVar = frozenset({"audio_input", "seed"})

    def _reader(self, request: ModelRequest) -> GeminiReply:
        # Gemini writes calls as code now and then, and Gemma knows no others.
        return GeminiReply(self._turn(request, leaks=True), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        """Sends the request as the model takes it."""
        build, query = partial(self._build, request), {"alt": "sse"}
        return await self._post_adapted(self._find_path(request), request.model, build, REFUSALS, notes, query=query)

    def _find_path(self, request: ModelRequest) -> str:
        return f"v1beta/{name_resource(request.model)}:streamGenerateContent"

    def _build(self, request: ModelRequest, profile: ModelProfile) -> Json:
        return build_body(request, profile)

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens Gemini would read. Raises a `ProviderError` if it does not say."""
        model = name_resource(request.model)
        body = encode_body({"generateContentRequest": {"model": model, **build_body(request)}})
        return (await self._http.fetch(f"v1beta/{model}:countTokens", token_total, "number of tokens", body=body)).totalTokens

    async def models(self) -> Sequence[ModelInfo]:
        """The models that can be asked for answers. Raises a `ProviderError` if there is no such list."""
        return await self._list_named_models("v1beta/models", page_size=1000)


class TokenTotal(Struct, gc=False):
    totalTokens: int


token_total: Final = msgspec.json.Decoder(TokenTotal)
REFUSALS: Final = (
    MOST_OUTPUT,
    RefusalRule(
        "reasoning_effort",
        False,
        re.compile(r"\bthinking\b.*not supported|thinking_?(config|budget|level)|only works in thinking mode", re.IGNORECASE),
    ),
    RefusalRule("seals", False, re.compile(r"thought.?signature\b.*(not valid|invalid|corrupt|expired|mismatch)", re.IGNORECASE)),
    RefusalRule(
        "user_after_output", False, re.compile(r"number of function response parts|function response turn", re.IGNORECASE)
    ),
    RefusalRule("tools", False, re.compile("function calling is not (enabled|supported)", re.IGNORECASE)),
    RefusalRule("response_format", "without_tools", re.compile("function calling with a response mime", re.IGNORECASE)),
    RefusalRule("response_format", "none", re.compile("json mode is not|response_?(mime|json_?schema|schema)", re.IGNORECASE)),
    RefusalRule("schemas", "common", re.compile(r"additional_?properties", re.IGNORECASE)),
    RefusalRule(
        "schemas",
        "bare",
        re.compile(
            r"function_?declarations?\b.*(cannot find field|not repeating|unknown name|alongside|format|non-empty"
            r"|undefined schema|schema type)",
            re.I | re.S,
        ),
    ),
    *RULES,
)
