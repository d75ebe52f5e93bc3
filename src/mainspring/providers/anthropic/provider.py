"""The Messages API: Claude as its vendor serves it, and those who copied the format."""

import re
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from mainspring.core.items import Adaptation, Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.adapted_request import RULES, adapt_request
from mainspring.providers.anthropic.claude_models import find_family
from mainspring.providers.anthropic.reply import AnthropicReply
from mainspring.providers.anthropic.request import VENDOR, build_body, drop_marks
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpOptions, HttpProvider
from mainspring.providers.profiles import MOST_OUTPUT, ModelProfile, RefusalRule
from mainspring.providers.reply import ReplyReader

VERSION = "2023-06-01"


class Anthropic(HttpProvider):
    """A backend that speaks the Messages API. `base_url` is what `/v1/messages` is appended to.

    `headers` may name another `anthropic-version` or an `anthropic-beta`.
    """

    name = "anthropic"
    default_url = "https://api.anthropic.com"
    key_header = "x-api-key"
    fixed_headers: ClassVar = {"anthropic-version": VERSION}
    models_path = "v1/models"
    models_query: ClassVar = {"limit": "1000"}
    owner = VENDOR

    def __init__(self, base_url: str | None = None, **options: Unpack[HttpOptions]) -> None:
        super().__init__((base_url or self.default_url).strip().rstrip("/").removesuffix("/v1"), **options)

    def _reader(self, request: ModelRequest) -> AnthropicReply:
        # Servers that copied the format run models of any kind, and who is told of tools in words calls them so.
        leaks = not find_family(request.model).mark or not self._book.find(request.model).tools
        return AnthropicReply(self._turn(request, leaks=leaks), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        return await self._post_adapted("v1/messages", request.model, partial(_build, request), REFUSALS, notes)

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """A turn that the vendor has paused, while its own tools work, is sent again with what was said so far."""
        assert isinstance(reader, AnthropicReply)
        if (said := reader.resume()) is None:
            return None
        body = _build(request, self._book.find(request.model))
        return await self._post("v1/messages", {**body, "messages": [*body["messages"], {"role": "assistant", "content": said}]})

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens the vendor counts in the request."""
        told = _build(request, self._book.find(request.model))
        body = {name: value for name, value in told.items() if name in _COUNTED}
        return await self._count_tokens("v1/messages/count_tokens", body)


def _build(request: ModelRequest, profile: ModelProfile) -> Json:
    body = build_body(adapt_request(request, profile), recalls=profile.recall != "none")
    return body if profile.cache_marks else {**body, **drop_marks({part: body[part] for part in _MARKED if part in body})}


REFUSALS: Final = (
    MOST_OUTPUT,
    RefusalRule("cache_marks", False, re.compile(r"\bcache_control\b")),
    RefusalRule("seals", False, re.compile(r"invalid .?signature\b|\bthinking\b.*cannot be modified", re.IGNORECASE)),
    RefusalRule("temperature", False, re.compile(r"temperature.*(not support|unsupported|deprecated)", re.IGNORECASE)),
    RefusalRule(
        "recall",
        "reasoning_content",
        re.compile(r"thinking\b.*(must be passed back|reasoning_content is missing)|missing thinking block", re.IGNORECASE),
    ),
    RefusalRule("response_format", "none", re.compile(r"\boutput_(config|format)\b")),
    RefusalRule(
        "reasoning_effort",
        False,
        re.compile(
            r"\boutput_config\b|\bthinking\b.*(not (support|permitted|allowed|enabled|available)|unsupported)", re.IGNORECASE
        ),
    ),
    RefusalRule("parallel_tool_calls", False, re.compile(r"disable_parallel_tool_use")),
    RefusalRule("strict", False, re.compile(r"\bstrict\b.*extra inputs", re.IGNORECASE)),
    *RULES,
)
_MARKED: Final = ("tools", "system", "messages")
_COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"})
