"""API keys on the command line."""
