"""Tools of MCP servers: how a server is described, one connection to each, and the executor that makes their tools ours."""
