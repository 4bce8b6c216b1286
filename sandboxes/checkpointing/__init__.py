"""The host's side of checkpoints: where CRIU is, base images that later images build on, handles of Python sessions.

A snapshot keeps a world's processes in one of three tiers: dumped whole (CRIU), copied (Python sessions), or started
again (commands). The agent's side is in `agent/checkpointing/`.
"""
