"""Effects: the only place that awaits models and tools."""
