"""Tool calls for models that are held to a JSON Schema."""
