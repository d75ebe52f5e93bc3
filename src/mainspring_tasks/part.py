from mainspring.parts import Command, Part

PART = Part(
    name="tasks",
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
