from mainspring.parts import Command, Part

PART = Part(
    name="prompts",
    commands=(
        Command(
            "prompts",
            "mainspring.features.prompts.commands:app",
            "Creates, lists, shows, changes and deletes prompts.",
            "Agents and workflows",
        ),
    ),
)
