"""Tools named on a command line: `module:function`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mainspring.core.errors import InvalidRequest
from mainspring.tools.functions import load_functions
from mainspring.tools.registry import Registry

MODULE = """
from mainspring import tool

@tool
def weather(city: str) -> str:
    "Tells the weather."
    return f"sunny in {city}"

@tool(name="the_news")
async def news() -> str:
    return "none"

again = weather

def plain(x: int) -> int:
    return x

def unhinted(x):
    return x

class Shop:
    @staticmethod
    def order(item: str) -> str:
        return item

NUMBER = 3
"""

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into an empty current directory; it is forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])

    def write(name: str, text: str) -> str:
        (tmp_path / f"{name}.py").write_text(text)
        return name

    yield write
    for name in [name for name in sys.modules if name.startswith("my_")]:
        del sys.modules[name]


def names(reference: str) -> list[str]:
    return [made.name for made in Registry(load_functions(reference)).definitions]


def test_a_function_is_found_in_the_current_directory(write: Write) -> None:
    module = write("my_tools", MODULE)
    assert names(f"{module}:weather") == ["weather"]
    assert names(f"{module}:plain") == ["plain"]
    assert names(f"{module}:Shop.order") == ["order"]


def test_a_module_alone_stands_for_each_of_its_tools_once(write: Write) -> None:
    assert names(write("my_tools", MODULE)) == ["weather", "the_news"]


@pytest.mark.parametrize(
    ("reference", "told"),
    [
        ("my_tols:weather", r"there is no module `my_tols`; looked in /.* and in sys\.path"),
        ("my_tools.py:weather", "there is no module `my_tools.py`; name the module as in an import, not its file: `my_tools`"),
        (
            "./my_tools.py:weather",
            "there is no module `./my_tools.py`; name the module as in an import, not its file: `my_tools`",
        ),
        (
            "lib/my_tools.py",
            "there is no module `lib/my_tools.py`; name the module as in an import, not its file: `lib.my_tools`",
        ),
        ("my_tools:wether", "module `my_tools` has no `wether`; did you mean `weather`?"),
        ("my_tools:xyz", "module `my_tools` has no `xyz`; it has: `NUMBER`, `Shop`, "),
        ("my_tools:Shop.ordr", "module `my_tools` has no `Shop.ordr`; did you mean `order`?"),
        ("my_tools:NUMBER", "`my_tools:NUMBER` is int, not a function; name a function"),
        ("my_tools:unhinted", "`my_tools:unhinted` cannot be a tool: tool `unhinted`, parameter `x`: has no type hint"),
        ("my_tools:", "`my_tools:` names no tool; write `module:function`, or `module` for all tools in it"),
        (":weather", "`:weather` names no tool"),
        ("", "`` names no tool"),
    ],
)
def test_a_reference_that_names_no_tool_says_what_is_wrong(write: Write, reference: str, told: str) -> None:
    write("my_tools", MODULE)
    with pytest.raises(InvalidRequest, match=told.replace("?", r"\?")):
        load_functions(reference)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("x = 1", "module `my_module` has no function marked with @tool; mark one, or name it: `my_module:function`"),
        (
            "import no_such_library",
            "module `my_module` cannot be imported: No module named 'no_such_library'; install what it needs",
        ),
        ("1 / 0", "module `my_module` fails when it is imported: ZeroDivisionError: division by zero"),
        ("def broken(:", "module `my_module` fails when it is imported: SyntaxError: "),
    ],
)
def test_a_module_that_is_of_no_use_says_why(write: Write, text: str, told: str) -> None:
    with pytest.raises(InvalidRequest, match=told):
        load_functions(write("my_module", text))
