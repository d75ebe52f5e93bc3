"""The table of contents of the product: its commands, its kinds of files, and the parts that installed packages add."""

from functools import cache

from mainspring.core.errors import InvalidRequest
from mainspring.parts import Command, FileKind, Part

GROUP = "mainspring.parts"
"""The entry point group under which installed packages add their parts."""


def _list_commands(panel: str, *rows: tuple[str, str, str]) -> tuple[Command, ...]:
    """Each row: the name, the package whose `commands.py` has it and what it is called there, and what it does."""
    commands = [(name, target.replace(":", ".commands:"), help) for name, target, help in rows]
    return tuple([Command(name, f"mainspring.{target}", help, panel) for name, target, help in commands])


OWN = Part(
    name="mainspring",
    commands=(
        *_list_commands(
            "Run",
            ("demo", "app.demo:demo", "Shows an agent at work: a scripted model with real tools."),
            ("run", "features.runs:run", "Runs an agent and shows it live."),
            ("resume", "features.runs:resume", "Resumes runs whose process ended before they did."),
        ),
        *_list_commands(
            "Serve",
            ("serve", "app:serve", "Serves the OpenAI Responses API, with the tool loop behind it."),
            ("keys", "features.keys:app", "Creates, lists and revokes the API keys of a server."),
            ("mcp", "features.mcp:app", "Adds, lists and tests the MCP servers whose tools every request may use."),
        ),
        *_list_commands(
            "Agents and workflows",
            ("agents", "features.agents:app", "Lists, shows and runs agents that are defined in files."),
            ("workflows", "features.workflows:app", "Lists, shows, runs and resumes workflows that are defined in files."),
        ),
        *_list_commands(
            "Governance",
            ("approvals", "features.approvals:app", "Lists, shows, approves and denies the calls that wait for a person."),
            ("policy", "features.governance:app", "Shows the policies of the settings, and tries them out on calls."),
            ("budgets", "features.budgets:app", "Lists and shows shared budgets, suspends and activates them."),
            (
                "audit",
                "features.audit:app",
                "Verifies and lists the audit log: every verdict, every call, every answer of a person.",
            ),
            (
                "explain",
                "features.audit:explain",
                "Says which rule decided about a call and why, who approved it, and what came of it.",
            ),
        ),
        *_list_commands(
            "Data",
            ("runs", "features.runs:runs", "Lists the runs of a database, newest first."),
            ("show", "features.runs:show", "Shows a run of the database as it was shown live."),
            ("memory", "features.memory:app", "Searches, shows and deletes what runs have said and done."),
        ),
        *_list_commands(
            "Diagnose",
            (
                "models",
                "features.models:models",
                "Lists the models that can be asked: configured, or found in the environment and on this machine.",
            ),
            (
                "doctor",
                "features.models:doctor",
                "Asks every configured model a few small questions, and shows what it can really do.",
            ),
            ("traces", "features.traces:app", "Lists runs as traces, and draws where the time of one went."),
            (
                "replay",
                "features.traces:replay",
                "Replays a stored run without model and tools, and shows that it ends the same.",
            ),
            ("config", "features.config:app", "Shows the settings in force, and what can be set."),
        ),
    ),
    files=(
        FileKind("tool", "mainspring.tools.entries:file_schema"),
        FileKind("skill", "mainspring.features.skills.skill_definition:file_schema"),
        FileKind("agent", "mainspring.features.agents.agent_definition:file_schema"),
        FileKind("workflow", "mainspring.features.workflows.workflow_definition:file_schema"),
    ),
)


@cache
def find_installed_parts() -> tuple[Part, ...]:
    """The parts of installed packages, by the names of their entry points. Raises `InvalidRequest` for one that cannot be used:
    what it would govern must not go ungoverned."""
    from importlib.metadata import entry_points  # takes a while, and most commands need no part of others

    parts: list[Part] = []
    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        package = "a package" if point.dist is None else f"the package `{point.dist.name}`"
        try:
            part = point.load()
        except Exception as error:
            message = f"the part `{point.name}` of {package} cannot be loaded: {error}; mend or uninstall it"
            raise InvalidRequest(message, param=point.name) from error
        if not isinstance(part, Part):
            raise InvalidRequest(f"the part `{point.name}` of {package} is {part!r:.80}, not a `mainspring.parts.Part`")
        known = [each for each in parts if each.table_name == part.table_name and each.settings is not None]
        if part.settings is not None and known:
            raise InvalidRequest(f"the part `{point.name}` of {package} has the table `[{part.table_name}]`, as another part has")
        parts.append(part)
    return tuple(parts)
