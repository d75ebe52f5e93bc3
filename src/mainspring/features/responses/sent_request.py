"""What clients send, read: what of it is understood, and what is ignored. What can only be a slip is refused by name."""

from typing import Final

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.definitions.parsed_file import hint
from mainspring.features.responses.request import LOGPROBS, MOST_INPUT_CHARS, CreateResponse
from mainspring.http.bodies import parse_body
from mainspring.http.ignored import IgnoredFields, ItemReader, compare_tools
from mainspring.http.sent_items import check_text_size


class SentRequest(Struct, frozen=True):
    """A create body as it was sent: what is understood of it, and what is ignored."""

    body: CreateResponse
    ignored: IgnoredFields


FIELDS: Final = frozenset(CreateResponse.__struct_fields__)
FRAME_FIELDS: Final = FIELDS | {"type"}
"""Those of a message on a WebSocket."""
COMPACT_FIELDS: Final = frozenset({"model", "input", "previous_response_id", "instructions", "prompt_cache_key"})

# What other APIs, or other versions of this one, call what has its own name here.
OTHER_NAMES: Final = {
    "conversation_id": "send the id as `conversation`",
    "agent": "an agent is named as `model`, `agent:NAME`, or as `prompt`, with its inputs",
    "variables": "the inputs of an agent are `prompt.variables`",
    "messages": "send them as `input`",
    "system": "send it as `instructions`",
    "max_tokens": "send it as `max_output_tokens`",
    "max_completion_tokens": "send it as `max_output_tokens`",
    "response_format": "send it as `text.format`",
    "verbosity": "send it as `text.verbosity`",
    "reasoning_effort": "send it as `reasoning.effort`",
    "functions": "send them as `tools`",
    "function_call": "send it as `tool_choice`",
    "stop": "there are no stop sequences; leave it out",
    "seed": "answers cannot be repeated by a seed; leave it out",
    "n": "there is one answer; leave it out, and ask several times",
    "logit_bias": "tokens cannot be weighed; leave it out",
    "moderation": "nothing is moderated here; leave it out, and moderate before and after",
    "stream_id": "a connection has one stream; leave it out, and open another connection",
}


def parse_request(raw: bytes, known: frozenset[str] = FIELDS) -> SentRequest:
    """The body, checked. `known` are the fields that this endpoint reads. Raises `InvalidRequest` naming the field at fault."""
    ignored = IgnoredFields()
    request = parse_body(raw, CreateResponse, ItemReader("input", ignored).read)
    ignored.compare_body(raw, known, OTHER_NAMES)
    _check_contradictions(request)
    return check_values(raw, request, ignored)


def check_values(raw: bytes, request: CreateResponse, ignored: IgnoredFields) -> SentRequest:
    """What was sent as `raw`. Raises `InvalidRequest` for too much text, and for slips inside of fields."""
    if len(raw) > MOST_INPUT_CHARS and isinstance(request.input, tuple):
        check_text_size(request.input, MOST_INPUT_CHARS)
    _compare_nested(request, ignored)
    return SentRequest(request, ignored)


def _compare_nested(request: CreateResponse, ignored: IgnoredFields) -> None:
    """Notes what is ignored inside of fields that are known. Options of the model are passed on by some backends."""
    if request.tools:
        compare_tools(ignored, "tools", request.tools)
    if reasoning := request.reasoning:
        ignored.compare("reasoning", reasoning, _REASONING, is_passable=True)
    if text := request.text:
        ignored.compare("text", text, _TEXT, is_passable=True)
        if isinstance(form := text.get("format"), dict):
            ignored.compare("text.format", form, _FORMAT)
    if isinstance(request.conversation, dict):
        ignored.compare("conversation", request.conversation, _ID)
    for number, entry in enumerate(request.context_management or ()):
        ignored.compare(f"context_management[{number}]", entry, _MANAGEMENT)
    if request.prompt:
        ignored.compare("prompt", request.prompt, _PROMPT)
    if isinstance(choice := request.tool_choice, dict):
        ignored.compare("tool_choice", choice, _CHOICE)
    if options := request.stream_options:
        ignored.compare("stream_options", options, _STREAM_OPTIONS)
    if reasoning and reasoning.get("summary"):
        ignored.add("reasoning.summary", is_passable=True)
    if text and text.get("verbosity"):
        ignored.add("text.verbosity", is_passable=True)
    if options and options.get("include_obfuscation"):
        ignored.add("stream_options.include_obfuscation")
    if request.service_tier not in (None, "auto", "default"):
        ignored.add("service_tier")
    for number, value in enumerate(request.include or ()):
        if value in FOREIGN_INCLUDES:
            ignored.add(f"include[{number}]", is_passable=True)
        elif value not in INCLUDES:
            message = f"include[{number}] cannot be `{value[:80]}`; {hint(value[:80], [*INCLUDES, *FOREIGN_INCLUDES])}"
            raise InvalidRequest(message, param=f"include[{number}]", code="invalid_value")


_REASONING: Final = frozenset({"effort", "summary"})
_TEXT: Final = frozenset({"format", "verbosity"})
_FORMAT: Final = frozenset({"type", "name", "description", "schema", "strict"})
_ID: Final = frozenset({"id"})
_MANAGEMENT: Final = frozenset({"type", "compact_threshold"})
_PROMPT: Final = frozenset({"id", "version", "variables"})
_CHOICE: Final = frozenset({"type", "name", "namespace", "server_label", "mode", "tools"})
_STREAM_OPTIONS: Final = frozenset({"include_usage", "include_obfuscation"})
# What is always there, or given when it is asked for.
RESULTS: Final = "file_search_call.results"
SOURCES: Final = "web_search_call.action.sources"
WEB_RESULTS: Final = "web_search_call.results"
INCLUDES: Final = (
    "reasoning.encrypted_content", LOGPROBS, "code_interpreter_call.outputs", RESULTS, SOURCES, WEB_RESULTS,
    "message.input_image.image_url",
)  # fmt: skip
# What only a backend with such tools of its own can give.
FOREIGN_INCLUDES: Final = ("computer_call_output.output.image_url",)


def _check_contradictions(request: CreateResponse) -> None:
    if request.previous_response_id is not None and request.conversation is not None:
        message = "previous_response_id and conversation exclude each other; send one of them"
        raise InvalidRequest(message, param="previous_response_id")
    if request.background and request.store is False:
        message = (
            "a background response is read later, so `background: true` and `store: false` exclude each other; send one of them"
        )
        raise InvalidRequest(message, param="store")
    if request.conversation is not None and request.store is False:
        message = (
            "a conversation keeps what is said in it, and `store: false` asks that nothing is kept; send one of them, or the "
            "items of the conversation as `input`"
        )
        raise InvalidRequest(message, param="store")
