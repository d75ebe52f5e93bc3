"""The commands and their options. Each imports what does its work only when it is called: start-up is a feature."""

from pathlib import Path
from typing import Annotated, Literal

import typer

import mainspring
from mainspring.features.agents.commands import app as agents
from mainspring.features.approvals.commands import app as approvals
from mainspring.features.audit.commands import app as audit
from mainspring.features.budgets.commands import app as budgets
from mainspring.features.config.commands import app as config_group
from mainspring.features.governance.commands import app as policy
from mainspring.features.keys.commands import app as keys
from mainspring.features.mcp.commands import app as mcp
from mainspring.features.memory.commands import app as memory
from mainspring.features.traces.commands import app as traces
from mainspring.features.workflows.commands import app as workflows
from mainspring_tasks.decision_commands import app as decisions
from mainspring_tasks.task_commands import app as tasks

HELP = """
An agent engine you host yourself: any model, your tools, every step recorded.

**See it work**, without a key or a network:

    mainspring demo

**Ask a model**: one whose key is in the environment, one of a server on this machine, or else a small one of our own:

    mainspring run "Why is the sky blue?"
    mainspring models
    mainspring run "Why is the sky blue?" --model anthropic/claude-sonnet-5-5

**Give it tools**: Python functions, here all of `mytools.py` that are marked with `@tool`:

    mainspring run "Tidy up notes.txt" --tool mytools

**Keep runs** in a file, look at them, and go on from one:

    mainspring run "Plan a trip" --database runs.db
    mainspring runs --database runs.db
    mainspring run "Cheaper!" --database runs.db --previous resp_...
"""
EXIT_CODES = """
Exit codes: 0 the run is completed, or requires action; 1 it failed, is incomplete or cancelled, or something else went wrong;
2 the command or its options are not right; 130, 143 it was stopped by Ctrl-C or SIGTERM; 141 nobody read the output any more.
MAINSPRING_DEBUG=1 shows tracebacks and the log.
"""
SERVE = """
Serves the OpenAI Responses API, with the tool loop behind it.

Examples:

    mainspring serve --base-url http://127.0.0.1:11434/v1
    mainspring serve --model scripted:script.json --port 0
    mainspring serve --base-url https://example.com/v1 --tool mytools --database /var/lib/mainspring.db

Without one it takes what it finds: a key in the environment, a model server on this machine, or else a small model of its own.
Settings come from mainspring.toml, the environment (MAINSPRING_PORT
and so on) and these options, the later ones winning. Ctrl-C stops it: runs may finish for a while, and the next start takes
up the rest.
"""
RUN = """
Runs an agent and shows it live.

Examples:

    mainspring run "How long is a day on Mars?" --model qwen3 --base-url http://127.0.0.1:11434/v1
    mainspring run "Tidy up notes.txt" --tool mytools --preset iterative
    git diff | mainspring run - --instructions "Review this change."
    mainspring run "Hello" --json | jq -c .event

Ctrl-C cancels the run and keeps what it has done; a second Ctrl-C ends at once.
"""
RESUME = """
Takes up runs again whose process ended before they did.

A model turn that was under way is asked again. A tool call that was under way is not repeated, unless its tool is declared
repeatable: the model is told that its outcome is unknown. Pass the same `--tool` as to `run`. A run that another process is
still working on is taken away from it.
"""
DOCTOR = """
Asks every configured model a few small questions, and shows what it can really do.

Whether it answers, streams and counts tokens; calls a tool, and two at once; keeps to a JSON schema; answers again after it was
stopped. What fails comes with what to do about it.

    mainspring doctor
    mainspring doctor --model anthropic/claude-sonnet-5-5
    mainspring doctor --base-url http://127.0.0.1:8000/v1 --model qwen3
"""
REPLAY = """
Replays a run of the database with no model and no tool call, and shows that it ends the same.

The loop decides again at every step, and what it wants must be what happened; the answers of the model, the verdicts and the
results of tools are those of the log. Exit code 1 if the log and the loop do not agree, with the event where that begins.
"""
CHAT = """
Talks about your tasks in plain language, and does what you say: add, list, change, complete, delete. Deleting asks first.

Tasks, conversations and the log of decisions are kept in your data folder. Any model will do, also none of your own:

    mainspring chat
    mainspring chat "What is left to do?" --model local
    mainspring chat --conversation conv_... --model anthropic/claude-sonnet-5-5
"""
SHOW = """
Shows a run of the database as it was shown live.
"""

