"""Ollama's wire format."""
