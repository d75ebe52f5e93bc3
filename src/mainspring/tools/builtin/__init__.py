"""The tools that come with the engine: files in a working directory, and pages of the web."""
