"""Finding a workflow or a graph by name: `file.py:name` or `module:name`."""

from ramify.runtime.loading import load_target

__all__ = ["load_target"]
