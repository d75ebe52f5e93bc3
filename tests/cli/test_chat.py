"""`mainspring chat` and `mainspring decisions`, as real commands with a scripted model."""

import json
import os
import pty
import subprocess
from uuid import UUID

from tests.cli.command import Shell, plain

from mainspring.items import Json
from mainspring.tasks.sqlite import SqliteTasks
from mainspring.tasks.task import now, task


def said(reply: str, intent: str = "GENERAL_CHAT", decision: str = "respond") -> str:
    body = {"intent": intent, "possible_intents": [], "confidence": 1, "decision": decision, "why": "none", "reply": reply}
    return json.dumps(body)


def turns() -> list[Json]:
    """One person's words each have an answer, whichever process asks."""
    return [
        {"when": "add", "calls": [{"name": "add_task", "arguments": {"description": "Buy milk"}}]},
        {"when": "add", "say": said('I have added "Buy milk".', "CREATE_TASK")},
        {"when": "list", "calls": [{"name": "list_tasks", "arguments": {}}]},
        {"when": "list", "say": said("1. Buy milk", "LIST_TASKS"), "expect": '"description":"Buy milk"'},
        {"when": "hello", "say": said("Hello\u001b[31m there!")},
        {"when": "plain", "say": "Just words."},
    ]


def chat(shell: Shell, given: str, *options: str, folder: str = "data") -> str:
    model = shell.script(*turns())
    done = shell.run("chat", "--model", model, "--folder", folder, *options, given=given)
    assert (done.code, done.err) == (0, "")
    return done.out


def test_a_talk_through_a_pipe_is_a_line_for_each_reply(shell: Shell) -> None:
    out = chat(shell, "add milk\n\nlist\nplain\n")
    assert out == 'I have added "Buy milk".\n1. Buy milk\nJust words.\n'
    assert chat(shell, "", "list") == "1. Buy milk\n"
    assert (shell.folder / "data" / "tasks.db").exists()


def test_what_would_steer_a_terminal_is_not_shown(shell: Shell) -> None:
    assert chat(shell, "hello\n") == "Hello[31m there!\n"


def test_decisions_are_lines_of_json_and_the_conversation_goes_on(shell: Shell) -> None:
    first = json.loads(chat(shell, "", "add milk", "--json"))
    assert first["decision"]["decision_type"] == "INVOKE_TOOL"
    second = json.loads(chat(shell, "", "plain", "--json", "--conversation", first["conversation_id"]))
    assert second["conversation_id"] == first["conversation_id"]
    done = shell.run("chat", "plain", "--model", shell.script(*turns()), "--folder", "data", "--conversation", "conv_nowhere")
    assert (done.code, "not found" in done.err) == (2, True)


def test_people_have_lists_of_their_own(shell: Shell) -> None:
    chat(shell, "add milk\n", "--user", "ada")
    model = shell.script({"calls": [{"name": "list_tasks", "arguments": {}}]}, {"say": "None.", "expect": '"data":[]'})
    done = shell.run("chat", "list", "--model", model, "--folder", "data", "--user", "bob")
    assert (done.code, done.out) == (0, "None.\n")


async def test_deleting_asks_and_a_later_process_hears_the_answer(shell: Shell) -> None:
    id = UUID("0b7e8f5c-3d1a-4c55-9a51-6f2f0a3c9d10")
    tasks = SqliteTasks(shell.folder / "data" / "tasks.db")
    await tasks.open()
    await tasks.add("local", task(id, "Buy milk", now()))
    model = shell.script(
        {"calls": [{"name": "list_tasks", "arguments": {}}]},
        {"calls": [{"name": "delete_task", "arguments": {"task_id": str(id)}}]},
    )
    asked = shell.run("chat", "delete the milk one", "--model", model, "--folder", "data", "--json")
    said = json.loads(asked.out)
    assert said["decision"]["decision_type"] == "REQUEST_CONFIRMATION"
    assert len(await tasks.list("local")) == 1
    model = shell.script({"say": "Gone.", "expect": '[output] {"success":true,"data":null'})
    given = shell.run("chat", "yes", "--model", model, "--folder", "data", "--conversation", said["conversation_id"])
    assert (given.code, given.out, given.err) == (0, "Gone.\n", "")
    assert await tasks.list("local") == []
    await tasks.close()


def test_on_a_terminal_one_is_greeted_and_told_how_to_go_on(shell: Shell) -> None:
    model = shell.script(*turns())
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        shell.command(["chat", "--model", model, "--folder", "data"]),
        cwd=shell.folder,
        env=shell.environment({"TERM": "dumb"}),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    shown = b""
    typed = [(b"> ", b"add milk\n"), (b"Buy milk", b""), (b"> ", b"/quit\n")]
    try:
        seen = 0
        for wanted, keys in typed:
            while wanted not in shown[seen:]:
                piece = _read(ours)
                assert piece, shown
                shown += piece
            seen = shown.index(wanted, seen) + len(wanted)
            os.write(ours, keys)
        while piece := _read(ours):
            shown += piece
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    text = plain(shown.decode().replace("\r\n", "\n"))
    assert "Tell me about your tasks" in text
    assert 'I have added "Buy milk".' in text
    assert "go on with: mainspring chat --conversation conv_" in text


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""


def test_the_log_is_listed_shown_summed_up_exported_and_compared(shell: Shell) -> None:
    chat(shell, "add milk\n" + "plain\n" * 10)
    log = ("--log", "data/decisions.db")
    listed = shell.run("decisions", "list", *log, "--json", "--limit", "20").out.splitlines()
    assert len(listed) == 11
    first = json.loads(listed[-1])
    assert (first["message"], first["outcome_category"]) == ("add milk", "SUCCESS:TASK_COMPLETED")
    assert "add milk" in shell.run("decisions", "list", *log, "--outcome", "SUCCESS:TASK_COMPLETED").out
    shown = json.loads(shell.run("decisions", "show", first["decision_id"], *log).out)
    assert [tool["tool_name"] for tool in shown["tools"]] == ["add_task"]
    summary = json.loads(shell.run("decisions", "metrics", *log).out)
    assert (summary["sample_size"], summary["error_rate"]) == (11, 0)
    exported = shell.run("decisions", "export", *log, "--format", "json").out
    assert len(json.loads(exported)) == 11
    assert shell.run("decisions", "baseline", "first", *log).code == 0
    same = shell.run("decisions", "metrics", *log, "--baseline", "first")
    assert (same.code, "DRIFT" in same.out) == (0, False)
    chat(shell, "list\n" * 10)
    later = shell.run("decisions", "metrics", *log, "--baseline", "first")
    assert (later.code, "DRIFT  tool" in later.out) == (1, True)
    missing = shell.run("decisions", "list", "--log", "nowhere.db")
    assert (missing.code, "there is no decision log `nowhere.db`" in missing.err) == (2, True)


def test_fixtures_are_validated_with_any_model(shell: Shell) -> None:
    (shell.folder / "f.yaml").write_text(
        "- {test_id: adds, input: add milk, expected_tool: add_task, expected_outcome: SUCCESS}\n"
        "- {test_id: lists, input: list, tasks: [Buy milk], expected_intent: LIST_TASKS}\n"
        "- {test_id: wrong, input: plain, expected_tool: list_tasks}\n"
    )
    done = shell.run("decisions", "validate", "f.yaml", "--model", shell.script(*turns()))
    assert done.code == 1
    assert done.out.splitlines() == [
        "ok    adds",
        "ok    lists",
        "FAIL  wrong  tool is none, not list_tasks",
        "2 of 3 as expected",
    ]
