"""Fidelity."""
