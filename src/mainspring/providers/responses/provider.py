"""The Responses wire format: a backend that speaks as we do, OpenAI's own or anybody's."""

import re
from functools import partial
from typing import ClassVar, Final

from mainspring.core.declared_tools import map_names
from mainspring.core.drafts import item_id
from mainspring.core.errors import BadOutput, Misconfigured, Refused
from mainspring.core.items import Adaptation
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider
from mainspring.providers.profiles import RefusalRule
from mainspring.providers.responses.reply import ResponsesReply, ResponsesTurn
from mainspring.providers.responses.request import build_body, build_question
from mainspring.providers.turn import list_call_ids

COUNTED = frozenset({"model", "input", "instructions", "tools", "tool_choice", "parallel_tool_calls", "text", "reasoning"})


class Responses(HttpProvider):
    """A backend that speaks the Responses API. `base_url` is what `/responses` is appended to, usually ending in `/v1`.

    Nothing is stored upstream.
    """

    name = "responses"
    default_url = "https://api.openai.com/v1"
    url_hint = ", which usually ends in /v1"
    features: ClassVar = frozenset({"logprobs", "audio_input", "passthrough"})

    def _reader(self, request: ModelRequest) -> ResponsesReply:
        used = map(item_id, request.items)
        names = map_names(request.all_tools)
        return ResponsesReply(ResponsesTurn(self._new_id, list_call_ids(request.items), used, names), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(self, request: ModelRequest, notes: list[Adaptation]) -> HttpReply:
        """Sends the request as the model takes it."""
        build = partial(build_body, request, self._http.host)
        return await self._post_adapted("responses", request.model, build, _REFUSALS, notes)

    async def count_tokens(self, request: ModelRequest) -> int:
        """The backend's own count; our estimate if it does not count."""
        asked = build_question(request, self._http.host, self._book.find(request.model))
        body = {name: value for name, value in asked.items() if name in COUNTED}
        try:
            return await self._count_tokens("responses/input_tokens", body)
        except (Refused, Misconfigured, BadOutput):
            return estimate(request.items, request.instructions, request.tools)


_REFUSALS: Final = (
    RefusalRule(
        "encrypted_reasoning", False, re.compile(r"encrypted.content\b.*not supported|\binclude\b.*(unknown|unsupported)", re.I)
    ),
    RefusalRule("temperature", False, re.compile(r"unsupported.*\btemperature\b|\btemperature\b.*not supported", re.I)),
    RefusalRule("top_p", False, re.compile(r"unsupported.*\btop_p\b|\btop_p\b.*not supported", re.I)),
)
