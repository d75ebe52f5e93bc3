"""`mainspring agents`: the agents of the settings or of a folder, and one of them at work."""

from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated

import typer
from msgspec import Struct

from mainspring.cli import options
from mainspring.cli.ask import follow_with_answers
from mainspring.cli.context import EngineOptions, build_engine, load_settings
from mainspring.cli.output import report_problems, write_lines, write_table, write_text
from mainspring.core.autonomy import Autonomy, LevelName
from mainspring.core.errors import InvalidRequest
from mainspring.features.agents.agent_definition import AgentDefinition
from mainspring.features.agents.agent_inputs import parse_inputs
from mainspring.features.agents.agent_prompt import build_system_prompt
from mainspring.features.agents.agent_registry import AgentRegistry
from mainspring.features.agents.agent_result import ToolLoopConfig
from mainspring.features.agents.agent_runtime import AgentRuntime
from mainspring.features.skills.skill_folder import SkillFolders

app = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent, as `list` names it.")]
Folders = Annotated[
    list[Path] | None,
    typer.Option("--folder", metavar="DIR", help="Folder of agents. Repeatable. Default: those of the settings."),
]


class AgentSettings(Struct, frozen=True):
    """The settings that these commands read."""

    agents: tuple[str, ...]
    skills: tuple[str, ...]


@app.command("list")
async def list_agents(folder: Folders = None, config: options.Config = None, json: options.AsJson = False) -> int:
    """Lists the agents, and the errors in definitions that cannot be used; then the exit code is 1."""
    registry, _ = _read_folders(_load_settings(folder, config))
    if any(agent.tools is not None or agent.mcp is not None for agent in registry.definitions.values()):
        # Which tools there are only an engine knows.
        engine = build_engine(EngineOptions(kind="steps", settings={"agents": options.as_texts(folder)}, config=config))
        registry = engine.find(AgentRuntime).registry
    agents = list(registry.definitions.values())
    if json:
        write_lines(agents)
    elif agents:
        write_table([(agent.name, agent.version, agent.role, _describe(agent)) for agent in agents])
    return report_problems(registry.problems)


@app.command()
async def show(name: Name, folder: Folders = None, config: options.Config = None, json: options.AsJson = False) -> None:
    """Shows the system prompt of an agent, or its definition as JSON."""
    registry, skills = _read_folders(_load_settings(folder, config))
    agent = registry.get(name)
    if json:
        write_lines([agent])
    else:
        write_text(build_system_prompt(agent, skills=[skills.definitions[skill] for skill in agent.skills]))


def _describe(agent: AgentDefinition) -> str:
    return ("" if agent.status == "active" else f"({agent.status}) ") + " ".join(agent.description.split())


def parse_level(text: str) -> LevelName:
    try:
        return Autonomy.parse(text).label
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


@app.command("run")
def run_agent(
    name: Name,
    input: options.InputPairs = None,
    inputs: options.InputObject = None,
    once: Annotated[bool, typer.Option("--once", help="Take one turn, without tools.")] = False,
    level: Annotated[
        LevelName | None,
        typer.Option(
            parser=parse_level, metavar="LEVEL", help="`read-only`, `supervised`, `standard`, `full`, or its number, 0 to 3."
        ),
    ] = None,
    max_turns: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Turns of the model. Default: the definition's, or 20.")
    ] = None,
    confirm: Annotated[bool, typer.Option("--confirm/--no-confirm", help="Ask it once whether it is done.")] = True,
    model: options.Model = None,
    base_url: options.BaseUrl = None,
    backend_key: options.BackendKey = None,
    tool: options.Tools = None,
    builtin: options.Builtins = None,
    database: options.DatabaseOfSettings = None,
    no_store: options.NoStore = False,
    folder: Folders = None,
    config: options.Config = None,
    json: options.EventsAsJson = False,
) -> Coroutine[object, object, int]:
    """
    Runs an agent on its inputs, and shows it live.

    Examples:

        mainspring agents run code-review --input path=src --builtin file_ops

        mainspring agents run summary --inputs '{"text": "..."}' --once

        cat ticket.json | mainspring agents run triage --inputs - --level 1
    """
    registry, _ = _read_folders(_load_settings(folder, config))
    model = model or registry.get(name).model
    loop = None if once else ToolLoopConfig(max_iterations=max_turns, enable_double_confirmation=confirm)
    given = options.read_inputs(input, inputs)
    where = None if no_store else options.choose_database(database, config)
    assembly = build_engine(
        EngineOptions(
            settings={"agents": options.as_texts(folder), "tools": options.as_texts(tool), "builtins": options.as_texts(builtin)},
            config=config,
            database=where,
            model=model,
            base_url=base_url,
            backend_key=backend_key,
        )
    )
    agents = assembly.find(AgentRuntime)

    async def live() -> int:
        async with assembly.lifespan:
            inputs = parse_inputs(agents.registry.get(name), given)
            handle = await agents.start(name, inputs, loop, autonomy_level=level, model=model)
            return await follow_with_answers(assembly, handle, where, as_json=json)

    return live()


def _load_settings(folders: list[Path] | None, config: Path | None) -> AgentSettings:
    """The settings in force. Raises `InvalidRequest` if no folder of agents is named anywhere."""
    settings = load_settings(AgentSettings, config, agents=options.as_texts(folders))
    if not settings.agents:
        raise InvalidRequest("no folder of agents is named; pass --folder DIR, or set `agents` in mainspring.toml")
    return settings


def _read_folders(settings: AgentSettings) -> tuple[AgentRegistry, SkillFolders]:
    skills = SkillFolders(map(Path, settings.skills))
    return AgentRegistry(map(Path, settings.agents), skills=lambda: skills.definitions), skills
