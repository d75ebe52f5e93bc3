"""What is said: the items of a conversation, shaped like the wire.

One family serves the API, the stores and the providers. The set is open: an item, content part or tool of a kind this
version does not know is kept as `Unknown`, and leaves exactly as it came. `encode` and `decode` are the only codec.
"""

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Literal, TypeVar, cast, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import fields, replace

from mainspring.core.json_values import count_values

Json = dict[str, Any]
ItemStatus = Literal["in_progress", "completed", "incomplete"]
Role = Literal["user", "assistant", "system", "developer"]
ToolKind = Literal["function", "mcp", "sandbox", "builtin"]
Effect = Literal["read", "write", "execute", "network", "destructive"]
Purpose = Literal["command", "path", "url"]
CallForm = Literal[
    "custom", "shell", "local_shell", "apply_patch", "code_interpreter", "file_search", "web_search", "tool_search",
    "server_tool_search",
]  # fmt: skip


MOST_ARGUMENT_CHARS: Final = 4 * 1024 * 1024
MOST_ARGUMENT_VALUES: Final = 65_536


class Part:
    """A piece of content: one of the structs below, or `Unknown`."""

    __slots__ = ()


class Item:
    """An entry of a conversation: one of the structs below, or `Unknown`."""

    __slots__ = ()


class Tool:
    """A tool as the model is told about it: a `ToolDefinition`, or `Unknown`."""

    __slots__ = ()


class Unknown(Item, Part, Tool):
    """Something of a kind this version does not know, kept verbatim."""

    __slots__ = ("data",)
    __match_args__ = ("data",)

    def __init__(self, data: Json) -> None:
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Unknown) and other.data == self.data

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self.data, order="deterministic"))

    def __repr__(self) -> str:
        return f"Unknown({self.data!r})"


class InputText(Part, Struct, frozen=True, tag_field="type", tag="input_text"):
    text: str


class InputImage(Part, Struct, frozen=True, tag_field="type", tag="input_image"):
    image_url: str | None = None
    detail: str = "auto"
    file_id: str | UnsetType | None = UNSET


class InputFile(Part, Struct, frozen=True, tag_field="type", tag="input_file"):
    filename: str | UnsetType | None = UNSET
    file_data: str | UnsetType | None = UNSET
    file_url: str | UnsetType | None = UNSET
    file_id: str | UnsetType | None = UNSET


class OutputText(Part, Struct, frozen=True, tag_field="type", tag="output_text"):
    text: str
    annotations: tuple[Json, ...] = ()
    logprobs: tuple[Json, ...] = ()


class Refusal(Part, Struct, frozen=True, tag_field="type", tag="refusal"):
    refusal: str


class SummaryText(Struct, frozen=True, tag_field="type", tag="summary_text"):
    text: str


