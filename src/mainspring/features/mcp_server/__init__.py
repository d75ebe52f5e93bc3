"""Mainspring as an MCP server: agents, workflows, chosen tools, memory and files for any MCP client."""
