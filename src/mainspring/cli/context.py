"""What the composition root hands to the commands: `Product`. Features import this module, never `app`.

A command reads settings as a struct of its own that names only the fields it needs, and gets a whole engine as an `Assembly`,
in which it finds the service of its feature by type.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Struct, UnsetType

from mainspring.parts import Part

if TYPE_CHECKING:  # `mainspring --help` needs no engine
    from mainspring.core.run import Run
    from mainspring.core.spec import PresetName
    from mainspring.engine.engine import Engine
    from mainspring.engine.handle import Handle
    from mainspring.storage.location import Location

T = TypeVar("T")
S = TypeVar("S", bound=Struct)


class EngineOptions(Struct, frozen=True, kw_only=True):
    """Options of a command that say how its engine is built. `settings` override those of the settings file.

    `kind` is whose engine it is. A `server` takes everything from the settings. An `agent` asks the model of the options, if they
    name one. A `bare` engine does, too, and has none of the tools and folders of the settings; they only govern it. `steps` are
    performed without a model. In a `trial`, calls are judged and nothing is performed or kept.
    """

    kind: Literal["server", "agent", "bare", "steps", "trial"] = "agent"
    settings: Mapping[str, object] = {}
    config: Path | None = None
    database: "Location | None" = None
    model: str | None = None
    base_url: str | None = None
    backend_key: str | None = None
    preset: "PresetName" = "responses"
    instructions: str | None = None
    record: Path | None = None
    replay: Path | None = None


class WaitingCall(Struct, frozen=True):
    """A call that waits for a person: `arguments` are without secrets, `digest` is that of all of them. `policy` is the rule that
    asks, `question` says why. `elicitation` is what the call's MCP server wants to know, if it is that which asks."""

    id: str
    tool: str
    arguments: str
    digest: str
    policy: str
    question: str
    elicitation: dict[str, Any] | UnsetType = UNSET


class PersonsAnswer(Struct, frozen=True):
    """Whether a call may go on, and the fields of the form, if its MCP server has sent one."""

    approves: bool
    content: dict[str, Any] | None = None


class Assembly(Struct, frozen=True):
    """An engine with the services of the features. It works inside `async with assembly.lifespan`.

    `policies` are the names of those that the settings put in force, `mcp_labels` those of its MCP servers. `check_run` raises
    `InvalidRequest` for a run that this engine cannot continue. `find_doubts` lists what in the settings may be a mistake.
    `list_waiting` finds the calls of an ended run that a person must agree to, `answer` says yes or no to one; with the last one
    the run goes on.
    """

    engine: "Engine"
    lifespan: AbstractAsyncContextManager[object]
    services: tuple[object, ...]
    policies: frozenset[str]
    mcp_labels: frozenset[str]
    check_run: "Callable[[Run], None]"
    find_doubts: Callable[[], list[str]]
    list_waiting: "Callable[[Run], Awaitable[Sequence[WaitingCall]]]"
    answer: "Callable[[WaitingCall, PersonsAnswer], Awaitable[Handle | None]]"

    def find(self, kind: type[T]) -> T:
        return next(service for service in self.services if isinstance(service, kind))


class Product(Struct, frozen=True):
    """`parts` are our own; `find_installed` reads those that other packages bring, which takes a while."""

    parts: tuple[Part, ...]
    find_installed: Callable[[], tuple[Part, ...]]
    find_settings_type: Callable[[], type[Struct]]
    load_settings: Callable[[Mapping[str, object], Path | None], Struct]
    build_engine: Callable[[EngineOptions], Assembly]


PRODUCT: ContextVar[Product] = ContextVar("PRODUCT")


def load_settings(view: type[S], config: Path | None = None, **given: object) -> S:
    """The settings in force, as far as `view` names them; `given` are those of the command line. Raises `InvalidRequest`."""
    return msgspec.convert(PRODUCT.get().load_settings(given, config), view, from_attributes=True)


def find_settings_type() -> type[Struct]:
    return PRODUCT.get().find_settings_type()


def build_engine(options: EngineOptions) -> Assembly:
    """Builds an engine from settings and options. Raises `InvalidRequest`."""
    return PRODUCT.get().build_engine(options)
