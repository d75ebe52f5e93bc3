from mainspring.parts import Command, Part

PART = Part(
    name="memory",
    contents="mainspring.features.memory.memory_contents:place_memory",
    commands=(
        Command(
            "memory",
            "mainspring.features.memory.commands:app",
            "Searches, shows and deletes what runs have said and done.",
            "Data",
        ),
    ),
)
