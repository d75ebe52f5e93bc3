"""The agents of the folders that the settings name, each a file of YAML or JSON."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from mainspring.definitions.folder import Defined, DefinitionFolders
from mainspring.features.agents.agent_definition import AgentDefinition, read_definition


class AgentRegistry(DefinitionFolders[AgentDefinition]):
    """All agents by name, without those that need an agent or a skill that is missing. `skills` returns the known skills."""

    def __init__(self, folders: Iterable[Path] = (), *, skills: Callable[[], Collection[str]] = tuple) -> None:
        def find_flaw(name: str, agents: Mapping[str, AgentDefinition]) -> str | None:
            return _find_lack(agents[name], agents, skills())

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
