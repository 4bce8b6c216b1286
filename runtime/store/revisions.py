"""The names of the database revisions, oldest first. The migrations are in `versions/`."""

REVISIONS = ("0001", "0002", "0003", "0004", "0005", "0006", "0007")
VERSION_TABLE = "ramify_version"
SCHEMA = "ramify"
"""The schema of our tables on PostgreSQL, where a database may be shared."""
