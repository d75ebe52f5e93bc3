"""`mainspring show` and `mainspring runs`: what a database holds, shown as it was."""

import re
import sqlite3
from contextlib import closing
from functools import partial

import msgspec
import pytest
from anyio import to_thread
from msgspec.structs import replace
from tests.cli.command import Shell
from tests.store.logs import answer, begin, end

from mainspring.core.history import History
from mainspring.core.items import Json, encode
from mainspring.core.response import response
from mainspring.core.run import replay
from mainspring.ports import Snapshot
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import parse_location
from mainspring.storage.sqlite_runs import SqliteStore

STORY: tuple[Json, ...] = (
    {"think": "Both at once.", "calls": [{"name": "add", "arguments": {"a": n, "b": 2}} for n in (1, 5)]},
    {"say": "Three and seven."},
)
KEEP = ("--tool", "mytools", "--database", "runs.db")


def drop_ids(shown: str) -> str:
    """What was shown, without the lines that name calls."""
    return re.sub(r"^  call_\S+\n", "", shown, flags=re.MULTILINE)


async def test_a_run_is_shown_exactly_as_it_was_live_with_the_ids_of_its_calls(shell: Shell) -> None:
    live = shell.run("run", "Add.", "--model", shell.script(*STORY), *KEEP)
    [run] = await shell.stored()
    shown = shell.run("show", run.id, "--database", "runs.db")
    assert replace(shown, out=drop_ids(shown.out)) == live
    assert shown.out != live.out


async def test_a_run_that_failed_is_shown_with_its_explanation(shell: Shell) -> None:
    fail = {"say": "Well", "cut": 2, "fail": {"code": "rate_limit_exceeded", "message": "Too many questions."}}
    live = shell.run("run", "Hi", "--model", shell.script(fail), *KEEP)
    [run] = await shell.stored()
    shown = shell.run("show", run.id, "--database", "runs.db")
    assert (live.code, shown.code) == (1, 0)
    assert (shown.out, shown.err) == (live.out, live.err)
    assert "✗ the model failed: Too many questions." in shown.out


async def test_the_response_of_a_run_is_shown_as_json(shell: Shell) -> None:
    shell.run("run", "Add.", "--model", shell.script(*STORY), *KEEP)
    [run] = await shell.stored()
    shown = shell.run("show", run.id, "--database", "runs.db", "--json")
    assert shown.out.encode() == encode(response(replay(await shell.log(run.id), History()))) + b"\n"


async def test_a_run_that_has_not_ended_is_shown_as_far_as_it_went(shell: Shell) -> None:
    with shell.started("run", "Go", "--model", shell.script({"calls": [{"name": "hang"}]}), *KEEP) as live:
        live.wait_for("hang: hanging")
        live.process.kill()
    [run] = await shell.stored()
    shown = shell.run("show", run.id, "--database", "runs.db")
    assert shown.code == 0
    assert shown.out.endswith("→ hang()\n") or shown.out.endswith("hang: hanging\n")
    assert (
        shown.err == f"mainspring: run `{run.id}` has not ended; resume it with: mainspring resume {run.id} --database runs.db\n"
    )


async def test_runs_are_listed_newest_first(shell: Shell) -> None:
    shell.run("run", "First\nof all [b]", "--model", shell.script(STORY[1]), *KEEP)
    shell.run("run", "Second", "--model", shell.script({"fail": {"code": "provider_unavailable"}}), *KEEP)
    first, second = await shell.stored()
    listed = shell.run("runs", "--database", "runs.db")
    titles, *rows = [line.split() for line in listed.out.splitlines()]
    assert titles == ["run", "status", "started", "model", "prompt"]
    assert [(row[0], row[1], row[5], row[6:]) for row in rows] == [
        (second.id, "failed", "scripted:script.json", ["Second"]),
        (first.id, "completed", "scripted:script.json", ["First", "of", "all", "[b]"]),
    ]


