"""A small library for plain-text notes."""
