"""All that a deployment keeps, moved from one place to another: into a backup, out of it, from a file to a server and back."""
