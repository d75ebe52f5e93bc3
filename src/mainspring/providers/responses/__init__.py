"""The Responses wire format."""
