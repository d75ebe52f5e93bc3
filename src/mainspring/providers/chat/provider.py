"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only is understood.
"""

from collections.abc import Set
from typing import ClassVar

from msgspec.structs import replace

from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.chat.adaptations import RECALLED, REFUSALS, REWRITTEN, adapt
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.chat.request import build_body
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider


class Chat(HttpProvider):
    """A backend that speaks Chat Completions. `base_url` is what `/chat/completions` is appended to, usually ending in `/v1`."""

    name = "chat"
    url_hint = ", which usually ends in /v1"
    features: ClassVar = frozenset({"logprobs", "audio_input", "penalties"})

    def _reader(self, request: ModelRequest) -> ChatCompletionReply:
        return ChatCompletionReply(self._turn(request, leaks=True), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        """Sends the request without the fields that the model does not take, unless `extra` asks for them."""
        wanted = (request.extra or {}).keys()

        def build(refused: Set[str]) -> Json:
            # What is to be changed in the messages is written anew.
            asked = request if refused.isdisjoint(REWRITTEN) else replace(request, items=tuple(request.items))
            return adapt(build_body(asked, self._http.host, recalls=RECALLED in refused), refused - wanted)

        refusals = [(field, words) for field, words in REFUSALS if field not in wanted]
        return await self._post_supported("chat/completions", request.model, build, refusals)
