"""Commands that are listed from a table and imported when they are called: start-up is a feature."""

from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Final

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from mainspring.cli.context import PRODUCT
from mainspring.parts import Command, Part

PANELS: Final = ("Run", "Serve", "Agents and workflows", "Governance", "Data", "Diagnose")


class LazyCommand(TyperCommand):
    """Stands for a command until it is called: `target` is a function, or a `Typer` with commands of its own."""

    def __init__(self, command: Command) -> None:
        super().__init__(command.name, help=command.help, rich_help_panel=command.panel or None)
        self._command = command

    def make_context(self, *args: Any, **options: Any) -> Any:
        module, _, name = self._command.target.partition(":")
        target = getattr(import_module(module), name)
        parent = Typer(rich_markup_mode="markdown", add_completion=False)
        if isinstance(target, Typer):
            parent.add_typer(target, name=self._command.name, help=self._command.help)
        else:
            parent.command(self._command.name)(target)
        return get_group(parent).commands[self._command.name].make_context(*args, **options)


class CommandTable(Mapping[str, LazyCommand]):
    """The commands of the parts, by panel. Installed packages are searched only for the whole list, or for an unknown name."""

    def __getitem__(self, name: str) -> LazyCommand:
        return self._own[name] if name in self._own else self._all[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    @cached_property
    def _own(self) -> dict[str, LazyCommand]:
        return _by_name(PRODUCT.get().parts)

    @cached_property
    def _all(self) -> dict[str, LazyCommand]:
        known = _by_name(PRODUCT.get().find_installed()) | self._own
        order = {panel: place for place, panel in enumerate(PANELS)}
        return dict(sorted(known.items(), key=lambda item: order.get(item[1].rich_help_panel or "", len(PANELS))))


class LazyGroup(TyperGroup):
    """`mainspring` itself. Without arguments it shows its help."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "commands": CommandTable()})


def _by_name(parts: tuple[Part, ...]) -> dict[str, LazyCommand]:
    return {command.name: LazyCommand(command) for part in parts for command in part.commands}
