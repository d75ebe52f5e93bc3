"""Modules that are imported when something of theirs is first used: start-up is a feature.

Type checkers are told of the module as usual, in the branch that only they read.
"""

from importlib import import_module
from types import ModuleType


class LateModule(ModuleType):
    """Stands for a module, and looks up there what it is asked for."""

    def __getattr__(self, name: str) -> object:
        found: object = getattr(import_module(self.__name__), name)
        return found
