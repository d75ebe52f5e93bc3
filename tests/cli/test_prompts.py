"""`mainspring prompts`: made, changed, chosen and deleted at the command line."""

import json

from tests.cli.command import Shell


def test_a_prompt_is_made_changed_chosen_and_deleted(shell: Shell) -> None:
    shell.run("run", "Hi.", "--model", shell.script({"say": "Hi."}))
    made = json.loads(shell.run("prompts", "create", "--prompt", "On {{ topic }}.", "--json").out)
    assert (made["version"], made["variables"]) == ("1", ["topic"])
    id = made["id"]
    changed = json.loads(shell.run("prompts", "update", id, "--instructions", "Write.", "--json").out)
    assert (changed["version"], changed["prompt"], changed["instructions"]) == ("2", "On {{ topic }}.", "Write.")
    shell.run("prompts", "use", id, "1")
    assert [id, "1", "topic"] == shell.run("prompts", "list").out.splitlines()[1].split()
    assert shell.run("prompts", "show", id).out.splitlines() == [f"{id}  version 1", "> topic", "On {{ topic }}."]
    assert shell.run("prompts", "show", id, "--version", "2", "--json").out.strip() == json.dumps(
        {**changed, "is_default": False}, separators=(",", ":")
    )
    shell.run("prompts", "delete", id)
    gone = shell.run("prompts", "show", id)
    assert gone.code != 0
    assert "not found" in gone.err
