from mainspring.parts import Command, Part

PART = Part(
    name="memory",
    commands=(
        Command(
            "memory",
            "mainspring.features.memory.commands:app",
            "Searches, shows and deletes what runs have said and done.",
            "Data",
        ),
    ),
)
