"""`mainspring traces`: the waterfall of a run, as a terminal, a pipe and a program see it."""

import re
import signal

import pytest
from rich.cells import cell_len
from tests.cli.command import Shell, plain

from mainspring.core.items import Json, decode
from mainspring.features.traces.trace_record import TraceRecord

TURNS: tuple[Json, ...] = (
    {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}, {"name": "add", "arguments": {"a": "x"}}]},
    {"calls": [{"name": "nothing_like_that", "arguments": {}}], "usage": {"input_tokens": 1200, "output_tokens": 30}},
    {"say": "Three, and that is all there is to say."},
)


async def ran(shell: Shell, *turns: Json, prompt: str = "go") -> str:
    done = shell.run("run", prompt, "--model", shell.script(*turns), "--tool", "mytools", "--database", "runs.db")
    assert "Traceback" not in done.err
    return (await shell.stored())[-1].id


async def test_a_run_is_drawn_as_a_waterfall(shell: Shell) -> None:
    run_id = await ran(shell, *TURNS)
    shown = shell.run("traces", "show", run_id, "--database", "runs.db")
    assert shown.code == 0, shown.err
    head, facts, _, axis, *rows = shown.out.splitlines()
    assert head == f"{run_id}  completed (final_answer)"
    assert "3 turns · 1 call · 2 denied" in facts
    assert axis.split()[:3] == ["tokens", "took", "0"]
    begins = [row.split("  ")[0] if not row.startswith("  ") else row.strip().partition("  ")[0] for row in rows if "█" in row]
    assert begins == ["turn 1", "✓ add", "- add", "turn 2", "- nothing_like_that", "turn 3"]
    bars = [re.search("[░█]", row).start() for row in rows if row.startswith("turn")]  # type: ignore[union-attr]
    assert bars == sorted(bars), "turns come one after the other"
    assert axis.index("0") <= bars[0], "the axis begins with the run"
    assert "1,200+30" in shown.out
    assert "denied by valid_arguments: Invalid arguments for `add`" in shown.out
    assert (
        "TL01 tool_argument_error: a call of no known tool, or with wrong arguments; execution (F-EXE), medium, resolved"
        in shown.out
    )


async def test_it_fits_a_terminal_of_eighty_columns(shell: Shell) -> None:
    run_id = await ran(shell, *TURNS, prompt="a very long question " * 20)
    shown = shell.run_on_terminal("traces", "show", run_id, "--database", "runs.db")
    assert shown.code == 0
    assert "\x1b[" in shown.out, "a terminal gets colours"
    lines = plain(shown.out).splitlines()
    assert max(cell_len(line) for line in lines) <= 80
    assert any(line.startswith("turn 3") for line in lines)


async def test_without_unicode_it_is_drawn_all_the_same(shell: Shell) -> None:
    run_id = await ran(shell, *TURNS)
    shown = shell.run("traces", "show", run_id, "--database", "runs.db", env={"PYTHONIOENCODING": "ascii"})
    assert shown.code == 0
    assert "#" in shown.out
    assert "?" not in shown.out


async def test_a_program_reads_the_trace_itself(shell: Shell) -> None:
    run_id = await ran(shell, *TURNS)
    trace = decode(shell.run("traces", "show", run_id, "--database", "runs.db", "--json").out, TraceRecord)
    assert (trace.run_id, len(trace.turns), len(trace.actions)) == (run_id, 3, 3)
    listed = shell.run("traces", "list", "--database", "runs.db", "--json").out.splitlines()
    assert [decode(line, TraceRecord) for line in listed] == [trace]


async def test_traces_are_listed_with_how_they_ended(shell: Shell) -> None:
    first = await ran(shell, {"say": "Hi."})
    second = await ran(shell, {"fail": {"code": "provider_unauthorized"}})
    titles, *rows = [line.split() for line in shell.run("traces", "list", "--database", "runs.db").out.splitlines()]
    assert titles == ["run", "status", "started", "took", "turns", "calls", "tokens"]
    assert [(row[0], row[1]) for row in rows] == [(second, "failed"), (first, "completed")]
    more = shell.run("traces", "list", "--database", "runs.db", "--limit", "1")
    assert "there are more" in more.err


async def test_a_run_whose_process_was_killed_is_drawn_as_far_as_it_came(shell: Shell) -> None:
    model = shell.script({"calls": [{"name": "hang", "arguments": {}}]})
    with shell.started("run", "go", "--model", model, "--tool", "mytools", "--database", "runs.db") as live:
        live.wait_for("hanging")
        live.interrupt(signal.SIGKILL)
        live.ended()
    run_id = (await shell.stored())[-1].id
    shown = shell.run("traces", "show", run_id, "--database", "runs.db")
    assert shown.code == 0, shown.err
    assert shown.out.startswith(f"{run_id}  in_progress (it has not ended)")
    assert "… hang" in shown.out


@pytest.mark.parametrize("command", [("traces", "show"), ("replay",)])
async def test_a_run_that_is_not_there_is_named_with_the_way_to_list_them(shell: Shell, command: tuple[str, ...]) -> None:
    await ran(shell, {"say": "Hi."})
    shown = shell.run(*command, "resp_nobody", "--database", "runs.db")
    assert shown.code == 2
    assert "resp_nobody" in shown.err
    assert "mainspring runs --database runs.db" in shown.err
    missing = shell.run(*command, "resp_nobody", "--database", "nothing.db")
    assert missing.code != 0
    assert "there is no database `nothing.db`" in missing.err
    assert "nothing.db" not in [path.name for path in shell.folder.iterdir()]
