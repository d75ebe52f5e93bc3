"""Calls that wait for a person: listed, shown, answered."""
