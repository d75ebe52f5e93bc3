"""The Chat Completions wire format."""
