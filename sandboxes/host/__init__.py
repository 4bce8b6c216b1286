"""The host's side of worlds: connections to agents and servers, the life of a world, its commands and seals.

`AgentWorld` (`agent_world.py`, over `world_lifecycle.py`) is the base of every backend's worlds. `world_files.py`
reads a world's files safely.
"""
