"""The agents of the folders that the settings name, each a file of YAML or JSON."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from mainspring.definitions.folder import Defined, DefinitionFolders
from mainspring.definitions.parsed_file import hint
from mainspring.features.agents.agent_definition import AgentDefinition, read_definition


class AgentRegistry(DefinitionFolders[AgentDefinition]):
    """All agents by name, without those that need an agent, a skill, a tool or an MCP server that is missing. `skills` returns
    the known skills, `tools` the names of tools; without these, tools and `servers`, which are labels, are not looked for."""

    def __init__(
        self,
        folders: Iterable[Path] = (),
        *,
        skills: Callable[[], Collection[str]] = tuple,
        tools: Callable[[], Collection[str]] | None = None,
        servers: Collection[str] = (),
    ) -> None:
        def find_flaw(name: str, agents: Mapping[str, AgentDefinition]) -> str | None:
            definition = agents[name]
            return _find_lack(definition, agents, skills()) or (
                None
                if tools is None or definition.tools is definition.mcp is None
                else _find_tool_lack(definition, tools(), servers)
            )

        super().__init__("agent", folders, _read, find_flaw=find_flaw, context=lambda: tuple(sorted(skills())))


def _read(file: Path) -> tuple[Defined[AgentDefinition]]:
    definition = read_definition(file)
    return (Defined(definition.name, definition),)


def _find_lack(definition: AgentDefinition, agents: Collection[str], skills: Collection[str]) -> str | None:
    needed = [each.agent for each in definition.dependencies if not each.optional]
    if (missing := next((name for name in needed if name not in agents), None)) is not None:
        return f"needs the agent `{missing}`, which is not there; define it, or say `optional: true`"
    if (missing := next((name for name in definition.skills if name not in skills), None)) is not None:
        return f"needs the skill `{missing}`, which is not there; add it to a folder of skills, or take it out"
    return None


def _find_tool_lack(definition: AgentDefinition, tools: Collection[str], servers: Collection[str]) -> str | None:
    if (missing := next((name for name in definition.tools or () if name not in tools), None)) is not None:
        told = f"{hint(missing, tuple(tools))}" if tools else "there are none"
        return f"needs the tool `{missing}`, which is not there ({told}); name it in `tools` or `builtins` of the settings"
    if (missing := next((label for label in definition.mcp or () if label not in servers), None)) is not None:
        return f"needs the MCP server `{missing}`, which is not there; add it with `mainspring mcp add`, or take it out"
    return None
