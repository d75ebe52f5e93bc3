from mainspring.parts import Command, Part

PART = Part(
    name="mcp",
    commands=(
        Command(
            "mcp",
            "mainspring.features.mcp.commands:app",
            "Adds, removes, lists and tests the MCP servers whose tools every request may use.",
            "Serve",
        ),
    ),
)
