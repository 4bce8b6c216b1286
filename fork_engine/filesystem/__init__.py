"""Filesystem."""