async def test_runs_are_listed_as_lines_of_json(shell: Shell) -> None:
    for prompt in ("First", "Second"):
        shell.run("run", prompt, "--model", shell.script(STORY[1]), *KEEP)
    _, newest = await shell.stored()
    listed = shell.run("runs", "--database", "runs.db", "--json", "--limit", "1")
    assert [msgspec.json.decode(line) for line in listed.out.splitlines()] == [
        {
            "id": newest.id,
            "status": "completed",
            "created_at": newest.created_at,
            "model": "scripted:script.json",
            "prompt": "Second",
            "previous": None,
            "tenant": "",
        }
    ]


async def test_every_rung_of_a_run_that_goes_round_in_circles_is_shown(shell: Shell) -> None:
    circle: tuple[Json, ...] = ({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},) * 6
    live = shell.run("run", "Add.", "--model", shell.script(*circle, {"say": "Three."}), *KEEP)
    [run] = await shell.stored()
    shown = shell.run("show", run.id, "--database", "runs.db")
    assert (drop_ids(shown.out), shown.err) == (live.out, live.err)
    rungs = (
        "? You have made the same calls in 3 turns in a row",
        "✗ add is withheld",
        "? You have gone on making the same calls",
    )
    places = [shown.out.index(rung) for rung in rungs]
    assert places == sorted(places)
    assert "(loop_detected)" in shown.out
    traced = shell.run("traces", "show", run.id, "--database", "runs.db").out
    assert "turn 4, repeat" in traced
    assert "withheld from now on: add" in traced


async def test_a_result_that_is_given_back_is_shown_as_such(shell: Shell) -> None:
    (shell.folder / "again.py").write_text(
        (shell.folder / "mytools.py").read_text().replace("@tool\n", "@tool(repeatable=True)\n")
    )
    circle: tuple[Json, ...] = ({"calls": [{"name": "add", "arguments": {"a": 1, "b": 2}}]},) * 4
    keep = ("--tool", "again", "--database", "runs.db")
    shell.run("run", "Add.", "--model", shell.script(*circle, {"say": "Three."}), *keep)
    [run] = await shell.stored()
    assert "✓ 3  not run again" in shell.run("show", run.id, "--database", "runs.db").out
    assert (shell.folder / "tally").read_text() == "1 + 2\n" * 3
    assert "not run again: the result of the same call" in shell.run("traces", "show", run.id, "--database", "runs.db").out
    assert "reused" in shell.run("audit", "list", "--database", "runs.db", "--json").out


@pytest.mark.parametrize("url", ["mysql://app:hunter2@h/runs", "postgresql://app:hunter2/@h/runs", "postgres:app:hunter2@h"])
def test_a_url_that_is_no_database_is_refused_before_anything_is_made(shell: Shell, url: str) -> None:
    before = set(shell.folder.iterdir())
    model = shell.script({"say": "Hi."})
    for command in (
        ("serve", "--model", model),
        ("run", "Hi", "--model", model),
        ("runs",),
        ("keys", "create"),
        ("config", "explain"),
    ):
        named = () if command[0] == "config" else ("--database", url)
        refused = shell.run(*command, *named, env={} if named else {"MAINSPRING_DATABASE": url})
        assert refused.code == 2, refused
        assert "postgresql://USER:PASSWORD@HOST" in refused.err
        assert (refused.err.count("\n"), refused.out) == (1, "")
        assert "hunter2" not in refused.err
    assert {path.name for path in set(shell.folder.iterdir()) - before} == {"script.json"}


@pytest.mark.parametrize("command", ["runs", "upgrade", "tasks list", "tasks serve --user alice", "serve --check"])
def test_a_server_that_cannot_be_reached_is_told_in_one_line(shell: Shell, command: str) -> None:
    told = shell.run(*command.split(), "--database", "postgresql://app:hunter2@127.0.0.1:1/runs")
    assert (told.code, told.out, told.err.count("\n")) == (1, "", 1), told
    assert re.match(
        r"mainspring: postgresql://app:\*\*\*@127.0.0.1:1/runs cannot be reached \(.*\); check that it runs,", told.err
    )


