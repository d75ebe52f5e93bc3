"""The turns of a script: what a scripted model says, how it fails, and what it expects to hear."""

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Literal, TypedDict, Unpack

from msgspec import Meta, Struct
from msgspec.structs import replace

from mainspring.core.errors import BadOutput, ContextOverflow, ProviderError, RateLimited, Refused, Unauthorized, Unavailable
from mainspring.core.events import Finish, ItemDone, ItemStarted, TextDelta, TurnEnded
from mainspring.core.items import Json, Reasoning, Usage, assistant
from mainspring.core.model_request import ModelRequest
from mainspring.definitions.parsed_file import hint

Expectation = str | re.Pattern[str] | Callable[[ModelRequest], bool | None]
Fault = Literal["unknown_item", "changed_text", "changed_kind", "same_id", "no_end", "two_ends", "not_an_event"]


class Call(Struct, frozen=True):
    """A call to make. Arguments given as a string are sent as they are, valid JSON or not."""

    name: str
    arguments: Json | str = {}


class Turn(Struct, frozen=True, kw_only=True):
    """One answer of the model.

    It thinks, then says or refuses, then makes its calls, each as an item; `events` replaces all of that, and its end too.
    Then the turn ends, unless it is to `fail` or to `stall`. A `cut` comes after that many deltas, and fails if nothing else
    is said. `expect` is asserted of the prompt; `when` picks the requests that this turn is for. `pause` is the seconds before
    each delta; 0 only lets others run.
    """

    think: str | None = None
    say: str | None = None
    refuse: str | None = None
    calls: tuple[Call, ...] = ()
    events: tuple[object, ...] | None = None
    finish: Finish = "stop"
    usage: Usage | None = None
    cut: int | None = None
    fail: ProviderError | None = None
    stall: bool = False
    pause: float | None = None
    expect: Expectation | None = None
    when: str | None = None

    def __post_init__(self) -> None:
        if self.fail is not None and self.stall:
            raise ValueError("a turn can fail or stall, not both")
        if self.events is not None and (self.think, self.say, self.refuse, self.calls) != (None, None, None, ()):
            raise ValueError("a turn of raw events can say nothing else")
        if (self.cut or 0) < 0 or (self.pause or 0) < 0:
            raise ValueError("`cut` and `pause` cannot be negative")


class TurnOptions(TypedDict, total=False):
    """What every kind of turn takes besides its words; see `Turn`."""

    finish: Finish
    usage: Usage
    pause: float
    expect: Expectation
    when: str


def turn(
    *,
    think: str | None = None,
    say: str | None = None,
    refuse: str | None = None,
    calls: Iterable[Call] = (),
    fail: ProviderError | None = None,
    stall: bool = False,
    **options: Unpack[TurnOptions],
) -> Turn:
    """A turn of several items, which may yet fail or stall once they are said."""
    return Turn(think=think, say=say, refuse=refuse, calls=tuple(calls), fail=fail, stall=stall, **options)


def say(text: str, **options: Unpack[TurnOptions]) -> Turn:
    return Turn(say=text, **options)


def think(text: str, **options: Unpack[TurnOptions]) -> Turn:
    return Turn(think=text, **options)


def refuse(text: str, **options: Unpack[TurnOptions]) -> Turn:
    return Turn(refuse=text, **options)


def call(name: str, text: str | None = None, /, **arguments: object) -> Call:
    """A call, on its own a turn: `call("weather", city="Paris")`, or `call("weather", '{"city": ')` for arguments as they are."""
    return Call(name, arguments if text is None else text)


def calls(*made: Call, **options: Unpack[TurnOptions]) -> Turn:
    return Turn(calls=made, **options)


def empty(**options: Unpack[TurnOptions]) -> Turn:
    """A turn without any item."""
    return Turn(**options)


def fail(error: ProviderError | str, **options: Unpack[TurnOptions]) -> Turn:
    """A turn that raises this error, or the one with this code."""
    return Turn(fail=error if isinstance(error, ProviderError) else ScriptedFailure(error).build(), **options)


def stall(**options: Unpack[TurnOptions]) -> Turn:
    """A turn that never comes; it ends by being cancelled."""
    return Turn(stall=True, **options)


def cut(whole: Turn | Call, *, after: int) -> Turn:
    """The turn, broken off after so many deltas: by `Unavailable`, unless it says how it fails or that it stalls."""
    return replace(as_turn(whole), cut=after)


def raw(events: Iterable[object], **options: Unpack[TurnOptions]) -> Turn:
    """Exactly these events, which need not be sound; nothing is added, not even the end of the turn."""
    return Turn(events=tuple(events), **options)


def malformed(fault: Fault, **options: Unpack[TurnOptions]) -> Turn:
    """A turn that breaks the protocol of `ports.Provider` in this way."""
    return raw(FAULTS[fault], **options)


def as_turn(given: Turn | Call) -> Turn:
    return Turn(calls=(given,)) if isinstance(given, Call) else given


_HELLO = assistant("Hello", id="msg_malformed")
_BEGUN = ItemStarted(replace(_HELLO, content=(), status="in_progress"))
_WHOLE = (_BEGUN, TextDelta(_HELLO.id, "Hello"), ItemDone(_HELLO))
FAULTS: dict[Fault, tuple[object, ...]] = {
    "unknown_item": (TextDelta("msg_unknown", "Hello"), TurnEnded()),
    "changed_text": (*_WHOLE[:2], ItemDone(assistant("Goodbye", id=_HELLO.id)), TurnEnded()),
    "changed_kind": (_BEGUN, ItemDone(Reasoning(id=_HELLO.id)), TurnEnded()),
    "same_id": (*_WHOLE, *_WHOLE, TurnEnded()),
    "no_end": _WHOLE,
    "two_ends": (*_WHOLE, TurnEnded(), TurnEnded()),
    "not_an_event": (*_WHOLE, {"type": "turn_ended"}),
}

_ERRORS = (RateLimited, ContextOverflow, Refused, Unauthorized, Unavailable, BadOutput, ProviderError)
_CODES: dict[str, type[ProviderError]] = {error.code: error for error in _ERRORS}

Count = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(ge=0)]


class ScriptedFailure(Struct, frozen=True):
    code: str
    message: str | None = None
    retry_after: Seconds | None = None

    def build(self) -> ProviderError:
        """The error. Raises `ValueError` for a code that no provider uses."""
        if self.code not in _CODES:
            raise ValueError(f"no provider error has the code `{self.code}`; {hint(self.code, list(_CODES))}")
        kind = _CODES[self.code]
        message = self.message or f"the script fails with {self.code}"
        if kind is RateLimited:
            return RateLimited(message, retry_after=self.retry_after)
        if self.retry_after is not None:
            raise ValueError(f"only `{RateLimited.code}` has a `retry_after`, not `{self.code}`")
        return kind(message)
