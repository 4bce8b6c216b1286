"""The backends: what makes worlds. `AgentBackend` is the base for new ones; `copying.py` is the shortest example."""

from ramify.sandboxes.backends.agent_backend import AgentBackend

__all__ = ["AgentBackend"]
