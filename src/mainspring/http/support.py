"""What a request needs that not every server or backend has: kinds of tools, items and parts, and features of the model.

All that is needed is listed when a request comes in, and held against what the backend of its model can do before a run starts.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from mainspring.core.errors import InvalidRequest
from mainspring.core.items import PARTS, FunctionCallOutput, InputFile, InputImage, Item, Json, Message, Part, Unknown
from mainspring.definitions.parsed_file import hint
from mainspring.http.kinds import ITEM_KINDS, PART_KINDS, TOOL_KINDS, WEB_SEARCHES, ToolKind
from mainspring.ports import ModelFeature

PASSED_ON: Final = "only a model whose backend speaks the Responses API is passed it on"


# What to do without the tools that OpenAI performs itself.
_SEARCH: Final = (
    "leave it out, or have the operator name a service that searches: `provider` of `[web_search]` in mainspring.toml is "
    "`searxng`, `brave`, `tavily` or `exa`"
)
_INSTEAD: Final = {
    **dict.fromkeys(WEB_SEARCHES, _SEARCH),
    "image_generation": "leave it out, and bring a server of type `mcp` that draws",
    "computer_use_preview": "leave it out, and use the built-in `browser`, if its operator offers it",
}


_UNKNOWN: Final = ToolKind("server", None, "passthrough")


class Need(Struct, frozen=True):
    """A feature that the model's backend must have, or the server itself, and what to tell the client if it has not. `kind` is
    the kind of tool that needs it, if one does."""

    feature: ModelFeature
    param: str
    message: str
    code: str = "unsupported_value"
    kind: str | None = None


def check_needs(needs: Sequence[Need], features: frozenset[ModelFeature]) -> None:
    """Raises `InvalidRequest` for the first need that is not met."""
    for need in needs:
        if not is_met(need, features):
            raise InvalidRequest(need.message, param=need.param, code=need.code)


def is_met(need: Need, features: frozenset[ModelFeature]) -> bool:
    """Whether there is what is needed. A backend that is passed on what we do not know may search the web itself."""
    return need.feature in features or (need.feature == "web_search" and "passthrough" in features)


def list_tool_needs(tools: Sequence[object], param: str = "tools") -> Iterator[Need]:
    for number, tool in enumerate(tools):
        kind = tool.get("type") if isinstance(tool, dict) else None
        if isinstance(kind, str) and (feature := TOOL_KINDS.get(kind, _UNKNOWN).feature) is not None:
            advice = _INSTEAD.get(kind) or f"leave it out; {hint(kind[:80], [*TOOL_KINDS, *_INSTEAD])}"
            said = f"this server has no tools of type `{kind[:80]}`, and {PASSED_ON}; {advice}"
            yield Need(feature, f"{param}[{number}].type", said, kind=kind)


def list_item_needs(items: Sequence[Item], param: str) -> Iterator[Need]:
    """What the items of a list need. Raises `InvalidRequest` for a kind that has no name."""
    for number, item in enumerate(items):
        place = f"{param}[{number}]"
        match item:
            case Unknown({"type": str(kind)}) if kind not in ITEM_KINDS:
                yield _need_kind(f"{place}.type", "an item", kind, [*ITEM_KINDS])
            case Unknown({"type": "web_search_call"}):
                said = f"this server does not search the web, and {PASSED_ON}; {_SEARCH}"
                yield Need("web_search", f"{place}.type", f"an item of type `web_search_call`: {said}")
            case Unknown({"type": "additional_tools" | "tool_search_output", "tools": [*tools]}):
                yield from list_tool_needs(tools, f"{place}.tools")
            case Message(role="assistant", content=parts):
                _check_said(parts, f"{place}.content")
                yield from _list_part_needs(parts, f"{place}.content")
            case Message(content=parts):
                yield from _list_part_needs(parts, f"{place}.content", takes_audio=True)
            case FunctionCallOutput(output=tuple(parts)):
                yield from _list_part_needs(parts, f"{place}.output")
            case Unknown({"type": "custom_tool_call_output", "output": [*given]}):
                read = [Unknown(part) if isinstance(part, dict) else None for part in given]
                yield from _list_part_needs(read, f"{place}.output")
            case _:
                pass


def _list_part_needs(parts: Sequence[Part | None], place: str, *, takes_audio: bool = False) -> Iterator[Need]:
    for number, part in enumerate(parts):
        kind = part.data.get("type") if isinstance(part, Unknown) else None
        if kind == "input_audio" and takes_audio:
            said = "the backend of this model takes no sound; send text, or name a model that takes `input_audio`"
            yield Need("audio_input", f"{place}[{number}].type", said)
        elif isinstance(kind, str) and kind not in PARTS:
            yield _need_kind(f"{place}[{number}].type", "a content part", kind, [*PART_KINDS])


def _check_said(parts: Sequence[Part], place: str) -> None:
    """Raises `InvalidRequest` for what a model cannot have said: no backend would be shown it."""
    for number, part in enumerate(parts):
        if isinstance(part, InputImage | InputFile):
            param = f"{place}[{number}].type"
            message = f"{param}: images and files are what users send; put it into a message of the user"
            raise InvalidRequest(message, param=param, code="invalid_value")


def _need_kind(param: str, what: str, kind: str, known: Sequence[str]) -> Need:
    if not kind:
        raise InvalidRequest(f"{param} is empty; say what kind it is", param=param, code="invalid_value")
    advice = hint(kind[:80], known)
    return Need("passthrough", param, f"{what} of type `{kind[:80]}` is not known here, and {PASSED_ON}; leave it out; {advice}")


def list_option_needs(sampling: Json) -> Iterator[Need]:
    """What the options need that other APIs have and a response has not."""
    if "seed" in sampling:
        yield Need("seed", "seed", "the backend of this model takes no `seed`; leave it out, or name a model that does")


def list_sampling_needs(logprobs: str | None, penalties: Sequence[str]) -> Iterator[Need]:
    """What the fields need that ask for log probabilities, and for penalties."""
    if logprobs is not None:
        said = "the backend of this model tells no log probabilities; leave this out, or name a model that has them"
        yield Need("logprobs", logprobs, said)
    for field in penalties:
        yield Need("penalties", field, f"the backend of this model takes no `{field}`; leave it out, or name a model that does")
