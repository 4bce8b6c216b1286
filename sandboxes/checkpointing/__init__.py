"""The host's side of checkpoints: where CRIU is, base images that later images build on, handles of Python sessions.

A snapshot keeps a world's processes in one of four tiers: whole in images of Ramify's own (trees) or of CRIU, copied
(Python sessions), or started again (commands). The agent's side is in `agent/checkpointing/`.
"""
