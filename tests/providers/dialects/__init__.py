"""Wire formats as fakes speak them: what a model says, in one neutral script, and how each vendor frames it.

The matrix (`test_matrix.py`) runs every case over every dialect: a `Dialect` writes replies byte for byte as its vendor does,
checks each request against the vendor's published types, and reads it back into neutral terms (`Line`). Its `sdk` lets the
vendor's own client read the same bytes, so that both readings can be compared.
"""

from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from typing import Literal, Protocol

from msgspec import Struct

from mainspring.core.events import ModelEvent
from mainspring.core.items import Json, Usage
from mainspring.core.model_request import ModelRequest
from mainspring.ports import Provider

Stop = Literal["stop", "length", "safety"]
Trouble = Literal["rate_limited", "overloaded", "overflow", "unauthorized", "not_found", "bad_request", "server_error"]
Ability = Literal[
    "call_ids",  # calls have ids of the vendor's
    "argument_pieces",  # arguments arrive in pieces of text
    "interleaved_calls",  # pieces of parallel calls may alternate
    "thinking",
    "signatures",  # thoughts carry what must be given back
    "refusal",
    "safety_stop",
    "result_images",  # a tool result may hold an image
    "error_results",  # a tool result can be marked as an error
    "structured_output",
    "parallel_switch",  # parallel calls can be forbidden
    "cached_tokens",
    "reasoning_tokens",
]


class SpokenCall(Struct, frozen=True):
    """A call as the model makes it. `arguments` are pieces of JSON text; a dialect without pieces joins them."""

    name: str
    arguments: tuple[str, ...] = ("{}",)
    id: str = "call_abc"


class Spoken(Struct, frozen=True):
    """One answer of a model. Text comes in the given pieces; a dialect adds the frames around it that its vendor sends."""

    think: tuple[str, ...] = ()
    seal: str = ""
    text: tuple[str, ...] = ()
    refusal: str = ""
    calls: tuple[SpokenCall, ...] = ()
    interleaved: bool = False
    stop: Stop = "stop"
    usage: Usage | None = Usage(12, 7)


class Failure(Struct, frozen=True):
    """A refusal before the stream."""

    status: int
    body: bytes
    headers: dict[str, str] = {}


class Line(Struct, frozen=True):
    """One thing that a request says. `kind` is who says it; `name` and `id` belong to calls and outputs.

    `text` is the words, the arguments as JSON text with sorted keys and no spaces, or the output's words. `images` are the data
    URLs or addresses that go with it.
    """

    kind: Literal["system", "user", "assistant", "thought", "call", "output"]
    text: str = ""
    name: str = ""
    id: str = ""
    is_error: bool = False
    images: tuple[str, ...] = ()


class Asked(Struct, frozen=True):
    """A request as its vendor reads it."""

    model: str
    lines: tuple[Line, ...]
    tools: tuple[str, ...] = ()
    tool_choice: str = "auto"  # auto, required, none, or the name of the forced tool
    max_output_tokens: int | None = None
    temperature: float | None = None
    schema: Json | None = None  # of structured output


class Reading(Struct, frozen=True):
    """What a client understood of an answer: the vendor's own, or ours."""

    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, Json], ...] = ()
    stop: Stop = "stop"
    usage: Usage | None = None


class Reader(Protocol):
    """An adapter's pure reader of one reply: bytes in, events out, no I/O."""

    def feed(self, data: bytes) -> Iterable[ModelEvent]: ...

    def end(self) -> Iterable[ModelEvent]:
        """The last events. Raises `Unavailable` if the vendor's end never came."""
        ...


class Dialect(Protocol):
    name: str
    mime: str
    abilities: frozenset[Ability]

    def provider(self, url: str) -> Provider:
        """Our adapter, pointed at a fake server at `url` (no path, no slash at its end), with counted ids and a key."""
        ...

    def reader(self) -> Reader:
        """The reader that our adapter has for one reply, with counted ids."""
        ...

    def frames(self, spoken: Spoken) -> list[bytes]:
        """The body of a good reply, one entry per piece that the vendor would send at once."""
        ...

    def failure(self, trouble: Trouble) -> Failure: ...

    def failure_within(self) -> bytes:
        """The frame by which the vendor breaks off a stream that has begun."""
        ...

    def asked(self, method: str, target: str, headers: Mapping[str, str], body: Json) -> Asked:
        """Reads a request. Fails, as an assertion, if the vendor would refuse it: route, key, versions, published types, pairing
        and order of calls and results."""
        ...

    async def sdk(self, url: str, request: ModelRequest) -> Reading:
        """What the vendor's own client makes of the answer at `url` to a plain question."""
        ...


def dialects() -> Sequence[Dialect]:
    """Every dialect there is."""
    names = ("chat", "responses", "ollama", "gemini", "anthropic")
    return [import_module(f"tests.providers.dialects.{name}").DIALECT for name in names]
