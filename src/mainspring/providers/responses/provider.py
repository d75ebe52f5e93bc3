"""The Responses wire format: a backend that speaks as we do, OpenAI's own or anybody's."""

import re
from functools import partial
from typing import Any, ClassVar, Final

from mainspring.core.declared_tools import map_names
from mainspring.core.drafts import item_id
from mainspring.core.errors import BadOutput, Misconfigured, ProviderError, Refused
from mainspring.core.events import ItemDone
from mainspring.core.items import Adaptation, FunctionCall, Reasoning
from mainspring.core.model_request import ModelRequest
from mainspring.core.tokens import estimate
from mainspring.providers.adapted_request import RULES, adapt_request
from mainspring.providers.http_client import HttpReply
from mainspring.providers.http_provider import HttpProvider
from mainspring.providers.profiles import MOST_OUTPUT, NO_DESCRIPTION, NO_TEMPERATURE, RefusalRule
from mainspring.providers.reply import ReplyReader
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
        return await self._post_adapted("responses", request.model, build, REFUSALS, notes)

    def _check_answer(self, request: ModelRequest, reader: ReplyReader[Any]) -> ProviderError | None:
        """Servers with a model of any kind may leave its calls and its thoughts in the text, where nobody finds them."""
        assert isinstance(reader, ResponsesReply)
        flaw = super()._check_answer(request, reader)
        # Only OpenAI seals reasoning, and it parses what its models write: what looks like a call is quoted.
        is_parsed = self._book.find(request.model).reasoning_items == "sealed"
        if flaw is not None or is_parsed or reader.finish != "stop" or not _MAY_LEAK.match(said := reader.said):
            return flaw
        turn = self._turn(request, leaks=True)
        turn.text(said)
        try:
            turn.end("stop", None)
        except BadOutput as error:
            return error
        found = {type(event.item) for event in turn.take() if isinstance(event, ItemDone)}
        if FunctionCall in found:
            return BadOutput(
                f"{self._http.url} left the model's calls in its text; have it parse them (`--tool-call-parser` of vLLM and "
                'SGLang), or ask it by `kind = "chat"`, which reads them'
            )
        if Reasoning in found:
            return BadOutput(
                f"{self._http.url} left the model's reasoning in its text; have it parse reasoning (`--reasoning-parser` of vLLM "
                'and SGLang), or ask it by `kind = "chat"`, which reads it'
            )
        return None

    async def count_tokens(self, request: ModelRequest) -> int:
        """The backend's own count; our estimate if it does not count."""
        profile = self._book.find(request.model)
        asked = build_question(adapt_request(request, profile), self._http.host, profile)
        body = {name: value for name, value in asked.items() if name in COUNTED}
        try:
            return await self._count_tokens("responses/input_tokens", body)
        except (Refused, Misconfigured, BadOutput):
            return estimate(request.items, request.instructions, request.tools)


# How calls and thoughts begin in text, or a call behind a sentence.
_MAY_LEAK: Final = re.compile(r"\s*(?:[<\[{`]|>>>|(?:Thought|Action): )|[^<]{0,200}<(?:tool_call|function|\||\w{1,16}:)")
REFUSALS: Final = (
    MOST_OUTPUT,
    RefusalRule("store", False, re.compile(r"\bstore\b.*extra inputs|(unknown|unsupported|unrecognized)[^.]*\bstore\b", re.I)),
    RefusalRule("parallel_tool_calls", False, re.compile(r"parallel_tool_calls")),
    RefusalRule("strict", False, re.compile(r"(unknown|unsupported|unrecognized).*\bstrict\b|\bstrict\b.*extra inputs", re.I)),
    RefusalRule(
        "reasoning_effort", False, re.compile(r"\breasoning\b.*not supported|(unknown|unsupported).*\breasoning\b", re.I)
    ),
    RefusalRule("descriptions", "filled", NO_DESCRIPTION),
    RefusalRule(
        "encrypted_reasoning",
        False,
        re.compile(
            r"encrypted.content\b.*not supported|\binclude\b.*(unknown|unsupported)|(unknown|unsupported).*\binclude\b", re.I
        ),
    ),
    RefusalRule("temperature", False, NO_TEMPERATURE),
    RefusalRule("top_p", False, re.compile(r"unsupported.*\btop_p\b|\btop_p\b.*not supported", re.I)),
    RefusalRule(
        "seals", False, re.compile(r"encrypted.content\b.*(could not be|cannot be|not be|in)?\W*(verified|decrypted|valid)", re.I)
    ),
    RefusalRule(
        "item_fields",
        "needed",
        re.compile(
            r"without its required .?reasoning|item with id\b.*not found"
            r"|(unknown|unsupported|unrecognized)[^.]*input\W*\d+\W*(phase|status|id)\b"
            r"|\binput\b.*\b(phase|status|id): extra inputs",
            re.I,
        ),
    ),
    RefusalRule("tool_choice", "auto", re.compile(r"only \W?auto\W? tool.choice", re.I)),
    RefusalRule("response_format", "none", re.compile(r"(unknown|unsupported|unrecognized)[^.]*\btext(\.format)?\b", re.I)),
    # Calls that come as text are told by then: nothing would read those of a model that is told of its tools in words.
    *[rule for rule in RULES if rule.field != "tools"],
)
