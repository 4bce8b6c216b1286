"""Checkpoints of a world's processes: dumped whole (CRIU), copied (Python sessions), or restarted (commands)."""
