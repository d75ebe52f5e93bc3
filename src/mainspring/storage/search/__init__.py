"""Finds rows by words and by meaning, in a file or on a PostgreSQL server: what the memory and vector stores are found by."""
