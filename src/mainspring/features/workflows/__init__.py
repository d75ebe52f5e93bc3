"""Workflows: agents, commands, requests and the joints between them, step by step, each step recorded before the next."""
