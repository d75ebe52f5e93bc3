"""Start-up is a feature: importing Mainspring is cheap and brings in nothing that is not used."""

import subprocess
import sys

import pytest

from mainspring.features.console.routes import FILES

HEAVY = {
    *(
        "httptools",
        "yarl",
        "apsw",
        "asyncpg",
        "jinja2",
        "mcp",
        "obstore",
        "opentelemetry",
        "pydantic",
        "rich",
        "sqlalchemy",
        "starlette",
        "temporalio",
        "typer",
        "yaml",
    ),
}


def child(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout


@pytest.mark.parametrize("statement", ["import mainspring", "from mainspring import Engine, tool"])
def test_importing_mainspring_brings_in_nothing_heavy(statement: str) -> None:
    loaded = set(child(f"{statement}\nimport sys\nprint(*sys.modules)").split())
    assert "mainspring" in loaded
    assert not {name.partition(".")[0] for name in loaded} & HEAVY


def test_importing_the_engine_brings_in_two_libraries_and_few_modules() -> None:
    """What costs time at a start is the number of modules, which unlike seconds is the same on every machine."""
    code = "import sys; before = set(sys.modules); from mainspring import Engine, tool; print(*(set(sys.modules) - before))"
    loaded = child(code).split()
    packages = {name.partition(".")[0] for name in loaded if not name.startswith("_")} - sys.stdlib_module_names
    assert packages <= {"mainspring", "anyio", "msgspec", *("idna", "sniffio", "typing_extensions")}
    assert len(loaded) < 400


@pytest.mark.parametrize("command", [["keys", "--help"], ["serve", "--help"], ["runs", "--database", "missing.db"]])
def test_a_command_brings_in_no_model_library(command: list[str]) -> None:
    start = f"import sys\nfrom mainspring.__main__ import main\nsys.argv[1:] = {command}"
    code = f"{start}\ntry:\n    main()\nfinally:\n    print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stdout.rsplit("\n", 2)[-2].split()}
    assert "typer" in loaded
    assert not loaded & {"pydantic", "pydantic_core"}


def test_the_help_of_the_whole_program_brings_in_little_of_ours() -> None:
    """The parts, and what lists their commands: no item, no event, no settings."""
    code = "import sys\nfrom mainspring.app.process import run_command\nrun_command(['--help'])\nprint()\nprint(*sys.modules)"
    loaded = set(child(code).rsplit("\n", 2)[-2].split())
    assert {"typer", "mainspring.features.workflows.part", "mainspring_tasks.part"} <= loaded
    assert not loaded & {"mainspring.core.items", "mainspring.core.events", "mainspring.app.settings", "asyncio"}


def test_the_server_brings_in_no_command_line_and_no_websockets() -> None:
    """They stay in memory for as long as it serves; the first WebSocket brings in its own."""
    loaded = set(child("import mainspring.app.serve, sys; print(*sys.modules)").split())
    assert "uvicorn" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"typer", "websockets"}


def test_the_supervisor_of_server_processes_imports_next_to_nothing() -> None:
    """It stays in memory for as long as they serve."""
    code = "import sys; before = set(sys.modules); import mainspring.app.server_processes; print(*(set(sys.modules) - before))"
    loaded = child(code).split()
    assert {name.partition(".")[0] for name in loaded if not name.startswith("_")} <= sys.stdlib_module_names | {"mainspring"}
    ours = {name for name in loaded if name.startswith("mainspring")}
    assert ours == {"mainspring", "mainspring.app", "mainspring.app.server_processes"}
    assert len(loaded) < 45


ASK_FOR_THE_PAGE = """
import asyncio, sys

opened = []
sys.addaudithook(lambda event, values: opened.append(str(values[0])) if event == "open" else None)

from mainspring import Engine
from mainspring.app.server import server
from mainspring.app.settings import build_parts, find_settings_type
from mainspring.providers.scripted import Scripted


async def ask(app, accept):
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "GET", "scheme": "http", "path": "/",
        "raw_path": b"/", "query_string": b"", "root_path": "", "headers": [(b"host", b"127.0.0.1"), (b"accept", accept)],
        "client": ("127.0.0.1", 40_000), "server": ("127.0.0.1", 80),
    }

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        pass

    await app(scope, receive, send)


async def main():
    app = server(Engine(Scripted(), parts=build_parts(find_settings_type()())))
    async with app.router.lifespan_context(app):
        for accept in (b"application/json", b"text/html"):
            await ask(app, accept)
            print(sum("console/files" in name for name in opened))


asyncio.run(main())
"""


@pytest.mark.skipif(not (FILES / "index.html").is_file(), reason="the console is not built")
def test_the_files_of_the_console_are_read_when_a_browser_asks_for_them() -> None:
    without, with_browser = map(int, child(ASK_FOR_THE_PAGE).split())
    assert (without, with_browser > 0) == (0, True)
