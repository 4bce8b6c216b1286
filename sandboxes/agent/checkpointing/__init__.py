"""The agent's side of checkpoints: dump and restore whole process trees with CRIU, or Python sessions by ptrace."""
