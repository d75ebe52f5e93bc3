"""MCP servers on the command line."""
