"""Which models there are, and what each can do."""
