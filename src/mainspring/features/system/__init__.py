"""What the server is made of: its tools, its workers, its settings."""
