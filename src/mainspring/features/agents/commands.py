"""`mainspring agents`: the agents of the settings or of a folder, and one of them at work."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from mainspring.app.settings import Settings
    from mainspring.core.items import Json
    from mainspring.features.agents.agent_registry import AgentRegistry
    from mainspring.features.skills.skill_folder import SkillFolders

RUN = """
Has an agent work on its inputs, and shows it live.

Examples:

    mainspring agents run code-review --input path=src --builtin file_ops

    mainspring agents run summary --inputs '{"text": "..."}' --once

    cat ticket.json | mainspring agents run triage --inputs - --level 1 --database runs.db
"""

app = typer.Typer(name="agents", help="Lists, shows and runs agents that are defined in files.")

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent.")]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", metavar="DIR", help="A folder of agents. Repeatable. Default: those of the settings."),
]
Config = Annotated[Path | None, typer.Option(metavar="FILE", help="Settings. Default: mainspring.toml, if there is one.")]


@app.command("list")
def list_agents(
    folder: Folders = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print every agent as a line of JSON.")] = False,
) -> int:
    """Lists the agents, and what is wrong with definitions that cannot be used; then the exit code is 1."""
    from mainspring.cli.plain import say

    registry = _registry(_settings(folder, config))
    for definition in registry.definitions.values():
        status = "" if definition.status == "active" else f"({definition.status}) "
        told = f"{definition.name}  {definition.version}  {definition.role}  {status}{' '.join(definition.description.split())}"
        print(msgspec.json.encode(definition).decode() if json else told.rstrip())
    for problem in registry.problems:
        say(problem)
    return 1 if registry.problems else 0


@app.command()
def show(
    name: Name,
    folder: Folders = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print the definition as JSON instead.")] = False,
) -> int:
    """Shows what an agent is told about itself."""
    from mainspring.features.agents.agent_prompt import system_prompt

    settings = _settings(folder, config)
    skills = _skills(settings)
    definition = _registry(settings, skills).get(name)
    told = system_prompt(definition, skills=[skills.definitions[skill] for skill in definition.skills])
    print(msgspec.json.encode(definition).decode() if json else told)
    return 0


@app.command("run", help=RUN)
def run_agent(
    name: Name,
    input: Annotated[list[str] | None, typer.Option(metavar="NAME=VALUE", help="An input. Repeatable.")] = None,
    inputs: Annotated[str | None, typer.Option(metavar="JSON", help="All inputs; `-` reads them from standard input.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One turn, without tools.")] = False,
    level: Annotated[
        int | None, typer.Option(min=0, max=3, metavar="N", help="How far it may go on its own: 0 reads only, 3 does all.")
    ] = None,
    max_iterations: Annotated[int, typer.Option(min=1, metavar="N", help="Turns of the model.")] = 20,
    confirm: Annotated[bool, typer.Option("--confirm/--no-confirm", help="Ask it once whether it is done.")] = True,
    model: Annotated[
        str | None, typer.Option(envvar="MAINSPRING_MODEL", metavar="NAME", help="A model, as for `mainspring run`.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="An OpenAI-compatible backend.")] = None,
    api_key: Annotated[str | None, typer.Option(metavar="KEY", help="Its key. Better export it.")] = None,
    tool: Annotated[list[str] | None, typer.Option(metavar="MODULE:FUNCTION", help="A Python function. Repeatable.")] = None,
    builtin: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="`shell`, `code_interpreter`, `file_ops`, `web_fetch`. Repeatable.")
    ] = None,
    database: Annotated[Path | None, typer.Option(metavar="FILE", help="Where to keep the run. Default: in memory.")] = None,
    folder: Folders = None,
    config: Config = None,
    json: Annotated[bool, typer.Option("--json", help="Print every event as a line of JSON, as it is recorded.")] = False,
) -> int:
    from mainspring.cli.follow import follow, launch
    from mainspring.features.agents.agent_inputs import parse_inputs
    from mainspring.features.agents.agent_result import ToolLoopConfig
    from mainspring.features.runs.run_command import Setup, view_for

    settings = _settings(folder, config, tools=tuple(tool) if tool else None, builtins=tuple(builtin) if builtin else None)
    setup = Setup(model, base_url, api_key, (), settings=settings)
    loop = None if once else ToolLoopConfig(max_iterations=max_iterations, enable_double_confirmation=confirm)
    given = _inputs(input or (), inputs)
    engine = setup.engine(database)

    async def live() -> int:
        async with engine:
            told = parse_inputs(engine.agents.registry.get(name), given)
            handle = await engine.agents.start(name, told, loop, autonomy_level=level)
            return await follow(handle, view_for(json), database)

    return launch(live())


def _settings(folders: list[Path] | None, config: Path | None, **given: object) -> "Settings":
    """The settings in force. Raises `InvalidRequest` if no folder of agents is named anywhere."""
    from mainspring.app.settings import load
    from mainspring.core.errors import InvalidRequest

    settings = load({"agents": tuple(map(str, folders)) if folders else None, **given}, file=config)
    if not settings.agents:
        raise InvalidRequest("no folder of agents is named; pass --folder DIR, or set `agents` in mainspring.toml")
    return settings


def _skills(settings: "Settings") -> "SkillFolders":
    from mainspring.features.skills.skill_folder import SkillFolders

    return SkillFolders([Path(folder) for folder in settings.skills])


def _registry(settings: "Settings", skills: "SkillFolders | None" = None) -> "AgentRegistry":
    import logging

    from mainspring.features.agents.agent_registry import AgentRegistry

    # What is wrong is said once, in words of our own.
    logging.getLogger("mainspring").addHandler(logging.NullHandler())
    known = skills or _skills(settings)
    return AgentRegistry([Path(folder) for folder in settings.agents], skills=lambda: known.definitions)


def _inputs(pairs: Sequence[str], whole: str | None) -> "Json":
    """The inputs that the options name. Raises `InvalidRequest`."""
    import sys

    from mainspring.core.errors import InvalidRequest

    text = sys.stdin.read() if whole == "-" else whole or "{}"
    try:
        inputs = msgspec.json.decode(text, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"--inputs must be a JSON object: {error}", param="inputs") from None
    for pair in pairs:
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise InvalidRequest(f"`{pair[:80]}` is no input; write --input NAME=VALUE", param="input")
        inputs[name] = value
    return inputs
