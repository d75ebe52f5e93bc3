"""Help, at every command."""

import subprocess
import sys

import pytest
from tests.cli.command import Shell


@pytest.mark.parametrize("command", [(), ("run",), ("keys",), ("keys", "list")])
def test_help_is_asked_for_in_two_ways(shell: Shell, command: tuple[str, ...]) -> None:
    long, short = shell.run(*command, "--help"), shell.run(*command, "-h")
    assert (short.code, short.out) == (0, long.out)
    assert f"Usage: {' '.join(['mainspring', *command])}" in short.out


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mainspring ap", ["approvals"]),
        ("mainspring approvals ", ["list", "show", "approve", "deny"]),
        ("mainspring keys create --ten", ["--tenant"]),
    ],
)
def test_a_shell_completes_commands_and_options(shell: Shell, line: str, words: list[str]) -> None:
    script = shell.run("completion", "bash")
    assert script.code == 0
    (shell.folder / "script").write_text(script.out)
    count = len(line.split(" ")) - 1
    asking = (
        f'. ./script; COMP_WORDS=({line} ""); COMP_CWORD={count}; _mainspring_completion ./mainspring; echo "${{COMPREPLY[@]}}"'
    )
    (shell.folder / "mainspring").write_text(f'#!/bin/sh\nexec {sys.executable} -m mainspring "$@"\n')
    (shell.folder / "mainspring").chmod(0o755)
    done = subprocess.run(["bash", "-c", asking], cwd=shell.folder, env=shell.environment(), capture_output=True, text=True)
    assert done.stdout.split() == words, done.stderr