class ReasoningText(Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    text: str


class Message(Item, Struct, frozen=True, tag_field="type", tag="message"):
    role: Role
    content: tuple[Part, ...] = ()
    id: str = ""
    status: ItemStatus = "completed"
    phase: str | UnsetType | None = UNSET

    @property
    def text(self) -> str:
        """All text of the message, input or output; refusals are not text."""
        return "".join([part.text for part in self.content if isinstance(part, OutputText | InputText)])


class ServerTool(Struct, frozen=True, omit_defaults=True):
    """A tool of an MCP server: the server's label, and what the server itself calls the tool. `at` tells servers apart that
    requests bring under the same label."""

    label: str
    name: str
    at: str = ""


class FunctionCall(Item, Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of any tool. `name` is the model's name for it. Four fields are ours: `form` is what the client knows this call as,
    if not as a function's, `server` whose tool it is, if it is an MCP server's, `approval` the id of the request by which a
    person was asked about it, `inner` what the client calls the tool, in its `namespace` if it has one."""

    call_id: str
    name: str
    arguments: str = ""
    id: str = ""
    status: ItemStatus = "completed"
    form: CallForm | UnsetType = UNSET
    server: ServerTool | UnsetType = UNSET
    approval: str | UnsetType = UNSET
    namespace: str | UnsetType | None = UNSET
    inner: str | UnsetType = UNSET

    @property
    def own_name(self) -> str:
        """What whoever declared the tool calls it."""
        return self.inner if isinstance(self.inner, str) else self.name


class FunctionCallOutput(Item, Struct, frozen=True, tag_field="type", tag="function_call_output"):
    """The answer to a call. `is_error` is ours: present, and true, only when the output is an error message; so is `form`, which
    is that of the call, and `tools`, the declarations that a tool search has found."""

    call_id: str
    output: str | tuple[Part, ...]
    id: str = ""
    status: ItemStatus = "completed"
    is_error: bool | UnsetType = UNSET
    form: CallForm | UnsetType = UNSET
    tools: tuple[Json, ...] | UnsetType = UNSET


class Reasoning(Item, Struct, frozen=True, tag_field="type", tag="reasoning"):
    id: str = ""
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType | None = UNSET
    encrypted_content: str | UnsetType | None = UNSET
    status: ItemStatus | UnsetType | None = "completed"


class ApprovalRequest(Item, Struct, frozen=True, tag_field="type", tag="mcp_approval_request"):
    """A call that waits for a person. Two fields are ours: `call_id` names the waiting call, and `elicitation` is what the
    call's MCP server wants to know before it goes on."""

    id: str
    name: str
    arguments: str
    server_label: str = ""
    call_id: str | UnsetType = UNSET
    elicitation: Json | UnsetType = UNSET


class ApprovalResponse(Item, Struct, frozen=True, tag_field="type", tag="mcp_approval_response"):
    """What a person said. Two fields are ours: `content` are the fields of a form that an MCP server has sent, and `kept` is what
    the call has to know to go on where it was. The engine alone says that; whatever a client sends there is dropped."""

    approval_request_id: str
    approve: bool
    reason: str | None = None
    id: str | UnsetType | None = UNSET
    content: Json | UnsetType | None = UNSET
    kept: Json | UnsetType = UNSET


class ToolDefinition(Tool, Struct, frozen=True, weakref=True, tag_field="type", tag="function"):
    """A callable tool: what the model sees, and what the engine must know to run it.

    `kind` says who performs it: `function` is the client's, everything else runs on the server. `repeatable` promises that
    performing a call twice does no harm; only then is an interrupted call tried again. A tool that `polls` is there to be called
    again and again, until something has changed: that counts as no repetition. A client's tool that is no function has a `form`:
    the model calls it like one, the client sees its own kind of item. `inner` and `namespace` are as in `FunctionCall`; the first
    tool of a namespace says what that is `about`. One that is `deferred` is shown once the model has searched for it, and that
    `is_loaded` if it had done so before the run.

    Governance judges by what is declared here, never by the tool's name. `effects` is all that a call may do, and none declared
    means everything; `operations` says the same for each value of the parameter `operation`; `purposes` says which parameters are
    shell commands, paths and URLs.
    """

    name: str
    description: str = ""
    parameters: Json | None = None
    strict: bool | None = None
    kind: ToolKind = "function"
    repeatable: bool = False
    effects: tuple[Effect, ...] = ()
    timeout: float | None = None
    form: CallForm | UnsetType = UNSET
    server: ServerTool | UnsetType = UNSET
    asks: bool = False
    operations: dict[str, tuple[Effect, ...]] = {}
    purposes: dict[str, Purpose] = {}
    namespace: str | UnsetType = UNSET
    inner: str | UnsetType = UNSET
    about: str | UnsetType = UNSET
    deferred: bool | UnsetType = UNSET
    is_loaded: bool | UnsetType = UNSET
    polls: bool = False


class Adaptation(Struct, frozen=True, omit_defaults=True):
    """What was done in a turn so that a backend and we understand each other. Nothing that was said is in it.

    A request that was refused is `changed` by a field of the model's profile and sent again, as attempt number `attempt`. What
    came in an odd form is `recovered`. What the backend has shown of itself is `learned`; `is_kept` says that the profile has it.
    """

    kind: Literal["changed", "recovered", "learned"]
    field: str
    value: bool | int | str
    why: str = ""
    attempt: int = 0
    is_kept: bool = False

    def __str__(self) -> str:
        kept = f", attempt {self.attempt}" if self.attempt else ""
        return f"{self.kind} {self.field} = {self.value}{kept}{f': {self.why}' if self.why else ''}"


class Usage(Struct, frozen=True):
    """Tokens as the backend counted them; `is_estimated` if it did not, for all or some of them."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    is_estimated: bool = False

    @property
    def total_tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.is_estimated or other.is_estimated,
        )


ITEMS: dict[str, type[Item]] = {
    "message": Message,
    "function_call": FunctionCall,
    "function_call_output": FunctionCallOutput,
    "reasoning": Reasoning,
    "mcp_approval_request": ApprovalRequest,
    "mcp_approval_response": ApprovalResponse,
}
PARTS: dict[str, type[Part]] = {
    "input_text": InputText,
    "input_image": InputImage,
    "input_file": InputFile,
    "output_text": OutputText,
    "refusal": Refusal,
}
TOOLS: dict[str, type[Tool]] = {"function": ToolDefinition}

T = TypeVar("T")


def user(text: str, *, id: str = "") -> Message:
    return Message(role="user", content=(InputText(text),), id=id)


def assistant(text: str, *, id: str = "") -> Message:
    return Message(role="assistant", content=(OutputText(text),), id=id)


def split_media(part: Part) -> tuple[Part, str]:
    """The part without the content that came along with it, and that content: it may be large, and is not to be copied."""
    match part:
        case InputImage(image_url=str(content)):
            return replace(part, image_url=""), content
        case InputFile(file_data=str(content)):
            return replace(part, file_data=""), content
        case _:
            return part, ""


def encode(value: object) -> bytes:
    """JSON of an item or of anything that holds items."""
    return _encoder.encode(value)


def to_json(value: object) -> str:
    """The same as text."""
    return _encoder.encode(value).decode()


def decode(data: bytes | str, kind: type[T]) -> T:
    """The inverse of `encode`. Raises `msgspec.ValidationError` (a `ValueError`) that names the path at fault."""
    return msgspec.json.decode(data, type=kind, dec_hook=from_wire)


def convert(value: object, kind: type[T]) -> T:
    """Like `decode`, from plain dicts and lists."""
    return msgspec.convert(value, kind, dec_hook=from_wire)


def flaw(value: object, kind: object) -> str | None:
    """Why a value would not read back as it was written, None if it would. Python itself does not check types."""
    try:
        back = msgspec.json.decode(_encoder.encode(value), type=kind, dec_hook=from_wire)
    except (ValueError, TypeError, NotImplementedError, RecursionError, OverflowError) as error:
        return str(error) or type(error).__name__
    if back == value:
        return None
    for field in value.__struct_fields__ if isinstance(value, Struct) else ():
        if getattr(back, field) != getattr(value, field):
            return f"`{field}` cannot be kept as {getattr(value, field)!r:.100}"
    return f"it cannot be kept as {value!r:.100}"


def to_wire(value: object) -> object:
    """The codec's hook for encoding; `Unknown` is what it came as."""
    if isinstance(value, Unknown):
        return value.data
    raise NotImplementedError(f"cannot encode {type(value).__name__}")


def from_wire(kind: type[T], value: object) -> T:
    """The codec's hook for decoding: picks the struct by `type`, keeps what it does not know."""
    if kind is Item:
        return cast(T, _item(value))
    if kind is Part:
        return cast(T, _known(PARTS, value))
    if kind is Tool:
        return cast(T, _known(TOOLS, value))
    raise NotImplementedError(f"cannot decode {kind.__name__}")


def _item(value: object) -> Item:
    """An item as clients send it: a message may lack `type`, and its content may be a plain string."""
    if isinstance(value, dict) and value.get("type", "message") == "message" and "role" in value:
        value = {"type": "message", **value}
        if isinstance(content := value.get("content"), str):
            kind = "output_text" if value["role"] == "assistant" else "input_text"
            value["content"] = [{"type": kind, "text": content}]
    return _known(ITEMS, value)


K = TypeVar("K", Item, Part, Tool)


def _known(kinds: dict[str, type[K]], value: object) -> K:
    if not isinstance(value, dict):
        raise ValueError(f"expected an object with a `type`, got {type(value).__name__}")
    kind = value.get("type")
    if not isinstance(kind, str):
        raise ValueError("expected an object with a `type`")
    struct = kinds.get(kind)
    if struct is None:
        return cast(K, Unknown(value))
    try:
        return convert(_drop_nulls(value, struct) if None in value.values() else value, struct)
    except msgspec.ValidationError as error:
        # As a plain ValueError it is told again by whoever decodes the whole, with the path to here.
        raise ValueError(str(error)) from None


def _drop_nulls(value: Json, struct: type) -> Json:
    """The value without nulls in the place of defaults: clients write out what they leave open."""
    optional = _list_optional(struct)
    return {name: inner for name, inner in value.items() if inner is not None or name not in optional}


@cache
def _list_optional(struct: type) -> frozenset[str]:
    """The fields that may be left out and cannot be null. It takes longer to find out than to read an item, so it is kept."""
    return frozenset([field.encode_name for field in fields(struct) if not field.required and not _takes_null(field.type)])


def _takes_null(kind: object) -> bool:
    return type(None) in get_args(kind)


def parse_arguments(text: str) -> Json:
    """The object that a call's arguments stand for; nothing at all means `{}`. Raises `ValueError` in words for the model.

    A name that is there twice is an error: who reads the text may take the first for what counts, and the tool gets the last.
    """
    if are_arguments_large(text):
        raise ValueError(
            f"the arguments have more than {MOST_ARGUMENT_CHARS} characters or {MOST_ARGUMENT_VALUES} values; send less at a time"
        )
    try:
        value = msgspec.json.decode(text) if text.strip() else {}
        if text.count(":") > _members(value):  # else every name that is written is there
            json.loads(text, object_pairs_hook=_unique)
    except msgspec.DecodeError as error:
        raise ValueError(f"the arguments are not valid JSON: {error}") from None
    except RecursionError:
        raise ValueError("the arguments are nested too deeply; send a flatter JSON object") from None
    if not isinstance(value, dict):
        raise ValueError(f"the arguments must be a JSON object, not {type(value).__name__}")
    return value


def are_arguments_large(text: str) -> bool:
    """Whether it would take long to parse them: no tool is called with so much."""
    if len(text) <= MOST_ARGUMENT_VALUES:
        return False
    values = () if len(text) > MOST_ARGUMENT_CHARS else count_values(text.encode(errors="replace"), MOST_ARGUMENT_VALUES)
    return not values or any(count > MOST_ARGUMENT_VALUES for count in values)


def _members(value: object) -> int:
    """How many names with values there are in all objects of a value."""
    if isinstance(value, dict):
        return len(value) + sum([_members(each) for each in value.values() if type(each) in _HOLDERS])
    return sum([_members(each) for each in value if type(each) in _HOLDERS]) if isinstance(value, list) else 0


_HOLDERS: Final = (dict, list)


def _unique(pairs: list[tuple[str, object]]) -> None:
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            raise ValueError(f"the arguments have `{name[:80]}` twice; send it once")
        seen.add(name)


def text_of(output: str | Sequence[Part]) -> str:
    """The text of a tool output, whatever its form."""
    if isinstance(output, str):
        return output
    return "".join([part.text for part in output if isinstance(part, InputText | OutputText)])


_encoder = msgspec.json.Encoder(enc_hook=to_wire)
