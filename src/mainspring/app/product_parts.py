"""The parts of the product, in order: the table of contents."""

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from mainspring.core.errors import InvalidRequest
from mainspring.features.agents.part import PART as AGENTS
from mainspring.features.approvals.part import PART as APPROVALS
from mainspring.features.audit.part import PART as AUDIT
from mainspring.features.backup.part import PART as BACKUP
from mainspring.features.budgets.part import PART as BUDGETS
from mainspring.features.config.part import PART as CONFIG
from mainspring.features.console.part import PART as CONSOLE
from mainspring.features.governance.part import PART as GOVERNANCE
from mainspring.features.keys.part import PART as KEYS
from mainspring.features.mcp.part import PART as MCP
from mainspring.features.memory.part import PART as MEMORY
from mainspring.features.models.part import PART as MODELS
from mainspring.features.prompts.part import PART as PROMPTS
from mainspring.features.runs.part import PART as RUNS
from mainspring.features.skills.part import PART as SKILLS
from mainspring.features.traces.part import PART as TRACES
from mainspring.features.triggers.part import PART as TRIGGERS
from mainspring.features.vector_stores.part import PART as SEARCH
from mainspring.features.workflows.part import PART as WORKFLOWS
from mainspring.late_module import LateModule
from mainspring.parts import Command, FileKind, Part

# Takes a while, and most commands need no part of others.
if TYPE_CHECKING:
    from importlib import metadata
else:
    metadata = LateModule("importlib.metadata")

ENGINE = Part(
    name="engine",
    commands=(
        Command("demo", "mainspring.app.demo_command:demo", "Shows an agent at work: a scripted model with real tools.", "Run"),
        Command(
            "serve",
            "mainspring.app.serve_command:serve",
            "Serves the OpenAI Responses API, with the tool loop behind it.",
            "Serve",
        ),
        Command("worker", "mainspring.app.serve_command:work", "Drives runs that servers on the same database accept.", "Serve"),
    ),
    files=(FileKind("tool", "mainspring.tools.entries:file_schema"),),
)

PARTS = (
    ENGINE,
    RUNS,
    BACKUP,
    KEYS,
    MCP,
    SKILLS,
    AGENTS,
    PROMPTS,
    WORKFLOWS,
    TRIGGERS,
    APPROVALS,
    GOVERNANCE,
    BUDGETS,
    AUDIT,
    MEMORY,
    SEARCH,
    MODELS,
    TRACES,
    CONSOLE,
    CONFIG,
)


GROUP = "mainspring.parts"
"""The entry point group under which installed packages add their parts."""


@cache
def find_installed_parts() -> tuple[Part, ...]:
    """The parts of installed packages, by the names of their entry points. Raises `InvalidRequest` for one that cannot be used:
    what it would govern must not go ungoverned."""
    parts: list[Part] = []
    for point in sorted(metadata.entry_points(group=GROUP), key=lambda point: point.name):
        package = "a package" if point.dist is None else f"the package `{point.dist.name}`"
        try:
            part = point.load()
        except Exception as error:
            message = f"the part `{point.name}` of {package} cannot be loaded: {error}; mend or uninstall it"
            raise InvalidRequest(message, param=point.name) from error
        if not isinstance(part, Part):
            raise InvalidRequest(f"the part `{point.name}` of {package} is {part!r:.80}, not a `mainspring.parts.Part`")
        check_part(part, (*PARTS, *parts))
        parts.append(part)
    return tuple(parts)


def check_part(part: Part, others: Sequence[Part]) -> None:
    """Raises `InvalidRequest` for a part that does not go together with the others."""
    commands = {command.name for other in others for command in other.commands}
    if taken := [command.name for command in part.commands if command.name in commands]:
        raise InvalidRequest(f"the part `{part.name}` has the command `{taken[0]}`, as another part has; name it otherwise")
    if part.settings is None:
        return
    if not part.table_name.isidentifier():
        raise InvalidRequest(f"the part `{part.name}` has a table `[{part.table_name}]`; use letters, digits and `_`")
    if part.table_name in [other.table_name for other in others if other.settings is not None]:
        raise InvalidRequest(
            f"the part `{part.name}` has the table `[{part.table_name}]`, as another part has; name it otherwise"
        )
    try:
        part.settings()
    except TypeError as error:
        raise InvalidRequest(f"the part `{part.name}`: every field of its settings needs a default: {error}") from None


def find_parts() -> tuple[Part, ...]:
    """Every part: our own, then those of installed packages."""
    return (*PARTS, *find_installed_parts())
