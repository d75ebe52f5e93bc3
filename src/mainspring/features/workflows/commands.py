"""`mainspring workflows`: the workflows of the settings or of a folder, and one of them at work."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from mainspring.app.engine import Engine
    from mainspring.app.settings import Settings
    from mainspring.core.items import Json
    from mainspring.features.workflows.workflow_definition import Workflow
    from mainspring.features.workflows.workflow_folder import WorkflowFolders
    from mainspring.features.workflows.workflows import WorkflowHandle

RUN = """
Carries a workflow out, and shows its steps live.

Examples:

    mainspring workflows run digest --input topic=tides
    mainspring workflows run release --inputs '{"dry": true, "tags": ["a"]}' --dry-run
    mainspring workflows run build --builtin shell --database runs.db

Ctrl-C cancels it. If the process is killed, `mainspring workflows resume`, or the next start of the server, goes on where it was.
"""
RESUME = """
Takes up the workflow runs of the database whose process ended before they did.

A step that was under way is done again if that can do no harm: the work of an agent is gone on with; a command, or a request that
changes something, is not repeated unless its step says `repeatable: true`.
"""

app = typer.Typer(name="workflows", help="Lists, shows, runs and resumes workflows that are defined in files.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The workflow.")]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", metavar="DIR", help="A folder of workflows. Repeatable. Default: those of the settings."),
]
Agents = Annotated[
    list[Path] | None,
    typer.Option("--agents", metavar="DIR", help="A folder of agents. Repeatable. Default: those of the settings."),
]
Model = Annotated[str | None, typer.Option(metavar="NAME", help="A model, as for `mainspring serve`.")]
Database = Annotated[Path | None, typer.Option(metavar="FILE", help="Where runs are kept. Default: the settings' database.")]
Builtins = Annotated[list[str] | None, typer.Option("--builtin", metavar="NAME", help="As for `mainspring serve`. Repeatable.")]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings. Default: mainspring.toml, if there is one.")]
Events = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON, as it is recorded.")]


@app.command("list")
def list_workflows(
    folder: Folders = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print every workflow as a line of JSON.")] = False,
) -> int:
    """Lists the workflows, and what is wrong with definitions that cannot be used; then the exit code is 1."""
    from mainspring.cli.json_lines import write_lines, write_table
    from mainspring.cli.plain import say
    from mainspring.features.workflows.view import shown_workflow

    folders = _folders(_settings({"workflows": _texts(folder)}, config))
    known = [folders.definitions[name] for name in sorted(folders.definitions)]
    if json:
        write_lines([shown_workflow(workflow) for workflow in known])
    elif known:
        write_table([(each.name, each.version, f"{len(each.steps)} steps", each.description) for each in known])
    for problem in folders.problems:
        say(problem)
    return 1 if folders.problems else 0


@app.command()
def show(
    name: Name,
    folder: Folders = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print the definition as JSON instead.")] = False,
) -> int:
    """Draws the steps of a workflow in the order in which they can begin."""
    from mainspring.cli.json_lines import write_lines
    from mainspring.cli.plain import clean
    from mainspring.features.workflows.step_screen import drawn
    from mainspring.features.workflows.view import shown_workflow

    workflow = _folders(_settings({"workflows": _texts(folder)}, config)).get(name)
    if json:
        write_lines([shown_workflow(workflow)])
    else:
        print(clean("\n".join(drawn(workflow))))
    return 0


@app.command("run", help=RUN)
def run_workflow(
    name: Name,
    input: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An input. Repeatable.")] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON", help="All inputs; `-` reads them from standard input.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    folder: Folders = None,
    agents: Agents = None,
    model: Model = None,
    builtin: Builtins = None,
    database: Database = None,
    config: Config = None,
    json: Events = False,
) -> int:
    from mainspring.cli.follow import launch

    settings = _settings(_given(folder, agents, model, builtin, database), config)
    given = _inputs(_folders(settings).get(name), input or (), inputs)
    engine = _engine(settings)

    async def live() -> int:
        async with engine:
            handle = await engine.workflows.start(name, given, dry_run=dry_run)
            return await _follow(engine, handle, settings.database, as_json=json)

    return launch(live())


@app.command(help=RESUME)
def resume(
    folder: Folders = None,
    agents: Agents = None,
    model: Model = None,
    builtin: Builtins = None,
    database: Database = None,
    config: Config = None,
    json: Events = False,
) -> int:
    from mainspring.cli.follow import launch
    from mainspring.cli.plain import say

    settings = _settings(_given(folder, agents, model, builtin, database), config)
    engine = _engine(settings)

    async def live() -> int:
        async with engine:
            handles = await engine.workflows.resume_all()
            if not handles:
                say(f"all workflow runs in {settings.database} have ended, or are carried out by another process")
            return max([await _follow(engine, handle, settings.database, as_json=json) for handle in handles], default=0)

    return launch(live())


def _given(
    folder: list[Path] | None, agents: list[Path] | None, model: str | None, builtin: list[str] | None, database: Path | None
) -> dict[str, object]:
    named: dict[str, object] = {"workflows": _texts(folder), "agents": _texts(agents), "model": model}
    return {**named, "builtins": tuple(builtin) if builtin else None, "database": None if database is None else str(database)}


def _settings(given: dict[str, object], config: Path | None) -> "Settings":
    from mainspring.app.settings import load

    return load(given, file=config)


def _folders(settings: "Settings") -> "WorkflowFolders":
    """Raises `InvalidRequest` if no folder of workflows is named anywhere."""
    import logging

    from mainspring.core.errors import InvalidRequest
    from mainspring.features.workflows.workflow_folder import WorkflowFolders

    if not settings.workflows:
        raise InvalidRequest("no folder of workflows is named; pass --folder DIR, or set `workflows` in mainspring.toml")
    # What is wrong is said once, in words of our own.
    logging.getLogger("mainspring").addHandler(logging.NullHandler())
    return WorkflowFolders([Path(folder) for folder in settings.workflows])


def _engine(settings: "Settings") -> "Engine":
    from mainspring.app.serve import chosen

    return chosen(settings).engine


async def _follow(engine: "Engine", handle: "WorkflowHandle", database: str, *, as_json: bool) -> int:
    """Shows a run to its end; the exit code tells how that was."""
    from mainspring.cli.follow import Stop, beside
    from mainspring.features.workflows.step_screen import Progress

    progress = Progress(handle.id, database, as_json=as_json)
    with Stop() as stop:

        async def cancel() -> None:
            await stop.wanted.wait()
            await engine.workflows.cancel(handle.id, tenant=handle.run.order.tenant)

        async with beside(cancel()):
            async for record in handle.events():
                progress.draw(record)
    if stop.number is not None and handle.run.status == "cancelled":
        return 128 + stop.number
    progress.end(handle.run)
    return 0 if handle.run.status in ("success", "skipped") else 1


def _texts(paths: list[Path] | None) -> tuple[str, ...] | None:
    return tuple(map(str, paths)) if paths else None


def _inputs(workflow: "Workflow", pairs: Sequence[str], whole: str | None) -> "Json":
    """The inputs that the options name: as text where that is wanted, else as JSON, if it is that. Raises `InvalidRequest`."""
    import sys

    from mainspring.core.errors import InvalidRequest
    from mainspring.definitions.parameters import parse_input

    text = sys.stdin.read() if whole == "-" else whole or "{}"
    try:
        inputs = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"--inputs must be a JSON object: {error}", param="inputs") from None
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise InvalidRequest(f"`{pair[:80]}` is no input; write --input NAME=VALUE", param="input")
        parameter = workflow.inputs.get(name)
        inputs[name] = value if parameter is None or parameter.type == "string" else parse_input(value)
    return inputs
