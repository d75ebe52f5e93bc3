"""Backups, and moving a deployment from one database to another."""
