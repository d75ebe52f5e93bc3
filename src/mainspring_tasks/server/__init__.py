"""Everybody's own list of tasks, as an MCP server with a database of its own: five tools, and nothing that is not theirs."""
