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


def read_codes(tree: ast.Module) -> Iterator[ast.expr | None]:
    """What stands for a code in the calls and classes of a module: a text, or the name of one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id[:1].isupper():
            yield from [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            yield from node.args[1:2] if node.func.id == "Fault" else []
        if isinstance(node, ast.ClassDef):
            for line in node.body:
                match line:
                    case ast.Assign(targets=[ast.Name(id="code")], value=value):
                        yield value
                    case ast.AnnAssign(target=ast.Name(id="code"), value=value):
                        yield value


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
    # No tree is kept: the garbage collector would go through all of them again and again.
    modules = [read_module(file) for source in SOURCES for file in source.rglob("*.py")]
    shared = {name: text for constants, _ in modules for name, text in constants.items() if _CODE.fullmatch(text)}
    found = {each for _, each, _ in _BOUNDS}
    for constants, values in modules:
        for value in values:
            match value:
                case ast.Constant(value=str(text)):
                    found.add(text)
                case ast.Name(id=name) if code := (shared | constants).get(name):
                    found.add(code)
    return {code for code in found if _CODE.fullmatch(code)}


def read_module(file: Path) -> tuple[dict[str, str], list[ast.expr | None]]:
    tree = ast.parse(file.read_text())
    return read_constants(tree), list(read_codes(tree))


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
