"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only is understood.
"""

from collections.abc import Set
from logging import getLogger
from typing import Any, ClassVar

from msgspec.structs import replace

from mainspring.core.errors import ProviderError
from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.chat.adaptations import REWRITTEN, adapt
from mainspring.providers.chat.refusals import REFUSALS, STREAM
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.chat.request import build_body
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider
from mainspring.providers.profiles import ModelProfile
from mainspring.providers.reply import ReplyReader
from mainspring.providers.transcript import list_functions

log = getLogger(__name__)


class Chat(HttpProvider):
    """A backend that speaks Chat Completions. `base_url` is what `/chat/completions` is appended to, usually ending in `/v1`."""

    name = "chat"
    url_hint = ", which usually ends in /v1"
    features: ClassVar = frozenset({"logprobs", "audio_input", "penalties"})

    def _reader(self, request: ModelRequest) -> ChatCompletionReply:
        return ChatCompletionReply(self._turn(request, leaks=True), self._http)

    async def _ask(self, request: ModelRequest, also: Set[str] = frozenset()) -> HttpReply:
        """Sends the request without the fields that the model does not take, and without these, unless `extra` asks for them."""
        wanted = (request.extra or {}).keys()

        def build(profile: ModelProfile) -> Json:
            # What is to be changed in the messages is written anew.
            asked = request if profile.refuses.isdisjoint(REWRITTEN) else replace(request, items=tuple(request.items))
            return adapt(build_body(asked, self._http.host, profile), (profile.refuses | also) - wanted)

        refusals = [(field, words) for field, words in REFUSALS if field not in wanted]
        return await self._post_supported("chat/completions", request.model, build, refusals)

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """An answer without anything in it may have lost its calls in the stream: it is asked for once more, in one piece. That
        is remembered if it was so."""
        assert isinstance(reader, ChatCompletionReply)
        model = request.model
        if reader.is_second:
            if reader.has_calls:
                self._learn(model, {STREAM})
            return None
        if not reader.is_empty or not list_functions(request) or STREAM in self._find_profile(model).refuses:
            return None
        log.warning("model %s at %s answered nothing, and is asked without streaming", model, self._http.url)
        try:
            reply = await self._ask(request, {STREAM})
        except ProviderError:
            return None
        reader.restart()
        return reply
