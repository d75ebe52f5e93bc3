"""Where runs are kept: `memory.MemoryStore` for as long as the process lives, `sqlite.SqliteStore` in one file."""
