"""What is kept in a PostgreSQL database. This folder is imported when a URL names one, and asyncpg with it."""
