"""Decisions: what a person says about their tasks goes in, and what to do about it comes out, on record."""
