"""Prints figures for the shape of the sources, beside what each should be, and the worst places.

    python -m scripts.shape [--all]

A figure is a place to look, not a verdict: names are compared as words, so a few of the places are innocent.
`--all` lists every place.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.kit.walk import walk

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PACKAGES = ("mainspring", "mainspring_tasks")
SMALL = 80
"""Lines below which a file with one importer could move in with it."""
SCREEN = 60
"""Lines of a function that can be read without scrolling."""

CONVENTIONAL = {
    "__init__.py", "__main__.py", "part.py", "routes.py", "commands.py", "settings.py", "request.py", "reply.py",
    "provider.py",
}  # fmt: skip
# Large, and needed by some of the users only.
HEAVY = {
    "apsw", "asyncpg", "cryptography", "httptools", "jinja2", "jsonschema_rs", "llama_cpp", "mcp", "opentelemetry",
    "pypdfium2", "python_calamine", "rich", "sqlite_vec", "starlette", "typer", "uvicorn", "xllamacpp", "yaml", "yarl",
}  # fmt: skip
IRREGULAR = {
    "begun", "bound", "brought", "built", "done", "drawn", "driven", "fed", "felt", "found", "given", "gone", "grown",
    "heard", "held", "hidden", "kept", "known", "laid", "led", "left", "lent", "lost", "made", "meant", "met", "paid",
    "said", "seen", "sent", "shown", "sold", "spent", "spoken", "stood", "sworn", "taken", "thrown", "told", "torn",
    "understood", "won", "worn", "written",
}  # fmt: skip
VERBS_IN_ED = {"embed", "exceed", "feed", "heed", "need", "proceed", "seed", "speed", "succeed"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Figure(NamedTuple):
    name: str
    value: str
    aim: str
    places: list[str] = []  # noqa: RUF012


class Module(NamedTuple):
    """A file of the sources. `path` is relative to them."""

    path: str
    name: str
    lines: int
    tree: ast.Module

    @property
    def file(self) -> str:
        return Path(self.path).name

    def at(self, node: ast.stmt | ast.expr, what: str = "") -> str:
        return f"{self.path}:{node.lineno} {what}".rstrip()


def main() -> None:
    modules = [_read(file) for package in PACKAGES for file in sorted((SOURCES / package).rglob("*.py"))]
    figures = [
        _lines(modules, "mainspring", "45,800 in all"),
        _lines(modules, "mainspring_tasks", ""),
        _walk(),
        _classes(modules),
        _files(modules),
        _participles(modules),
        _inline_imports(modules),
        _broad_excepts(modules),
        _protocols(modules),
        _getattr(modules),
        _small_files(modules),
        _long_functions(modules),
        _tests_only(modules),
        _sentences(),
    ]
    show_all = "--all" in sys.argv
    for figure in figures:
        print(f"{figure.name:<58} {figure.value:>12}   {figure.aim}")
        shown = figure.places if show_all else figure.places[:5]
        for place in shown:
            print(f"    {place}")
        if len(shown) < len(figure.places):
            print(f"    ... {len(figure.places) - len(shown)} more")


def _read(file: Path) -> Module:
    text = file.read_text()
    relative = file.relative_to(SOURCES)
    name = ".".join(relative.with_suffix("").parts).removesuffix(".__init__")
    return Module(str(relative), name, len(text.splitlines()), ast.parse(text))


def _lines(modules: list[Module], package: str, aim: str) -> Figure:
    of_package = [module for module in modules if module.path.startswith(f"{package}/")]
    largest = sorted(of_package, key=lambda module: -module.lines)
    value = f"{sum(module.lines for module in of_package):,}"
    return Figure(
        f"lines of {package}, {len(of_package)} files", value, aim, [f"{each.path} {each.lines}" for each in largest[:5]]
    )


def _walk() -> Figure:
    walked = walk()
    return Figure(
        "streamed request with two tool calls: files, hops", f"{len(walked.files)}, {walked.hops}", "33, 480", walked.files
    )


def _classes(modules: list[Module]) -> Figure:
    found = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module.path)
    return _repeated("class names used more than once", found, "a handful")


def _files(modules: list[Module]) -> Figure:
    found = defaultdict(list)
    for module in modules:
        if module.file not in CONVENTIONAL:
            found[module.file].append(module.path)
    return _repeated("file names used more than once", found, "a handful")


def _participles(modules: list[Module]) -> Figure:
    found, total = [], 0
    for module in modules:
        for node in _functions(module.tree):
            if node.name.startswith("_") or {"property", "cached_property"} & set(_decorators(node)):
                continue
            total += 1
            word = node.name.partition("_")[0]
            if word in IRREGULAR or (word.endswith("ed") and word not in VERBS_IN_ED):
                found.append(module.at(node, node.name))
    return Figure(f"public functions named by a past participle, of {total:,}", str(len(found)), "0", found)


def _inline_imports(modules: list[Module]) -> Figure:
    found = []
    for module in modules:
        # A function within a function is walked twice.
        seen = set()
        for function in _functions(module.tree):
            for node in ast.walk(function):
                if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno not in seen:
                    seen.add(node.lineno)
                    imported = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
                    if imported.partition(".")[0] not in HEAVY:
                        found.append(module.at(node, imported))
    return Figure("inline imports, but for heavy optional libraries", str(len(found)), "0", found)


def _broad_excepts(modules: list[Module]) -> Figure:
    """Those that undo and raise again are not among them."""
    found, total = [], 0
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ExceptHandler) and _is_broad(node.type):
                total += 1
                if not any(isinstance(each, ast.Raise) for each in ast.walk(node)):
                    found.append(f"{module.path}:{node.lineno}")
    return Figure(f"broad excepts that swallow, of {total}", str(len(found)), "around others' code, threads", found)


def _is_broad(caught: ast.expr | None) -> bool:
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(each is None or ast.unparse(each) in ("Exception", "BaseException") for each in names)


def _protocols(modules: list[Module]) -> Figure:
    found = [
        module.at(node, node.name)
        for module in modules
        if module.file != "ports.py"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    ]
    return Figure("protocols outside ports.py", str(len(found)), "0", found)


def _getattr(modules: list[Module]) -> Figure:
    found = []
    for module in modules:
        for node in ast.walk(module.tree):
            match node:
                case ast.Call(func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=str()), *_]):
                    found.append(module.at(node, ast.unparse(node)))
                case _:
                    pass
    return Figure("members found with getattr", str(len(found)), "0", found)


def _small_files(modules: list[Module]) -> Figure:
    names = {module.name for module in modules}
    importers = defaultdict(set)
    for module in modules:
        for name in _imported(module.tree):
            if name in names and name != module.name:
                importers[name].add(module.path)
    found = [
        f"{module.path} {module.lines} lines, imported by {next(iter(importers[module.name]))}"
        for module in modules
        if module.lines < SMALL and module.file not in CONVENTIONAL and len(importers[module.name]) == 1
    ]
    return Figure(f"files under {SMALL} lines with one importer", str(len(found)), "0", found)


def _long_functions(modules: list[Module]) -> Figure:
    lengths = [
        ((node.end_lineno or 0) - node.lineno + 1, module.at(node, node.name))
        for module in modules
        for node in _functions(module.tree)
    ]
    longest = sorted([(length, place) for length, place in lengths if length > SCREEN], reverse=True)
    return Figure(
        f"functions of more than {SCREEN} lines",
        str(len(longest)),
        "a handful",
        [f"{length} {place}" for length, place in longest],
    )


def _tests_only(modules: list[Module]) -> Figure:
    """Definitions that only tests name. What the docs show is for users, and what is decorated is registered thereby."""
    used = {word for module in modules for word in _words(module.tree)}
    used.update(
        word for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")) for word in re.findall(r"\w+", page.read_text())
    )
    in_tests = {word for file in _tests() for word in _words(ast.parse(file.read_text()))}
    found, lines = [], 0
    for module in modules:
        for node in ast.walk(module.tree):
            if not isinstance(node, Function | ast.ClassDef) or (node.name.startswith("__") and node.name.endswith("__")):
                continue
            is_registered = bool(_decorators(node) - {"property", "staticmethod", "classmethod", "override", "cached_property"})
            if node.name in in_tests - used and not is_registered:
                length = (node.end_lineno or 0) - node.lineno + 1
                lines += length
                found.append(f"{module.at(node, node.name)} {length}")
    return Figure("lines of production code that only tests call", str(lines), "0", found)


def _sentences() -> Figure:
    """Asserts in tests that compare an error's words, three or more, instead of its code."""
    found = []
    for file in _tests():
        for node in ast.walk(ast.parse(file.read_text())):
            is_about_words = False
            if isinstance(node, ast.Assert):
                is_about_words = re.search(r"\.(message|error|err|stderr)\b", ast.unparse(node.test)) is not None
            elif isinstance(node, ast.keyword):
                is_about_words = node.arg == "match"
            if is_about_words and any(
                isinstance(each, ast.Constant) and isinstance(each.value, str) and len(each.value.split()) >= 3
                for each in ast.walk(node)
            ):
                line = node.lineno if isinstance(node, ast.Assert) else node.value.lineno  # type: ignore[attr-defined]
                found.append(f"{file.relative_to(ROOT)}:{line}")
    return Figure("assertions on sentences in tests", str(len(found)), "where it is the product", found)


def _repeated(name: str, found: dict[str, list[str]], aim: str) -> Figure:
    repeated = sorted([(len(places), each, places) for each, places in found.items() if len(places) > 1], reverse=True)
    return Figure(name, str(len(repeated)), aim, [f"{count} {each}: {' '.join(places)}" for count, each, places in repeated])


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _decorators(node: Function | ast.ClassDef) -> set[str]:
    return {ast.unparse(each).partition("(")[0].rpartition(".")[2] for each in node.decorator_list}


def _imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _words(tree: ast.Module) -> Iterator[str]:
    """Every name that is used, also within texts that are read as code: annotations, tables of what is imported later."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name) | ast.keyword(arg=str(name)):
                yield name.rpartition(".")[2]
            case ast.Constant(value=str(text)) if " " not in text:
                yield from re.findall(r"\w+", text)
            case _:
                pass


def _tests() -> Iterable[Path]:
    return [file for file in sorted((ROOT / "tests").rglob("*.py")) if "node_modules" not in file.parts]


if __name__ == "__main__":
    main()
