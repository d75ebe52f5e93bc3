"""Prompts: texts with variables, kept in versions."""
