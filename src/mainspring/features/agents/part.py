from mainspring.parts import Command, FileKind, Part

PART = Part(
    name="agents",
    commands=(
        Command(
            "agents",
            "mainspring.features.agents.commands:app",
            "Lists, shows and runs agents that are defined in files.",
            "Agents and workflows",
        ),
    ),
    files=(FileKind("agent", "mainspring.features.agents.agent_definition:file_schema"),),
)
