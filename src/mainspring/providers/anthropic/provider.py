"""The Messages API: Claude as its vendor serves it, and those who copied the format."""

import re
from functools import partial
from typing import Any, ClassVar, Final, Unpack

from msgspec.structs import replace

from mainspring.core.items import Adaptation, Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.anthropic.claude_models import find_family
from mainspring.providers.anthropic.reply import AnthropicReply
from mainspring.providers.anthropic.request import VENDOR, build_body
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpOptions, HttpProvider
from mainspring.providers.profiles import MOST_OUTPUT, ModelProfile, RefusalRule, cap_output
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
        # Servers that copied the format run models of any kind.
        return AnthropicReply(self._turn(request, leaks=not find_family(request.model).mark), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        return await self._post_adapted("v1/messages", request.model, partial(_build, request), _REFUSALS, notes)

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """A turn that the vendor has paused, while its own tools work, is sent again with what was said so far."""
        assert isinstance(reader, AnthropicReply)
        if (said := reader.resume()) is None:
            return None
        body = _build(request, self._book.find(request.model))
        return await self._post("v1/messages", {**body, "messages": [*body["messages"], {"role": "assistant", "content": said}]})

    async def count_tokens(self, request: ModelRequest) -> int:
        """How many tokens the vendor counts in the request."""
        body = {name: value for name, value in build_body(request).items() if name in _COUNTED}
        return await self._count_tokens("v1/messages/count_tokens", body)


def _build(request: ModelRequest, profile: ModelProfile) -> Json:
    asked = request if profile.temperature else replace(request, temperature=None)
    asked = asked if profile.most_output is None else replace(asked, max_output_tokens=cap_output(asked, profile))
    return build_body(asked, recalls=profile.recall != "none")


_REFUSALS: Final = (
    MOST_OUTPUT,
    RefusalRule("temperature", False, re.compile(r"temperature.*(not support|unsupported|deprecated)", re.IGNORECASE)),
    RefusalRule(
        "recall",
        "reasoning_content",
        re.compile(r"thinking\b.*(must be passed back|reasoning_content is missing)|missing thinking block", re.IGNORECASE),
    ),
)
_COUNTED = frozenset({"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config"})
