"""What a feature brings to the product, as one value: `Part`. `app/product_parts.py` lists the parts in order.

A part is data until it is built: its module imports nothing heavy, since every start of `mainspring` reads the list. `build` gets
the part's own settings table and returns what the engine and the server are made of. A feature that is not configured
contributes nothing, and costs nothing.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from mainspring.core.errors import InvalidRequest, MainspringError

if TYPE_CHECKING:
    from mainspring.engine.engine import Engine
    from mainspring.engine.policy_order import PolicySlots
    from mainspring.http.endpoints import Endpoint
    from mainspring.ports import OrderStep, Provider, RunObserver, Sink, ToolExecutor
    from mainspring.storage.location import Location
    from mainspring.tools.contract import Tool


class Command(Struct, frozen=True):
    """A command or a group of commands of `mainspring`. `target` is `module:attribute`, imported when the command is called."""

    name: str
    target: str
    help: str
    panel: str = ""
    """The heading that `mainspring --help` lists it under."""


class FileKind(Struct, frozen=True):
    """A kind of file that people write. `schema` is the `module:function` that builds its JSON Schema."""

    name: str
    schema: str


class Application(Struct, frozen=True, kw_only=True):
    """What an application has of its own: see `app.application`. `wrap` puts a provider of its own before the model."""

    executors: "tuple[ToolExecutor, ...]"
    policies: "PolicySlots"
    wrap: "Callable[[Provider], Provider]"
    clock: Callable[[], float] = time.time


class Host(Struct, frozen=True):
    """The engine that a part works in. `open_application` gives a core engine for runs of the part's own, on the same store and
    model, under the operator's policies and budgets. `database` is where the runs are, and `folder` where files are
    that have no other place: with a database on a server, nothing that processes share should be in one."""

    engine: "Engine"
    open_application: "Callable[[Application], Engine]"
    folder: Path
    database: "Location | None" = None


class ServedPart(Struct, frozen=True):
    """What a part adds to the server. `lifespan` is entered once the engine runs and left before it stops."""

    endpoints: "tuple[Endpoint, ...]"
    lifespan: Callable[[], AbstractAsyncContextManager[object]] | None = None


class PartContents(Struct, frozen=True, kw_only=True):
    """What a part adds to the engine. `wrap` puts a provider of its own before the model, `serve` is called only where there is
    a server. `name` is filled in from the part."""

    name: str = ""
    tools: "tuple[Tool | Callable[..., object], ...]" = ()
    executors: "tuple[ToolExecutor, ...]" = ()
    policies: "PolicySlots" = {}
    steps: "tuple[OrderStep, ...]" = ()
    observers: "tuple[RunObserver, ...]" = ()
    sinks: "tuple[Sink, ...]" = ()
    wrap: "Callable[[Provider], Provider] | None" = None
    lifespan: Callable[[Host], AbstractAsyncContextManager[object]] | None = None
    serve: Callable[[Host], ServedPart] | None = None


@contextmanager
def blame_part(name: str, what: str) -> Iterator[None]:
    """Has whatever the code of a part raises be an `InvalidRequest` that says which part cannot do what."""
    try:
        yield
    except MainspringError:
        raise
    except Exception as error:
        raise InvalidRequest(f"the part `{name}` cannot {what}: {type(error).__name__}: {error}") from error


class Part(Struct, frozen=True, kw_only=True):
    """A feature. `settings` is the type of its table in `mainspring.toml`, which is called `table`, or as the part if that is
    empty. `build` is given that table. `contents` is the `module:function` that says what it keeps, for backups: given that
    table, or None for the usual places, and where the runs are, it returns `storage.transfer.content.Placed`. `former_names`
    are those that settings of its table had before, each with today's; they are still read."""

    name: str
    table: str = ""
    settings: type[Struct] | None = None
    build: Callable[[Any], PartContents] | None = None
    commands: tuple[Command, ...] = ()
    files: tuple[FileKind, ...] = ()
    contents: str = ""
    former_names: Mapping[str, str] = {}

    @property
    def table_name(self) -> str:
        return self.table or self.name
