"""Help, at every command."""

import pytest
from tests.cli.command import Shell


@pytest.mark.parametrize("command", [(), ("run",), ("keys",), ("keys", "list")])
def test_help_is_asked_for_in_two_ways(shell: Shell, command: tuple[str, ...]) -> None:
    long, short = shell.run(*command, "--help"), shell.run(*command, "-h")
    assert (short.code, short.out) == (0, long.out)
    assert f"Usage: {' '.join(['mainspring', *command])}" in short.out
