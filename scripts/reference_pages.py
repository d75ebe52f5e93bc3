"""Writes the reference pages of the documentation from the program itself: docs/commands.md, docs/http-reference.md and
docs/python-reference.md, and the list of files in docs/architecture.md.

python -m scripts.reference_pages
"""

import ast
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from textwrap import dedent
from typing import Any

from scripts.console_types import read_document
from typer import Typer
from typer.main import get_command, get_group

from mainspring.app.engine import Engine
from mainspring.app.product_parts import PARTS, find_installed_parts
from mainspring.cli.lazy import PANELS
from mainspring.engine.handle import Handle
from mainspring.parts import Command
from mainspring.tools.functions import tool

DOCS = Path(__file__).resolve().parent.parent / "docs"
COMMANDS_HEAD = """# Commands

Every command of `mainspring`, as `mainspring COMMAND --help` tells it. Written by `python -m scripts.reference_pages`.
"""
PYTHON_HEAD = """# Python reference

What programs use, from its own docstrings; [the Python guide](python.md) shows it at work. Written by
`python -m scripts.reference_pages`.
"""
HTTP_HEAD = """# HTTP reference

Every route, the scope that a key needs for it, and what it takes. `GET /openapi.json` of a running server has the type of each
field, the answers and the errors; `/docs` shows that as a page on which each route can be tried. Written by
`python -m scripts.reference_pages`.
"""
FILES_HEAD = """## Every file

What each file says of itself, by folder, and behind that the files of other folders by their names. Written by
`python -m scripts.reference_pages`.
"""
# What people look for in the repository, beside the sources.
OTHER_FOLDERS = ("console/src", "deploy", "tests", "bench", "scripts")
HIDDEN = {"help", "install_completion", "show_completion"}


def write_commands() -> str:
    known = [command for part in (*PARTS, *find_installed_parts()) for command in part.commands]
    by_panel: dict[str, list[Command]] = {}
    for command in known:
        by_panel.setdefault(command.panel, []).append(command)
    order = sorted(by_panel, key=lambda panel: PANELS.index(panel) if panel in PANELS else len(PANELS))
    sections = [f"\n## {panel}\n{''.join(map(_describe, by_panel[panel]))}" for panel in order]
    return COMMANDS_HEAD + "".join(sections)


def _describe(command: Command) -> str:
    module, _, name = command.target.partition(":")
    target = getattr(import_module(module), name)
    if isinstance(target, Typer):
        group = get_group(target)
        told = [
            _tell(f"{command.name} {each}", group.commands[each]) for each in group.commands if not group.commands[each].hidden
        ]
        return f"\n### `mainspring {command.name}`\n\n{command.help}\n{''.join(told)}"
    alone = Typer(add_completion=False)
    alone.command(command.name)(target)
    return _tell(command.name, get_command(alone), level=3)


def _tell(path: str, command: Any, level: int = 4) -> str:
    wanted = [
        parameter for parameter in command.params if parameter.name not in HIDDEN and not getattr(parameter, "hidden", False)
    ]
    given = "".join([f" {_name_argument(each)}" for each in wanted if each.param_type_name == "argument"])
    rows = "".join([f"| {_name(each)} | {_clean(getattr(each, 'help', None) or '')} |\n" for each in wanted])
    table = f"\n| | |\n|---|---|\n{rows}" if rows else ""
    return f"\n{'#' * level} `mainspring {path}{given}`\n\n{_paragraphs(command.help or '')}\n{table}"


def _name_argument(parameter: Any) -> str:
    name = parameter.metavar or parameter.name.upper()
    return (name if parameter.required else f"[{name}]") + ("..." if parameter.nargs == -1 else "")


def _name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return f"`{_name_argument(parameter)}`"
    metavar = "" if parameter.is_flag else f" {parameter.metavar or parameter.type.name.upper()}"
    return ", ".join([f"`{option}{metavar}`" for option in (*parameter.opts, *parameter.secondary_opts)])


