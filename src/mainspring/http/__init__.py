"""The HTTP doors: the Responses API."""
