"""`mainspring run` and `resume`: an agent at work; `mainspring runs`, `show`, `prune` and `vacuum`: what a database holds."""

import os
import sqlite3
import sys
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer
from anyio import to_thread
from msgspec import Struct
from msgspec.structs import replace

from mainspring.cli import options
from mainspring.cli.ask import follow_with_answers
from mainspring.cli.console import ConsoleWriter, fit_line, format_count
from mainspring.cli.context import EngineOptions, build_engine
from mainspring.cli.database import check_database, find_run, find_run_id, how_to_list, open_database
from mainspring.cli.exit import FAILURE, USAGE
from mainspring.cli.explain_end import explain_end
from mainspring.cli.output import LEAST_ROOM, format_moment, measure_cells, pad, say, say_more, split_columns, write_lines
from mainspring.cli.screen import STATUSES, Screen
from mainspring.cli.show_run import draw_run
from mainspring.cli.tenant_choice import choose_tenant
from mainspring.core.errors import CallerError, Interrupted, InvalidRequest, MainspringError
from mainspring.core.events import RunStarted
from mainspring.core.items import ApprovalResponse, FunctionCallOutput, Item, Json, Message
from mainspring.core.spec import ToolChoice
from mainspring.features.runs.run_files import WorkspaceFiles
from mainspring.ports import Filter, Pruned, RunStore, StoredRun
from mainspring.storage.choose_store import open_store
from mainspring.storage.location import Location
from mainspring.storage.run_rows import RUNS
from mainspring.storage.segment import tell_damaged
from mainspring.storage.sqlite import explain
from mainspring.storage.vacuum import compact

Preset = Annotated[
    Literal["responses", "iterative", "decision"],
    typer.Option(
        metavar="NAME",
        help="`responses` answers; `iterative` works until the task is done, and is asked once whether it is; "
        "`decision` takes few, deterministic turns.",
    ),
]
TITLES: tuple[str, ...] = ("run", "status", "started", "model", "prompt")


class ListedRun(Struct, frozen=True):
    """A run as `runs` lists it."""

    id: str
    status: str
    created_at: float
    model: str
    prompt: str
    previous: str | None = None
    tenant: str = ""


def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to do; `-` reads it from standard input.")],
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    backend_key: options.BackendKey = None,
    tool: options.Tools = None,
    builtin: options.Builtins = None,
    instructions: Annotated[str | None, typer.Option(metavar="TEXT", help="How to go about it.")] = None,
    preset: Preset = "responses",
    tool_choice: Annotated[
        str | None, typer.Option(metavar="NAME", help="Tool to begin with, or `required`, `none`. Default: the model chooses.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, metavar="N", help="Turns of the model. Default: the preset's.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.001, metavar="S", help="Seconds in all. Default: no limit.")] = None,
    database: options.DatabaseOfSettings = None,
    no_store: options.NoStore = False,
    config: options.Config = None,
    file: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Put it into the sandbox, where code can read it. Repeatable.")
    ] = None,
    save_files: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the files that code has made into this folder.")
    ] = None,
    previous: Annotated[str | None, typer.Option(metavar="RUN_ID", help="Go on from this run, or from the `last` one.")] = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Record all answers of the backend in this file.")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Ask this recording instead of the backend.")] = None,
    json: options.EventsAsJson = False,
) -> Coroutine[object, object, int]:
    """
    Runs an agent and shows it live.

    Examples:

        mainspring run "How long is a day on Mars?" --model qwen3 --base-url http://127.0.0.1:11434/v1
        mainspring run "Tidy up notes.txt" --tool mytools --preset iterative
        git diff | mainspring run - --instructions "Review this change."
        mainspring run "Plot it" --builtin code_interpreter --file a.csv --save-files plots
        mainspring run "Hello" --json | jq -c .event

    Ctrl-C cancels the run and keeps what it has done; a second Ctrl-C ends at once.
    """
    if previous is not None and no_store:
        raise InvalidRequest("--previous names a run of the database, and --no-store does without; leave one of them out")
    files = WorkspaceFiles(file or (), save_files)
    files.check()
    chosen = options.choose_database(database, config)
    where = None if no_store else chosen
    assembly = build_engine(
        EngineOptions(
            settings={"tools": options.as_texts(tool), "builtins": options.as_texts(builtin)},
            config=config,
            database=where,
            model=model,
            base_url=base_url,
            backend_key=backend_key,
            preset=preset,
            instructions=instructions,
            record=record,
            replay=replay,
        )
    )
    text = _read_prompt(prompt)
    limits: Json = {"max_turns": max_turns, "max_seconds": max_seconds}
    given = {name: limit for name, limit in limits.items() if limit is not None}
    choice = _parse_tool_choice(tool_choice)

    async def live() -> int:
        async with assembly.lifespan:
            try:
                parent = None if previous is None else await find_run_id(assembly.engine.store, previous)
                order = assembly.engine.order(text, previous=parent, tool_choice=choice, **given)
                await files.put(assembly, order)
                handle = await assembly.engine.start(order)
            except InvalidRequest as error:
                if error.param != "previous_response_id":
                    raise
                raise InvalidRequest(f"{error.message.rstrip('.')}; {how_to_list(chosen)}", param=error.param) from error
            code = await follow_with_answers(assembly, handle, where, as_json=json)
            await files.save(assembly, handle.run.spec)
            return code

    return live()


