"""`docs/errors.md` lists every code that a refusal can have, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import mainspring
from mainspring.core.errors import MainspringError
from mainspring.http.bodies import _BOUNDS

SOURCES = [Path(mainspring.__file__).parent, Path(mainspring.__file__).parents[1] / "mainspring_tasks"]
PAGE = Path(__file__).parents[2] / "docs" / "errors.md"
# Codes in capitals are of the decision runtime, by the names of its source documents, and stand inside of an answer.
_CODE = re.compile(r"[a-z_]+")


def read_codes(tree: ast.Module, constants: dict[str, str]) -> Iterator[str]:
    """The codes in the calls and classes of a module."""
    for node in ast.walk(tree):
        given: list[ast.expr | None] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper():
            given += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            given += node.args[1:2] if node.func.id == "Fault" else []
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                match line:
                    case ast.Assign(targets=[ast.Name(id="code")], value=value):
                        given.append(value)
                    case ast.AnnAssign(target=ast.Name(id="code"), value=value):
                        given.append(value)
        for value in given:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield value.value
            elif isinstance(value, ast.Name) and value.id in constants:
                yield constants[value.id]


def read_constants(tree: ast.Module) -> dict[str, str]:
    constants: dict[str, str] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ):
                constants[name] = text
    return constants


def list_codes() -> set[str]:
    trees = [ast.parse(file.read_text()) for source in SOURCES for file in source.rglob("*.py")]
    shared = {name: text for tree in trees for name, text in read_constants(tree).items() if _CODE.fullmatch(text)}
    found = {code for tree in trees for code in read_codes(tree, shared | read_constants(tree))}
    return {code for code in found | {code for _, code, _ in _BOUNDS} if _CODE.fullmatch(code)}


def test_the_page_lists_every_code_and_no_other() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(list_codes())


def list_subclasses(kind: type[MainspringError]) -> Iterator[type[MainspringError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from list_subclasses(each)


def test_the_page_gives_the_status_of_every_kind_of_error() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([\d, ]+) \|", PAGE.read_text(), re.MULTILINE))
    for kind in list_subclasses(MainspringError):
        if kind.code in rows and kind.code not in ("invalid_request_error", "server_error"):
            assert str(kind.status) in rows[kind.code], kind
