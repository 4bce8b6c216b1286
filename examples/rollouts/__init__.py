"""Rollouts of one task, as for reinforcement learning, in worlds that share the work they have in common."""
