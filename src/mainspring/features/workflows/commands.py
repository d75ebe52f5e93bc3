"""`mainspring workflows`: the workflows of the settings or of a folder, and one of them at work."""

from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli import options
from mainspring.cli.context import Assembly, EngineOptions, build_engine, load_settings
from mainspring.cli.output import report_problems, say, write_lines, write_table, write_text
from mainspring.cli.show_run import cancel_on_signal
from mainspring.core.errors import InvalidRequest
from mainspring.core.items import Json
from mainspring.definitions.parameters import parse_input
from mainspring.features.workflows.step_screen import StepScreen, draw_steps
from mainspring.features.workflows.view import render_workflow
from mainspring.features.workflows.workflow_definition import Workflow
from mainspring.features.workflows.workflow_folder import WorkflowFolders
from mainspring.features.workflows.workflows import WorkflowHandle, Workflows
from mainspring.storage.location import Location, parse_location

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The workflow, as `list` names it.")]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", metavar="DIR", help="Folder of workflows. Repeatable. Default: those of the settings."),
]
ServerModel = Annotated[str | None, typer.Option("--model", metavar="NAME", help="As for `mainspring serve`.")]


class WorkflowOptions(Struct, frozen=True):
    """The options of a command that carries workflows out as the server would."""

    folder: Folders = None
    agents: options.AgentFolders = None
    model: ServerModel = None
    builtin: options.Builtins = None
    database: options.DatabaseOfSettings = None
    config: options.Config = None


class WorkflowSettings(Struct, frozen=True):
    """The settings that these commands read."""

    workflows: tuple[str, ...]
    database: str


@app.command("list")
async def list_workflows(folder: Folders = None, config: options.Config = None, json: options.AsJson = False) -> int:
    """Lists the workflows, and the errors in definitions that cannot be used; then the exit code is 1."""
    folders = _read_folders(load_settings(WorkflowSettings, config, workflows=options.as_texts(folder)))
    known = [folders.definitions[name] for name in sorted(folders.definitions)]
    if json:
        write_lines([render_workflow(workflow) for workflow in known])
    elif known:
        write_table([(each.name, each.version, f"{len(each.steps)} steps", each.description) for each in known])
    return report_problems(folders.problems)


@app.command()
async def show(name: Name, folder: Folders = None, config: options.Config = None, json: options.AsJson = False) -> None:
    """Draws the steps of a workflow in the order in which they can begin, or prints its definition as JSON."""
    workflow = _read_folders(load_settings(WorkflowSettings, config, workflows=options.as_texts(folder))).get(name)
    if json:
        write_lines([render_workflow(workflow)])
    else:
        write_text("\n".join(draw_steps(workflow)))


@app.command("run")
@options.expand_groups
def run_workflow(
    name: Name,
    input: options.InputPairs = None,
    inputs: options.InputObject = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")] = False,
    server: WorkflowOptions = WorkflowOptions(),  # noqa: B008 (frozen)
    json: options.EventsAsJson = False,
) -> Coroutine[object, object, int]:
    """
    Runs a workflow, and shows its steps live.

    Examples:

        mainspring workflows run digest --input topic=tides
        mainspring workflows run release --inputs '{"dry": true, "tags": ["a"]}' --dry-run
        mainspring workflows run build --builtin shell --database runs.db

    Ctrl-C cancels it. If the process is killed, `mainspring workflows resume`, or the next start of the server, goes on where it
    was.
    """
    chosen = _choose_options(server)
    settings = load_settings(WorkflowSettings, server.config, **chosen.settings)
    given = _read_inputs(_read_folders(settings).get(name), input, inputs)
    assembly = build_engine(chosen)

    async def live() -> int:
        async with assembly.lifespan:
            handle = await assembly.find(Workflows).start(name, given, dry_run=dry_run)
            return await _follow(assembly, handle, parse_location(settings.database), as_json=json)

    return live()


@app.command()
@options.expand_groups
def resume(
    server: WorkflowOptions = WorkflowOptions(),  # noqa: B008 (frozen)
    json: options.EventsAsJson = False,
) -> Coroutine[object, object, int]:
    """
    Resumes the workflow runs of the database whose process ended before they did.

    A step that was under way is done again if that can do no harm: an agent goes on with its work; a command, or a request that
    changes something, is not repeated unless its step says `repeatable: true`.
    """
    chosen = _choose_options(server)
    where = parse_location(load_settings(WorkflowSettings, server.config, **chosen.settings).database)
    assembly = build_engine(chosen)

    async def live() -> int:
        async with assembly.lifespan:
            handles = await assembly.find(Workflows).resume_all()
            if not handles:
                say(f"all workflow runs in {where} have ended, or are carried out by another process")
            return max([await _follow(assembly, handle, where, as_json=json) for handle in handles], default=0)

    return live()


def _choose_options(server: WorkflowOptions) -> EngineOptions:
    given = {
        "workflows": options.as_texts(server.folder),
        "agents": options.as_texts(server.agents),
        "builtins": options.as_texts(server.builtin),
        "model": server.model,
        "database": None if server.database is None else server.database.given,
    }
    return EngineOptions(kind="server", settings=given, config=server.config)


def _read_folders(settings: WorkflowSettings) -> WorkflowFolders:
    """Raises `InvalidRequest` if no folder of workflows is named anywhere."""
    if not settings.workflows:
        raise InvalidRequest("no folder of workflows is named; pass --folder DIR, or set `workflows` in mainspring.toml")
    return WorkflowFolders([Path(folder) for folder in settings.workflows])


async def _follow(assembly: Assembly, handle: WorkflowHandle, database: Location, *, as_json: bool) -> int:
    """Shows a run to its end; the exit code tells how that was."""
    progress = StepScreen(handle.id, database, as_json=as_json)
    cancel = partial(assembly.find(Workflows).cancel, handle.id, tenant=handle.run.order.tenant)
    async with cancel_on_signal(cancel) as stop:
        async for record in handle.events():
            progress.draw(record)
    if stop.number is not None and handle.run.status == "cancelled":
        return 128 + stop.number
    progress.end(handle.run)
    return 0 if handle.run.status in ("success", "skipped") else 1


def _read_inputs(workflow: Workflow, pairs: Sequence[str] | None, whole: str | None) -> Json:
    """The inputs of the options; values that the workflow does not take as text are read as JSON, if they are that."""
    inputs = options.read_inputs(pairs, whole)
    for name in [pair.partition("=")[0] for pair in pairs or ()]:
        parameter = workflow.inputs.get(name)
        if parameter is not None and parameter.type != "string":
            inputs[name] = parse_input(str(inputs[name]))
    return inputs
