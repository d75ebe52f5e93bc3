"""What a feature brings to the product, as one value: `Part`. `app/parts.py` lists the parts in order.

A part is data until it is built. `build` gets the part's own settings table and what the composition root hands over, and
returns what the engine and the server are made of. A feature that is not configured contributes nothing, and costs nothing.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from msgspec import Struct

from mainspring.engine.engine import Engine
from mainspring.engine.policy_order import PolicySlots
from mainspring.ports import OrderStep, RunObserver, Sink, ToolExecutor
from mainspring.tools.contract import Tool


class PartContents(Struct, frozen=True, kw_only=True):
    """What a part adds to the engine. `lifespan` is entered once the engine runs and left before it stops."""

    tools: tuple[Tool, ...] = ()
    executors: tuple[ToolExecutor, ...] = ()
    policies: PolicySlots = {}
    steps: tuple[OrderStep, ...] = ()
    observers: tuple[RunObserver, ...] = ()
    sinks: tuple[Sink, ...] = ()
    lifespan: Callable[[Engine], AbstractAsyncContextManager[object]] | None = None


class Command(Struct, frozen=True):
    """A command or a group of commands of `mainspring`. `target` is `module:attribute`, imported when the command is called."""

    name: str
    target: str
    help: str
    panel: str = ""
    """The heading that `mainspring --help` lists it under."""


class Part(Struct, frozen=True, kw_only=True):
    """A feature. `settings` is its table in `mainspring.toml`."""

    name: str
    settings: type[Struct] | None = None
    commands: tuple[Command, ...] = ()