def _clean(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _paragraphs(text: str) -> str:
    """Help as Markdown: examples are indented in it already."""
    return dedent(text).strip().replace("\f", "").replace("\b\n", "")


def write_python() -> str:
    sections = [
        f"\n## `Engine`\n\n{_document(Engine)}\n{''.join(_list_members(Engine))}",
        f"\n## `Handle`\n\n{_document(Handle)}\n{''.join(_list_members(Handle))}",
        f"\n## `tool`\n\n```text\ntool{_sign(tool)}\n```\n\n{_document(tool)}\n",
    ]
    return PYTHON_HEAD + "".join(sections)


def _list_members(kind: type) -> Iterator[str]:
    for name, member in vars(kind).items():
        if (name.startswith("_") and name != "__init__") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            yield f"\n### `{kind.__name__}.{name}`\n\n{_document(member)}\n"
        elif inspect.isfunction(member):
            shown = kind.__name__ if name == "__init__" else f"{'await ' if inspect.iscoroutinefunction(member) else ''}{name}"
            title = kind.__name__ if name == "__init__" else f"{kind.__name__}.{name}"
            yield f"\n### `{title}`\n\n```text\n{shown}{_sign(member)}\n```\n\n{_document(member)}\n"


def _sign(function: Callable[..., object]) -> str:
    """The signature, a line for each parameter where there are several, and types by their own names."""
    return re.sub(r"\b(?:[a-z_]+\.)+(?=[A-Z])", "", _spell_signature(function))


def _spell_signature(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    kept = [each for name, each in signature.parameters.items() if name != "self"]
    if len(kept) <= 2:
        return str(signature.replace(parameters=kept)).replace("'", "")
    stars = [each for each in kept if each.kind is inspect.Parameter.KEYWORD_ONLY]
    lines = list[str]()
    for each in kept:
        if stars and each is stars[0] and not any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in kept):
            lines.append("    *,")
        lines.append(f"    {str(each).replace(chr(39), '')},")
    returned = (
        "" if signature.return_annotation is inspect.Signature.empty else f" -> {_name_annotation(signature.return_annotation)}"
    )
    return "(\n" + "\n".join(lines) + f"\n){returned}"


def _name_annotation(annotation: object) -> str:
    return annotation.replace("'", "") if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _document(thing: object) -> str:
    return inspect.getdoc(thing) or ""


def write_http() -> str:
    document = read_document()
    by_group: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        group = "/".join(path.split("/")[:3]) if path.startswith("/v1/") else "Beside /v1"
        by_group.setdefault(group, []).extend([_tell_route(path, name, methods[name], document) for name in methods])
    head = "\n| route | needs | what it does |\n|---|---|---|\n"
    return HTTP_HEAD + "".join([f"\n## {group}\n{head}{''.join(rows)}" for group, rows in sorted(by_group.items())])


def _tell_route(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    needs = " or ".join(re.findall(r"`[^`]+`", operation["description"])) or "no key"
    query = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
    body = operation.get("requestBody", {}).get("content", {})
    fields = dict.fromkeys([name for kind in body.values() for name in _list_fields(kind["schema"], document)])
    told = [
        f"{word}: {', '.join([f'`{name}`' for name in names])}." for word, names in (("Query", query), ("Body", fields)) if names
    ]
    return f"| `{method.upper()} {path}` | {needs} | {_clean(' '.join([operation['summary'], *told]))} |\n"


def _list_fields(schema: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    """The names of the fields that this schema, or one that it refers to, has."""
    if "$ref" in schema:
        yield from _list_fields(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]], document)
    yield from schema.get("properties", ())
    for inner in (*schema.get("allOf", ()), *schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _list_fields(inner, document)


def write_architecture() -> str:
    """The page with its last section written anew."""
    folders = _list_folders()
    described, listed = "", "\n### Other folders\n\n| folder | files |\n|---|---|\n"
    for folder, names in sorted(folders.items()):
        title = folder.removeprefix("src/").removeprefix("mainspring/")
        told = [(name, _read_title(DOCS.parent / folder / name)) for name in names if name.endswith(".py")]
        rows = "".join([f"| `{name}` | {_clean(title)} |\n" for name, title in told if title])
        if folder.startswith("src/") and rows:
            described += f"\n### `{title}/`\n\n| file | what it is |\n|---|---|\n{rows}"
        elif folder.startswith(OTHER_FOLDERS):
            listed += f"| `{folder}` | {', '.join(names)} |\n"
    kept = (DOCS / "architecture.md").read_text().partition(FILES_HEAD.partition("\n")[0])[0]
    return kept + FILES_HEAD + described + listed


def _list_folders() -> dict[str, list[str]]:
    """What is in each folder, but for what is built, installed or empty."""
    told = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(told, cwd=DOCS.parent, capture_output=True, text=True, check=True).stdout.splitlines()
    folders: dict[str, list[str]] = {}
    for path in sorted({*found}):
        folder, _, name = path.rpartition("/")
        if not name.startswith((".", "_")) and (DOCS.parent / path).exists():
            folders.setdefault(folder, []).append(name)
    return folders


def _read_title(module: Path) -> str:
    """The first sentence of its docstring."""
    text = " ".join((ast.get_docstring(ast.parse(module.read_text())) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.:]) (?=[A-Z])", text)[0]


PAGES = {DOCS / "commands.md": write_commands, DOCS / "http-reference.md": write_http, DOCS / "python-reference.md": write_python}
PAGES[DOCS / "architecture.md"] = write_architecture

if __name__ == "__main__":
    for page, write in PAGES.items():
        page.write_text(write())
