"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only is understood.
"""

import re
from collections.abc import Set
from typing import ClassVar

from mainspring.core.items import Json
from mainspring.core.model_request import ModelRequest
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.chat.request import build_body
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider
from mainspring.providers.profiles import find_profile


class Chat(HttpProvider):
    """A backend that speaks Chat Completions. `base_url` is what `/chat/completions` is appended to, usually ending in `/v1`."""

    name = "chat"
    url_hint = ", which usually ends in /v1"
    features: ClassVar = frozenset({"logprobs", "audio_input", "penalties"})

    def _reader(self, request: ModelRequest) -> ChatCompletionReply:
        return ChatCompletionReply(self._turn(request, find_profile(request.model).think), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        """Sends the request without the fields that the model does not take, unless `extra` asks for them."""
        whole = build_body(request, self._http.host)
        wanted = (request.extra or {}).keys()

        def build(lacks: Set[str]) -> Json:
            left_out = {*lacks, *(_WITH_TOOLS if "tools" in lacks else ())} - wanted
            body = {name: value for name, value in whole.items() if name not in left_out}
            return body if "messages.name" not in lacks else {**body, "messages": list(map(_drop_name, body["messages"]))}

        lacks = [(field, words) for field, words in _LACKS if field not in wanted]
        return await self._post_supported("chat/completions", request.model, build, lacks)


def _drop_name(message: Json) -> Json:
    return {field: value for field, value in message.items() if field != "name"}


_NO = r"(unknown|unrecognized|unsupported|unexpected|extra|invalid) [^.]*(parameter|argument|field|input)[^.]*"
_NOT = r"[^.]* (is|are) not (supported|permitted|allowed)"


def _parameter(name: str) -> re.Pattern[str]:
    """A field that is not known at all. One whose value is not liked is the caller's to mend."""
    return re.compile(rf"{_NO}{name}|{name}[^.]*{_NO}|\b{name}\b{_NOT}", re.IGNORECASE)


# How backends say that they do not take a field that can be done without.
_LACKS = (
    ("stream_options", re.compile(r"stream_options")),
    ("parallel_tool_calls", re.compile(r"parallel_tool_calls")),
    ("tools", re.compile(r"not support (tools|tool use|tool calling|function)|enable-auto-tool-choice|tool use is not", re.I)),
    ("reasoning_effort", _parameter("reasoning_effort")),
    # The names of tools on their outputs.
    ("messages.name", re.compile(r"messages.*\bname\b.*(unsupported|unexpected|not (supported|permitted|allowed))", re.I)),
    # With these, a value that is not supported means that only the default is.
    ("temperature", re.compile(r"temperature.*(not support|unsupported|only the default)|unsupported.*temperature", re.I)),
    ("top_p", re.compile(r"top_p.*(not support|unsupported|only the default)|unsupported.*top_p", re.I)),
)
_WITH_TOOLS = ("tool_choice", "parallel_tool_calls")
