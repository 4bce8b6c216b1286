"""Results of equal operations in equal states are used again, in other branches, runs and processes.

Start at `reuse.py` (lookup and application of a hit; of several callers that need a key, one computes it).
`fingerprints.py` covers what a key cannot hold, and `commands.py` makes single commands of a step reusable.
"""
