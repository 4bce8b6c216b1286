"""Rollouts of one task, as for reinforcement learning, on worlds that share what they have in common."""