app = typer.Typer(name="mainspring", help=HELP, epilog=EXIT_CODES, add_completion=False, rich_markup_mode="markdown")
app.add_typer(agents)
app.add_typer(approvals)
app.add_typer(audit)
app.add_typer(budgets)
app.add_typer(config_group)
app.add_typer(decisions)
app.add_typer(keys)
app.add_typer(mcp)
app.add_typer(policy)
app.add_typer(traces)
app.add_typer(workflows)
app.add_typer(memory)
app.add_typer(tasks)

Model = Annotated[
    str | None,
    typer.Option(
        envvar="MAINSPRING_MODEL", metavar="NAME", help="A model, as `PROVIDER/NAME`, `local`, or `scripted:FILE` for a script."
    ),
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="An OpenAI-compatible backend, asked for every model."),
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        metavar="KEY", help="Its key. Others on the machine can see options: better export it, as OPENAI_API_KEY and so on."
    ),
]
Tools = Annotated[
    list[str] | None,
    typer.Option(
        "--tool", metavar="MODULE:FUNCTION", help="A Python function to call, or MODULE for every `@tool` in it. Repeatable."
    ),
]
Builtins = Annotated[
    list[str] | None,
    typer.Option(
        "--builtin",
        metavar="NAME",
        help="`shell`, `code_interpreter` or `browser`, in a sandbox, `file_ops`, `web_fetch`. Repeatable.",
    ),
]
Preset = Annotated[
    Literal["responses", "iterative", "decision"],
    typer.Option(
        metavar="NAME",
        help="`responses` answers; `iterative` works until the task is done, and is asked once whether it is; "
        "`decision` takes few, deterministic turns.",
    ),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings. Default: mainspring.toml, if there is one.")]
Database = Annotated[Path, typer.Option(metavar="FILE", help="The file that holds the runs.", show_default=False)]
Events = Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON, as it is recorded.")]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
) -> None:
    if version:
        print(f"mainspring {mainspring.__version__}")
    elif context.invoked_subcommand is None:
        print(context.get_help())


@app.command(help=SERVE)
def serve(
    host: Annotated[str | None, typer.Option(metavar="HOST", help="Where to listen. Default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=0, max=65535, metavar="PORT", help="Default: 8080; 0 picks one.")] = None,
    database: Annotated[str | None, typer.Option(metavar="FILE", help="What keeps it all. Default: mainspring.db.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="For requests that name none, or `scripted:FILE`.")] = None,
    base_url: BaseUrl = None,
    backend_key: ApiKey = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="A key that every client must send. Better export MAINSPRING_API_KEY."),
    ] = None,
    tool: Tools = None,
    builtin: Builtins = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="HOST", help="A private host that requests may name, as for MCP. Repeatable.")
    ] = None,
    config: Config = None,
) -> int:
    from mainspring.app.settings import load
    from mainspring.cli.server_process import become_server

    given = {"host": host, "port": port, "database": database, "model": model, "base_url": base_url}
    secrets = {"backend_key": backend_key, "api_key": api_key}
    lists = {
        "tools": tuple(tool) if tool else None,
        "builtins": tuple(builtin) if builtin else None,
        "allow_hosts": tuple(allow_host) if allow_host else None,
    }
    become_server(load({**given, **secrets, **lists}, file=config))


@app.command(help=RUN)
def run(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to do; `-` reads it from standard input.")],
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tool: Tools = None,
    builtin: Builtins = None,
    instructions: Annotated[str | None, typer.Option(metavar="TEXT", help="How to go about it.")] = None,
    preset: Preset = "responses",
    tool_choice: Annotated[
        str | None, typer.Option(metavar="NAME", help="A tool to begin with, or `required`, `none`. Default: the model chooses.")
    ] = None,
    max_turns: Annotated[int | None, typer.Option(min=1, metavar="N", help="Turns of the model. Default: the preset's.")] = None,
    max_seconds: Annotated[float | None, typer.Option(min=0.001, metavar="S", help="Seconds in all. Default: any.")] = None,
    database: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to keep the run. Default: in memory.")] = None,
    previous: Annotated[str | None, typer.Option(metavar="RUN_ID", help="Go on from this run of the database.")] = None,
    record: Annotated[Path | None, typer.Option(metavar="FILE", help="Keep all that the backend answers in this file.")] = None,
    replay: Annotated[Path | None, typer.Option(metavar="FILE", help="Ask this recording instead of the backend.")] = None,
    json: Events = False,
) -> int:
    from mainspring.features.runs.run_command import Order, Setup, run

    setup = Setup(model, base_url, api_key, tuple(tool or ()), preset, instructions, record, replay, tuple(builtin or ()))
    return run(Order(prompt, previous, max_turns, max_seconds, tool_choice), setup, database, as_json=json)


