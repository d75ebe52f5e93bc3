"""Agents: defined in files, invoked once or until they are done, through the one engine."""
