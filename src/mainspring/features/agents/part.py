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
        Command(
            "init",
            "mainspring.features.agents.project:init",
            "Writes a small project that works: settings, an agent, a tool, a test.",
            "Agents and workflows",
        ),
    ),
    files=(FileKind("agent", "mainspring.features.agents.agent_definition:file_schema"),),
)
