"""Results of equal operations in equal states are used again, in other branches, runs and processes.

Start at `reuse.py` (lookup and application of a hit). `fingerprints.py` covers what a key cannot hold,
`single_flight.py` lets one of several callers compute a key, and `commands.py` makes single commands of a step
reusable.
"""
