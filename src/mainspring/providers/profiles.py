"""What is known of a model at a backend: facts as data, so that no adapter has a branch for a model or a vendor.

A profile is one struct that the writers of requests and the readers of answers consult. Each of its fields is neutral until one
of three sources says otherwise; a later one wins, field by field: what is shipped (`profiles.toml`, by server and by name of the
model), what a backend has shown (`profile_book.py`), and what the operator has set.

Much that differs needs no fact, because it can be understood in one way only: missing, repeated or late call ids, arguments as
objects, parallel calls without an index, usage that never comes, reasoning in tags. `Turn` and the readers see to that for every
model alike.
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from re import Pattern
from typing import Annotated, Final, Literal, NamedTuple, get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict

from mainspring.core.model_request import ModelRequest
from mainspring.ports import ProfileFact, ProfileValue


class ModelProfile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a model is asked and its answers are read. The defaults are neutral: nothing is changed for their sake. The values
    of a field are listed from the neutral to the most careful one."""

    tools: bool = True
    """Whether it is sent tools. If not, they are told in words, and its calls are read from its text."""
    stream: bool = True
    """Whether answers are streamed. If not, each comes in one piece."""
    stream_tools: bool = True
    """Whether a request with tools is streamed. Some servers lose calls in their streams."""
    tool_choice: Literal["any", "auto"] = "any"
    """Whether a call can be forced; with `auto` the model is asked for it in words."""
    parallel_tool_calls: bool = True
    """Whether `parallel_tool_calls` is sent."""
    schemas: Literal["full", "common", "bare", "told"] = "full"
    """How the schemas of tools are written: without rare words (`common`), with names and types only (`bare`), or as part of the
    tool's description (`told`). What is left out is checked here all the same."""
    descriptions: Literal["full", "filled", "short"] = "full"
    """Whether tools are described as they are, by their names where they have no description, or by one plain line each."""
    strict: bool = True
    """Whether `strict` of a tool is sent."""
    recall: Literal["none", "reasoning_content"] = "none"
    """Where its reasoning goes back with the calls that it led to."""
    reasoning_items: Literal["any", "sealed"] = "any"
    """Which reasoning goes back by the Responses API: all of it, or only what the backend has sealed."""
    seals: bool = True
    """Whether what a vendor has sealed of its reasoning (signatures, encrypted content) goes back to it."""
    cache_marks: bool = True
    """Whether Claude is told up to where the prompt is to be cached."""
    item_fields: Literal["all", "needed"] = "all"
    """What items have by the Responses API: all that the format knows, or no ids and phases."""
    thinking: Literal["marked", "begun"] = "marked"
    """Whether reasoning is told by the tag that opens it, or the prompt has opened it, and the answer begins within it."""
    call_ids: bool = False
    """Whether Ollama gets the ids of calls back, too. Those that run on machines of its own want them."""
    ids: Literal["any", "nine"] = "any"
    """Which call ids it takes: any, or nine letters and digits."""
    blank: Literal["null", "empty", "omitted", "told"] = "null"
    """What a message without words has for content. With `told` it says in words that it calls."""
    arguments: Literal["text", "object"] = "text"
    """How the arguments of calls in the history are written."""
    content: Literal["parts", "text"] = "parts"
    """How a message with several parts of text is written: as a list, or as one text."""
    output_content: Literal["text", "parts"] = "text"
    """How the outputs of tools are written: as one text, or as a list of parts."""
    output_names: bool = True
    """Whether outputs of tools have the tool's name."""
    output_role: Literal["tool", "user"] = "tool"
    """Who tells the outputs of tools. With `user`, calls and outputs of the history are told in words."""
    calls_together: bool = True
    """Whether a turn of the history may have several calls. If not, each is a turn, with its output behind it."""
    user_after_output: bool = True
    """Whether a user may speak directly behind the output of a tool. If not, the model says a word in between, or what the user
    says to Gemini is a turn of its own."""
    system: Literal["anywhere", "first", "user"] = "anywhere"
    """Where the system may speak: anywhere, once and first, or never, so that the user says it; then roles alternate too."""
    calls_without_tools: bool = True
    """Whether the history may have calls where the request has no tools. If not, they are declared, and their use forbidden."""
    response_format: Literal["any", "without_tools", "none"] = "any"
    """Where the answer can be held to a format. Elsewhere the model is asked for it in words, and its answer checked here."""
    json_object: bool = True
    """Whether `json_object` is a format; if not, a schema of any object is."""
    format_told: bool = False
    """Whether a format is told in words besides, because the server drops schemas without a word."""
    limit: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the bound on the output is called."""
    most_output: Annotated[int, Meta(ge=1)] | None = None
    """The largest bound on the output that it takes. A larger one is lowered to it; None is unknown."""
    effort: Literal["switch", "level"] = "switch"
    """How Ollama is told to think: yes or no, or at one of three levels."""
    reasoning_effort: bool = True
    """Whether `reasoning_effort` is sent, or `think` to Ollama."""
    efforts: Literal["any", "three"] = "any"
    """Which levels `reasoning_effort` may have: any, or low, medium and high; then one beyond is the nearest of them."""
    encrypted_reasoning: bool = True
    """Whether the Responses API is asked for encrypted reasoning, to be sent back."""
    store: bool = True
    """Whether the Responses API is told to store nothing."""
    stream_options: bool = True
    """Whether `stream_options` is sent, which asks for the usage."""
    temperature: bool = True
    """Whether `temperature` is sent."""
    top_p: bool = True
    """Whether `top_p` is sent."""
    presence_penalty: bool = True
    """Whether `presence_penalty` is sent."""
    frequency_penalty: bool = True
    """Whether `frequency_penalty` is sent."""
    calls: bool = True
    """Whether it can call tools, as the doctor has found out. If not, agents with tools and the task agent refuse it."""
    keeps_schemas: bool = True
    """Whether it keeps to a schema, as the doctor has found out. If not, structured output is refused."""
    ends: bool = True
    """Whether it ends its answers by itself, as the doctor has found out. If not, the task agent refuses it."""
    window: Annotated[int, Meta(ge=1)] | None = None
    """How many tokens it takes in all. Conversations are compacted or cut to that; None is unknown."""


NEUTRAL: Final = ModelProfile()


Facts = Mapping[str, ProfileFact]


OF_TOOLS: Final = " of tools "
"""Stands between a field and the digest of the tools that a fact holds for, if it does not hold for all."""
MOST_OF_TOOLS: Final = 64


def drop_old(facts: Facts, now: float) -> dict[str, ProfileFact]:
    """The facts that still hold. Of those that hold for some tools only, which callers make as many as they like, the newest."""
    kept = {field: fact for field, fact in facts.items() if fact.until is None or now < fact.until}
    of_tools = sorted([field for field in kept if OF_TOOLS in field], key=lambda field: kept[field].at or 0)
    for field in of_tools[:-MOST_OF_TOOLS]:
        del kept[field]
    return kept


AS_NAMED: Final = 1


class RefusalRule(NamedTuple):
    """How backends refuse a request, and which field of the profile makes one that they take. Its value may be the number that
    the refusal has (`AS_NAMED`)."""

    field: str
    value: ProfileValue
    words: Pattern[str]

    def read(self, words: str) -> "RefusalRule":
        """The rule with the value that these words name."""
        if type(self.value) is not int or (found := self.words.search(words)) is None:
            return self
        number = int(next(group for group in found.groups() if group is not None).replace(",", ""))
        return self._replace(value=max(1, number - found[0].endswith("(exclusive)")))


_LIMIT: Final = r"\bmax(?:imum)?[ _]?(?:output|completion|new)?[ _]?tokens?(?![a-z_])"
_NUMBER: Final = r"`?([1-9][\d,]{0,8})"
MOST_OUTPUT: Final = RefusalRule(
    "most_output",
    AS_NAMED,
    re.compile(
        rf"{_LIMIT}.*(?:supports at most|less than or equal to|from 1 \(inclusive\) to) {_NUMBER}(?: \(exclusive\))?"
        rf"|{_LIMIT}.*\b(?:output|completion|model) (?:token )?limit (?:of|is) {_NUMBER}"
        rf"|{_LIMIT}.*\[\s*1\s*,\s*{_NUMBER}\s*\]|{_LIMIT}: \d+ > {_NUMBER}, which is the maximum",
        re.IGNORECASE,
    ),
)
# The bound and the prompt together are more than its context.
WINDOW: Final = RefusalRule(
    "window",
    AS_NAMED,
    re.compile(rf"maximum context length (?:is|of) {_NUMBER}|max_new_tokens\W+must be <= {_NUMBER}", re.IGNORECASE),
)
BOUNDS: Final = frozenset({MOST_OUTPUT.field, WINDOW.field})
"""What is changed where a request is too long for its bound on the output alone."""
# With these, a value that is not supported means that only the default is.
NO_TEMPERATURE: Final = re.compile(
    r"temperature.*(not support|unsupported|only the default|only 1\b|only be set|deprecated|extra input|locked|fixed"
    r"|must be 1(\.0+)?\b(?!\.))|unsupported.*temperature",
    re.IGNORECASE,
)
NO_DESCRIPTION: Final = re.compile(
    r"\bdescription\b.*(required|empty|missing|valid string|expected a string|length greater|at least|minimum length)",
    re.IGNORECASE,
)


def cap_output(request: ModelRequest, profile: ModelProfile) -> int | None:
    """The bound on the output that a request asks for, as far as the backend takes it."""
    wanted, most = request.max_output_tokens, profile.most_output
    return wanted if wanted is None or most is None else min(wanted, most)


@cache
def list_values(field: str) -> tuple[ProfileValue, ...]:
    """The values of a field, the neutral one first and each further one more careful; none if there is no list of them."""
    neutral = asdict(NEUTRAL)[field]
    return (neutral, not neutral) if isinstance(neutral, bool) else get_args(ModelProfile.__annotations__[field])


def build_profile(facts: Facts) -> ModelProfile:
    """The profile that these facts make. Raises `ValueError` for a field or a value that no profile has."""
    if not facts:
        return NEUTRAL
    return msgspec.convert({field: fact.value for field, fact in facts.items()}, ModelProfile)


class ShippedProfile(NamedTuple):
    """What is known of the servers and models whose names have these patterns in them, and where it is from."""

    server: Pattern[str] | None
    model: Pattern[str] | None
    facts: dict[str, ProfileFact]
    why: str
    link: str


@cache
def load_shipped() -> tuple[ShippedProfile, ...]:
    entries = msgspec.toml.decode(Path(__file__).with_name("profiles.toml").read_bytes())["profile"]
    return tuple([_read_entry(dict(entry)) for entry in entries])


def _read_entry(entry: dict[str, ProfileValue]) -> ShippedProfile:
    patterns = [str(entry.pop(key, "")) for key in ("server", "model")]
    server, model = [re.compile(pattern, re.IGNORECASE) if pattern else None for pattern in patterns]
    why, link = str(entry.pop("why")), str(entry.pop("link"))
    facts = {name: ProfileFact(value, "shipped", why) for name, value in entry.items()}
    return ShippedProfile(server, model, facts, why, link)


@lru_cache(maxsize=1024)
def find_shipped(model: str, server: str) -> Facts:
    """What is shipped about a model at a server, which is known by its host or by what it calls itself."""
    found: dict[str, ProfileFact] = {}
    for entry in load_shipped():
        if (entry.server is None or entry.server.search(server)) and (entry.model is None or entry.model.search(model)):
            found |= entry.facts
    return found


def find_profile(model: str, server: str = "") -> ModelProfile:
    """What is shipped about a model, as a profile."""
    return build_profile(find_shipped(model, server))
