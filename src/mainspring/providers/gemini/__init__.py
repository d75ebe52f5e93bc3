"""Gemini's wire format."""