@pytest.mark.parametrize("url", ["postgresql://app:hunter2@h/runs?password=hunter2", "postgresql://app:hunter2/@h/runs"])
def test_the_password_of_a_database_is_not_among_the_settings_shown(shell: Shell, url: str) -> None:
    shown = shell.run("config", "show", env={"MAINSPRING_DATABASE": url})
    assert 'database = "postgresql://' in shown.out
    assert "hunter2" not in shown.out + shown.err


async def test_a_file_is_vacuumed_and_keeps_its_runs(shell: Shell) -> None:
    shell.run("run", "Add.", "--model", shell.script(*STORY), *KEEP)
    before = await shell.stored()
    done = shell.run("vacuum", "--database", "runs.db")
    assert done.code == 0, done.err
    assert "runs.db" in done.out + done.err
    assert await shell.stored() == before


@pytest.mark.parametrize(("database", "text"), [("none.db", "no database"), ("postgresql://a/b", "autovacuum")])
def test_what_is_no_file_is_not_vacuumed(shell: Shell, database: str, text: str) -> None:
    done = shell.run("vacuum", "--database", database)
    assert done.code == 2
    assert text in done.err


async def test_runs_that_ended_long_ago_are_pruned(shell: Shell) -> None:
    shell.run("run", "First", "--model", shell.script(STORY[1]), *KEEP)
    assert shell.run("prune", "--keep", "1d", "--database", "runs.db").out == "0 runs are deleted\n"
    async with SqliteStore(shell.folder / "runs.db") as store:
        [run] = (await store.list()).runs
        log = await store.events(run.id)
        await store.delete(run.id)
        assert run.response is not None
        old = [replace(record, at=record.at - 2 * 86_400) for record in log]
        await store.append(run.id, old, Snapshot(run.response, ()))
    assert shell.run("prune", "--keep", "3d", "--database", "runs.db", "--json").out == '{"deleted":0,"damaged":[]}\n'
    assert shell.run("prune", "--keep", "1d", "--database", "runs.db", "--json").out == '{"deleted":1,"damaged":[]}\n'
    assert await shell.stored() == ()
    assert shell.run("prune", "--keep", "soon", "--database", "runs.db").code == 2


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_run_that_cannot_be_read_is_named_and_does_not_keep_others_from_being_pruned(
    shell: Shell, request: pytest.FixtureRequest, kind: str
) -> None:
    database = str(shell.folder / "runs.db" if kind == "sqlite" else request.getfixturevalue("postgres").database())
    async with open_store(parse_location(database)) as store:
        for place, id in enumerate(["root", "bad", "good"]):
            parent = "root" if id == "bad" else None
            await store.append(id, [*begin(id, parent, at=float(place)), *end(1, at=place + 0.5)], answer(id, "hi"))
    if kind == "sqlite":
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("UPDATE runs SET entries = x'5b' WHERE id = 'bad'")
            connection.commit()
    else:
        request.getfixturevalue("postgres").psql(database, "UPDATE mainspring_runs SET entries = '[' WHERE id = 'bad'")
    command = ("prune", "--keep", "1d", "--database", database)
    for deleted in (1, 0):
        pruned = await to_thread.run_sync(partial(shell.run, *command, "--json"))
        assert (pruned.code, pruned.out) == (1, f'{{"deleted":{deleted},"damaged":["bad"]}}\n')
        assert "left: bad; restore a backup, or delete them, too, with: mainspring prune --damaged" in pruned.err
    pruned = await to_thread.run_sync(partial(shell.run, *command, "--damaged"))
    assert (pruned.code, pruned.out, pruned.err) == (0, "2 runs are deleted\n", "")
    async with open_store(parse_location(database)) as store:
        assert (await store.list()).runs == ()
        assert await store.items(["msg_0"]) == {}
