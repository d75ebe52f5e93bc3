"""A transcript as request builders need it: the turns of input and model, each call with its output.

Reasoning that only its own vendor can read (signatures, encrypted thoughts) is kept in `encrypted_content` under that vendor's
name: `seal` writes it, `unseal` returns it to the same vendor and to nobody else.
"""

from collections.abc import Callable, Hashable, Sequence
from hashlib import blake2b
from itertools import chain
from re import Pattern
from typing import Literal

import msgspec
from msgspec import Struct

from mainspring.core import items
from mainspring.core.items import FunctionCall, FunctionCallOutput, Item, Json, Message, Part, Reasoning
from mainspring.core.model_request import Items, ModelRequest
from mainspring.core.prefix import PrefixText
from mainspring.providers.json_text import encode_body

MARK = "mainspring"
UNANSWERED = "There is no output: the call was never answered."
# What is kept written of one conversation, at most; what comes after that is written each time.
KEPT_BYTES = 8 << 20
FILLER = "Continue."
"""What a user says where a backend wants a user to speak and nobody has."""


class InputTurn(Struct, frozen=True):
    """A message of the user or the system."""

    role: Literal["user", "system"]
    parts: tuple[Part, ...]


class AnsweredCall(Struct, frozen=True):
    call: FunctionCall
    output: FunctionCallOutput | None

    @property
    def output_text(self) -> str:
        """The words of the output, for a backend that cannot mark errors."""
        return UNANSWERED if self.output is None else render_error(self.output)

    @property
    def attachments(self) -> list[items.InputImage | items.InputFile]:
        """The images and files of the output."""
        parts = () if self.output is None else self.output.output
        return [part for part in parts if isinstance(part, items.InputImage | items.InputFile)]


class ModelTurn(Struct, frozen=True):
    """What the model said in one turn, in order, and the outputs of its calls. `items` and `calls` share the calls."""

    items: tuple[Message | Reasoning | FunctionCall, ...]
    calls: tuple[AnsweredCall, ...]

    @property
    def is_mute(self) -> bool:
        """Nothing but reasoning."""
        return all(isinstance(item, Reasoning) for item in self.items)

    @property
    def texts(self) -> list[str]:
        """What the model said in words, without empty texts."""
        return [text for item in self.items if isinstance(item, Message) for text in map(get_text, item.content) if text]


def list_turns(history: Sequence[Item]) -> list[InputTurn | ModelTurn]:
    """The turns of a conversation. Items of unknown types are left out: no backend could read them."""
    outputs = _outputs(history)
    turns: list[InputTurn | ModelTurn] = []
    said: list[Message | Reasoning | FunctionCall] = []
    calls: list[AnsweredCall] = []

    def close() -> None:
        if said:
            turns.append(ModelTurn(tuple(said), tuple(calls)))
            said.clear()
            calls.clear()

    for position, item in enumerate(history):
        match item:
            case FunctionCall():
                said.append(item)
                calls.append(AnsweredCall(item, outputs.get(position)))
            case Reasoning():
                said.append(item)
            case Message(role="assistant"):
                said.append(item)
            case Message():
                close()
                turns.append(InputTurn("user" if item.role == "user" else "system", item.content))
            case FunctionCallOutput():
                close()
    close()
    return turns


Turn = InputTurn | ModelTurn


def write_turns(history: Sequence[Item], dialect: Hashable, write: Callable[[Turn], list[Json]]) -> list[Json | msgspec.Raw]:
    """The messages of a conversation, as `write` makes them of its turns: the same for the same turn and `dialect`. What is kept
    of them is JSON, with commas between messages, and only what has come since is written."""
    prefix = history.prefix if isinstance(history, Items) else None
    if prefix is None:
        return [message for turn in list_turns(history) for message in write(turn)]
    known = prefix.texts.get(dialect) or PrefixText()
    if known.count < len(prefix.items):
        written = [encode_body(message) for turn in list_turns(prefix.items[known.count :]) for message in write(turn)]
        known = known.extend(b",".join(written), len(prefix.items))
        if sum(map(len, known.pieces)) <= KEPT_BYTES:
            prefix.texts[dialect] = known
    return list(map(msgspec.Raw, known.pieces))


