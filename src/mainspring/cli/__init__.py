"""The command line's kit: lazy groups, shared options, console, exit codes."""
