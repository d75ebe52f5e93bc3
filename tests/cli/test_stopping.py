"""Ctrl-C, SIGTERM, a reader that goes away, a process that is killed: what was done is kept, and says how it ended."""

import os
import signal
import subprocess
import sys

import pytest
from tests.cli.command import Shell, events
from tests.kit.waiting import PATIENCE

from mainspring.core.events import Reason, RunEnded, ToolEnded
from mainspring.core.items import Json

STALL: Json = {"say": "Let me think", "stall": True}


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_signal_cancels_the_run_and_keeps_it(shell: Shell, number: signal.Signals, code: int) -> None:
    with shell.started("run", "Hi", "--model", shell.script(STALL), "--database", "runs.db") as live:
        live.wait_for("think")
        live.interrupt(number)
        result = live.ended()
    [run] = await shell.stored()
    assert run.status == "cancelled"
    assert result.code == code
    assert "✗ the turn was cut off\n\ncancelled · " in result.out
    assert (
        f'cancelled: the run was stopped. Go on from here: mainspring run "go on" --database runs.db --previous {run.id}'
        in result.err
    )


async def test_a_cancelled_run_ends_its_lines_of_json_too(shell: Shell) -> None:
    with shell.started("run", "Hi", "--model", shell.script(STALL), "--database", "runs.db", "--json") as live:
        before = live.wait_for('"text_delta"')
        live.interrupt()
        result = live.ended()
    shown = events(before + result.out)
    [run] = await shell.stored()
    assert shown == await shell.log(run.id)
    assert shown[-1].event == RunEnded("cancelled", Reason.CANCELLED)
    assert result.code == 130


async def test_a_tool_that_cannot_be_woken_does_not_keep_the_process(shell: Shell) -> None:
    model = shell.script({"calls": [{"name": "dream"}]})
    with shell.started("run", "Sleep", "--model", model, "--tool", "mytools", "--database", "runs.db") as live:
        live.wait_for("dreaming")
        live.interrupt()
        assert live.ended().code == 130
    [run] = await shell.stored()
    assert run.status == "cancelled"


async def test_a_second_ctrl_c_ends_at_once(shell: Shell) -> None:
    model = shell.script({"calls": [{"name": "deaf"}]})
    with shell.started("run", "Go", "--model", model, "--tool", "mytools", "--database", "runs.db") as live:
        live.wait_for("not listening")
        live.interrupt()
        live.wait_for("stop again to end at once", live.err)
        live.interrupt()
        assert live.ended().code == -signal.SIGINT
    [run] = await shell.stored()
    assert run.status == "in_progress"


@pytest.mark.parametrize("options", [(), ("--json",)])
async def test_a_reader_that_goes_away_cancels_the_run_silently(shell: Shell, options: tuple[str, ...]) -> None:
    model = shell.script({"say": "word " * 20_000, "stall": True}, chunk=50)
    with shell.started("run", "Talk", "--model", model, "--database", "runs.db", *options) as live:
        live.out.readline()
        live.out.close()
        assert live.err.read() == ""
        assert live.process.wait() == 141
    [run] = await shell.stored()
    assert run.status == "cancelled"


@pytest.mark.parametrize("command", [("serve", "--port", "0"), ("worker",)])
def test_a_server_whose_reader_is_gone_stops_silently(shell: Shell, command: tuple[str, ...]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        result = shell.run(*command, "--model", shell.script({"say": "Hi"}), "--database", "runs.db", out=pipe)
    assert (result.code, result.err) == (141, "")


def test_output_that_cannot_be_written_is_told_in_one_line(shell: Shell) -> None:
    with open("/dev/full", "wb") as full:
        result = shell.run("demo", "--json", out=full)
    assert result.code == 1
    assert result.err.count("\n") == 1
    assert "the output cannot be written (No space left on device)" in result.err


async def test_a_killed_run_is_taken_up_again_where_it_was(shell: Shell) -> None:
    add = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
    hang = {"calls": [{"name": "hang"}], "expect": "[output] 3"}
    end = {"say": "Three it is.", "expect": "[output] Interrupted: the call was started but its outcome is unknown"}
    options = ("--tool", "mytools", "--database", "runs.db")
    with shell.started("run", "Go", "--model", shell.script(add, hang, end), *options) as live:
        live.wait_for("hang: hanging")
        live.process.kill()
        live.ended()
    [run] = await shell.stored()
    assert run.status == "in_progress"

    result = shell.run("resume", run.id, *options)
    assert result.code == 0
    assert "… taken up again" in result.out
    assert "Three it is." in result.out
    assert (shell.folder / "tally").read_text() == "1 + 2\n"
    assert len([record for record in await shell.log(run.id) if isinstance(record.event, ToolEnded)]) == 2
    again = shell.run("resume", "last", "--database", "runs.db")  # which asks for no tools
    told = (
        f"run `{run.id}` has ended (completed), so nothing is left to resume; show it with: mainspring show {run.id} --database"
    )
    assert (again.code, again.out, again.err) == (0, "", f"mainspring: {told} runs.db\n")


async def test_every_interrupted_run_is_taken_up_again_with_all(shell: Shell) -> None:
    hang = {"calls": [{"name": "hang"}]}
    options = ("--tool", "mytools", "--database", "runs.db")
    for _ in range(2):
        with shell.started("run", "Go", "--model", shell.script(hang), *options) as live:
            live.wait_for("hang: hanging")
            live.process.kill()
    model = shell.script(hang, {"say": "The end."}, name="other.json")
    result = shell.run("resume", "--all", *options, "--model", model)
    assert result.code == 0
    assert result.out.count("The end.") == 2
    assert [run.status for run in await shell.stored()] == ["completed", "completed"]

    again = shell.run("resume", "--all", *options)
    assert (again.code, again.out, again.err) == (0, "", "mainspring: all runs in runs.db have ended\n")


async def test_a_run_is_not_taken_up_without_its_tools(shell: Shell) -> None:
    with shell.started(
        "run", "Go", "--model", shell.script({"calls": [{"name": "hang"}]}), "--tool", "mytools:hang", "--database", "runs.db"
    ) as live:
        live.wait_for("hang: hanging")
        live.process.kill()
    [run] = await shell.stored()
    result = shell.run("resume", run.id, "--database", "runs.db")
    assert result.code == 2
    assert result.err == f"mainspring: run `{run.id}` uses the tools `hang`; pass them with --tool MODULE:FUNCTION, as to `run`\n"
    assert run == (await shell.stored())[0]


def test_a_process_with_threads_of_object_storage_ends_without_its_interpreter() -> None:
    """They would abort it if they answered while it ends, which cannot be had on demand."""
    program = "import atexit, sys; from mainspring.cli.exit import leave; atexit.register(print, 'ended'); "
    for more, said in (("", "ended\n"), ("import obstore; ", "")):
        command = [sys.executable, "-c", f"{program}{more}leave(3)"]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        assert (ended.returncode, ended.stdout) == (3, said), ended.stderr
