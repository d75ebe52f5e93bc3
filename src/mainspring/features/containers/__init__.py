"""The Containers API."""
