"""The loop is a module of its own, and pure: its imports say so."""

import ast
from pathlib import Path

import pytest

import mainspring.core

ALLOWED = {
    "collections",
    "hashlib",
    "json",
    "collections.abc",
    "array",
    "bisect",
    "enum",
    "functools",
    "itertools",
    "math",
    "operator",
    "re",
    "unicodedata",
    "urllib.parse",
    "typing",
    "msgspec",
    "msgspec.structs",
}
OURS = ("mainspring.core",)
# Random ids are made there, and handed to the rest as an argument.
IDS = Path(mainspring.core.__path__[0]) / "ids.py"


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
    files = sorted(set(Path(mainspring.core.__path__[0]).glob("*.py")) - {IDS})
    assert len(files) > 5
    foreign = {name for path in files for name in imported(path) - ALLOWED if not name.startswith(OURS)}
    assert foreign == set()


def test_loop_awaits_nothing() -> None:
    for path in Path(mainspring.core.__path__[0]).glob("*.py"):
        assert not [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Await | ast.AsyncFunctionDef)]
