"""`mainspring memory` at the command line, on the database that an engine has left."""

import asyncio
import json
import time
from pathlib import Path

import pytest
from tests.cli.command import Shell
from tests.memory.world import a_memory, seen

THERE = ("--database", "runs.db")


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    async def remember() -> None:
        async with a_memory(tmp_path / "runs.db") as memory:
            await memory.record(seen("The car is\x1b[31m red.", id="obs_1", session_id="s1", tags=("paint",)))
            await memory.record(seen("The car is blue.", id="obs_2", session_id="s2"))
            await memory.record(seen("The car is green.", id="obs_3", tenant="acme"))

    asyncio.run(remember())
    return Shell(tmp_path)


@pytest.mark.slow
def test_what_was_observed_is_found_shown_and_forgotten(shell: Shell) -> None:
    found = shell.run("memory", "search", "car red", *THERE)
    assert (found.code, found.err) == (0, "")
    assert found.out.splitlines()[0] == "obs_1  scout/llm_response [paint] The car is[31m red."
    assert "green" not in found.out
    lines = [
        json.loads(line) for line in shell.run("memory", "search", "car", *THERE, "--level", "full", "--json").out.splitlines()
    ]
    assert {line["citations"][0] for line in lines} == {"obs_1", "obs_2"}
    assert shell.run("memory", "search", "car", *THERE, "--tenant", "acme").out.startswith("obs_3  ")
    shown = shell.run("memory", "show", "obs_2", *THERE)
    assert shown.out == "session s2\n2027-01-15 08:00:00Z scout/llm_response\nThe car is blue.\n"
    assert shell.run("memory", "forget", *THERE, "--session", "s2").out == "1 observations are forgotten\n"
    gone = shell.run("memory", "show", "obs_2", *THERE)
    assert gone.code == 2
    assert "there is no observation `obs_2`" in gone.err
    assert shell.run("memory", "forget", *THERE, "--all").out == "1 observations are forgotten\n"
    assert shell.run("memory", "search", "car", *THERE, "--tenant", "acme").out != ""


def test_looking_for_what_is_old_does_not_delete_it(tmp_path: Path) -> None:
    async def remember() -> None:
        async with a_memory(tmp_path / "runs.db", keep_days=10_000) as memory:
            await memory.record(seen("The car is red.", id="obs_1", timestamp=time.time() - 365 * 86_400))

    asyncio.run(remember())
    for _ in range(2):
        assert Shell(tmp_path).run("memory", "search", "car", *THERE).out.startswith("obs_1  ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("search", "x", "--database", "none.db"), "there is no database `none.db`"),
        (("search", "x", *THERE, "--level", "whole"), "there is no level `whole`; known: index, timeline, full"),
        (("forget", *THERE), "name a --session to forget, or --all"),
        (("forget", *THERE, "--all", "--session", "s1"), "name a --session to forget, or --all"),
        (("show", "obs_3", *THERE), "there is no observation `obs_3`"),
    ],
    ids=["no file", "no level", "nothing", "both", "another tenant's"],
)
def test_what_cannot_be_done_is_told(shell: Shell, arguments: tuple[str, ...], told: str) -> None:
    result = shell.run("memory", *arguments)
    assert result.code != 0
    assert told in result.err
