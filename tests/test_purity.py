"""The loop is a module of its own, and pure: its imports say so."""

import ast
from pathlib import Path

import pytest

import mainspring.loop

ALLOWED = {"collections", "collections.abc", "enum", "itertools", "typing", "msgspec", "msgspec.structs"}
OURS = ("mainspring.errors", "mainspring.events", "mainspring.ids", "mainspring.items", "mainspring.loop", "mainspring.spec")


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Import(names=aliases):
                names |= {alias.name for alias in aliases}
            case ast.ImportFrom(module=str(module)):
                names.add(module)
            case _:
                pass
    return names


@pytest.mark.requirement("C66", "A20")
def test_loop_imports_neither_effects_nor_the_engine() -> None:
    files = sorted(Path(mainspring.loop.__path__[0]).glob("*.py"))
    assert len(files) > 5
    foreign = {name for path in files for name in imported(path) - ALLOWED if not name.startswith(OURS)}
    assert foreign == set()


def test_loop_awaits_nothing() -> None:
    for path in Path(mainspring.loop.__path__[0]).glob("*.py"):
        assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]
