from mainspring.parts import Command, Part

PART = Part(
    name="mcp",
    commands=(
        Command(
            "mcp",
            "mainspring.features.mcp_server.commands:app",
            "Adds, removes, lists and tests the MCP servers whose tools every request may use; serves MCP clients.",
            "Serve",
        ),
    ),
)
