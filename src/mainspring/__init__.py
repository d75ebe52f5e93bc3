"""Mainspring: a self-hosted agent engine.

`from mainspring import Engine, tool` is all that most programs need. Both are loaded when they are first asked for, so that
importing one module of the package does not import them all.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mainspring.app.engine import Engine
    from mainspring.tools.functions import tool

__version__ = "0.1.0"
__all__ = ["Engine", "__version__", "tool"]

_HOMES = {"Engine": "mainspring.app.engine", "tool": "mainspring.tools.functions"}


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'mainspring' has no attribute {name!r}")
