"""Layers, snapshots, three-way merge and the content-addressed store. Knows nothing of workflows or LLMs."""
