"""HTTP to other servers: one client for model backends, tools and downloads."""
