"""User code."""
