"""The task agent as a part of Mainspring: `/v1/chat`, `/v1/decisions`, and the commands `chat`, `tasks` and `decisions`."""

from typing import TYPE_CHECKING

from mainspring.late_module import LateModule
from mainspring.parts import Command, Host, Part, PartContents, ServedPart
from mainspring_tasks.decision_settings import DecisionSettings, check_constitution

# Only a server needs its libraries.
if TYPE_CHECKING:
    from mainspring_tasks import routes
else:
    routes = LateModule("mainspring_tasks.routes")


def build(settings: DecisionSettings) -> PartContents:
    """Raises `InvalidRequest` for a constitution that cannot be read."""
    check_constitution(settings)

    def serve(host: Host) -> ServedPart:
        return routes.serve_chat(host, settings)

    return PartContents(serve=serve)


PART = Part(
    name="tasks",
    table="decisions",
    settings=DecisionSettings,
    build=build,
    former_names={"retention_days": "keep_days", "max_iterations": "max_turns"},
    contents="mainspring_tasks.contents:place_tasks",
    commands=(
        Command(
            "chat",
            "mainspring_tasks.chat_command:chat",
            "Talks about your tasks in plain language, and does what you say.",
            "Tasks",
        ),
        Command("tasks", "mainspring_tasks.task_commands:app", "Serves everybody's own task list as an MCP server.", "Tasks"),
        Command(
            "decisions",
            "mainspring_tasks.decision_commands:app",
            "Reads the decision log of the task agent, and checks it for drift.",
            "Tasks",
        ),
    ),
)
