"""Ramify: fork, roll back, merge and resume the whole state of an agent."""
