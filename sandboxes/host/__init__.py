"""The host's side of worlds: connections to agents and servers, the life of a world, its commands and seals.

`AgentWorld` (`agent_world.py`, over `world_lifecycle.py`) is the base of every backend's worlds. `world_files.py`
reads a world's files safely.

A snapshot keeps a world's processes in one of four tiers: whole in images of Ramify's own (trees) or of CRIU
(`criu.py` says where it is), copied (Python sessions), or started again (commands). The agent's side is in
`agent/checkpointing/`.
"""
