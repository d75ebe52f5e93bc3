"""Commands follow the settings: nothing that `mainspring.toml` says has to be said again as an option."""

import json
from pathlib import Path

import pytest
from tests.cli.command import Shell

from mainspring.core.items import Json

HELLO: Json = {"say": "Hello."}
ADD: Json = {"calls": [{"name": "add", "arguments": {"a": 2, "b": 2}}]}


def configure(shell: Shell, *turns: Json, more: str = "") -> None:
    """Settings that name a database, a model and tools."""
    model = shell.script(*turns)
    (shell.folder / "mainspring.toml").write_text(f'database = "mine.db"\nmodel = "{model}"\ntools = ["mytools:add"]\n{more}')


def list_ids(shell: Shell) -> list[str]:
    return [json.loads(line)["id"] for line in shell.run("runs", "--json").out.splitlines()]


def test_a_run_takes_model_tools_and_database_from_the_settings(shell: Shell) -> None:
    configure(shell, ADD, {"say": "4", "expect": "4"})
    result = shell.run("run", "Add two and two")
    assert result.code == 0, result.err
    assert (shell.folder / "tally").read_text() == "2 + 2\n"
    assert len(list_ids(shell)) == 1
    assert not (shell.folder / "mainspring.db").exists()


def test_a_run_is_governed_by_the_settings(shell: Shell) -> None:
    configure(shell, ADD, HELLO, more='[governance.rules]\n"add" = "deny"\n')
    assert shell.run("run", "Add two and two").code == 0
    assert not (shell.folder / "tally").exists()


def test_a_run_is_kept_unless_it_is_not_to_be(shell: Shell) -> None:
    model = shell.script(HELLO)
    assert shell.run("run", "Hi", "--model", model, "--no-store").code == 0
    assert not (shell.folder / "mainspring.db").exists()
    assert shell.run("run", "Hi", "--model", model).code == 0
    assert len(list_ids(shell)) == 1


@pytest.mark.parametrize(
    "command",
    [
        ("runs",),
        ("show", "last"),
        ("replay", "last"),
        ("traces", "list"),
        ("traces", "show", "last"),
        ("keys", "list"),
        ("approvals", "list"),
        ("budgets", "list"),
        ("audit", "list"),
        ("audit", "verify"),
        ("memory", "search", "Hello"),
        ("resume", "--all"),
    ],
)
def test_a_command_reads_the_database_of_the_settings(shell: Shell, command: tuple[str, ...]) -> None:
    configure(shell, HELLO)
    missing = shell.run(*command)
    assert missing.code == 2
    assert "there is no database `mine.db`" in missing.err
    assert not (shell.folder / "mine.db").exists()
    assert shell.run("run", "Hi").code == 0
    found = shell.run(*command)
    assert found.code == 0, found.err


def test_the_environment_counts_more_than_the_file(shell: Shell) -> None:
    configure(shell, HELLO)
    assert shell.run("run", "Hi", env={"MAINSPRING_DATABASE": "other.db"}).code == 0
    assert [path.name for path in shell.folder.glob("*.db")] == ["other.db"]


def test_the_file_that_an_option_names_counts_with_its_database(shell: Shell) -> None:
    configure(shell, HELLO)
    shell.folder.joinpath("mainspring.toml").rename(shell.folder / "other.toml")
    shell.folder.joinpath("agents").mkdir()
    shell.folder.joinpath("agents", "bee.yaml").write_text("name: bee\nversion: 1.0.0\nrole: qa\ndescription: Busy.\n")
    assert shell.run("run", "Hi", "--config", "other.toml").code == 0
    bee = ("bee", "--folder", "agents", "--no-confirm")
    assert shell.run("agents", "run", *bee, "--config", "other.toml").code == 0
    assert [path.name for path in shell.folder.glob("*.db")] == ["mine.db"]
    done = shell.run("resume", "--all", "--config", "other.toml")
    assert (done.code, done.err) == (0, "mainspring: all runs in mine.db have ended\n")


def test_a_run_is_named_by_the_beginning_of_its_id_or_as_the_last(shell: Shell) -> None:
    configure(shell, HELLO)
    for prompt in ("one", "two"):
        assert shell.run("run", prompt).code == 0
    newest, oldest = list_ids(shell)
    assert json.loads(shell.run("show", "last", "--json").out)["id"] == newest
    assert json.loads(shell.run("show", oldest[:12], "--json").out)["id"] == oldest
    assert json.loads(shell.run("replay", oldest[:12], "--json").out)["run"] == oldest
    assert shell.run("run", "three", "--previous", newest[:12]).code == 0
    assert json.loads(shell.run("show", "last", "--json").out)["previous_response_id"] == newest
    vague = shell.run("show", "resp_")
    assert vague.code == 2
    assert "is the beginning of 3 runs" in vague.err


def test_what_is_to_be_typed_next_names_no_database_that_the_settings_name(shell: Shell, tmp_path: Path) -> None:
    configure(shell, HELLO)
    assert shell.run("run", "Hi").code == 0
    assert shell.run("show", "resp_none").err.endswith("list the runs with: mainspring runs\n")
    assert shell.run("run", "Hi", "--database", "other.db").code == 0
    assert shell.run("show", "resp_none", "--database", "other.db").err.endswith("mainspring runs --database other.db\n")