@options.expand_groups
def resume(
    run_id: Annotated[
        str | None, typer.Argument(metavar="RUN_ID", help="Run: its id, the beginning of it, or `last`.", show_default=False)
    ] = None,
    all: Annotated[bool, typer.Option("--all", help="Resume every unfinished run, one after the other.")] = False,
    onward: options.Continuation = options.Continuation(),  # noqa: B008 (frozen)
    json: options.EventsAsJson = False,
) -> Coroutine[object, object, int]:
    """
    Resumes runs whose process ended before they did.

    A model turn that was under way is asked again. A tool call that was under way is not repeated, unless its tool is declared
    repeatable: the model is told that its outcome is unknown. Pass the same `--tool` as to `run`. A run that another process is
    still working on is taken away from it.
    """
    if (run_id is None) is not all:
        raise typer.BadParameter("name one run, or pass --all", param_hint="RUN_ID")
    database = onward.choose_database()
    given = EngineOptions(
        settings={"tools": options.as_texts(onward.tool)},
        config=onward.config,
        database=database,
        model=onward.model,
        base_url=onward.base_url,
        backend_key=onward.backend_key,
    )
    return _resume_all(given, database, json) if run_id is None else _resume(run_id, given, database, json)


async def show(run_id: options.RunId, database: options.Database, json: options.AsJson = False) -> None:
    """Shows a run of the database as it was shown live, with the ids of its calls, or its Response object as JSON."""
    async with open_database(database) as engine:
        handle = await find_run(engine, run_id, database)
        if json:
            write_lines([handle.response])
            return
        try:
            await draw_run(handle, Screen(shows_ids=True))
        except Interrupted:
            say(
                f"run `{handle.id}` has not ended; resume it with: mainspring resume {handle.id}{options.name_database(database)}"
            )
    if (why := explain_end(handle.run, database)) is not None:
        say(why)


async def runs(
    database: options.Database,
    tenant: options.OneTenant = None,
    all_tenants: options.EveryTenant = False,
    limit: options.Limit = 20,
    json: options.AsJson = False,
) -> None:
    """Lists the runs of a database, newest first, and whose they are if there are tenants."""
    tenant = choose_tenant(tenant, all_tenants=all_tenants)
    async with open_database(database) as engine:
        page = await engine.store.list(limit=limit, only=Filter(tenant=tenant))
        newest = [await _summarize(engine.store, run) for run in page.runs]
    if json:
        write_lines(newest)
        return
    if not newest:
        say(f"tenant `{tenant}` has no runs here" if tenant else "there are no runs here; `mainspring run` makes one")
        return
    _print_table(newest)
    if page.has_more:
        say_more(limit)


async def vacuum(database: options.Database) -> None:
    """
    Writes a database file anew, without the room that deletions have left in it.

    New files give back that room by themselves, a little at a time. A file that was made before they did needs this once, and
    from then on does the same. It takes as much free space as the file has. Servers that write to it wait: stop them first if
    it is large.
    """
    file = check_database(database).file
    if file is None:
        raise InvalidRequest("PostgreSQL gives back room by itself (autovacuum)", param="database")
    async with open_store(database):  # which refuses what is no database of ours
        pass
    try:
        done = await to_thread.run_sync(compact, file)
    except sqlite3.Error as error:
        raise explain(error, file, RUNS) from error
    say(f"{file}: {done.before:,} bytes before, {done.after:,} now")


async def prune(
    database: options.Database,
    keep: Annotated[float, typer.Option(parser=options.parse_duration, metavar="TIME", help="Keep what ended since, as in 30d.")],
    damaged: Annotated[bool, typer.Option("--damaged", help="Delete those, too, that cannot be read.")] = False,
    json: options.AsJson = False,
) -> int:
    """
    Deletes the runs that ended longer ago than `--keep` says, with their logs and answers.

    What a kept run continues is kept with it. Conversations, approvals, budgets and the audit stay, too. It
    can be run while servers work. Runs that cannot be read are left and named, and the exit code is 1.
    """
    before, count, left = time.time() - keep, 0, list[str]()
    async with open_store(check_database(database)) as store:
        while (pruned := await store.prune(before, skip=left)) != Pruned():
            count += pruned.count
            if not damaged:
                left += pruned.damaged
                continue
            for run_id in pruned.damaged:
                await store.delete(run_id)
                count += 1
    if json:
        write_lines([{"deleted": count, "damaged": left}])
    else:
        print(f"{count} runs are deleted")
    if not left:
        return 0
    say(tell_damaged(left))
    return FAILURE


