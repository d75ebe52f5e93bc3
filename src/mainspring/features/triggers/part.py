from mainspring.parts import Command, FileKind, Part

PART = Part(
    name="triggers",
    commands=(
        Command(
            "schedules",
            "mainspring.features.triggers.schedule_commands:app",
            "Lists, shows, runs, pauses and removes schedules.",
            "Agents and workflows",
        ),
        Command(
            "webhooks",
            "mainspring.features.triggers.webhook_commands:app",
            "Lists, shows, rotates and removes webhooks, and delivers events again.",
            "Agents and workflows",
        ),
    ),
    files=(FileKind("schedule", "mainspring.features.triggers.schedule:file_schema"),),
)
