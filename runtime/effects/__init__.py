"""Irreversible steps: an effect on the outside world is recorded before and after it, and never repeated silently.

`fence.py` (Fence) surrounds one effect; `ledger.py` lets a person resolve an effect in doubt, or go back to a
checkpoint and compensate later effects.
"""
