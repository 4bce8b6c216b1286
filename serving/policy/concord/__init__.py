"""Concord."""
