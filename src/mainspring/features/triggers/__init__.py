"""Schedules and webhooks: what starts runs without a client, and who is told of their ends."""
