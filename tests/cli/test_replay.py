"""`mainspring replay`: stored runs of every kind, with no model, no tool and no settings at hand."""

import json
import re
import signal
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.cli.command import Shell

from mainspring.core.events import (
    CallJudged,
    Event,
    Nudged,
    Reason,
    Recorded,
    RunEnded,
    TextDelta,
    ToolEnded,
)
from mainspring.core.history import Entry
from mainspring.core.items import Json, decode
from mainspring.core.stored_log import decode_log, encode_log

ADD: Json = {"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]}
KINDS: dict[str, tuple[list[Json], list[str]]] = {
    "completed": ([{"say": "Hi."}], []),
    "tools": ([ADD, {"say": "Three."}], []),
    "denied": ([{"calls": [{"name": "add", "arguments": {"a": "x"}}]}, {"say": "Sorry."}], []),
    "max-turns": ([ADD, ADD, ADD], ["--max-turns", "2"]),
    "circles": ([*[ADD] * 6, {"say": "Three, as ever."}], []),
    "failed": ([{"fail": {"code": "provider_unauthorized"}}], []),
    "confirmed": ([ADD, {"say": "Three."}, {"say": "Yes, three."}], ["--preset", "iterative"]),
    "deadline": ([{"say": "Slow", "stall": True}], ["--max-seconds", "0.3"]),
    "cut": ([{"say": "I am", "finish": "length"}], []),
    "retried": ([{"fail": {"code": "provider_unavailable"}}, {"say": "Hi."}, {"say": "Hi."}], ["--preset", "iterative"]),
}


async def ran(shell: Shell, turns: list[Json], options: list[str]) -> str:
    shell.run("run", "go", "--model", shell.script(*turns), "--tool", "mytools", "--database", "runs.db", *options)
    return (await shell.stored())[-1].id


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_a_run_of_any_kind_ends_the_same(shell: Shell, kind: str) -> None:
    run_id = await ran(shell, *KINDS[kind])
    (shell.folder / "mytools.py").unlink()
    (shell.folder / "script.json").unlink()
    again = shell.run("replay", run_id, "--database", "runs.db", "--json")
    assert again.code == 0, again.out + again.err
    told = json.loads(again.out)
    stored = (await shell.stored())[-1]
    assert (told["same"], told["status"], told["event"]) == (True, stored.status, None)
    assert told["decisions"] > 0


async def test_a_killed_and_resumed_run_ends_the_same(shell: Shell) -> None:
    model = shell.script({"calls": [{"name": "hang", "arguments": {}}]}, {"say": "It was interrupted."})
    with shell.started("run", "go", "--model", model, "--tool", "mytools", "--database", "runs.db") as live:
        live.wait_for("hanging")
        live.interrupt(signal.SIGKILL)
        live.ended()
    run_id = (await shell.stored())[-1].id
    half = shell.run("replay", run_id, "--database", "runs.db")
    assert half.code == 0, half.out
    assert "it has not ended" in half.out
    assert f"mainspring resume {run_id}" in half.err
    assert shell.run("resume", run_id, "--model", model, "--tool", "mytools", "--database", "runs.db").code == 0
    again = shell.run("replay", run_id, "--database", "runs.db")
    assert again.code == 0, again.out
    assert "✓ it ends the same: completed, final_answer" in again.out


async def test_a_cancelled_run_and_one_that_continues_another_end_the_same(shell: Shell) -> None:
    model = shell.script({"say": "I begin", "stall": True})
    with shell.started("run", "go", "--model", model, "--database", "runs.db") as live:
        live.wait_for("I begin")
        live.interrupt()
        live.ended()
    first = (await shell.stored())[-1].id
    assert shell.run("replay", first, "--database", "runs.db").code == 0
    greeting = shell.script({"say": "Hello again."})
    shell.run("run", "and now?", "--model", greeting, "--database", "runs.db", "--previous", first)
    second = (await shell.stored())[-1].id
    assert second != first
    assert shell.run("replay", second, "--database", "runs.db").code == 0


def rewritten(database: Path, kind: type, change: Callable[..., Event]) -> int:
    """Changes the first event of a kind in the file itself, and returns its number."""
    with closing(sqlite3.connect(database)) as connection, connection:
        stored = "SELECT place, body, entries FROM segments JOIN runs ON number = run ORDER BY place"
        for row, body, entries in connection.execute(stored).fetchall():
            records = decode_log(body, [entry.item for entry in decode(entries, list[Entry])])
            for place, record in enumerate(records):
                if isinstance(record.event, kind):
                    records[place] = Recorded(record.seq, record.at, change(record.event))
                    connection.execute("UPDATE segments SET body = ? WHERE rowid = ?", (encode_log(records), row))
                    return record.seq
    raise AssertionError(f"there is no {kind.__name__} to change")


@pytest.mark.parametrize(
    ("kind", "change", "found"),
    [
        (Nudged, lambda event: replace(event, text="Never mind."), "Never mind."),
        (RunEnded, lambda event: replace(event, reason=Reason.MAX_TURNS, status="incomplete"), "max_turns"),
        (CallJudged, lambda event: replace(event, call_id="call_x"), "call_x"),
        (TextDelta, lambda event: replace(event, delta="Four"), "Three."),
    ],
    ids=["nudge", "end", "verdict", "words"],
)
async def test_a_log_that_was_tampered_with_is_caught_at_its_event(
    shell: Shell, kind: type, change: Callable[..., Event], found: str
) -> None:
    run_id = await ran(shell, *KINDS["confirmed"])
    seq = rewritten(shell.folder / "runs.db", kind, change)
    again = shell.run("replay", run_id, "--database", "runs.db")
    assert again.code == 1
    differs = re.search(r"✗ it differs from event (\d+) on\n  expected .*\n  found    (.*)", again.out)
    assert differs is not None, again.out
    assert int(differs[1]) >= seq
    assert found in differs[2]
    told = json.loads(shell.run("replay", run_id, "--database", "runs.db", "--json").out)
    assert (told["same"], told["event"]) == (False, int(differs[1]))


async def test_a_result_that_was_tampered_with_is_held_against_the_stored_response(shell: Shell) -> None:
    run_id = await ran(shell, *KINDS["tools"])
    rewritten(shell.folder / "runs.db", ToolEnded, lambda event: replace(event, output="4"))
    again = shell.run("replay", run_id, "--database", "runs.db")
    assert again.code == 1
    assert "the output of the stored response" in again.out


def test_runs_of_the_first_version_raise_no_alarm(shell: Shell) -> None:
    """As that version has left them: one was resumed after a crash, one went in circles, one was cancelled."""
    path = shell.folder / "runs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript((Path(__file__).parents[1] / "store" / "version_1_runs.sql").read_text())
        ids = [id for (id,) in connection.execute("SELECT id FROM runs ORDER BY number")]
    told = [shell.run("replay", id, "--database", "runs.db") for id in ids]
    assert [(again.code, "✓ it ends the same" in again.out) for again in told] == [(0, True)] * 6
    assert any("loop_detected" in again.out for again in told)