@app.command(help=RESUME)
def resume(
    database: Database,
    run_id: Annotated[str | None, typer.Argument(metavar="RUN_ID", help="The run.", show_default=False)] = None,
    all: Annotated[bool, typer.Option("--all", help="Every unfinished run, one after the other.")] = False,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="As for `run`. Default: the run's own.")] = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    tool: Tools = None,
    config: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The settings that it began under.", show_default=False)
    ] = None,
    json: Events = False,
) -> int:
    from mainspring.app.settings import load
    from mainspring.features.runs.run_command import Setup, resume

    if (run_id is None) is not all:
        raise typer.BadParameter("name one run, or pass --all", param_hint="RUN_ID")
    known = load({}, file=config)
    setup = Setup(model, base_url, api_key, tuple(tool or ()), agents=known.agents, skills=known.skills, config=config)
    return resume(run_id, setup, database, as_json=json)


@app.command()
def runs(
    database: Database,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print every run as a line of JSON.")] = False,
) -> int:
    """Lists the runs of a database, newest first."""
    from mainspring.features.runs.show_command import runs

    return runs(database, limit, as_json=json)


@app.command(help=SHOW)
def show(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run.")],
    database: Database,
    json: Annotated[bool, typer.Option("--json", help="Print the Response object instead.")] = False,
) -> int:
    from mainspring.features.runs.show_command import show

    return show(run_id, database, as_json=json)


@app.command(help=CHAT)
def chat(
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="One message. Default: as many as you type.")] = None,
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    user: Annotated[str, typer.Option(metavar="NAME", help="Whose tasks they are.")] = "local",
    conversation: Annotated[str | None, typer.Option(metavar="ID", help="Go on with this one. Default: a new one.")] = None,
    folder: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where all is kept. Default: your data folder.")] = None,
    tasks: Annotated[
        str | None,
        typer.Option(metavar="FILE|URL", help="The tasks: a file, postgresql://..., or a task server. Default: there."),
    ] = None,
    tasks_secret_file: Annotated[Path | None, typer.Option(metavar="FILE", help="The secret of that task server.")] = None,
    constitution: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Instructions for the model. Default: our own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print every decision as a line of JSON.")] = False,
) -> int:
    from mainspring.app.settings import load
    from mainspring.features.runs.run_command import Setup
    from mainspring_tasks.chat_command import Talk, chat
    from mainspring_tasks.decision_settings import check_constitution, with_options
    from mainspring_tasks.task_commands import data_folder

    given = {"tasks": tasks, "tasks_secret_file": tasks_secret_file, "constitution": constitution, "model": model}
    named = {name: str(value) for name, value in given.items() if value is not None}
    settings = with_options(load({}).decisions, named)
    check_constitution(settings)
    model = model or settings.model
    talk = Talk(user, conversation, message)
    return chat(talk, Setup(model, base_url, api_key, ()), settings, folder or data_folder(), as_json=json)


@app.command(help=REPLAY)
def replay(
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", help="The run.")],
    database: Database,
    json: Annotated[bool, typer.Option("--json", help="Print what came of it as JSON.")] = False,
) -> int:
    from mainspring.features.traces.replay_command import replay

    return replay(run_id, database, as_json=json)


@app.command()
def explain(
    call_id: Annotated[str, typer.Argument(metavar="CALL_ID", help="The call.")],
    database: Database,
) -> int:
    """Says which rule decided about a call and why, who approved it, and what came of it."""
    from mainspring.features.audit.commands import explain

    return explain(call_id, database)


@app.command()
def models(
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print every model as a line of JSON.")] = False,
) -> int:
    """Lists the models that can be asked: configured, or found by keys in the environment and servers on this machine."""
    from mainspring.features.models.commands import models

    return models(base_url, api_key, config, as_json=json)


@app.command(help=DOCTOR)
def doctor(
    model: Model = None,
    base_url: BaseUrl = None,
    api_key: ApiKey = None,
    config: Config = None,
    seconds: Annotated[float, typer.Option(min=1, metavar="S", help="How long each question may take.")] = 120.0,
    json: Annotated[bool, typer.Option("--json", help="Print every finding as a line of JSON.")] = False,
) -> int:
    from mainspring.features.models.commands import doctor

    return doctor(model, base_url, api_key, config, as_json=json, seconds=seconds)


@app.command()
def demo(
    json: Events = False,
    fast: Annotated[bool, typer.Option("--fast", help="Do not pause to be read.")] = False,
) -> int:
    """Shows an agent at work: a scripted model with real tools, no key, no network."""
    from mainspring.features.runs.demo_command import demo

    return demo(as_json=json, fast=fast)
