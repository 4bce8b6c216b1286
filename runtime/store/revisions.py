"""The versions that a database has had, as names; what they do stands under `versions/`."""

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006")
VERSION_TABLE = "ramify_version"
SCHEMA = "ramify"
"""PostgreSQL's schema for our tables: a database may be shared."""
