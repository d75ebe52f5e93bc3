"""Commands that are listed from a table and imported when they are called: start-up is a feature."""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from inspect import cleandoc
from textwrap import dedent
from typing import Any, Final

from typer import Typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_group

from mainspring.cli.context import PRODUCT
from mainspring.parts import Command, Part

# Indented lines, and what is blank between them.
_EXAMPLES: Final = re.compile(r"^    .*(?:\n+    .*)*", re.MULTILINE)
_SHELL_WORDS: Final = re.compile(r"""(?:'[^']*'|"[^"]*"|[^\s'"])+""")
EXAMPLE_COLUMNS: Final = 73
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
        loaded = get_group(parent).commands[self._command.name]
        _fence_examples(loaded)
        return loaded.make_context(*args, **options)


def _fence_examples(command: Any) -> None:
    """Puts the examples in help texts between fences. The indent alone does not keep them apart: it is taken away where
    nothing stands behind them, and then they are drawn as one paragraph."""
    command.help = _EXAMPLES.sub(lambda found: f"```text\n{_fit_examples(found[0])}\n```", cleandoc(command.help or ""))
    if isinstance(command, TyperGroup):
        for inner in command.commands.values():
            _fence_examples(inner)


def _fit_examples(text: str) -> str:
    """Examples as a terminal has room for them and a shell takes them: a long one goes on behind a backslash."""
    shown: list[str] = []
    for line in filter(None, dedent(text).splitlines()):
        words = _SHELL_WORDS.findall(line)
        shown.append(words[0])
        for word in words[1:]:
            if len(shown[-1]) + len(word) < EXAMPLE_COLUMNS:
                shown[-1] += f" {word}"
            else:
                shown[-1] += " \\"
                shown.append(f"    {word}")
    return "\n".join(shown)


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
