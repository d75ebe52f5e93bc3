"""The audit on the command line."""
