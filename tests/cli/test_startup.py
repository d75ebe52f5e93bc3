"""Start-up is a feature: a command imports only what it needs."""

import subprocess
import sys

from tests.cli.command import SECONDS, Shell

from mainspring import __version__


def imported(shell: Shell, *arguments: str) -> set[str]:
    """The packages and the parts of ours that a command brings in."""
    code = f"""
import sys
from mainspring.__main__ import main
sys.argv = ["mainspring", *{arguments!r}]
try:
    main()
finally:
    print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=shell.folder, env=shell.environment(), capture_output=True, text=True, timeout=SECONDS
    )
    modules = done.stdout.splitlines()[-1].split()
    return {name.partition(".")[0] for name in modules} | {".".join(name.split(".")[:2]) for name in modules}


def test_the_version_is_told_without_a_parser_an_engine_or_colours(shell: Shell) -> None:
    assert shell.run("--version").out == f"mainspring {__version__}\n"
    heavy = {"typer", "rich", "httptools", "asyncio", "anyio", "msgspec", "mainspring.engine", "mainspring.app.engine"}
    assert not imported(shell, "--version") & heavy


def test_a_scripted_run_in_memory_needs_no_http_client(shell: Shell) -> None:
    brought_in = imported(shell, "run", "Hi", "--model", shell.script({"say": "Hello."}))
    assert "mainspring.engine" in brought_in
    assert not brought_in & {"httptools", "yarl", "mainspring.net.client", "mainspring.net.connection"}


def test_help_teaches_by_example(shell: Shell) -> None:
    assert "mainspring demo" in shell.run("--help").out
    assert "Exit codes: 0" in shell.run("--help").out
    assert shell.run().out == shell.run("--help").out
    for command in ("run", "resume", "runs", "show", "demo"):
        assert shell.run(command, "--help").code == 0
