"""Makes pytest put this folder on the path."""
