"""The Chat Completions wire format: OpenAI's own and that of everybody who copied it.

Backends differ in what they leave out, repeat or misplace; whatever can be understood in one way only is understood.
"""

from collections.abc import Callable, Mapping
from logging import getLogger
from typing import Any, ClassVar, Final

from msgspec.structs import asdict, replace

from mainspring.core.errors import BadOutput, ProviderError, Refused, UnreadCall
from mainspring.core.items import Adaptation, Json
from mainspring.core.model_request import ModelRequest
from mainspring.ports import ProfileValue
from mainspring.providers.chat.adaptations import adapt, rewrites_messages
from mainspring.providers.chat.refusals import REFUSALS
from mainspring.providers.chat.reply import ChatCompletionReply
from mainspring.providers.chat.request import build_body
from mainspring.providers.http_client import HttpReply, WholeAnswer
from mainspring.providers.http_provider import MOST_CHANGES, HttpProvider
from mainspring.providers.json_text import encode_body
from mainspring.providers.leak_reader import LeakReader
from mainspring.providers.profiles import NEUTRAL, ModelProfile
from mainspring.providers.reply import ReplyReader
from mainspring.providers.transcript import find_schema, list_functions

log = getLogger(__name__)


class Chat(HttpProvider):
    """A backend that speaks Chat Completions. `base_url` is what `/chat/completions` is appended to, usually ending in `/v1`."""

    name = "chat"
    url_hint = ", which usually ends in /v1"
    features: ClassVar = frozenset({"logprobs", "audio_input", "penalties", "seed"})

    def _reader(self, request: ModelRequest) -> ChatCompletionReply:
        return ChatCompletionReply(self._turn(request, leaks=True), self._http)

    async def _ask(self, request: ModelRequest) -> HttpReply:
        return await self._ask_and_note(request, [])

    async def _ask_and_note(
        self,
        request: ModelRequest,
        notes: list[Adaptation],
        *,
        is_whole: bool = False,
        changed: Mapping[str, ProfileValue] | None = None,
    ) -> HttpReply:
        """Sends the request as the model takes it, but for what `extra` asks for. `is_whole` asks for an answer in one piece."""
        build = self._make_builder(request, is_whole=is_whole)
        try:
            return await self._post_adapted("chat/completions", request.model, build, REFUSALS, notes, changed)
        except UnreadCall as unread:
            if (reply := self._answer_written(request, unread)) is None:
                raise
            return reply

    def _answer_written(self, request: ModelRequest, unread: UnreadCall) -> HttpReply | None:
        """The answer that the backend could not read, as one that has it for its words, if these are calls."""
        # Where JSON is asked for, bare JSON would be the answer.
        is_read = request.tool_choice.mode != "none" and find_schema(request) is None
        is_call = is_read and LeakReader(list_functions(request)).settle(unread.written).calls
        message = {"role": "assistant", "content": unread.written}
        body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        return HttpReply(WholeAnswer(encode_body(body)), self._http.url, 0) if is_call else None

    def _make_builder(self, request: ModelRequest, *, is_whole: bool = False) -> Callable[[ModelProfile], Json]:
        wanted = (request.extra or {}).keys()
        neutral: dict[str, Any] = {}
        if wanted:
            neutral = {field: value for field, value in _FIELDS.items() if field in wanted or _NAMES.get(field) in wanted}

        def build(profile: ModelProfile) -> Json:
            profile = replace(profile, **neutral) if neutral else profile
            profile = replace(profile, stream_tools=False) if is_whole else profile
            # What is to be changed in the messages is written anew.
            asked = replace(request, items=tuple(request.items)) if profile != NEUTRAL and rewrites_messages(profile) else request
            return adapt(build_body(asked, self._http.host, profile), profile)

        return build

    def _check_answer(self, request: ModelRequest, reader: ReplyReader[Any]) -> ProviderError | None:
        """Some servers say that there are calls, and lose them in their streams."""
        assert isinstance(reader, ChatCompletionReply)
        if reader.finish is not None:
            self._keep_tried(request, reader)
        flaw = super()._check_answer(request, reader)
        if flaw is None and reader.lacks_calls and reader.said and list_functions(request):
            if self._book.find(request.model).stream_tools:
                self._learn(
                    request.model,
                    "stream_tools",
                    False,
                    "an answer said that it had calls, and none came in its stream",
                    reader.notes,
                )
            flaw = BadOutput(f"{self._http.url} ended its answer with calls, as it says, and none has come; try again")
        return flaw

    async def _ask_changed(self, request: ModelRequest, reader: ReplyReader[Any], error: ProviderError) -> HttpReply | None:
        """Some servers refuse a request only within the answer. Whether a change has helped is judged as in `_post_adapted`."""
        assert isinstance(reader, ChatCompletionReply)
        if not reader.is_silent:
            return None
        if isinstance(error, UnreadCall):
            if (reply := self._answer_written(request, error)) is not None:
                reader.restart()
            return reply
        model, notes, is_second = request.model, reader.notes, reader.is_second
        changes = [note for note in notes if note.attempt]
        changed = {note.field: note.value for note in changes}
        build = self._make_builder(request, is_whole=is_second)
        profile = self._find_profile(model, build, changed)
        rule = self._find_rule(model, error.message, profile, build, REFUSALS)
        if not (reader.tried and reader.tried.words.search(error.message)) and (rule is not None or isinstance(error, Refused)):
            self._keep_tried(request, reader)
        if rule is None or len(changes) >= MOST_CHANGES:
            return None
        why = f"the backend broke off its answer ({error.code})"
        notes.append(Adaptation("changed", rule.field, rule.value, why, len(changes) + 1))
        reader.restart(tried=rule, is_second=is_second)
        return await self._ask_and_note(request, notes, is_whole=is_second, changed={**changed, rule.field: rule.value})

    def _keep_tried(self, request: ModelRequest, reader: ChatCompletionReply) -> None:
        """What was changed because of a refusal within the answer has helped."""
        for index, note in enumerate(reader.notes):
            if reader.tried is not None and note.attempt and note.field == reader.tried.field and not note.is_kept:
                self._keep_change(request.model, reader.notes, self._make_builder(request), index)

    async def _ask_on(self, request: ModelRequest, reader: ReplyReader[Any]) -> HttpReply | None:
        """An answer without anything in it may have lost its calls in the stream: it is asked for once more, in one piece. That
        is remembered if it was so."""
        assert isinstance(reader, ChatCompletionReply)
        model = request.model
        if reader.is_second:
            if reader.has_calls:
                self._learn(
                    model, "stream_tools", False, "the calls of an answer came only when it was not streamed", reader.notes
                )
            return None
        if not reader.is_empty or not list_functions(request) or not self._book.find(model).stream_tools:
            return None
        log.warning("model %s at %s answered nothing, and is asked without streaming", model, self._http.url)
        try:
            reader.notes.append(Adaptation("changed", "stream_tools", False, "the answer was empty", 1))
            reply = await self._ask_and_note(request, reader.notes, is_whole=True)
        except ProviderError:
            return None
        reader.restart(is_second=True)
        return reply


_FIELDS: Final = asdict(NEUTRAL)
# What fields of the profile are called in a request, where that is not their name.
_NAMES: Final = {
    "stream_tools": "stream",
    "limit": "max_tokens",
    "format_told": "response_format",
    "json_object": "response_format",
}
