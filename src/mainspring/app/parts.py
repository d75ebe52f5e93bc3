"""The parts of the product, in order: the table of contents."""

from functools import cache

from mainspring.features.agents.part import PART as AGENTS
from mainspring.features.approvals.part import PART as APPROVALS
from mainspring.features.audit.part import PART as AUDIT
from mainspring.features.budgets.part import PART as BUDGETS
from mainspring.features.config.part import PART as CONFIG
from mainspring.features.governance.part import PART as GOVERNANCE
from mainspring.features.keys.part import PART as KEYS
from mainspring.features.mcp.part import PART as MCP
from mainspring.features.memory.part import PART as MEMORY
from mainspring.features.models.part import PART as MODELS
from mainspring.features.runs.part import PART as RUNS
from mainspring.features.skills.part import PART as SKILLS
from mainspring.features.traces.part import PART as TRACES
from mainspring.features.workflows.part import PART as WORKFLOWS
from mainspring.parts import Command, FileKind, Part

ENGINE = Part(
    name="engine",
    commands=(
        Command("demo", "mainspring.app.demo.commands:demo", "Shows an agent at work: a scripted model with real tools.", "Run"),
        Command(
            "serve",
            "mainspring.app.serve_command:serve",
            "Serves the OpenAI Responses API, with the tool loop behind it.",
            "Serve",
        ),
    ),
    files=(FileKind("tool", "mainspring.tools.entries:file_schema"),),
)

PARTS = (
    ENGINE,
    RUNS,
    KEYS,
    MCP,
    SKILLS,
    AGENTS,
    WORKFLOWS,
    APPROVALS,
    GOVERNANCE,
    BUDGETS,
    AUDIT,
    MEMORY,
    MODELS,
    TRACES,
    CONFIG,
)


GROUP = "mainspring.parts"
"""The entry point group under which installed packages add their parts."""


@cache
def find_installed_parts() -> tuple[Part, ...]:
    """The parts of installed packages, by the names of their entry points."""
    from importlib.metadata import entry_points  # takes longer than all of our own parts

    return tuple([point.load() for point in sorted(entry_points(group=GROUP), key=lambda point: point.name)])


def find_parts() -> tuple[Part, ...]:
    """Every part: our own, then those of installed packages."""
    return (*PARTS, *find_installed_parts())