def _outputs(history: Sequence[Item]) -> dict[int, FunctionCallOutput]:
    """The output of each call, by the call's position. Some backends reuse an id in a later turn: the nearest call counts."""
    open_calls: dict[str, list[int]] = {}
    outputs: dict[int, FunctionCallOutput] = {}
    for position, item in enumerate(history):
        if isinstance(item, FunctionCall):
            open_calls.setdefault(item.call_id, []).append(position)
        elif isinstance(item, FunctionCallOutput) and (waiting := open_calls.get(item.call_id)):
            outputs[waiting.pop()] = item
    return outputs


def get_text(part: Part) -> str:
    """The words of a part, a refusal among them."""
    match part:
        case items.InputText(text) | items.OutputText(text) | items.Refusal(text):
            return text
        case _:
            return ""


def list_functions(request: ModelRequest) -> list[items.ToolDefinition]:
    """The tools that every backend can be told of."""
    return [tool for tool in request.tools if isinstance(tool, items.ToolDefinition)]


def find_schema(request: ModelRequest) -> Json | None:
    """The JSON Schema that the answer must fit, an empty one if it must be any JSON, None if it is free."""
    match (request.text or {}).get("format"):
        case {"type": "json_schema", "schema": dict(schema)}:
            return schema
        case {"type": "json_object" | "json_schema"}:
            return {}
        case _:
            return None


def mentions(request: ModelRequest, word: str | Pattern[str]) -> bool:
    """Whether anybody but the model has said the word."""
    said = [item for item in request.items if isinstance(item, Message) and item.role != "assistant"]
    texts = chain((request.instructions or "",), (get_text(part) for item in said for part in item.content))
    return any(word in text for text in texts) if isinstance(word, str) else any(map(word.search, texts))


def append_parts(messages: list[Json], role: str, field: str, parts: list[Json]) -> None:
    """Adds parts to the last message if it has the same role, else as a message of their own: roles must alternate."""
    if parts and messages and messages[-1]["role"] == role:
        messages[-1][field] += parts
    elif parts:
        messages.append({"role": role, field: parts})


def parse_call_arguments(call: FunctionCall) -> Json:
    """The arguments as an object, also those that the model botched."""
    return parse_any_arguments(call.arguments)


def parse_any_arguments(arguments: str) -> Json:
    """The arguments as an object, which says so if they are none."""
    try:
        return items.parse_arguments(arguments)
    except ValueError:
        return {"invalid_arguments": arguments}


def repair_arguments(arguments: str) -> str:
    """Arguments that a backend can parse. Invalid JSON is wrapped in an object that says so."""
    if not arguments.strip():
        return "{}"
    try:
        is_object = not items.are_arguments_large(arguments) and _object.decode(arguments) is not None
    except (ValueError, RecursionError):
        is_object = False
    return arguments if is_object else msgspec.json.encode({"invalid_arguments": arguments}).decode()


def render_output(output: FunctionCallOutput) -> str:
    """The text of an output, for a backend that takes only text."""
    text = items.text_of(output.output)
    if not text and not isinstance(output.output, str) and output.output:
        text = "The output is attached below."
    return text


def render_error(output: FunctionCallOutput) -> str:
    text = render_output(output)
    return f"Error: {text}" if output.is_error is True and not text.startswith("Error:") else text


def shorten_id(id: str, limit: int) -> str:
    """A call id of at most so many characters: equal ids stay equal, different ids stay different."""
    return id if len(id) <= limit else f"call_{blake2b(id.encode(), digest_size=12).hexdigest()}"


def seal(vendor: str, secret: str) -> str:
    return f"{MARK}.{vendor}.{secret}"


def unseal(vendor: str, item: Reasoning) -> str | None:
    """What this vendor sealed, None if another vendor or nobody did."""
    content = item.encrypted_content
    mark = f"{MARK}.{vendor}."
    return content.removeprefix(mark) if isinstance(content, str) and content.startswith(mark) else None


def find_seal(item: Item) -> str | None:
    """What a vendor has sealed into the item."""
    content = item.encrypted_content if isinstance(item, Reasoning) else None
    return content if isinstance(content, str) else None


def is_sealed(content: str) -> bool:
    """Whether `seal` wrote it: of no use to a vendor that encrypts its reasoning itself."""
    return content.startswith(f"{MARK}.")


_object = msgspec.json.Decoder(dict[str, msgspec.Raw])