async def _resume(run_id: str, given: EngineOptions, database: Location, as_json: bool) -> int:
    async with open_database(database) as reading:
        left = (await find_run(reading, run_id, database)).run
    if left.status not in ("in_progress", "queued", "requires_action"):
        show = f"mainspring show {left.spec.id}{options.name_database(database)}"
        say(f"run `{left.spec.id}` has ended ({left.status}), so nothing is left to resume; show it with: {show}")
        return 0
    assembly = build_engine(replace(given, model=given.model or left.spec.model))
    assembly.check_run(left)
    async with assembly.lifespan:
        handle = await assembly.engine.resume(left.spec.id)
        return await follow_with_answers(assembly, handle, database, as_json=as_json)


async def _resume_all(given: EngineOptions, database: Location, as_json: bool) -> int:
    async with open_database(database) as reading:
        unfinished = await reading.store.list_unfinished()
    if not unfinished:
        say(f"all runs in {database} have ended")
    code = 0
    for run_id in unfinished:
        try:
            code = max(code, await _resume(run_id, given, database, as_json))
        except MainspringError as error:
            say(f"run `{run_id}` was not resumed: {error.message}")
            code = max(code, USAGE if isinstance(error, CallerError) else FAILURE)
        if code >= 128:
            break
    return code


def _parse_tool_choice(given: str | None) -> ToolChoice:
    match given:
        case None | "auto":
            return ToolChoice()
        case "required" | "none" as mode:
            return ToolChoice(mode)
        case name:
            return ToolChoice("required", name=name)


def _read_prompt(given: str) -> str:
    """The prompt, from standard input if it is `-`. Bytes that are no text become replacement characters."""
    data = sys.stdin.buffer.read() if given == "-" else os.fsencode(given)
    text = data.decode("utf-8", "replace").strip()
    if not text:
        raise InvalidRequest("the prompt is empty; say what to do, or pass `-` and write it to standard input")
    return text


async def _summarize(store: RunStore, run: StoredRun) -> ListedRun:
    first = (await store.events(run.id))[0].event
    given = first.spec.input if isinstance(first, RunStarted) else ()
    prompt = next((item.text for item in given if isinstance(item, Message) and item.text), "") or _describe_answers(given)
    return ListedRun(run.id, run.status, run.created_at, run.model, fit_line(prompt, 80), run.parent, run.tenant)


def _describe_answers(given: Sequence[Item]) -> str:
    """What a run was given that goes on without a message: a person's answers, or the outputs of calls."""
    said = ["yes" if item.approve else "no" for item in given if isinstance(item, ApprovalResponse)]
    outputs = len([item for item in given if isinstance(item, FunctionCallOutput)])
    return f"({', '.join([*said, *([format_count(outputs, 'output')] if outputs else [])])})" if said or outputs else ""


def _print_table(runs: Sequence[ListedRun]) -> None:
    """A line per run, in columns; the prompt takes the room that is left, and what has no room at all a line below."""
    writer = ConsoleWriter()
    has_tenants = any(run.tenant for run in runs)
    titles = ("run", "tenant", *TITLES[1:]) if has_tenants else TITLES
    rows = [titles, *[_cells(run, has_tenants=has_tenants) for run in runs]]
    widths = [max([measure_cells(row[column]) for row in rows]) for column in range(len(titles))]
    first = ("", *(("cyan",) if has_tenants else ()))
    with writer:
        for row in rows:
            styles = ("dim",) * len(row) if row is titles else (*first, STATUSES.get(row[len(first)], "yellow"), "dim", "dim", "")
            for margin, columns in split_columns(widths, writer.width if writer.is_terminal else sys.maxsize):
                if margin and not any(row[column] for column in columns):
                    continue
                writer.put(margin)
                for column in columns[:-1]:
                    writer.put(f"{pad(row[column], widths[column])}  ", styles[column])
                left = writer.width - len(margin) - sum([widths[column] + 2 for column in columns[:-1]])
                writer.put(f"{fit_line(row[columns[-1]], max(left, LEAST_ROOM))}\n", styles[columns[-1]])


def _cells(run: ListedRun, *, has_tenants: bool) -> tuple[str, ...]:
    whose = (fit_line(run.tenant or "-", 16),) if has_tenants else ()
    started = format_moment(run.created_at, "%b %d %H:%M")
    return run.id, *whose, run.status, started, fit_line(run.model, 24), run.prompt
