from mainspring.parts import Command, Part

PART = Part(
    name="config",
    commands=(
        Command(
            "config", "mainspring.features.config.commands:app", "Shows the settings in force, and what can be set.", "Diagnose"
        ),
    ),
)
