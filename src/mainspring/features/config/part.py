from mainspring.parts import Command, Part

PART = Part(
    name="config",
    commands=(
        Command(
            "config", "mainspring.features.config.commands:app", "Shows the settings in force, and what can be set.", "Diagnose"
        ),
        Command(
            "completion",
            "mainspring.features.config.completion:completion",
            "Has a shell complete commands and options.",
            "Diagnose",
        ),
    ),
)
