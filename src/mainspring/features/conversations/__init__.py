"""The Conversations API."""
