"""The tools that come with the engine: files in a working directory, pages of the web, and code in a sandbox."""
